// A plain proxy, as Node's manual would have it: what any proxy written for Node costs. proxy.mjs PORT TARGET_PORT
import http from "node:http";

const [port, target] = process.argv.slice(2).map(Number);
const ask = ({ method, url, headers }) => http.request({ port: target, method, path: url, headers });
const server = http.createServer((request, response) => {
  const outgoing = ask(request);
  outgoing.on("response", (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
    response.on("close", () => answer.destroy());
  });
  outgoing.on("error", () => response.destroy());
  request.pipe(outgoing);
});
server.on("upgrade", (request, socket) => {
  const outgoing = ask(request).end();
  outgoing.on("error", () => socket.destroy());
  outgoing.on("upgrade", (_answer, program) => {
    socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    for (const [from, to] of [
      [socket, program],
      [program, socket],
    ]) {
      from.on("error", () => to.destroy()).on("close", () => to.destroy());
      from.pipe(to);
    }
  });
});
server.listen(port, "127.0.0.1");
