import fc from "fast-check";
import { expect, test } from "vitest";
import { Unavailable } from "../../ports/errors.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { AnswerBudget, quietMs } from "./answer-budget.ts";
import { SmallAnswers } from "./small-answers.ts";
import type { MostWaiters } from "./waiters.ts";

const mib = 1024 * 1024;
const never = () => new AbortController().signal;

function setUp(options: {
  totalBytes: number;
  largestBytes: number;
  mostWaiters?: MostWaiters;
  small?: SmallAnswers;
}) {
  const clock = new FakeClock();
  const budget = new AnswerBudget({ ...options, waitMs: 10_000, clock });
  const open = (principal = "key", owner = "") => {
    let release: () => void = () => undefined;
    const onHeld = (give: () => void) => {
      release = give;
    };
    const answer = budget.open(onHeld, { principal, owner });
    const take = async (bytes: number, signal = never()) => answer.grow("", bytes, signal);
    return { answer, take, release: () => release() };
  };
  return { clock, budget, open };
}

interface Command {
  key: number;
  owner: number;
  /** Sizes it comes to, one after the other. */
  sizes: readonly number[];
  pauseMs: number;
  /** It stays as it is for ever when it has come to that. */
  quiet: boolean;
}

const sizes = (largestBytes: number) =>
  fc
    .array(fc.integer({ min: 1, max: largestBytes }), { minLength: 1, maxLength: 6 })
    .map((all) => all.sort((one, other) => one - other));

const command = (largestBytes: number, quiet: fc.Arbitrary<boolean>): fc.Arbitrary<Command> =>
  fc.record({
    key: fc.integer({ min: 0, max: 3 }),
    owner: fc.integer({ min: 0, max: 3 }),
    sizes: sizes(largestBytes),
    pauseMs: fc.oneof(fc.constant(0), fc.integer({ min: 0, max: quietMs - 1 })),
    quiet,
  });

/** Runs all of them at once. @returns those that were not answered. */
async function unanswered(
  commands: readonly Command[],
  total: { totalBytes: number; largestBytes: number; smallBytes?: number },
) {
  const { smallBytes = 0 } = total;
  const small = new SmallAnswers({ totalBytes: smallBytes, largestBytes: smallBytes / 8 });
  const { clock, budget, open } = setUp({ ...total, ...(smallBytes > 0 && { small }) });
  const left = new Set(commands);
  for (const command of commands) {
    const { take, release } = open(`key ${command.key}`, `owner ${command.owner}`);
    const run = async () => {
      for (const bytes of command.sizes) {
        await take(bytes);
        expect(budget.heldBytes).toBeLessThanOrEqual(total.totalBytes);
        if (command.pauseMs > 0) await new Promise<void>((done) => clock.setTimer(command.pauseMs, done));
      }
      if (command.quiet) return;
      left.delete(command);
      release();
    };
    run().catch(() => release());
  }
  for (let second = 0; second < 1_000 && (second === 0 || clock.armed > 0); second++)
    await clock.advance(1_000);
  return { unanswered: [...left], heldBytes: budget.heldBytes, waiting: budget.waiting };
}

test.each([0, 8 * mib])(
  "however many grow at once, in whatever steps, all of them are answered, with %i bytes for small ones",
  async (smallBytes) => {
    const largestBytes = 4 * mib;
    await fc.assert(
      fc.asyncProperty(
        fc.array(command(largestBytes, fc.constant(false)), { minLength: 1, maxLength: 60, size: "max" }),
        fc.integer({ min: 4 * largestBytes, max: 6 * largestBytes }),
        async (commands, totalBytes) => {
          const ends = await unanswered(commands, { totalBytes, largestBytes, smallBytes });
          expect(ends).toEqual({ unanswered: [], heldBytes: 0, waiting: 0 });
        },
      ),
      { numRuns: 500, endOnFailure: true },
    );
  },
  60_000,
);

test("commands of one key that hold memory and are quiet for ever keep none of another key unanswered", async () => {
  const largestBytes = 4 * mib;
  await fc.assert(
    fc.asyncProperty(
      fc.array(command(largestBytes, fc.boolean()), { minLength: 1, maxLength: 60, size: "max" }),
      fc.integer({ min: 4 * largestBytes, max: 6 * largestBytes }),
      async (drawn, totalBytes) => {
        const commands = drawn.map((one) => ({ ...one, quiet: one.quiet && one.key === 0 }));
        const ends = await unanswered(commands, { totalBytes, largestBytes });
        expect([ends.unanswered.filter(({ key }) => key !== 0), ends.waiting]).toEqual([[], 0]);
      },
    ),
    { numRuns: 500, endOnFailure: true },
  );
}, 60_000);

test.each([
  ["one owner", 1, 4 * mib],
  ["four owners of a key", 4, 4 * mib],
  ["one owner, with the service's own numbers", 1, 20 * mib],
])("250 answers of %s that grow to 2 MiB at once are all answered", async (_whose, owners, largestBytes) => {
  const { clock, budget, open } = setUp({ totalBytes: 17 * largestBytes, largestBytes });
  const done = Array.from({ length: 250 }, async (_, index) => {
    const { take, release } = open("key", `owner ${index % owners}`);
    for (let bytes = 128 * 1024; bytes <= 2 * mib; bytes *= 2) await take(bytes);
    release();
  });
  await Promise.all(done);
  expect([budget.heldBytes, budget.waiting, clock.armed]).toEqual([0, 0, 0]);
});

test("who has the turn and is quiet loses it, and keeps what it has", async () => {
  const { clock, budget, open } = setUp({ totalBytes: 32 * mib, largestBytes: 4 * mib });
  const others = [open(), open(), open()];
  for (const one of others) await one.take(4 * mib);
  const [first, second] = [open(), open()];
  await first.take(mib);
  const waits = second.take(2 * mib);
  await clock.advance(quietMs - 1);
  expect([budget.heldBytes, budget.waiting]).toEqual([13 * mib, 1]);
  await clock.advance(1);
  await waits;
  expect(budget.heldBytes).toBe(15 * mib);
  // It goes on, and waits for who has the turn now.
  const goesOn = first.take(2 * mib);
  await settle();
  expect(budget.waiting).toBe(1);
  second.release();
  await goesOn;
  expect(budget.heldBytes).toBe(14 * mib);
});

test("who waits is not refused while others before it finish, however long that takes", async () => {
  const { clock, budget, open } = setUp({ totalBytes: 16 * mib, largestBytes: 2 * mib });
  const running = Array.from({ length: 4 }, () => open());
  for (const one of running) await one.take(2 * mib);
  const answered: number[] = [];
  const waiting = running.map((_, index) =>
    open()
      .take(2 * mib)
      .then(() => answered.push(index)),
  );
  for (const [index, one] of running.entries()) {
    await clock.advance(9_999);
    expect([answered.length, budget.waiting]).toEqual([index, 4 - index]);
    one.release();
  }
  await Promise.all(waiting);
  expect(answered).toEqual([0, 1, 2, 3]);
});

test("where nothing moves the newest of those that hold something is refused, and another one only when that was in vain", async () => {
  const { clock, open } = setUp({ totalBytes: 16 * mib, largestBytes: 2 * mib });
  const told: string[] = [];
  const running = ["first", "second", "third"].map((name) => ({ name, ...open() }));
  for (const { take } of running) await take(mib);
  // Three that had the turn one after the other, and stay quiet for ever: what is left is too little for anybody.
  for (const bytes of [2 * mib, 2 * mib, mib]) {
    const { take } = open();
    const waits = take(bytes);
    await clock.advance(2 * quietMs);
    await waits;
  }
  for (const { name, take, release } of running) {
    take(1.9 * mib).then(
      () => {
        told.push(`${name} is answered`);
        setImmediate(release);
      },
      (error) => {
        expect(error).toBeInstanceOf(Unavailable);
        told.push(`${name} is refused`);
        setImmediate(release);
      },
    );
    await clock.advance(10);
  }
  await clock.advance(9_900);
  expect(told).toEqual([]);
  await clock.advance(2_000);
  expect(told).toEqual(["third is refused", "first is answered", "second is answered"]);
});

test("a refusal says whose memory is full: the own share, also where its last slice is somebody's turn, or all of it", async () => {
  const mostWaiters = { ofOwner: 0, ofPrincipal: 0, inAll: 0 };
  const { open } = setUp({ totalBytes: 16 * mib, largestBytes: 2 * mib, mostWaiters });
  for (const bytes of [2 * mib, 2 * mib, 2 * mib, mib]) await open("one").take(bytes);
  await expect(open("one").take(mib / 2)).rejects.toThrow(/^answers that you are taking fill your share/);
  for (const bytes of [2 * mib, 2 * mib, 2 * mib]) await open("two").take(bytes);
  await expect(open("three").take(mib / 2)).rejects.toThrow(
    /^answers that others are taking fill the memory/,
  );
});

test("a turn in which five thousand wait is short", async () => {
  const { budget, open } = setUp({ totalBytes: 400 * mib, largestBytes: 20 * mib });
  const holders = Array.from({ length: 40 }, (_, index) => open(`key ${index % 4}`, "quiet"));
  for (const one of holders) await one.take(5 * mib);
  const waiting = Array.from({ length: 5_001 }, (_, index) =>
    open(`key ${index % 4}`, `owner ${index % 400}`),
  );
  for (let index = 0; index < waiting.length; index += 2) await waiting[index]?.take(66_000);
  for (const one of waiting) one.take(20 * mib).catch(() => undefined);
  // The first one has the turn.
  expect(budget.waiting).toBe(5_000);
  const before = process.threadCpuUsage();
  for (const one of holders) {
    one.answer.shrink(5 * mib - 1_000);
    await new Promise<void>((resolve) => setImmediate(resolve));
  }
  const { user, system } = process.threadCpuUsage();
  const usedMs = (user + system - before.user - before.system) / 1_000;
  expect(usedMs / holders.length).toBeLessThan(5);
});
