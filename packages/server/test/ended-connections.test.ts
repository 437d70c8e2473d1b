import http from "node:http";
import net from "node:net";
import { Writable } from "node:stream";
import { pino } from "pino";
import { afterAll, beforeAll, expect, test } from "vitest";
import { eventually, TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const key = "0123456789abcdef-key";
const upgrade =
  "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

const ports = new TestPorts();
let server: TestServer;
let id: string;
let logged = "";

beforeAll(async () => {
  const log = new Writable({
    write(line, _encoding, done) {
      logged += line;
      done();
    },
  });
  server = await startTestServer({
    provider: ports.factory,
    env: { ALCOVE_AUTH_API_KEY: key, ALCOVE_PREVIEW_ACCESS: "public" },
    logger: pino({ level: "debug" }, log),
  });
  const made = await new TestClient(server.url).call("POST", "/api/v1/sandboxes", {}, { "x-api-key": key });
  id = String(made.json.id);
  const program = http.createServer().on("upgrade", (_request, socket) => {
    socket.end("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  });
  ports.listen(3000, program);
  ports.listen(3001, net.createServer());
});
afterAll(() => server[Symbol.asyncDispose]());

/** Sends bytes and never ends its side. @returns what was answered once the service has given the connection up. */
async function answerTo(bytes: string): Promise<string> {
  const connected = new Promise<net.Socket>((resolve) => server.app.server.once("connection", resolve));
  const { hostname, port } = new URL(server.url);
  const client = net
    .connect({ host: hostname, port: Number(port), allowHalfOpen: true })
    .on("error", () => undefined);
  try {
    let answer = "";
    client.on("data", (piece: Buffer) => {
      answer += piece.toString("latin1");
    });
    const told = new Promise<void>((resolve) => client.once("end", resolve).once("close", () => resolve()));
    client.write(bytes);
    const socket = await connected;
    await eventually(() => (socket.destroyed ? true : undefined));
    await told;
    return answer;
  } finally {
    client.destroy();
  }
}

const get = (path: string, host = "localhost") => `GET ${path} HTTP/1.1\r\nHost: ${host}\r\n${upgrade}\r\n`;

test.each<[name: string, bytes: () => string, status: number]>([
  ["a handshake for no preview", () => get("/", "80-sb-aaaaaaaaaaaa.localhost"), 404],
  ["one for a preview whose program answers otherwise", () => get("/", `3000-${id}.localhost`), 200],
  ["one for a preview without a program", () => get("/", `80-${id}.localhost`), 502],
  ["one with more after it", () => get("/", `80-${id}.localhost`) + "x".repeat(10_000), 502],
  ["one without a key", () => get(`/api/v1/sandboxes/${id}/exec/ws`), 401],
  ["one with a ticket that is none", () => get(`/api/v1/sandboxes/${id}/exec/ws?ticket=none`), 401],
  ["one for a port without a key", () => get(`/api/v1/sandboxes/${id}/ports/3000/`), 401],
  ["one for a tunnel without a key", () => get(`/api/v1/sandboxes/${id}/tunnels/3000`), 401],
  ["one for no route", () => get("/nothing"), 401],
  ["one for an address that cannot be read", () => get("/%zz"), 400],
  [
    "one that asks what another origin may",
    () =>
      `OPTIONS /docs HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\nAccess-Control-Request-Method: GET\r\n${upgrade}\r\n`,
    204,
  ],
  ["no HTTP", () => "no HTTP\r\n\r\n", 400],
  [
    "a body that cannot be read",
    () => "POST /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    400,
  ],
  [
    "a plain request to a path that speaks WebSocket, which is to be the last",
    () =>
      `GET /api/v1/sandboxes/${id}/tunnels/80 HTTP/1.1\r\nHost: localhost\r\nX-API-Key: ${key}\r\nConnection: close\r\n\r\n`,
    426,
  ],
  [
    "such a one that offers another protocol, of whose connection the parser leaves what follows",
    () =>
      `GET /api/v1/sandboxes/${id}/tunnels/80 HTTP/1.1\r\nHost: localhost\r\nX-API-Key: ${key}\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nGET /live HTTP/1.1\r\nHost: localhost\r\n\r\n`,
    426,
  ],
  [
    "a body in a coding that nobody undoes",
    () => "POST /live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n",
    501,
  ],
  [
    "an expectation that nobody meets",
    () => "POST /live HTTP/1.1\r\nHost: localhost\r\nExpect: much\r\nContent-Length: 100000\r\n\r\nx",
    417,
  ],
])("the connection of %s ends soon, whatever its client does", async (_name, bytes, status) => {
  const answer = await answerTo(bytes());
  expect(answer.split(" ")[1]).toBe(String(status));
  const [head = "", body = ""] = answer.split("\r\n\r\n");
  const length = /content-length: (\d+)/i.exec(head)?.[1] ?? 0;
  expect(body).toHaveLength(Number(length));
});

test.each(["/live", "/docs", "/docs/start.js", "/api/v1/openapi.json"])(
  "a handshake for %s, which is no WebSocket, is 400, and the log has nothing of its query",
  async (path) => {
    logged = "";
    const answer = await answerTo(get(`${path}?ticket=tk-secret`));
    expect(answer).toMatch(/^HTTP\/1.1 400 /);
    expect(answer).toContain("is no WebSocket; ask for it without an upgrade");
    await eventually(() => (logged.includes(path) ? true : undefined));
    expect(logged).not.toContain("tk-secret");
  },
);

test("what a client sends that is no WebSocket message is told at debug, of which request, without a stack", async () => {
  const { hostname, port } = new URL(server.url);
  const client = net.connect(Number(port), hostname).on("error", () => undefined);
  const before = logged.length;
  let answer = "";
  client.on("data", (bytes: Buffer) => {
    answer += bytes.toString("latin1");
  });
  const closed = new Promise((resolve) => client.once("close", resolve));
  client.write(
    `GET /api/v1/sandboxes/${id}/tunnels/3001 HTTP/1.1\r\nHost: localhost\r\nX-API-Key: ${key}\r\nX-Request-ID: parts-1\r\n${upgrade}\r\n`,
  );
  await eventually(() => (answer.includes("101 Switching") ? true : undefined));
  // Parts of one message, more than are allowed.
  const part = Buffer.from([0, 0x81, 0, 0, 0, 0, 97]);
  client.write(Buffer.concat([Buffer.from([2, 0x81, 0, 0, 0, 0, 97]), ...Array<Buffer>(5_000).fill(part)]));
  await closed;
  const lines = logged
    .slice(before)
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  expect(lines.filter(({ level }) => Number(level) > 30)).toEqual([]);
  const told = lines.filter(({ msg }) => msg === "websocket failed");
  expect(told).toMatchObject([
    {
      level: 20,
      request_id: "parts-1",
      path: `/api/v1/sandboxes/${id}/tunnels/3001`,
      code: "WS_ERR_TOO_MANY_BUFFERED_PARTS",
      error: "Too many message fragments",
    },
  ]);
  expect(told[0]).not.toHaveProperty("err");
});
