import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import net from "node:net";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { heldBytes } from "../src/platform/testing/held-memory.ts";
import { eventually, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";
import { longestTurnMs, TurnWatch } from "./support/turn-watch.ts";

const mib = 1_048_576;
const chunksPerWrite = 20_000;

let server: TestServer;
let client: TestClient;
let sandbox: string;
const open: net.Socket[] = [];

beforeAll(async () => {
  server = await startTestServer({ provider: mockProvider });
  client = new TestClient(server.url);
  sandbox = `/api/v1/sandboxes/${await client.spawn()}`;
});
afterEach(() => {
  for (const socket of open.splice(0)) socket.destroy();
});
afterAll(() => server[Symbol.asyncDispose]());

interface Raw {
  readonly socket: net.Socket;
  /** All that was answered. */
  answer: string;
}

/** A connection that has sent the head of a request whose body follows in chunks. */
function begin(
  requestLine: string,
  headers = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n",
): Raw {
  const { hostname, port } = new URL(server.url);
  const socket = net.connect(Number(port), hostname).on("error", () => undefined);
  open.push(socket);
  const raw: Raw = { socket, answer: "" };
  socket.on("data", (bytes) => {
    raw.answer += bytes.toString("latin1");
  });
  socket.write(`${requestLine} HTTP/1.1\r\nHost: ${hostname}\r\n${headers}\r\n`);
  return raw;
}

const chunk = (text: string) => `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`;

/** Sends so many chunks as fast as they are taken. @returns once they were, or no more were for a while. */
async function send({ socket }: Raw, chunks: number, one = chunk("a")): Promise<void> {
  const many = Buffer.from(one.repeat(chunksPerWrite));
  for (let sent = 0; sent < chunks; sent += chunksPerWrite) {
    if (socket.write(many)) continue;
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const timer = setTimeout(() => resolve(false), 5_000);
    socket.once("drain", () => resolve(true));
    const taken = await promise;
    clearTimeout(timer);
    if (!taken) return;
  }
}

test.each([
  ["a byte each", chunk("a"), 1],
  ["a few bytes each", chunk("abcdefgh"), 8],
  ["a byte each, with extensions", "1;a=bcd\r\na\r\n", 1],
])(
  "a JSON body in chunks of %s takes the memory of its bytes and no long turns",
  async (_how, one, bytes) => {
    const before = await heldBytes();
    using turns = new TurnWatch();
    const raw = begin(`POST ${sandbox}/files`);
    raw.socket.write(chunk('{"path":"/tmp/tiny","content":"'));
    await send(raw, 400_000, one);
    await eventually(() => (raw.socket.writableLength === 0 ? true : undefined));
    expect(turns.longestMs).toBeLessThan(longestTurnMs);
    // What it is charged for is twice its bytes.
    expect((await heldBytes()) - before).toBeLessThan(400_000 * bytes * 2 + 4 * mib);
    raw.socket.write(`${chunk('"}')}0\r\n\r\n`);
    await eventually(() => (raw.answer.includes("written") ? true : undefined));
    const { json } = await client.call("GET", `${sandbox}/files/stat?path=/tmp/tiny`);
    expect(json.size).toBe(400_000 * bytes);
  },
);

test("a body of what takes none is dropped while the answer lasts, and who leaves is noticed", async () => {
  const before = await heldBytes();
  const raw = Array.from({ length: 4 }, () => begin("GET /api/v1/events"));
  await eventually(() => (server.app.callsUnderWay.size === raw.length ? true : undefined));
  await Promise.all(raw.map((one) => send(one, 300_000)));
  await eventually(() => (raw.every(({ socket }) => socket.writableLength === 0) ? true : undefined));
  expect((await heldBytes()) - before).toBeLessThan(4 * mib);
  for (const { socket } of raw) socket.destroy();
  await eventually(() => (server.app.callsUnderWay.size === 0 ? true : undefined));
});

test("a raw upload in chunks of a byte each takes the memory of its bytes", async () => {
  const before = await heldBytes();
  const raw = begin(`PUT ${sandbox}/files?path=/tmp/raw`, "Transfer-Encoding: chunked\r\n");
  await send(raw, 400_000);
  await eventually(() => (raw.socket.writableLength === 0 ? true : undefined));
  expect((await heldBytes()) - before).toBeLessThan(6 * mib);
});

test("bodies in chunks of a byte that nobody takes keep nobody waiting, however many are sent at once", async () => {
  using turns = new TurnWatch();
  const raw = Array.from({ length: 96 }, (_, at) =>
    begin(at % 2 === 0 ? "PUT /nowhere" : `PUT ${sandbox}/files?path=/tmp/raw${at}`),
  );
  await Promise.all(raw.map(({ socket }) => once(socket, "connect")));
  const many = Buffer.from(chunk("a").repeat(chunksPerWrite));
  for (const { socket } of raw) socket.write(many);
  turns.restart();
  for (let count = 0; count < 20; count++) expect((await client.call("GET", "/live")).status).toBe(200);
  expect(turns.longestMs).toBeLessThan(longestTurnMs / 5);
});

const opcodes = { more: 0, text: 1, ping: 9, pong: 10 } as const;

/** A frame of a client, whose mask changes nothing. */
function frame(opcode: number, bytes: string, options: { last?: boolean } = {}): Buffer {
  const head = Buffer.from([
    (options.last === false ? 0 : 0x80) | opcode,
    0x80 | Buffer.byteLength(bytes),
    0,
    0,
    0,
    0,
  ]);
  return Buffer.concat([head, Buffer.from(bytes)]);
}

/** A WebSocket that has begun a message. */
async function beginMessage(): Promise<Raw & { closed: Promise<unknown> }> {
  const raw = begin(
    `GET ${sandbox}/exec/ws`,
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
  );
  const closed = new Promise((resolve) => raw.socket.once("close", resolve));
  await eventually(() => (raw.answer.includes("101 Switching") ? true : undefined));
  raw.socket.write(frame(opcodes.text, "{", { last: false }));
  return Object.assign(raw, { closed });
}

/** The close frame with this code came. */
const wasClosedWith = ({ answer }: Raw, code: number) =>
  Buffer.from(answer, "latin1").includes(Buffer.from([code >> 8, code & 0xff]));

test.each([
  ["pings", opcodes.ping],
  ["pongs", opcodes.pong],
])(
  "a part of a WebSocket message keeps little of the %s it came with, and a flood of them ends it",
  async (_how, opcode) => {
    const before = await heldBytes();
    const raw = await beginMessage();
    const block = Buffer.concat([
      frame(opcodes.more, "a", { last: false }),
      ...Array<Buffer>(499).fill(frame(opcode, "b".repeat(125))),
    ]);
    for (let n = 0; n < 8; n++) raw.socket.write(block);
    await eventually(() => (raw.socket.writableLength === 0 ? true : undefined));
    expect((await heldBytes()) - before).toBeLessThan(3 * mib);
    expect(raw.socket.destroyed).toBe(false);
    for (let n = 0; n < 8; n++) raw.socket.write(block);
    await raw.closed;
    expect(wasClosedWith(raw, 1008)).toBe(true);
  },
);

test("a WebSocket message of very many parts ends the connection", async () => {
  const raw = await beginMessage();
  const part = frame(opcodes.more, "a", { last: false });
  raw.socket.write(Buffer.concat(Array<Buffer>(4_000).fill(part)));
  await eventually(() => (raw.socket.writableLength === 0 ? true : undefined));
  expect(raw.socket.destroyed).toBe(false);
  raw.socket.write(Buffer.concat(Array<Buffer>(1_000).fill(part)));
  await raw.closed;
  expect(wasClosedWith(raw, 1008)).toBe(true);
});

test("messages that do not end take bounded memory, however many WebSockets have one, and who finds none is told to come again", async () => {
  const before = await heldBytes();
  const head = Buffer.alloc(14);
  head[0] = opcodes.more;
  head[1] = 0xff;
  head.writeBigUInt64BE(BigInt(4 * mib - 100), 2);
  const part = Buffer.concat([head, Buffer.alloc(4 * mib - 200)]);
  const all: Awaited<ReturnType<typeof beginMessage>>[] = [];
  for (let n = 0; n < 50; n++) {
    const raw = await beginMessage();
    raw.socket.write(part);
    all.push(raw);
  }
  await eventually(
    () => (all.filter((raw) => wasClosedWith(raw, 1013)).length > 15 ? true : undefined),
    40_000,
  );
  // An owner's half of all that there is.
  expect((await heldBytes()) - before).toBeLessThan(150 * mib);
  expect(all.filter((raw) => !raw.socket.destroyed).length).toBeGreaterThan(25);
  for (const { socket } of all) socket.destroy();
}, 60_000);

test("what comes byte by byte for a WebSocket that is not read waits in few pieces", async () => {
  const served: net.Socket[] = [];
  const onSocket = (message: unknown) => served.push((message as { socket: net.Socket }).socket);
  subscribe("net.server.socket", onSocket);
  const raw = await beginMessage();
  unsubscribe("net.server.socket", onSocket);
  const [socket] = served as [net.Socket];
  raw.socket.setNoDelay(true);
  socket.pause();
  const before = socket.bytesRead;
  const part = frame(opcodes.more, "abcdefghijklmnop", { last: false });
  for (let n = 0; n < 40; n++)
    for (const byte of part) {
      raw.socket.write(Buffer.of(byte));
      await new Promise((resolve) => setImmediate(resolve));
    }
  await eventually(() => (socket.bytesRead - before >= 40 * part.length ? true : undefined));
  let pieces = 0;
  socket.on("data", () => {
    pieces += 1;
  });
  socket.resume();
  await eventually(() => (socket.readableLength === 0 && pieces > 0 ? true : undefined));
  expect(pieces).toBeLessThan(10);
});
