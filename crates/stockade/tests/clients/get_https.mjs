// Fetches a page with Node's https, which ignores proxy variables.
import https from "node:https";

https.get(process.argv[2], (answer) => {
  if (answer.statusCode !== 200) throw new Error(`status ${answer.statusCode}`);
  answer.pipe(process.stdout);
});
