import { expect, test } from "vitest";
import { longestTurnMs, TurnWatch } from "../../../test/support/turn-watch.ts";
import { TooLarge, Unavailable } from "../../ports/errors.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { type Answer, AnswerBudget, unhurriedMs } from "./answer-budget.ts";
import { mostWaiters } from "./waiters.ts";

const mib = 1024 * 1024;

function setUp() {
  const clock = new FakeClock();
  const budget = new AnswerBudget({ totalBytes: 8 * mib, waitMs: 10_000, clock });
  const open = (principal = ""): { answer: Answer; release: () => void } => {
    let release: () => void = () => undefined;
    const answer = budget.open(
      (give) => {
        release = give;
      },
      { principal, owner: "" },
    );
    return { answer, release: () => release() };
  };
  return { clock, budget, open };
}

const never = () => new AbortController().signal;

test("small answers are free, larger ones are counted until they are released, once", () => {
  const { budget, open } = setUp();
  const { answer, release } = open();
  expect(answer.grow("a", 64 * 1024, never())).toBeUndefined();
  expect(budget.heldBytes).toBe(0);
  expect(answer.grow("a", mib, never())).toBeUndefined();
  expect(answer.grow("a", 2 * mib, never())).toBeUndefined();
  expect(budget.heldBytes).toBe(2 * mib);
  release();
  release();
  expect(budget.heldBytes).toBe(0);
});

test("what was asked for beforehand and is not used is there for others at once", async () => {
  const { budget, open } = setUp();
  const [first, second] = [open(), open()];
  first.answer.grow("a", 4 * mib, never());
  const waits = second.answer.grow("a", 2 * mib, never());
  first.answer.shrink(2 * mib);
  await waits;
  expect(budget.heldBytes).toBe(4 * mib);
  second.answer.shrink(100);
  second.answer.shrink(mib);
  expect(budget.heldBytes).toBe(2 * mib);
  first.release();
  second.release();
  expect(budget.heldBytes).toBe(0);
});

test("what does not fit waits for a release, and one owner has half at most", async () => {
  const { clock, budget, open } = setUp();
  const [first, second, third] = [open(), open(), open()];
  first.answer.grow("a", 3 * mib, never());
  const waits = second.answer.grow("a", 2 * mib, never());
  expect(waits).toBeInstanceOf(Promise);
  // Another owner is not kept waiting by them.
  expect(third.answer.grow("b", 3 * mib, never())).toBeUndefined();
  expect(budget.waiting).toBe(1);
  first.release();
  await waits;
  expect(budget.heldBytes).toBe(5 * mib);
  expect(clock.armed).toBe(0);
  second.release();
  third.release();
  expect(budget.heldBytes).toBe(0);
});

test("who waits too long is refused, and who leaves waits no longer", async () => {
  const { clock, budget, open } = setUp();
  const holder = open();
  holder.answer.grow("a", 4 * mib, never());
  const refused = expect(open().answer.grow("a", mib, never())).rejects.toThrow(Unavailable);
  const leaving = new AbortController();
  const left = expect(open().answer.grow("a", mib, leaving.signal)).rejects.toThrow("gone");
  leaving.abort(new Error("gone"));
  await left;
  expect(budget.waiting).toBe(1);
  await clock.advance(10_000);
  await refused;
  expect([budget.waiting, clock.armed]).toEqual([0, 0]);
  holder.release();
  expect(budget.heldBytes).toBe(0);
});

test("an answer larger than any share is too large, at once", () => {
  const { budget, open } = setUp();
  expect(() => open().answer.grow("a", 4 * mib + 1, never())).toThrow(TooLarge);
  expect(budget.heldBytes).toBe(0);
});

test("what is released while it waits is not granted", async () => {
  const { budget, open } = setUp();
  const [holder, other] = [open(), open()];
  holder.answer.grow("a", 4 * mib, never());
  const leaving = new AbortController();
  const waits = other.answer.grow("a", mib, leaving.signal);
  other.release();
  holder.release();
  expect(budget.heldBytes).toBe(0);
  leaving.abort(new Error("gone"));
  await expect(waits).rejects.toThrow("gone");
});

test("a principal has three quarters at most, whichever owners it names", async () => {
  const { clock, open } = setUp();
  open("key").answer.grow("a", 3 * mib, never());
  open("key").answer.grow("b", 3 * mib, never());
  const refused = expect(open("key").answer.grow("c", mib, never())).rejects.toThrow(/your share/);
  expect(open("other").answer.grow("c", 2 * mib, never())).toBeUndefined();
  await clock.advance(10_000);
  await refused;
});

test("what the largest share has held for long is ended for a smaller one that waits, and for no larger one", async () => {
  const { clock, budget, open } = setUp();
  const ended: string[] = [];
  for (const [principal, owner, bytes] of [
    ["key", "a", mib],
    ["key", "b", 2 * mib],
    ["key", "b", mib],
    ["other", "c", 4 * mib],
  ] as const) {
    const { answer } = open(principal);
    answer.endsBy(() => ended.push(`${owner} ${bytes / mib}`));
    answer.grow(owner, bytes, never());
  }
  const { answer, release } = open("third");
  const waits = answer.grow("d", mib, never());
  await clock.advance(4_999);
  expect([ended, budget.waiting]).toEqual([[], 1]);
  await clock.advance(1);
  await waits;
  // The two have as much, and of the one the larger owner; of two things it held the larger one.
  expect([ended, budget.heldBytes]).toEqual([["c 4"], 5 * mib]);
  // It is held for long by now: nobody waits for it.
  expect(open("fourth").answer.grow("e", 3 * mib, never())).toBeUndefined();
  expect(open("fifth").answer.grow("f", 2 * mib, never())).toBeUndefined();
  expect(ended).toEqual(["c 4", "b 2"]);
  const larger = expect(open("sixth").answer.grow("g", 4 * mib, never())).rejects.toThrow(Unavailable);
  await clock.advance(10_000);
  await larger;
  release();
});

test("what may still come is bounded for its owner alone, and gives way to what is less", async () => {
  const { clock, budget, open } = setUp();
  let ended = 0;
  const { answer } = open();
  answer.endsBy(() => ended++);
  answer.grow("a", 100_000, never(), 4 * mib);
  expect(budget.heldBytes).toBe(100_000);
  const waits = open().answer.grow("a", mib, never());
  expect(open().answer.grow("b", 4 * mib, never())).toBeUndefined();
  await clock.advance(5_000);
  await waits;
  expect([ended, budget.heldBytes]).toEqual([1, 5 * mib]);
});

test("whoever comes has room for as much as the others would each have, whatever they did", async () => {
  let seed = 7;
  const random = (below: number) => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % below;
  };
  for (let round = 0; round < 40; round++) {
    const { clock, budget, open } = setUp();
    const principals = 1 + random(8);
    const owners = 1 + random(8);
    const held: { release: () => void }[] = [];
    for (let step = 0; step < 150; step++) {
      if (random(6) === 0) held.splice(random(held.length + 1), 1)[0]?.release();
      if (random(20) === 0) await clock.advance(random(4_000));
      const one = open(`p${random(principals)}`);
      one.answer.endsBy(() => undefined);
      const bytes = 65_537 + random(2 * mib);
      const upTo = bytes + random(4 * mib - bytes);
      one.answer.grow(`o${random(owners)}`, bytes, never(), upTo)?.catch(() => undefined);
      held.push(one);
      expect(budget.heldBytes).toBeLessThanOrEqual(8 * mib);
    }
    await clock.advance(unhurriedMs);
    const part = (8 * mib) / (principals + 1);
    // A principal that has nothing yet, and then one of its owners beside another one that took all of that.
    const first = open("new");
    first.answer.endsBy(() => undefined);
    expect(first.answer.grow("first", Math.floor(part), never())).toBeUndefined();
    await clock.advance(unhurriedMs);
    const second = open("new").answer.grow("second", Math.floor(part / 2), never());
    expect(second === undefined || (await Promise.race([second.then(() => "room"), settled()]))).not.toBe(
      "waits",
    );
    for (const one of held) one.release();
  }
});

test("nothing is ended for somebody for whom it does not make room", async () => {
  const { clock, budget, open } = setUp();
  let ended = 0;
  // Five eighths that cannot give way, and two that could.
  for (let index = 0; index < 5; index++) open(`others ${index}`).answer.grow("", mib, never());
  for (let index = 0; index < 4; index++) {
    const { answer } = open("alice");
    answer.endsBy(() => ended++);
    answer.grow("", mib / 2, never());
  }
  await clock.advance(unhurriedMs);
  const refused = expect(open("bob").answer.grow("", 2 * mib, never())).rejects.toThrow(Unavailable);
  await clock.advance(10_000);
  await refused;
  expect([ended, budget.heldBytes]).toEqual([0, 7 * mib]);
  expect(open("bob").answer.grow("", 1.5 * mib, never())).toBeUndefined();
  expect(ended).toBe(1);
});

test("how many wait is bounded; who comes takes the place of the newest of those of whom most wait", async () => {
  const { clock, budget } = setUp();
  const refused: string[] = [];
  const wait = (principal: string, owner: string, signal = never()) => {
    const answer = budget.open(() => undefined, { principal, owner });
    answer.grow("", mib, signal)?.catch((error) => refused.push(`${principal} ${owner} ${error.name}`));
    return answer;
  };
  for (const owner of ["a", "b"]) {
    budget.open(() => undefined, { principal: "holder", owner }).grow("", 3 * mib, never());
  }
  budget.open(() => undefined, { principal: "other", owner: "" }).grow("", 2 * mib, never());
  for (let index = 0; index < mostWaiters.ofOwner + 1; index++) wait("p0", "first");
  await settle();
  expect([budget.waiting, refused]).toEqual([mostWaiters.ofOwner, ["p0 first Unavailable"]]);
  for (let index = 0; index < mostWaiters.ofOwner; index++) wait("p0", "second");
  wait("p0", "third");
  await settle();
  expect([budget.waiting, refused.splice(0).at(-1)]).toEqual([
    mostWaiters.ofPrincipal,
    "p0 first Unavailable",
  ]);
  for (let index = 0; budget.waiting < mostWaiters.inAll; index++)
    wait(`p${1 + (index % 4)}`, `${index % 8}`);
  await settle();
  expect(refused).toEqual([]);
  wait("newcomer", "");
  wait("p1", "0");
  await settle();
  expect([budget.waiting, refused.splice(0)]).toEqual([
    mostWaiters.inAll,
    ["p0 second Unavailable", "p0 first Unavailable"],
  ]);
  await clock.advance(10_000);
  expect([budget.waiting, refused.length]).toEqual([0, mostWaiters.inAll]);
});

test("ten thousand that hold memory and wait for it keep nothing else waiting", async () => {
  let nowMs = 0;
  const timers = new Set<{ atMs: number; callback: () => void }>();
  const clock = {
    monotonicMs: () => nowMs,
    setTimer: (delayMs: number, callback: () => void) => {
      const timer = { atMs: nowMs + delayMs, callback };
      timers.add(timer);
      return { cancel: () => void timers.delete(timer) };
    },
  };
  const budget = new AnswerBudget({ totalBytes: 256 * mib, waitMs: 10_000, clock });
  using watch = new TurnWatch();
  let refused = 0;
  for (const principals of [1, 8]) {
    const releases: (() => void)[] = [];
    for (const fromMs of [0, unhurriedMs, 2 * unhurriedMs]) {
      nowMs += fromMs === 0 ? 2 * unhurriedMs : unhurriedMs;
      for (const timer of [...timers]) if (timer.atMs <= nowMs && timers.delete(timer)) timer.callback();
      for (let index = 0; index < 10_000; index++) {
        if (index % 100 === 0) await new Promise((resolve) => setTimeout(resolve));
        const share = { principal: `p${index % principals}`, owner: `o${index % 400}` };
        const answer = budget.open((release) => releases.push(release), share);
        answer.endsBy(() => undefined);
        answer.grow("", 70_000 * (1 + (index % 3)), never(), 400_000)?.catch(() => refused++);
      }
    }
    for (const release of releases) release();
    await settle();
  }
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(watch.longestMs).toBeLessThan(longestTurnMs);
  expect(refused).toBeGreaterThan(10_000);
});

const settled = () => settle().then(() => "waits");

test("nobody gives up a place in the line for who has left already", async () => {
  const { clock, budget } = setUp();
  const open = (owner: string) => budget.open(() => undefined, { principal: "key", owner });
  open("holder").grow("holder", 4 * mib, never());
  open("second").grow("second", 2 * mib, never());
  const waiting: Promise<unknown>[] = [];
  for (let n = 0; n < 256; n++) {
    const owner = n % 2 === 0 ? "a" : "b";
    waiting.push(
      open(owner)
        .grow(owner, mib, never())
        ?.catch(() => undefined) ?? Promise.resolve(),
    );
  }
  expect(budget.waiting).toBe(256);
  const gone = AbortSignal.abort(new Error("gone"));
  await expect(open("c").grow("c", mib, gone)).rejects.toThrow("gone");
  expect(budget.waiting).toBe(256);
  await clock.advance(10_000);
  await Promise.all(waiting);
});

test("who is gone when it begins to hold memory holds none", () => {
  const { budget } = setUp();
  const answer = budget.open((release) => release(), { principal: "key", owner: "a" });
  expect(answer.grow("a", mib, never())).toBeUndefined();
  expect(budget.heldBytes).toBe(0);
});
