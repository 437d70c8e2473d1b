import { expect, test } from "vitest";
import { BulkRests } from "./bulk-rests.ts";

const loop = () => new Promise((resolve) => setImmediate(resolve));

/** What moves much for "bulk" beside a clock that only the test moves. */
function setUp() {
  const clock = { nowMs: 100 };
  const rests = new BulkRests({ now: () => clock.nowMs });
  /** @returns undefined for who goes on at once, else when its rest is over. */
  const rest = (who = "bulk") => {
    const { promise, resolve } = Promise.withResolvers<void>();
    return rests.rest(who, resolve) ? promise : undefined;
  };
  return { clock, rests, rest };
}

test("what moves much goes on at once while nobody else has begun anything, or not lately", () => {
  const { clock, rests, rest } = setUp();
  expect(rest()).toBe(undefined);
  rests.begun("other");
  clock.nowMs += 2;
  expect(rest()).toBe(undefined);
});

test("what its own sandbox begins makes it rest neither, and hides not what others begin", () => {
  const { clock, rests, rest } = setUp();
  rests.begun("bulk");
  expect(rest()).toBe(undefined);
  rests.begun("other");
  clock.nowMs += 1;
  rests.begun("bulk");
  rests.begun("bulk");
  expect(rest("bulk")).toBeInstanceOf(Promise);
  expect(rest("other")).toBeInstanceOf(Promise);
  clock.nowMs += 1;
  expect(rest("bulk")).toBe(undefined);
});

test("all that rest go on once the next work of others is on its way", async () => {
  const { rests, rest } = setUp();
  rests.begun("other");
  let over = 0;
  for (let index = 0; index < 3; index++) void rest()?.then(() => over++);
  await loop();
  expect(over).toBe(0);
  rests.begun("other");
  expect(over).toBe(0);
  await loop();
  expect(over).toBe(3);
});

test("rests are counted, and pieces after which nobody rests are not", async () => {
  const { clock, rests, rest } = setUp();
  rest();
  expect(rests.total).toBe(0);
  rests.begun("other");
  await Promise.all([rest(), rest()]);
  clock.nowMs += 2;
  rest();
  expect(rests.total).toBe(2);
});

test("a rest ends by itself", async () => {
  const { rests, rest } = setUp();
  rests.begun("other");
  await expect(rest()).resolves.toBe(undefined);
  await expect(rest()).resolves.toBe(undefined);
});
