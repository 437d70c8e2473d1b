import { expect, test } from "vitest";
import { longestTurnMs, TurnWatch } from "../../../test/support/turn-watch.ts";
import { Unavailable } from "../../ports/errors.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { BodyBudget, mostBodiesWaiting, unhurriedMs } from "./body-budget.ts";
import { refusals } from "./testing/budgets.ts";

const mib = 1024 * 1024;

function setUp() {
  const clock = new FakeClock();
  const budget = new BodyBudget({ totalBytes: 8 * mib, waitMs: 10_000, clock, refusals });
  const open = (principal = "") => {
    let release: () => void = () => undefined;
    const onHeld = (give: () => void) => {
      release = give;
    };
    const answer = budget.open(onHeld, { principal, owner: "" });
    return { answer, release: () => release() };
  };
  return { clock, budget, open };
}

const never = () => new AbortController().signal;
const settled = () => settle().then(() => "waits");

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

test("whoever comes has room for as much as the others would each have, at once or within five seconds, whatever they did", async () => {
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
    const room = first.answer.grow("first", Math.floor(part), never());
    // Who waited before may have been given memory a moment ago.
    if (room !== undefined) expect(await Promise.race([room.then(() => "room"), settled()])).toBe("waits");
    await clock.advance(unhurriedMs);
    expect(await Promise.race([room, settled()])).toBeUndefined();
    if (room !== undefined) await clock.advance(unhurriedMs);
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
  const budget = new BodyBudget({ totalBytes: 256 * mib, waitMs: 10_000, clock, refusals });
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

test("what was given its memory only now gives way after what has held its own for long", async () => {
  const { clock, budget } = setUp();
  const ended: string[] = [];
  const open = (principal: string, owner: string, canEnd: boolean) => {
    let release: () => void = () => undefined;
    const body = budget.open((give) => (release = give), { principal, owner });
    if (canEnd) body.endsBy(() => ended.push(owner));
    return { hold: (bytes: number) => body.hold("", bytes, never()), release: () => release() };
  };
  open("key", "held for long", true).hold(2 * mib);
  open("second", "", false).hold(2 * mib);
  const third = open("third", "", false);
  third.hold(4 * mib);
  const waits = open("key", "has waited", true).hold(3 * mib);
  await clock.advance(unhurriedMs + 1_000);
  expect(budget.waiting).toBe(1);
  third.release();
  await waits;
  expect(open("newcomer", "", true).hold(2 * mib)).toBeUndefined();
  expect(ended).toEqual(["held for long"]);
});

test("what has waited for its memory is not ended as soon as it has it: who comes next waits as long as it may be held", async () => {
  const { clock, budget } = setUp();
  const ended: string[] = [];
  const open = (principal: string, canEnd = true) => {
    let release: () => void = () => undefined;
    const body = budget.open((give) => (release = give), { principal, owner: "" });
    if (canEnd) body.endsBy(() => ended.push(principal));
    return { hold: (bytes: number) => body.hold("", bytes, never()), release: () => release() };
  };
  const before = [open("first", false), open("second", false)];
  for (const { hold } of before) hold(4 * mib);
  const waiting = ["third", "fourth"].map((principal) => open(principal).hold(4 * mib));
  await clock.advance(unhurriedMs + 1_000);
  for (const { release } of before) release();
  await Promise.all(waiting);
  const newcomer = open("newcomer").hold(2 * mib);
  expect(await Promise.race([newcomer, settled()])).toBe("waits");
  await clock.advance(unhurriedMs - 1);
  expect(ended).toEqual([]);
  await clock.advance(1);
  await newcomer;
  expect(ended).toHaveLength(1);
});

test("nobody loses a place in the line to somebody for whom room is made", async () => {
  const { clock, budget } = setUp();
  const refused: unknown[] = [];
  const open = (owner: string) => {
    const body = budget.open(() => undefined, { principal: "key", owner });
    body.endsBy(() => undefined);
    return body;
  };
  for (const owner of ["a", "b"]) open(owner).hold("", 3 * mib, never());
  await clock.advance(unhurriedMs);
  for (let index = 0; index < mostBodiesWaiting.ofPrincipal; index++) {
    const waits = open(index % 2 === 0 ? "a" : "b").hold("", 2 * mib, never());
    waits?.catch((error) => refused.push(error));
  }
  expect(budget.waiting).toBe(mostBodiesWaiting.ofPrincipal);
  // Room is looked for a few times a turn.
  for (let turn = 0; turn < 8; turn++) await settle();
  expect(open("c").hold("", mib, never())).toBeUndefined();
  await Promise.resolve();
  expect(refused).toEqual([]);
  await clock.advance(10_000);
});
