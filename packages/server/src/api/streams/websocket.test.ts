import type { AddressInfo } from "node:net";
import { afterEach, expect, it } from "vitest";
import { WebSocket, WebSocketServer } from "ws";
import type { ExecFollow } from "../../core/exec/exec-follower.ts";
import type { ExecService } from "../../core/exec/exec-service.ts";
import { FairTurns } from "../../platform/fair-turns.ts";
import { silentLogger } from "../../platform/logger.ts";
import type { ExecId } from "../../ports/ids.ts";
import { socketBudget } from "./testing/socket-budget.ts";
import { WebSocketExec } from "./websocket.ts";

const generous = { timeout: 30_000 };
const closing: (() => void)[] = [];

afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** A socket whose command takes none of its input until `take`; what it has taken has arrived once that is told. */
async function heldCommand(pingMs = 300, turns = new FairTurns(), memory = socketBudget()) {
  const gone = new AbortController();
  const room = Promise.withResolvers<void>();
  const left = Promise.withResolvers<void>();
  const watched = Promise.withResolvers<(taken: number | undefined) => void>();
  const opened = Promise.withResolvers<WebSocket>();
  const controls = { under: 0, most: 0, done: [] as unknown[], next: () => Promise.resolve() };
  const carryOut = async (what: unknown) => {
    controls.under += 1;
    controls.most = Math.max(controls.most, controls.under);
    await controls.next();
    controls.under -= 1;
    controls.done.push(what);
  };
  const state = {
    controls,
    taken: 0,
    arrived: 0,
    input: [] as Uint8Array[],
    writes: 0,
    held: false,
    gone: gone.signal,
    take: () => room.resolve(),
    tell: watched.promise,
    socket: opened.promise,
  };
  const follow: ExecFollow = {
    execId: "ex-abcdefgh" as ExecId,
    pid: 1,
    events: {
      [Symbol.asyncIterator]: () => ({
        next: () => left.promise.then(() => ({ done: true as const, value: undefined })),
      }),
    },
    writeStdin: async (data) => {
      state.writes += 1;
      await room.promise;
      state.taken += data.length;
      state.input.push(data);
    },
    watchInput: (listener) => watched.resolve(listener),
    heldInputBytes: () => state.taken - state.arrived,
    closeStdin: () => Promise.resolve(),
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
  const execs = {
    stream: () => Promise.resolve(follow),
    signal: (_id: string, _execId: string, signal: number) => carryOut(signal),
    resize: (_id: string, _execId: string, size: unknown) => carryOut(size),
  } as unknown as ExecService;
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0 });
  server.on("connection", (socket, request) => {
    opened.resolve(socket);
    const pause = socket.pause.bind(socket);
    socket.pause = () => {
      state.held = true;
      pause();
    };
    new WebSocketExec({
      socket,
      connection: request.socket,
      memory,
      sandboxId: "sb",
      execId: follow.execId,
      execs,
      call: {
        signal: gone.signal,
        abort: (reason) => {
          gone.abort(reason);
          left.resolve();
        },
        setPatience: () => undefined,
        setCaller: () => undefined,
        endWithKey: () => undefined,
        end: () => undefined,
      },
      logger: silentLogger,
      turns,
      share: { principal: "key", owner: "" },
      pingMs,
    }).open();
  });
  await new Promise((resolve) => server.once("listening", resolve));
  const client = new WebSocket(`ws://127.0.0.1:${(server.address() as AddressInfo).port}`);
  client.on("error", () => undefined);
  closing.push(() => {
    client.terminate();
    for (const socket of server.clients) socket.terminate();
    server.close();
  });
  await new Promise((resolve) => client.once("open", resolve));
  client.send(JSON.stringify({ type: "start", command: "sleep 1", input: "in-1" }));
  const input = (bytes: number) => {
    for (let sent = 0; sent < bytes; sent += 100_000)
      client.send(JSON.stringify({ type: "stdin", data: "y".repeat(100_000) }));
  };
  return { client, state, input };
}

it.each([3_000_000, 40_000_000])(
  "a client that leaves while %i bytes of its input are held is noticed",
  async (bytes) => {
    const { client, state, input } = await heldCommand();
    input(bytes);
    await expect.poll(() => state.held, generous).toBe(true);
    client.terminate();
    await expect.poll(() => state.gone.aborted, generous).toBe(true);
  },
  40_000,
);

it("a client that falls silent while its input is held is noticed", async () => {
  const { client, state, input } = await heldCommand();
  client.pause();
  input(3_000_000);
  await expect.poll(() => state.held, generous).toBe(true);
  await expect.poll(() => state.gone.aborted, generous).toBe(true);
}, 40_000);

it("a client that stays keeps its held input, however much it is", async () => {
  const { state, input } = await heldCommand(1_000);
  input(20_000_000);
  await expect.poll(() => state.held, generous).toBe(true);
  await new Promise((resolve) => setTimeout(resolve, 3_500));
  expect(state.gone.aborted).toBe(false);
  state.take();
  await expect.poll(() => state.taken, generous).toBe(20_000_000);
}, 70_000);

it("input that is on its way to its command takes of the memory there is for what clients send, until it has arrived", async () => {
  const memory = socketBudget({ totalBytes: 16_777_216 });
  const open = async () => {
    const command = await heldCommand(60_000, new FairTurns(), memory);
    command.state.take();
    return { ...command, tell: await command.state.tell };
  };
  const [first, second] = [await open(), await open()];
  const arrives = ({ state, tell }: typeof first) => {
    state.arrived = state.taken;
    tell(state.arrived);
  };
  first.input(6_000_000);
  await expect.poll(() => first.state.taken, generous).toBe(6_000_000);
  expect(memory.heldBytes).toBeGreaterThanOrEqual(6_000_000);
  second.input(6_000_000);
  await expect.poll(() => second.state.held, generous).toBe(true);
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(second.state.taken).toBeLessThan(3_000_000);
  arrives(first);
  await expect.poll(() => second.state.taken, generous).toBe(6_000_000);
  arrives(second);
  await expect.poll(() => memory.heldBytes, generous).toBe(0);
}, 60_000);

it("signals are carried out one after another, and no more of them wait than a few", async () => {
  const { client, state } = await heldCommand(60_000);
  const stays = Promise.withResolvers<void>();
  state.controls.next = () => stays.promise;
  const flood = JSON.stringify({ type: "signal", signal: "WINCH" });
  for (let sent = 0; sent < 50_000; sent += 1) client.send(flood);
  client.send(JSON.stringify({ type: "signal", signal: 9 }));
  await expect.poll(() => state.held, generous).toBe(true);
  expect(state.controls.under).toBe(1);
  stays.resolve();
  await expect.poll(() => state.controls.done.at(-1), generous).toBe(9);
  expect(state.controls.most).toBe(1);
  expect(state.controls.done.length).toBeLessThan(25_000);
}, 60_000);

it("of changes of the window the newest is carried out, and what waits of both is dropped when the client leaves", async () => {
  const { client, state } = await heldCommand(60_000);
  const steps: (() => void)[] = [];
  state.controls.next = () => new Promise((resolve) => steps.push(resolve));
  const size = (cols: number) => client.send(JSON.stringify({ type: "resize", cols, rows: 10 }));
  for (let cols = 1; cols <= 1_000; cols += 1) size(cols);
  client.send(JSON.stringify({ type: "signal", signal: 10 }));
  await expect.poll(() => steps.length, generous).toBe(2);
  steps.shift()?.();
  await expect.poll(() => steps.length, generous).toBe(2);
  for (const step of steps.splice(0)) step();
  await expect.poll(() => state.controls.done.length, generous).toBe(3);
  expect(state.controls.done.filter((done) => done !== 10)).toEqual([
    { cols: 1, rows: 10 },
    { cols: 1_000, rows: 10 },
  ]);
  size(1);
  for (let signal = 1; signal <= 8; signal += 1) client.send(JSON.stringify({ type: "signal", signal }));
  await expect.poll(() => steps.length, generous).toBe(2);
  client.terminate();
  await expect.poll(() => state.gone.aborted, generous).toBe(true);
  for (const step of steps.splice(0)) step();
  await expect.poll(() => state.controls.done.length, generous).toBe(5);
  expect(state.controls.under).toBe(0);
}, 60_000);

it("small pieces of input are given together, and few of them wait before the socket is held", async () => {
  const { client, state } = await heldCommand(60_000);
  const letter = JSON.stringify({ type: "stdin", data: "a" });
  for (let sent = 0; sent < 20_000; sent += 1) client.send(letter);
  await expect.poll(() => state.held, generous).toBe(true);
  state.take();
  await expect.poll(() => state.taken, generous).toBe(20_000);
  expect(state.writes).toBeLessThan(2_000);
}, 60_000);

it("large messages wait for their turn, those that follow behind them, and nothing more is read meanwhile", async () => {
  let nowMs = 0;
  const now = () => {
    nowMs += 3;
    return nowMs;
  };
  const { client, state } = await heldCommand(60_000, new FairTurns({ now }));
  state.take();
  const letters = "abcdefghijklmnopqrstuvwxyz";
  for (const letter of letters) {
    client.send(JSON.stringify({ type: "stdin", data: letter.repeat(20_000) }));
    client.send(JSON.stringify({ type: "stdin", data: letter.toUpperCase() }));
  }
  await expect.poll(() => state.taken, generous).toBe(26 * 20_001);
  expect(state.held).toBe(true);
  const all = Buffer.concat(state.input).toString();
  expect(all).toBe([...letters].map((letter) => letter.repeat(20_000) + letter.toUpperCase()).join(""));
}, 60_000);

it("a client whose input waits for its turn hears that the service is there", async () => {
  const turns = new FairTurns();
  turns.mayGoOn = () => false;
  turns.add = () => undefined;
  const { client, state } = await heldCommand(50, turns);
  let pings = 0;
  client.on("ping", () => {
    pings += 1;
  });
  client.send(JSON.stringify({ type: "stdin", data: "a".repeat(20_000) }));
  await expect.poll(() => state.held, generous).toBe(true);
  pings = 0;
  await expect.poll(() => pings, generous).toBeGreaterThan(3);
}, 60_000);

/** What a client hears whose first message is this, and the code of the close, of a command whose output ends without an exit. */
async function cutCommand(first: Record<string, unknown>, execs: (follow: ExecFollow) => unknown) {
  const follow: ExecFollow = {
    execId: "ex-abcdefgh" as ExecId,
    pid: 1,
    events: (async function* () {
      yield* [];
    })(),
    writeStdin: () => Promise.resolve(),
    watchInput: () => undefined,
    heldInputBytes: () => 0,
    closeStdin: () => Promise.resolve(),
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0 });
  closing.push(() => server.close());
  await new Promise((resolve) => server.on("listening", resolve));
  const gone = new AbortController();
  server.on("connection", (socket, request) =>
    new WebSocketExec({
      socket,
      connection: request.socket,
      memory: socketBudget(),
      sandboxId: "sb",
      execId: follow.execId,
      execs: execs(follow) as ExecService,
      call: {
        signal: gone.signal,
        abort: () => undefined,
        setPatience: () => undefined,
        setCaller: () => undefined,
        endWithKey: () => undefined,
        end: () => undefined,
      },
      logger: silentLogger,
      turns: new FairTurns(),
      share: { principal: "key", owner: "" },
    }).open(),
  );
  const client = new WebSocket(`ws://127.0.0.1:${(server.address() as AddressInfo).port}`);
  const messages: unknown[] = [];
  client.on("message", (data) => messages.push(JSON.parse(String(data))));
  client.on("open", () => client.send(JSON.stringify(first)));
  const closed = await new Promise((resolve) => client.on("close", resolve));
  return { closed, messages };
}

it("output that ends without an exit closes with 1001, so that the command is attached to again", async () => {
  const start = { type: "start", command: "cat" };
  const told = await cutCommand(start, (follow) => ({ stream: () => Promise.resolve(follow) }));
  expect(told).toEqual({ closed: 1001, messages: [] });
});

it.each([true, false, undefined])("an attach that is lossless (%s) is so", async (lossless) => {
  const asked: unknown[] = [];
  const attach = {
    type: "attach",
    exec_id: "ex-abcdefgh",
    from: 3,
    ...(lossless === undefined ? {} : { lossless }),
  };
  await cutCommand(attach, (follow) => ({
    makeId: () => "ex-input000",
    output: (_id: string, execId: string, { signal: _, ...options }: Record<string, unknown>) => {
      asked.push(execId, options);
      return Promise.resolve(follow);
    },
  }));
  const wanted = { from: 3, follow: true, lossless: lossless ?? false, input: "ex-input000" };
  expect(asked).toEqual(["ex-abcdefgh", wanted]);
});

it("a client that is behind with its output hears the last of what was taken of its input", async () => {
  const { client, state } = await heldCommand(60_000);
  const [tell, socket] = await Promise.all([state.tell, state.socket]);
  const told: number[] = [];
  client.on("message", (data: Buffer) => {
    const { type, taken } = JSON.parse(data.toString("utf8"));
    if (type === "input") told.push(taken);
  });
  client.pause();
  const output = JSON.stringify({ type: "stdout", data: "x".repeat(1_000_000) });
  for (let sent = 0; sent < 16; sent += 1) socket.send(output);
  expect(socket.bufferedAmount).toBeGreaterThan(1_000_000);
  for (let taken = 1; taken <= 1_000; taken += 1) tell(taken);
  client.resume();
  await expect.poll(() => told.at(-1), generous).toBe(1_000);
  expect(told.length).toBeLessThan(10);
}, 40_000);
