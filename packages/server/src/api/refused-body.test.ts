import { once } from "node:events";
import http from "node:http";
import net, { type AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { expect, test } from "vitest";
import { JoinedRequest } from "./joined-request.ts";
import { endUnlessComplete, refusalOfBody } from "./refused-body.ts";

test("a sender that never ends gets its refusal, and is left when the patience is over", async () => {
  const answer = Buffer.from("no");
  const server = http.createServer((request, response) => {
    response.writeHead(413, { "content-length": answer.length, connection: "close" });
    Readable.from(refusalOfBody(answer, request, { patienceMs: 100 })).pipe(response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const { port } = server.address() as AddressInfo;
    const request = http.request({ host: "127.0.0.1", port, method: "PUT", agent: false });
    request.on("error", () => undefined);
    request.write("some");
    const [response] = (await once(request, "response")) as [http.IncomingMessage];
    expect([response.statusCode, String(await response.toArray())]).toEqual([413, "no"]);
    await once(request, "close");
  } finally {
    server.close();
    server.closeAllConnections();
  }
});

test("a body that goes on after the answer keeps its connection no longer than the patience; one that ends may be followed", async () => {
  const server = http.createServer((request, response) => {
    response.once("finish", () => endUnlessComplete(request, { patienceMs: 300 }));
    response.end("yes");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const open = (rest: string) => {
    const socket = net.connect(port, "127.0.0.1").on("error", () => undefined);
    socket.write(`GET / HTTP/1.1\r\nHost: x\r\n${rest}`);
    return socket;
  };
  try {
    const slow = [open("Content-Length: 1000000\r\n\r\n"), open("Transfer-Encoding: chunked\r\n\r\n")];
    const drip = setInterval(() => {
      slow[0]?.write("x");
      slow[1]?.write("1\r\nx\r\n");
    }, 20);
    const complete = open("Content-Length: 2\r\n\r\n");
    await once(complete, "data");
    complete.write("xx");
    await Promise.all(slow.map(closed));
    clearInterval(drip);
    const answered = once(complete, "data");
    complete.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(String(await answered)).toContain("yes");
    complete.destroy();
  } finally {
    server.close();
    server.closeAllConnections();
  }
});

/** Resolves when a connection is closed; that it was reset is as good. */
function closed(socket: net.Socket): Promise<void> {
  if (socket.closed) return Promise.resolve();
  return new Promise((resolve) => socket.resume().once("close", () => resolve()));
}

test("a refused body in pieces of a byte is not read to the end of the patience", async () => {
  const answer = Buffer.from("no");
  const server = http.createServer({ IncomingMessage: JoinedRequest }, (request, response) => {
    response.writeHead(413, { "content-length": answer.length, connection: "close" });
    if (request.url === "/answered") response.once("finish", () => endUnlessComplete(request)).end(answer);
    else Readable.from(refusalOfBody(answer, request, { patienceMs: 60_000 })).pipe(response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  try {
    for (const url of ["/", "/answered"]) {
      const socket = net.connect(port, "127.0.0.1").on("error", () => undefined);
      socket.write(`POST ${url} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n`);
      socket.resume().write("1\r\nx\r\n".repeat(20_000));
      await once(socket, "close");
    }
  } finally {
    server.close();
    server.closeAllConnections();
  }
}, 4_000);
