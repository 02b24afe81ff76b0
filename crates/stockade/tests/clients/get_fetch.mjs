// Fetches a page with Node's fetch, which ignores proxy variables.
const answer = await fetch(process.argv[2]);
if (!answer.ok) throw new Error(`status ${answer.status}`);
process.stdout.write(await answer.text());
