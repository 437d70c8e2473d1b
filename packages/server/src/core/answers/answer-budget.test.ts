import { expect, it } from "vitest";
import { TooLarge, Unavailable } from "../../ports/errors.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { type Answer, AnswerBudget } from "./answer-budget.ts";

const mib = 1024 * 1024;

function setUp() {
  const clock = new FakeClock();
  const budget = new AnswerBudget({ totalBytes: 8 * mib, waitMs: 10_000, clock });
  const open = (): { answer: Answer; release: () => void } => {
    let release: () => void = () => undefined;
    const answer = budget.open((give) => {
      release = give;
    });
    return { answer, release: () => release() };
  };
  return { clock, budget, open };
}

const never = () => new AbortController().signal;

it("small answers are free, larger ones are counted until they are released, once", () => {
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

it("what was asked for beforehand and is not used is there for others at once", async () => {
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

it("what does not fit waits for a release, and one owner has half at most", async () => {
  const { clock, budget, open } = setUp();
  const [first, second, third] = [open(), open(), open()];
  first.answer.grow("a", 3 * mib, never());
  const waits = second.answer.grow("a", 2 * mib, never());
  expect(waits).toBeInstanceOf(Promise);
  // Another owner is not kept waiting by them.
  expect(third.answer.grow("b", 4 * mib, never())).toBeUndefined();
  expect(budget.waiting).toBe(1);
  first.release();
  await waits;
  expect(budget.heldBytes).toBe(6 * mib);
  expect(clock.armed).toBe(0);
  second.release();
  third.release();
  expect(budget.heldBytes).toBe(0);
});

it("who waits too long is refused, and who leaves waits no longer", async () => {
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

it("an answer larger than any share is too large, at once", () => {
  const { budget, open } = setUp();
  expect(() => open().answer.grow("a", 4 * mib + 1, never())).toThrow(TooLarge);
  expect(budget.heldBytes).toBe(0);
});

it("what is released while it waits is not granted", async () => {
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
