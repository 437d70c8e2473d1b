import { once } from "node:events";
import { type AddressInfo, connect, type Socket } from "node:net";
import { afterEach, expect, it } from "vitest";
import { type WebSocket, WebSocketServer } from "ws";
import { heldBytes } from "../../platform/testing/held-memory.ts";
import { socketBounds } from "./socket-bounds.ts";
import { SocketMemory, tryAgainLater } from "./socket-memory.ts";
import { socketBudget } from "./testing/socket-budget.ts";

const generous = { timeout: 20_000 };
const mib = 1_048_576;
const closing: (() => void)[] = [];

afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** WebSockets whose messages have so much memory together, an owner's half of it. */
async function withMemory(options: { totalBytes: number; waitMs: number }) {
  const budget = socketBudget(options);
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0, ...socketBounds });
  const state = {
    taken: 0,
    ended: 0,
    last: Buffer.alloc(0) as Buffer,
    sockets: [] as WebSocket[],
    memories: [] as SocketMemory[],
  };
  server.on("connection", (socket, request) => {
    const memory = new SocketMemory({
      socket,
      connection: request.socket,
      memory: { budget, share: { principal: "key", owner: request.url ?? "" } },
      onRoom: () => socket.resume(),
      onEnd: (why) => {
        state.ended += 1;
        socket.close(tryAgainLater, why);
        socket.pause();
        setTimeout(() => socket.terminate(), 100);
      },
    });
    state.sockets.push(socket);
    state.memories.push(memory);
    socket.on("error", () => undefined);
    socket.on("message", (data: Buffer) => {
      state.taken += 1;
      state.last = data;
    });
  });
  await once(server, "listening");
  closing.push(() => {
    for (const socket of server.clients) socket.terminate();
    server.close();
  });
  const open = async (owner: string, options = {}): Promise<Socket> => {
    const { port } = server.address() as AddressInfo;
    const client = connect({ port, host: "127.0.0.1", ...options });
    closing.push(() => client.destroy());
    client.on("error", () => undefined);
    client.write(
      `GET /${owner} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n`,
    );
    await once(client, "data");
    client.resume();
    return client;
  };
  return { budget, state, open };
}

/** A frame of a message, masked with nothing. */
function frame(bytes: number, options: { last: boolean }): Buffer {
  const head = Buffer.alloc(14);
  head[0] = options.last ? 0x80 : 0x02;
  head[1] = 0xff;
  head.writeBigUInt64BE(BigInt(bytes), 2);
  return Buffer.concat([head, Buffer.alloc(bytes)]);
}

it("however many messages do not end, what is held of them is bounded, and who finds no room is told to come again", async () => {
  const { budget, state, open } = await withMemory({ totalBytes: 8 * mib, waitMs: 300 });
  const before = process.memoryUsage().arrayBuffers;
  for (let index = 0; index < 20; index += 1) {
    const client = await open("one");
    client.write(frame(mib, { last: false }));
  }
  await expect.poll(() => state.ended, generous).toBeGreaterThanOrEqual(16);
  expect(budget.heldBytes).toBeLessThanOrEqual(4 * mib);
  expect(state.ended).toBeLessThan(20);
  await expect.poll(() => budget.waiting, generous).toBe(0);
  // Others have room meanwhile.
  const other = await open("two");
  other.write(Buffer.concat([frame(mib, { last: false }), frame(10, { last: true })]));
  await expect.poll(() => state.taken, generous).toBe(1);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(40 * mib);
});

it.each([
  ["in one part", 1],
  ["in several", 4],
])("of many messages %s that come at once all are taken, one after another", async (_how, parts) => {
  const { budget, state, open } = await withMemory({ totalBytes: 32 * mib, waitMs: 4_000 });
  const clients = await Promise.all(Array.from({ length: 140 }, () => open("one")));
  const bytes = (2 * mib) / parts;
  const message = Buffer.concat(
    Array.from({ length: parts }, (_, at) => {
      const part = frame(bytes, { last: at === parts - 1 });
      part[0] = (at === parts - 1 ? 0x80 : 0) | (at === 0 ? 2 : 0);
      return part;
    }),
  );
  for (let at = 0; at < message.length; at += mib / 4)
    for (const client of clients) client.write(message.subarray(at, at + mib / 4));
  await expect.poll(() => state.taken + state.ended, generous).toBe(clients.length);
  expect([state.taken, state.ended]).toEqual([clients.length, 0]);
  await expect.poll(() => budget.heldBytes, generous).toBe(0);
});

it("a message that is refused for its size takes no memory from others, whatever it was to have and goes on sending", async () => {
  const { budget, state, open } = await withMemory({ totalBytes: 16 * mib, waitMs: 300 });
  const refused = await open("one", { allowHalfOpen: true });
  const huge = frame(10, { last: true }).subarray(0, 14);
  huge[0] = 0x82;
  huge.writeBigUInt64BE(2n ** 40n, 2);
  refused.write(Buffer.concat([huge, Buffer.alloc(4 * mib)]));
  await expect.poll(() => refused.writableLength, generous).toBe(0);
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect(state.sockets[0]?.readyState).toBe(2);
  expect(budget.heldBytes).toBe(0);
  const client = await open("one");
  client.write(Buffer.concat([frame(mib, { last: false }), frame(10, { last: true })]));
  await expect.poll(() => state.taken + state.ended, generous).toBe(1);
  expect([state.taken, state.ended]).toEqual([1, 0]);
});

it("what comes late waits for room, is read on, and gives back all when its message is whole", async () => {
  const { budget, state, open } = await withMemory({ totalBytes: 4 * mib, waitMs: 20_000 });
  const first = await open("one");
  first.write(frame(2 * mib - 65_536, { last: false }));
  await expect.poll(() => budget.heldBytes, generous).toBeGreaterThanOrEqual(2 * mib - 65_536);
  const second = await open("one");
  second.write(Buffer.concat([frame(mib, { last: false }), frame(10, { last: true })]));
  await expect.poll(() => state.memories[1]?.waits, generous).toBe(true);
  expect(state.sockets[1]?.isPaused).toBe(true);
  expect(state.taken).toBe(0);
  first.write(frame(10, { last: true }));
  await expect.poll(() => state.taken, generous).toBe(2);
  await expect.poll(() => budget.heldBytes, generous).toBe(0);
  expect([state.ended, state.memories[1]?.waits]).toEqual([0, false]);
});

it("what is kept of whole messages counts, and all of it is given back with the connection", async () => {
  const { budget, state, open } = await withMemory({ totalBytes: 4 * mib, waitMs: 20_000 });
  const client = await open("one");
  await expect.poll(() => state.memories.length, generous).toBe(1);
  state.memories[0]?.keep(mib);
  expect(budget.heldBytes).toBe(mib);
  state.memories[0]?.keep(mib / 2);
  expect(budget.heldBytes).toBe(mib / 2);
  client.write(frame(mib, { last: false }));
  await expect.poll(() => budget.heldBytes, generous).toBeGreaterThan(1.5 * mib);
  client.destroy();
  await expect.poll(() => budget.heldBytes, generous).toBe(0);
});

it("a client whose program is slow waits, is not ended for that, and is read on when enough was taken", async () => {
  const { budget, state, open } = await withMemory({ totalBytes: 4 * mib, waitMs: 100 });
  await open("one");
  const client = await open("one");
  await expect.poll(() => state.memories.length, generous).toBe(2);
  state.memories[0]?.keep(2 * mib);
  state.memories[1]?.keep(mib);
  expect(state.memories[1]?.waits).toBe(true);
  client.write(Buffer.concat([frame(mib, { last: false }), frame(10, { last: true })]));
  await new Promise((resolve) => setTimeout(resolve, 1_500));
  expect([state.ended, state.taken, state.sockets[1]?.isPaused]).toEqual([0, 0, true]);
  state.memories[1]?.keep(1_000);
  expect(state.memories[1]?.waits).toBe(false);
  state.memories[0]?.keep(0);
  await expect.poll(() => state.taken, generous).toBe(1);
  expect(budget.heldBytes).toBe(0);
});

/** A frame of a few bytes, masked with nothing. */
function tiny(opcode: number, content: Buffer): Buffer {
  return Buffer.concat([Buffer.from([opcode, 0x80 | content.length, 0, 0, 0, 0]), content]);
}

it.each([
  ["at once", (parts: Buffer[]) => [Buffer.concat(parts)]],
  ["behind a ping", (parts: Buffer[]) => [Buffer.concat([tiny(0x89, Buffer.alloc(0)), ...parts])]],
  ["behind a message", (parts: Buffer[]) => [Buffer.concat([tiny(0x82, Buffer.from("x")), ...parts])]],
])(
  "thousands of parts of a few bytes that come %s take little, and are one message in the end",
  async (_how, pieces) => {
    const { state, open } = await withMemory({ totalBytes: 16 * mib, waitMs: 300 });
    const clients = await Promise.all(Array.from({ length: 40 }, () => open("one")));
    const contents = Array.from({ length: 4_000 }, (_, at) =>
      Buffer.from(String.fromCharCode(97 + (at % 26))),
    );
    const parts = contents.map((content, at) => tiny(at === 0 ? 0x02 : 0, content));
    const before = await heldBytes();
    for (const client of clients) for (const piece of pieces(parts)) client.write(piece);
    await expect.poll(() => clients.every(({ writableLength }) => writableLength === 0), generous).toBe(true);
    await new Promise((resolve) => setTimeout(resolve, 300));
    const each = ((await heldBytes()) - before) / clients.length;
    expect(each).toBeLessThan(150_000);
    const takenBefore = state.taken;
    clients[0]?.write(tiny(0x80, Buffer.from(".")));
    await expect.poll(() => state.taken, generous).toBe(takenBefore + 1);
    expect(state.last.equals(Buffer.concat([...contents, Buffer.from(".")]))).toBe(true);
  },
);
