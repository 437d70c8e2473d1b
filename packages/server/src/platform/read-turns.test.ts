import { Readable } from "node:stream";
import fc from "fast-check";
import { expect, test } from "vitest";
import { ReadTurns } from "./read-turns.ts";

const turn = () => new Promise((resolve) => setImmediate(resolve));
const manyLines = Buffer.from("1\r\nx\r\n".repeat(10_000));
const few = Buffer.alloc(65_536);

/** A stream as a connection's, and what a parser of it has seen. */
function connection(turns: ReadTurns, options: { onData?: (piece: Buffer) => void } = {}) {
  let reads = 0;
  const stream = new Readable({
    highWaterMark: 65_536,
    read: () => {
      reads += 1;
    },
  });
  turns.pace(stream);
  const seen: Buffer[] = [];
  stream.on("data", (piece: Buffer) => {
    seen.push(piece);
    options.onData?.(piece);
  });
  return { stream, seen, reads: () => reads };
}

const lines = (piece: Buffer) => piece.toString("latin1").split("\n").length - 1;

test("a piece of many lines is parsed in parts, a later one waits for it, and nothing is read meanwhile", async () => {
  let nowMs = 0;
  const now = () => {
    nowMs += 5;
    return nowMs;
  };
  const { stream, seen, reads } = connection(new ReadTurns({ now }));
  await turn();
  const before = reads();
  expect(stream.push(manyLines)).toBe(false);
  expect(stream.push(few)).toBe(false);
  stream.push(null);
  let ended = false;
  stream.once("end", () => {
    ended = true;
  });
  await turn();
  expect(seen.length).toBeGreaterThan(0);
  expect(ended).toBe(false);
  expect(reads()).toBe(before);
  while (!ended) await turn();
  expect(Buffer.concat(seen).equals(Buffer.concat([manyLines, few]))).toBe(true);
  expect(Math.max(...seen.slice(0, -1).map(lines))).toBe(512);
});

test("a turn parses for some milliseconds over all streams, and what has few lines goes before what has many", async () => {
  let nowMs = 0;
  let spentMs = 0;
  const turns = new ReadTurns({ now: () => nowMs });
  const onData = () => {
    nowMs += 1;
    spentMs += 1;
  };
  const hostile = Array.from({ length: 64 }, () => connection(turns, { onData }));
  const honest = connection(turns, { onData });
  await turn();
  for (const { stream } of hostile) stream.push(manyLines);
  expect(spentMs).toBe(10);
  for (let count = 0; count < 100; count++) {
    await turn();
    // What was put behind has had its part of this turn.
    spentMs = 0;
    honest.stream.push(Buffer.from("GET /live HTTP/1.1\r\n\r\n"));
    expect(honest.seen.length).toBe(count + 1);
    spentMs = 0;
    await turn();
    expect(spentMs).toBe(4);
  }
  // One after the other: nobody is ahead by more than a part.
  const parts = hostile.map(({ seen }) => seen.length);
  expect(Math.max(...parts) - Math.min(...parts)).toBeLessThan(3);
});

test("bytes of few lines are not waited for, however many they are", async () => {
  const { stream, seen } = connection(new ReadTurns({ now: () => 0 }));
  await turn();
  for (let count = 0; count < 100; count++) stream.push(few);
  expect(seen.every((piece) => piece === few)).toBe(true);
  expect(seen.length).toBe(100);
});

test("who takes a stream over in the middle gets what had not been parsed", async () => {
  const turns = new ReadTurns();
  let rest: Buffer | undefined;
  const one = connection(turns, {
    onData: () => {
      rest ??= turns.release(one.stream);
    },
  });
  await turn();
  one.stream.push(manyLines);
  expect(Buffer.concat([...one.seen, rest ?? Buffer.alloc(0)]).equals(manyLines)).toBe(true);
  one.stream.push(manyLines);
  expect(one.seen.at(-1)).toBe(manyLines);
  expect(turns.isHolding(one.stream)).toBe(false);
});

test("a stream that was destroyed keeps nobody waiting", async () => {
  const turns = new ReadTurns();
  const one = connection(turns);
  await turn();
  one.stream.push(manyLines);
  one.stream.destroy();
  const parts = one.seen.length;
  for (let count = 0; count < 5; count++) await turn();
  expect(one.seen.length).toBe(parts);
  expect(turns.isHolding(one.stream)).toBe(false);
});

const step = fc.oneof(
  fc.constant("turn" as const),
  fc.constant("pause" as const),
  fc.constant("resume" as const),
  fc.integer({ min: 1, max: 3_000 }).map((count) => Buffer.from("1\n\n".repeat(count))),
  fc.integer({ min: 1, max: 70_000 }).map((size) => Buffer.alloc(size, "ab\0cd\0\0")),
);

test("every byte comes out once and in order, and a stream that is paused is not parsed", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 30 }), async (steps) => {
      let paused = false;
      const one = connection(new ReadTurns(), { onData: () => expect(paused).toBe(false) });
      const ended = new Promise((resolve) => one.stream.on("end", resolve));
      const sent: Buffer[] = [];
      for (const what of steps) {
        if (what === "turn") await turn();
        else if (what === "pause") one.stream.pause();
        else if (what === "resume") one.stream.resume();
        else one.stream.push(sent[sent.push(what) - 1]);
        paused = one.stream.isPaused();
      }
      one.stream.push(null);
      paused = false;
      one.stream.resume();
      await ended;
      expect(Buffer.concat(one.seen).equals(Buffer.concat(sent))).toBe(true);
    }),
    { numRuns: 60 },
  );
});
