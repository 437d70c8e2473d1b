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
const post = (path: string, body: string) =>
  `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;

test("of thousands of requests on one connection one at a time is under way, and others are answered meanwhile", async () => {
  const { socket } = send(get("/api/v1/events").repeat(100));
  await eventually(() => (server.app.callsUnderWay.size > 0 ? true : undefined));
  socket.write(get("/api/v1/events").repeat(5_000));
  expect((await new TestClient(server.url).call("GET", "/live")).status).toBe(200);
  expect(server.app.callsUnderWay.size).toBeLessThan(2);
});

test("requests on one connection are answered in order, whatever they take", async () => {
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

test.each([
  [
    "expect what nobody does",
    "GET /live HTTP/1.1\r\nHost: a\r\nExpect: much\r\n\r\n",
    "417 Expectation Failed",
  ],
  ["have no Host", "GET /live HTTP/1.1\r\n\r\n", "400 Bad Request"],
  ["have two of them", "GET /live HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", "400 Bad Request"],
])(
  "requests that %s wait as others do, are refused in their turn and end the connection",
  async (_what, request, status) => {
    const many = send(`${get("/api/v1/events")}${request.repeat(130)}`);
    await many.closed;
    const one = send(`${get("/live")}${request}${get("/live")}`);
    await one.closed;
    expect(one.answer).toMatch(new RegExp(`^HTTP/1.1 200 OK.*HTTP/1.1 ${status}`, "s"));
    expect(one.answer.match(/HTTP\/1.1/g)).toHaveLength(2);
  },
);

test("a request has at most 200 headers", async () => {
  const withHeaders = (count: number) =>
    `GET /live HTTP/1.1\r\nHost: localhost\r\n${"a:b\r\n".repeat(count - 1)}\r\n`;
  const sent = send(withHeaders(200) + withHeaders(201));
  await sent.closed;
  expect(sent.answer).toMatch(
    /^HTTP\/1.1 200 OK.*HTTP\/1.1 400 Bad Request.*more than 16 KiB or 200 headers/s,
  );
});

test("what cannot be read behind a request that is still answered is no part of that answer, and ends the connection after it", async () => {
  const sent = send(get("/api/v1/events"));
  await eventually(() => (sent.answer.includes("200 OK") ? true : undefined));
  sent.socket.write("NO HTTP\r\n\r\n");
  const api = new TestClient(server.url);
  const id = await api.spawn();
  await eventually(() => (sent.answer.includes(id) ? true : undefined));
  expect(sent.answer).not.toContain("400 Bad Request");
  const body = JSON.stringify({ command: "sleep 0.2; echo done" });
  const whole = send(`${post(`/api/v1/sandboxes/${id}/exec`, body)}NO HTTP\r\n\r\n`);
  await whole.closed;
  expect(whole.answer).toMatch(/^HTTP\/1.1 200 OK.*"stdout":"done\\n".*HTTP\/1.1 400 Bad Request/s);
  const broken = send(
    "POST /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
  );
  await broken.closed;
  expect(broken.answer).toContain("400 Bad Request");
  const alone = send("NO HTTP\r\n\r\n");
  await alone.closed;
  expect(alone.answer).toContain("400 Bad Request");
});

const upgrade = (path: string, protocol: string) =>
  `GET ${path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: ${protocol}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n`;

test("a handshake behind a request that is still answered is answered as what it is without one", async () => {
  const id = await new TestClient(server.url).spawn();
  const body = JSON.stringify({ command: "sleep 0.2; echo done" });
  const path = `/api/v1/sandboxes/${id}/exec`;
  const sent = send(post(path, body) + upgrade(`${path}/ws`, "websocket"));
  await eventually(() => (sent.answer.includes("upgrade_required") ? true : undefined));
  expect(sent.answer).toMatch(/^HTTP\/1.1 200 OK.*"stdout":"done\\n".*HTTP\/1.1 426 /s);
});

test.each([
  ["another protocol", "200 OK", () => upgrade("/live", "h2c") + get("/live")],
  [
    "another protocol, with a body",
    "200 OK",
    () => upgrade("/live", "h2c").replace("\r\n\r\n", `\r\nContent-Length: 2\r\n\r\n{}${get("/live")}`),
  ],
  [
    "a WebSocket that is refused",
    "404 Not Found",
    () => upgrade("/api/v1/sandboxes/sb-none/exec/ws", "websocket") + get("/live"),
  ],
])("what stands behind a request for %s and may be lost is told to be", async (_what, status, bytes) => {
  const sent = send(bytes());
  await sent.closed;
  expect(sent.answer.startsWith(`HTTP/1.1 ${status}`)).toBe(true);
  expect(sent.answer).toMatch(/^connection: close\r$/im);
});

test("a request that offers another protocol and has nothing behind it keeps its connection", async () => {
  const sent = send(upgrade("/live", "h2c"));
  await eventually(() => (sent.answer.includes("alive") ? true : undefined));
  sent.socket.write(get("/live"));
  await eventually(() => (sent.answer.split("200 OK").length === 3 ? true : undefined));
  expect(sent.answer).not.toMatch(/^connection: close\r$/im);
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

test("connections are kept for longer than proxies keep them, and bodies take as long as they take", async () => {
  const { keepAliveTimeout, requestTimeout, headersTimeout } = server.app.server;
  expect({ keepAliveTimeout, requestTimeout, headersTimeout }).toEqual({
    keepAliveTimeout: 75_000,
    requestTimeout: 0,
    headersTimeout: 60_000,
  });
  const sent = send(get("/live"));
  await eventually(() => (sent.answer.includes("alive") ? true : undefined));
  expect(sent.answer).toMatch(/^keep-alive: timeout=75\r$/im);
});

test("the head of a request has a deadline, and is told of it", async () => {
  const { headersTimeout } = server.app.server;
  server.app.server.headersTimeout = 100;
  try {
    const sent = send("GET /live HTTP/1.1\r\nHost: local");
    await sent.closed;
    expect(sent.answer).toMatch(/^HTTP\/1.1 408 Request Timeout\r\n.*"code":"timeout"/s);
  } finally {
    server.app.server.headersTimeout = headersTimeout;
  }
});
