import fc from "fast-check";
import { expect, test } from "vitest";
import { JoinedReadable } from "./joined-readable.ts";
import { heldBytes } from "./testing/held-memory.ts";

/** A stream of which it is told whether more should come. */
class Joined extends JoinedReadable {
  stopped = false;

  constructor() {
    super({
      highWaterMark: 262_144,
      goOn: () => {
        this.stopped = false;
      },
    });
  }
  override give(piece: Buffer): boolean {
    this.stopped = !super.give(piece);
    return !this.stopped;
  }
}

const turn = () => new Promise((resolve) => setImmediate(resolve));
const step = fc.oneof(
  fc.constant("turn" as const),
  fc.constant("pause" as const),
  fc.constant("resume" as const),
  fc.integer({ min: 1, max: 40 }),
  fc.integer({ min: 1_000, max: 20_000 }),
);

test.each(["data", "iterator"])("every byte comes out once and in order, read by %s", async (how) => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 40 }), async (steps) => {
      const stream = new Joined();
      const seen: Buffer[] = [];
      const read =
        how === "data"
          ? new Promise((resolve) => stream.on("data", (piece) => seen.push(piece)).on("end", resolve))
          : (async () => {
              for await (const piece of stream) {
                seen.push(piece);
                await turn();
              }
            })();
      const given: Buffer[] = [];
      for (const next of steps) {
        if (next === "turn") await turn();
        else if (next === "pause" || next === "resume") how === "data" && stream[next]();
        else {
          given.push(Buffer.alloc(next, given.length));
          stream.give(given.at(-1) as Buffer);
        }
      }
      stream.finish();
      stream.resume();
      await read;
      expect(Buffer.concat(seen).equals(Buffer.concat(given))).toBe(true);
    }),
    { numRuns: 100 },
  );
});

test("what has come is read without more of it coming", async () => {
  const stream = new Joined();
  const pieces = stream[Symbol.asyncIterator]();
  stream.give(Buffer.from("a"));
  stream.give(Buffer.from("b"));
  expect(String((await pieces.next()).value)).toBe("ab");
  stream.give(Buffer.from("c"));
  await turn();
  stream.give(Buffer.from("d"));
  await turn();
  expect(String((await pieces.next()).value) + String((await pieces.next()).value)).toBe("cd");
  stream.destroy();
});

test("pieces of one byte that nobody reads take the memory of their bytes, and no more come once it is full", async () => {
  const stream = new Joined();
  const before = await heldBytes();
  let given = 0;
  while (!stream.stopped) {
    for (let n = 0; n < 100; n++) stream.give(Buffer.alloc(1));
    given += 100;
    await turn();
  }
  expect((await heldBytes()) - before).toBeLessThan(2 * 1_048_576);
  expect(given).toBeGreaterThan(200_000);
  expect(given).toBeLessThan(300_000);
  stream.destroy();
});

test("parts of something large keep little of it", async () => {
  const stream = new Joined();
  const before = await heldBytes();
  for (let n = 0; n < 100; n++) stream.give(Buffer.alloc(65_536).subarray(0, 2_000));
  expect((await heldBytes()) - before).toBeLessThan(1_048_576);
  expect(stream.readableLength).toBe(200_000);
  stream.destroy();
});

test("pieces of one byte that come in one turn are one piece, and the next turn is waited for", async () => {
  const stream = new Joined();
  let seen = 0;
  stream.on("data", () => seen++);
  await turn();
  for (let n = 0; n < 10_000; n++) {
    stream.give(Buffer.alloc(1));
    expect(stream.stopped).toBe(true);
    // As the parser of requests, which is called back once for each.
    await new Promise<void>((resolve) => process.nextTick(resolve));
  }
  await turn();
  expect([seen, stream.stopped]).toEqual([1, false]);
  stream.destroy();
});
