// A dev server as bundlers bring one: pages, and a WebSocket that returns
// each text (frames of up to 64 KiB). Says "ready" on a line.
import http from "node:http";
import { createHash } from "node:crypto";

const MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const server = http.createServer((request, answer) => answer.end(`inside ${request.url}\n`));

server.on("upgrade", (request, socket) => {
  const key = request.headers["sec-websocket-key"];
  const accept = createHash("sha1").update(key + MAGIC).digest("base64");
  socket.write(
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
      `Sec-WebSocket-Accept: ${accept}\r\n\r\n`,
  );
  let held = Buffer.alloc(0);
  socket.on("error", () => socket.destroy());
  socket.on("data", (piece) => {
    held = Buffer.concat([held, piece]);
    for (;;) {
      const long = (held[1] & 127) === 126;
      const start = long ? 4 : 2;
      if (held.length < start + 4) return;
      const length = long ? held.readUInt16BE(2) : held[1] & 127;
      if (held.length < start + 4 + length) return;
      const mask = held.subarray(start, start + 4);
      const body = Buffer.from(held.subarray(start + 4, start + 4 + length));
      body.forEach((byte, index) => (body[index] = byte ^ mask[index % 4]));
      const head = Buffer.from([0x81, long ? 126 : length, ...(long ? [length >> 8, length & 255] : [])]);
      socket.write(Buffer.concat([head, body]));
      held = held.subarray(start + 4 + length);
    }
  });
});
server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("ready"));
