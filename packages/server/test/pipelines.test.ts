import net from "node:net";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { eventually, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

let server: TestServer;
const open: net.Socket[] = [];

beforeAll(async () => {
  server = await startTestServer({ provider: mockProvider });
});
afterEach(async () => {
  for (const socket of open.splice(0)) socket.destroy();
  await eventually(() => (server.app.callsUnderWay.size === 0 ? true : undefined));
});
afterAll(() => server[Symbol.asyncDispose]());

/** A connection that has sent these bytes, and all that was answered. */
function send(bytes: string) {
  const { hostname, port } = new URL(server.url);
  const socket = net.connect(Number(port), hostname).on("error", () => undefined);
  open.push(socket);
  const sent = { socket, answer: "", closed: new Promise((resolve) => socket.once("close", resolve)) };
  socket.on("data", (piece) => {
    sent.answer += piece.toString("latin1");
  });
  socket.write(bytes);
  return sent;
}

const get = (path: string) => `GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`;

test("of thousands of requests on one connection one at a time is under way, and others are answered meanwhile", async () => {
  const { socket } = send(get("/api/v1/events").repeat(100));
  await eventually(() => (server.app.callsUnderWay.size > 0 ? true : undefined));
  socket.write(get("/api/v1/events").repeat(5_000));
  expect((await new TestClient(server.url).call("GET", "/live")).status).toBe(200);
  expect(server.app.callsUnderWay.size).toBeLessThan(2);
});

test("requests on one connection are answered in order, whatever they take", async () => {
  const post = (path: string, body: string) =>
    `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  const each = Array.from({ length: 100 }, (_, at) =>
    at % 3 === 0
      ? post("/api/v1/sandboxes/sb-none/exec", JSON.stringify({ command: "x".repeat(at * 900 + 1) }))
      : get(at % 3 === 1 ? "/live" : `/api/v1/sandboxes/sb-${at}`),
  );
  const sent = send(each.join(""));
  const statuses = () => [...sent.answer.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => status);
  await eventually(() => (statuses().length === each.length ? true : undefined));
  expect(statuses()).toEqual(each.map((_, at) => (at % 3 === 1 ? "200" : "404")));
  const named = [...sent.answer.matchAll(/\\?"sb-(\d+)\\?"/g)].map(([, at]) => Number(at));
  expect(named).toEqual([...named].sort((one, other) => one - other));
});

test("a connection with more than 128 requests that wait is ended", async () => {
  const bytes = `GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n${"GET / HTTP/1.1\r\nHost:a\r\n\r\n".repeat(130)}`;
  const { closed } = send(bytes);
  await closed;
});

test("what cannot be read behind a request that is still answered ends the connection, and is no part of that answer", async () => {
  const sent = send(get("/api/v1/events"));
  await eventually(() => (sent.answer.includes("200 OK") ? true : undefined));
  sent.socket.write("NO HTTP\r\n\r\n");
  await sent.closed;
  expect(sent.answer).not.toContain("400 Bad Request");
  const broken = send(
    "POST /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
  );
  await broken.closed;
  expect(broken.answer).toContain("400 Bad Request");
  const alone = send("NO HTTP\r\n\r\n");
  await alone.closed;
  expect(alone.answer).toContain("400 Bad Request");
});

test("who leaves while requests wait leaves nothing behind", async () => {
  const { socket } = send(get("/api/v1/events").repeat(30));
  await eventually(() => (server.app.callsUnderWay.size === 1 ? true : undefined));
  socket.destroy();
});

test("a handshake with a body is none, whatever is sent before and after it", async () => {
  const { json } = await new TestClient(server.url).call("POST", "/api/v1/sandboxes", {});
  const handshake = `GET /api/v1/sandboxes/${json.id}/exec/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nContent-Length: 10\r\n\r\n`;
  const sent = send(get("/live") + handshake);
  await eventually(() => (sent.answer.includes("200 OK") ? true : undefined));
  sent.socket.write("0123456789");
  await eventually(() => (/HTTP\/1\.1 4\d\d/.test(sent.answer) ? true : undefined));
  expect(sent.answer).not.toContain(" 101 ");
});
