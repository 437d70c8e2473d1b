import { afterEach, expect, it, vi } from "vitest";
import { BulkRests } from "../../platform/bulk-rests.ts";
import { FairTurns } from "../../platform/fair-turns.ts";
import { silentLogger } from "../../platform/logger.ts";
import type { ExecView } from "../../ports/index.ts";
import { AgentClient } from "./agent-client.ts";
import { unixDialer } from "./dialers.ts";
import { type execId, exit, type FakeAgent, fakeAgent, spec } from "./fake-agent.ts";
import { encodeHeader, encodeJsonFrame, frameKinds } from "./frames.ts";

/** Turns of the loop in which agents have their say: counted, as how long anything takes depends on the machine. */

const atOnce = 4;
const closing: AsyncDisposable[] = [];
afterEach(async () => {
  for (const one of closing.splice(0).reverse()) await one[Symbol.asyncDispose]();
});

/** A clock that `spend` moves, and the most it was moved in one turn of the loop. */
function countedTurns() {
  let nowMs = 0;
  let inTurn = 0;
  const state = { most: 0, all: 0 };
  const spend = () => {
    nowMs += 1;
    state.all += 1;
    if (inTurn === 0) setImmediate(() => (inTurn = 0));
    inTurn += 1;
    state.most = Math.max(state.most, inTurn);
  };
  return { turns: new FairTurns({ now: () => nowMs }), spend, state };
}

function clientOf(agent: FakeAgent, turns: FairTurns, rests?: BulkRests): AgentClient {
  const client = new AgentClient({
    dial: unixDialer(agent.path),
    token: "0".repeat(64),
    name: "sb-test",
    owner: "",
    logger: silentLogger,
    turns,
    ...(rests && { rests }),
  });
  closing.push(client);
  return client;
}

const options = () => ({ signal: AbortSignal.timeout(20_000) });

/** Output of one byte in `count` frames, of both streams in turns, and the end of the command. */
function tinyOutput(count: number): Buffer {
  const frames: Buffer[] = [];
  for (let offset = 0; offset < count; offset += 1) {
    const place = Buffer.alloc(9, 97 + (offset % 26));
    place.writeBigUInt64BE(BigInt(offset));
    frames.push(encodeHeader(offset % 2 ? frameKinds.stderr : frameKinds.stdout, 9), place);
  }
  frames.push(encodeJsonFrame(frameKinds.event, exit), encodeHeader(frameKinds.end, 0));
  return Buffer.concat(frames);
}

async function agentThatSends(bytes: Buffer): Promise<FakeAgent> {
  const agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.reply, { pid: 7 });
    connection.socket.write(bytes);
  });
  closing.push(agent);
  return agent;
}

const start = (client: AgentClient, index: number): Promise<ExecView> =>
  client.execs.start({ ...spec, execId: `ex-${String(index).padStart(8, "0")}` as typeof execId }, options());

it("however many commands write a byte at a time, some of it is handed on in a turn, in order and all of it", async () => {
  const bytes = tinyOutput(5_000);
  const agent = await agentThatSends(bytes);
  const { turns, spend, state } = countedTurns();
  const client = clientOf(agent, turns);
  const views = await Promise.all(Array.from({ length: 12 }, (_, index) => start(client, index)));
  const read = async (view: ExecView) => {
    let next = 0;
    let order = "";
    for await (const event of view.events) {
      // What a writer does with a line counts as a part of the turn.
      spend();
      if (event.type === "exit") return { next, order };
      expect(event.offset).toBe(next);
      expect(event.stream).toBe(next % 2 ? "stderr" : "stdout");
      if (next < 30) order += String(event.data);
      next += event.data.length;
    }
    return { next, order: "no exit" };
  };
  const order = "abcdefghijklmnopqrstuvwxyzabcd";
  expect(await Promise.all(views.map(read))).toEqual(views.map(() => ({ next: 5_000, order })));
  // At the edge of two turns one may have its full time at once, and the one that waited too.
  expect(state.most).toBeLessThanOrEqual(2 * atOnce + 2);
}, 60_000);

it("a reader that comes late takes what has come in turns as well", async () => {
  const agent = await agentThatSends(tinyOutput(1_000));
  const { turns, spend, state } = countedTurns();
  const client = clientOf(agent, turns);
  const views = await Promise.all(Array.from({ length: 4 }, (_, index) => start(client, index)));
  await new Promise((resolve) => setTimeout(resolve, 100));
  const taken = views.map(async (view) => {
    for await (const _event of view.events) spend();
  });
  await Promise.all(taken);
  expect(state.all).toBe(4 * 1_001);
  expect(state.most).toBeLessThanOrEqual(2 * atOnce + 2);
}, 60_000);

it("what a connection brought before it ended is told, though it waited for its turn", async () => {
  const agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.reply, { pid: 7 });
    connection.socket.end(tinyOutput(3_000));
  });
  closing.push(agent);
  const { turns, spend } = countedTurns();
  const client = clientOf(agent, turns);
  const views = await Promise.all(Array.from({ length: 4 }, (_, index) => start(client, index)));
  const ends = views.map(async (view) => {
    let last = "";
    for await (const event of view.events) {
      spend();
      last = event.type;
    }
    return last;
  });
  expect(await Promise.all(ends)).toEqual(views.map(() => "exit"));
}, 60_000);

/** Rests that end when the test says so, while a command of another sandbox is under way. */
class HeldRests extends BulkRests {
  readonly waiting: (() => void)[] = [];

  constructor() {
    super({ now: () => 0 });
  }
  override rest(who: string, goOn: () => void): boolean {
    const rests = super.rest(who, () => undefined);
    if (rests) this.waiting.push(goOn);
    return rests;
  }
}

it("a flood is not read on while a command of another sandbox is under way, until its rest is over; nothing of it is lost", async () => {
  const piece = Buffer.alloc(8 + 65_536, "x");
  const frames: Buffer[] = Array.from({ length: 64 }, (_, index) => {
    const bytes = Buffer.from(piece);
    bytes.writeBigUInt64BE(BigInt(index * 65_536));
    return Buffer.concat([encodeHeader(frameKinds.stdout, bytes.length), bytes]);
  });
  frames.push(encodeJsonFrame(frameKinds.event, exit), encodeHeader(frameKinds.end, 0));
  const agent = await agentThatSends(Buffer.concat(frames));
  const rests = new HeldRests();
  const client = clientOf(agent, new FairTurns(), rests);
  let bytes = 0;
  const view = await start(client, 1);
  rests.begun("another sandbox");
  const read = (async () => {
    for await (const event of view.events) if (event.type === "output") bytes += event.data.length;
  })();
  const isOver = read.then(() => true);
  let [most, count] = [0, 0];
  for (let before = bytes; ; before = bytes) {
    const over = await Promise.race([
      isOver,
      (async () => {
        while (rests.waiting.length === 0) await new Promise((resolve) => setTimeout(resolve, 1));
      })(),
    ]);
    if (over === true) break;
    most = Math.max(most, bytes - before);
    count += 1;
    expect(rests.waiting).toHaveLength(1);
    rests.waiting.pop()?.();
  }
  expect(bytes).toBe(64 * 65_536);
  expect(count).toBeGreaterThan(20);
  expect(most).toBeLessThanOrEqual(3 * 65_536);
}, 60_000);

it("what moves much rests for commands that others begin, and not for input, which costs its sender nothing", async () => {
  const rests = new BulkRests();
  const begun = vi.spyOn(rests, "begun");
  const agent = await fakeAgent(
    (request, connection) => {
      if (request.op === "exec.start") connection.answer({ pid: 7, started_at: 1 });
    },
    (kind, _bytes, connection) => {
      if (kind === frameKinds.eof) connection.answer({ written: 1 });
    },
  );
  closing.push(agent);
  const client = clientOf(agent, new FairTurns(), rests);
  await client.execs.startDetached(spec, options());
  expect(begun).toHaveBeenCalledTimes(1);
  await client.execs.writeStdin(spec.execId, Buffer.from("a"), { close: false, ...options() });
  expect(begun).toHaveBeenCalledTimes(1);
});

const json = (kind: number, text: string) =>
  Buffer.concat([encodeHeader(kind, Buffer.byteLength(text)), Buffer.from(text)]);
const repeated = (frame: Buffer, count: number) => Buffer.concat(Array<Buffer>(count).fill(frame));
const names = Array.from({ length: 1_000 }, (_, index) => `"k${index}":1`).join(",");

it.each([
  ["a second welcome", json(frameKinds.welcome, '{"version":1}')],
  ["a second reply", json(frameKinds.reply, "{}")],
  ["output without bytes", Buffer.concat([encodeHeader(frameKinds.stdout, 8), Buffer.alloc(8)])],
  ["data without bytes", encodeHeader(frameKinds.data, 0)],
  ["data of a command", Buffer.concat([encodeHeader(frameKinds.data, 1), Buffer.from("a")])],
  ["two ends of data", repeated(encodeHeader(frameKinds.eof, 0), 2)],
  ["many events that mean nothing", repeated(json(frameKinds.event, '{"event":"x"}'), 1_001)],
  ["an event with many names", json(frameKinds.event, `{"event":"x","a":{${names}}}`)],
  ["an event with many values", json(frameKinds.event, `{"event":"x","a":[${"1,".repeat(2_000)}1]}`)],
  ["an event that is long", json(frameKinds.event, `{"event":"x","a":"${"\\u00e9".repeat(200_000)}"}`)],
])("%s ends a connection", async (_what, bytes) => {
  const agent = await agentThatSends(bytes);
  const client = clientOf(agent, new FairTurns());
  await using view = await start(client, 1);
  const told: string[] = [];
  for await (const event of view.events) told.push(event.type);
  expect(told).toEqual([]);
  await expect.poll(() => agent.open, { timeout: 10_000 }).toBe(0);
});

it("a few events that mean nothing are passed over", async () => {
  const unknown = repeated(json(frameKinds.event, '{"event":"x"}'), 1_000);
  const agent = await agentThatSends(Buffer.concat([unknown, tinyOutput(2)]));
  const client = clientOf(agent, new FairTurns());
  await using view = await start(client, 1);
  const told: string[] = [];
  for await (const event of view.events) told.push(event.type);
  expect(told).toEqual(["output", "output", "exit"]);
});
