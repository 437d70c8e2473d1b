import { createHash, randomBytes } from "node:crypto";
import { EventEmitter, once } from "node:events";
import type { AddressInfo } from "node:net";
import { Duplex, PassThrough } from "node:stream";
import type { WebSocket } from "@fastify/websocket";
import { afterEach, expect, test, vi } from "vitest";
import { WebSocket as ClientSocket, WebSocketServer } from "ws";
import type { PortConnection } from "../../ports/sandbox-operations.ts";
import { CallsUnderWay } from "../request-context.ts";
import { PortTunnel } from "./port-tunnel.ts";
import { socketBounds } from "./socket-bounds.ts";
import { socketBudget, socketShare } from "./testing/socket-budget.ts";

/** A socket of which every message is written when `flush` says so. */
class FakeSocket extends EventEmitter {
  bufferedAmount = 0;
  isPaused = false;
  terminated = false;
  pings = 0;
  sent = 0;
  #callbacks: (() => void)[] = [];

  send(data: Buffer | string, done?: () => void): void {
    this.sent += 1;
    this.bufferedAmount += data.length;
    if (done !== undefined) this.#callbacks.push(done);
  }
  flush(): void {
    this.bufferedAmount = 0;
    for (const done of this.#callbacks.splice(0)) done();
  }
  ping(): void {
    this.pings += 1;
  }
  pause(): void {
    this.isPaused = true;
  }
  resume(): void {
    this.isPaused = false;
  }
  closedWith = 0;
  close(code: number): void {
    this.closedWith = code;
    this.emit("close");
  }
  terminate(): void {
    this.terminated = true;
    this.emit("close");
  }
}

class FakePort extends Duplex {
  writes = 0;

  override _read(): void {
    // It is given what is read of it.
  }
  override write(chunk: Buffer, ...rest: never[]): boolean {
    this.writes += 1;
    return super.write(chunk, ...rest);
  }
  override _write(): void {
    // It takes nothing.
  }
}

const turn = () => new Promise((resolve) => setImmediate(resolve));
const closing: FakeSocket[] = [];

function open(port = new FakePort(), memory = socketShare()) {
  const socket = new FakeSocket();
  closing.push(socket);
  const call = new CallsUnderWay().begin();
  const connection = new PassThrough();
  new PortTunnel({ socket: socket as unknown as WebSocket, connection, port, call, memory }).open(
    () => undefined,
  );
  return { socket, port };
}

afterEach(() => {
  for (const socket of closing.splice(0)) socket.terminate();
  vi.useRealTimers();
});

test("a client that does not read is sent one small message, and the rest waits at the port", async () => {
  const { socket, port } = open();
  for (let count = 0; count < 50; count++) {
    port.push("a");
    await turn();
  }
  expect(socket.sent).toBe(1);
  socket.flush();
  await turn();
  expect(socket.sent).toBeGreaterThan(1);
});

test("a program that does not read is given one small piece, whatever its client sends meanwhile", async () => {
  const { socket, port } = open();
  for (let count = 0; count < 5_000; count++) {
    socket.emit("message", Buffer.from("a"), true);
    if (count % 100 === 0) await turn();
  }
  expect(port.writes).toBe(1);
  // What was parsed before the socket was paused has brought no listeners with it.
  expect(port.listenerCount("drain")).toBeLessThan(2);
  for (let count = 0; count < 200; count++) {
    socket.emit("message", Buffer.alloc(1_024), true);
    await turn();
  }
  expect(socket.isPaused).toBe(true);
});

test("all that a program has not taken counts, until it takes it", async () => {
  const taken: (() => void)[] = [];
  const port = new FakePort();
  port._write = (...[, , done]: unknown[]) => void taken.push(done as () => void);
  const budget = socketBudget();
  const { socket } = open(port, socketShare(budget));
  const message = 4 * 1_048_576;
  for (const bytes of [message, 10, message, 10]) {
    socket.emit("message", Buffer.alloc(bytes), true);
    await turn();
  }
  expect(budget.heldBytes).toBeGreaterThanOrEqual(2 * message);
  taken.shift()?.();
  await turn();
  expect(budget.heldBytes).toBeLessThan(message + 1_000);
  expect(budget.heldBytes).toBeGreaterThanOrEqual(message);
  while (taken.length > 0) {
    taken.shift()?.();
    await turn();
  }
  expect(budget.heldBytes).toBe(0);
  expect(socket.isPaused).toBe(false);
});

const pingMs = 15_000;

test("a client that answers no pings is gone, and its connection into the sandbox with it", () => {
  vi.useFakeTimers();
  const { socket, port } = open();
  for (let count = 0; count < 5; count++) {
    vi.advanceTimersByTime(pingMs);
    socket.emit("pong");
  }
  expect([socket.pings, socket.terminated]).toEqual([5, false]);
  vi.advanceTimersByTime(2 * pingMs);
  expect(socket.terminated).toBe(false);
  vi.advanceTimersByTime(pingMs);
  expect([socket.terminated, port.destroyed]).toEqual([true, true]);
});

test("a client whose reader has stopped is not gone, and neither is one whose pongs are not read", () => {
  vi.useFakeTimers();
  const reader = open();
  reader.port.emit("data", Buffer.alloc(10));
  const writer = open();
  writer.socket.isPaused = true;
  vi.advanceTimersByTime(100 * pingMs);
  expect([reader.socket.terminated, writer.socket.terminated]).toEqual([false, false]);
  // It has read on since.
  for (let count = 0; count < 2; count++) {
    reader.socket.emit("pong");
    vi.advanceTimersByTime(pingMs);
  }
  vi.advanceTimersByTime(2 * pingMs);
  expect(reader.socket.terminated).toBe(true);
});

test("a port that broke before the handshake was answered closes the tunnel", async () => {
  const port = new FakePort();
  port.destroy();
  await turn();
  expect(open(port).socket.closedWith).toBe(1011);
});

test.each(["client", "program"])(
  "a tunnel of which the %s has ended its direction stays while its client is there, and no longer",
  async (who) => {
    vi.useFakeTimers({ toFake: ["setInterval"] });
    const { socket, port } = open();
    if (who === "client") socket.emit("message", Buffer.from("end"), false);
    else port.push(null);
    await turn();
    for (let minutes = 0; minutes < 60; minutes++) {
      for (let pings = 0; pings < 60_000 / pingMs; pings++) {
        vi.advanceTimersByTime(pingMs);
        socket.emit("pong");
      }
    }
    expect([socket.terminated, port.destroyed]).toEqual([false, false]);
    vi.advanceTimersByTime(3 * pingMs);
    expect([socket.terminated, port.destroyed]).toEqual([true, true]);
  },
);

test("what a port gives is given back once it was written, and what waits for a client that does not read is not", async () => {
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0, ...socketBounds });
  const port = new FakePort() as FakePort & PortConnection;
  const sent: Buffer[] = [];
  server.on("connection", (socket, { socket: connection }) => {
    const send = socket.send.bind(socket);
    socket.send = ((data: Buffer | string, done?: (error?: Error) => void) => {
      if (typeof data !== "string") sent.push(data);
      send(data, done);
    }) as typeof socket.send;
    const call = new CallsUnderWay().begin();
    new PortTunnel({ socket, connection, port, call, memory: socketShare() }).open(() => undefined);
  });
  await once(server, "listening");
  const client = new ClientSocket(`ws://127.0.0.1:${(server.address() as AddressInfo).port}`);
  const received = createHash("sha256");
  client.on("message", (data: Buffer, isBinary) => {
    if (isBinary) received.update(data);
  });
  const given = createHash("sha256");
  const give = async (pieces: number) => {
    for (let count = 0; count < pieces; count++) {
      const piece = randomBytes(65_536);
      given.update(piece);
      port.push(piece);
      // Whoever reads it says to keep nothing of it: its memory is somebody else's again.
      if (port.readableLength === 0) piece.fill(0);
      await turn();
    }
  };
  try {
    await once(client, "open");
    expect([port.readerCopies, port.writerGives]).toEqual([true, true]);
    client.pause();
    // More than the sockets of this machine take, so that the rest waits at the port.
    await give(400);
    const waiting = sent.filter(({ buffer }) => !(buffer as ArrayBuffer).detached);
    expect(waiting.length).toBeGreaterThan(0);
    expect(waiting.length).toBeLessThan(10);
    client.resume();
    await give(100);
    port.push(null);
    await expect.poll(() => port.readableEnded).toBe(true);
    client.send("end");
    client.close();
    await once(client, "close");
    expect(received.digest("hex")).toBe(given.digest("hex"));
    expect(sent.map(({ buffer }) => (buffer as ArrayBuffer).detached)).toEqual(sent.map(() => true));
  } finally {
    client.terminate();
    server.close();
  }
});

test("a message that is too large closes the tunnel with 1009, which reaches a client that is still sending", async () => {
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0, ...socketBounds });
  const port = new FakePort();
  server.on("connection", (socket, { socket: connection }) => {
    const call = new CallsUnderWay().begin();
    new PortTunnel({ socket, connection, port, call, memory: socketShare() }).open(() => undefined);
  });
  await once(server, "listening");
  const client = new ClientSocket(`ws://127.0.0.1:${(server.address() as AddressInfo).port}`);
  try {
    await once(client, "open");
    client.send(Buffer.alloc(40 * 1_048_576));
    const [code, reason] = await once(client, "close");
    expect([code, String(reason)]).toEqual([1009, "a message has at most 4 MiB; send parts"]);
    await expect.poll(() => port.destroyed).toBe(true);
  } finally {
    client.terminate();
    server.close();
  }
});
