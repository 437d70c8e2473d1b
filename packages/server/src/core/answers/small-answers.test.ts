import { expect, test } from "vitest";
import { FakeClock } from "../testing/fake-clock.ts";
import { AnswerBudget, quietMs } from "./answer-budget.ts";
import { SmallAnswers } from "./small-answers.ts";

const mib = 1024 * 1024;

function setUp() {
  const clock = new FakeClock();
  const small = new SmallAnswers({ totalBytes: 8 * mib, largestBytes: mib });
  const budget = new AnswerBudget({
    totalBytes: 16 * mib,
    largestBytes: 2 * mib,
    waitMs: 10_000,
    clock,
    small,
  });
  const open = (principal: string, owner = "") => {
    let release: () => void = () => undefined;
    const onHeld = (give: () => void) => {
      release = give;
    };
    const answer = budget.open(onHeld, { principal, owner });
    const take = (bytes: number) => answer.grow("", bytes, new AbortController().signal);
    return { answer, take, release: () => release() };
  };
  return { clock, small, budget, open };
}

test("commands of some keys that have written much and are quiet for ever keep nobody from small answers", async () => {
  const { clock, budget, open } = setUp();
  for (const key of ["one", "two", "three"])
    for (const owner of ["a", "b"])
      for (let bytes = 0; bytes < 8; bytes += 2) {
        open(key, owner)
          .take(2 * mib)
          ?.catch(() => undefined);
        await clock.advance(2 * quietMs);
      }
  await clock.advance(20_000);
  expect([budget.heldBytes, budget.waiting]).toEqual([16 * mib, 0]);
  const { take, release } = open("four");
  expect([take(mib / 2), take(mib)]).toEqual([undefined, undefined]);
  release();
});

test("however many keys take what they can of the memory for small answers, the next one finds some", () => {
  const { small } = setUp();
  const takeAll = (key: string) => {
    let had = 0;
    while (small.take(key, 0, mib / 8)) had += mib / 8;
    return had;
  };
  const had = ["one", "two", "three", "four", "five", "six"].map(takeAll);
  expect(had).toEqual([3, 1.5, 0.75, 0.375, 0.25, 0.25].map((part) => part * mib));
});

test("an answer that outgrows the small ones gives their memory back once it has found room, and all of it at its end", async () => {
  const { clock, small, budget, open } = setUp();
  const before = [open("key"), open("key"), open("key")];
  for (const { take } of before) take(2 * mib);
  const grows = open("key");
  grows.take(mib);
  grows.take(mib / 2);
  expect([grows.answer.bytes, small.heldBytes, budget.heldBytes]).toEqual([mib, mib, 6 * mib]);
  const turn = open("key");
  turn.take(1.5 * mib);
  const waits = grows.take(1.5 * mib);
  expect([small.heldBytes, budget.waiting]).toEqual([mib, 1]);
  turn.release();
  await waits;
  expect([grows.answer.bytes, small.heldBytes, budget.heldBytes]).toEqual([1.5 * mib, 0, 7.5 * mib]);
  grows.answer.shrink(mib / 4);
  for (const { release } of [...before, grows]) release();
  grows.release();
  expect([small.heldBytes, budget.heldBytes, clock.armed]).toEqual([0, 0, 0]);
});

test("an answer that outgrew the small ones is not refused as one that has nothing to lose", async () => {
  const { clock, open } = setUp();
  const told: string[] = [];
  for (let held = 0; held < 3; held++) open("key").take(2 * mib);
  open("key").take(1.5 * mib);
  const grows = (name: string, small: boolean) => {
    const { take } = open("key");
    if (small) take(mib);
    take(1.9 * mib)?.catch(() => told.push(name));
  };
  grows("begun first", true);
  grows("new", false);
  grows("begun last", true);
  await clock.advance(10_500);
  expect(told).toEqual(["new", "begun last"]);
  await clock.advance(20_000);
});
