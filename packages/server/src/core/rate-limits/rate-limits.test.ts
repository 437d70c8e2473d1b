import { expect, test } from "vitest";
import { FakeClock } from "../testing/fake-clock.ts";
import { type Caller, RateLimited, type RateLimitSettings, RateLimits } from "./rate-limits.ts";

const settings: RateLimitSettings = {
  enabled: true,
  requestsPerMinute: 60,
  burst: 2,
  keyBy: "owner",
  bucketTtlMs: 60_000,
  cleanupIntervalMs: 1_000,
};
const caller: Caller = { address: "192.0.2.1", owner: "ann", key: "api_key" };

function limits(changed: Partial<RateLimitSettings> = {}) {
  const clock = new FakeClock();
  return { clock, limits: new RateLimits({ settings: { ...settings, ...changed }, clock }) };
}

/** How many of `count` requests are let through. */
function allowed(made: RateLimits, callers: readonly Caller[]): number {
  return callers.filter((each) => {
    try {
      made.count(each);
      return true;
    } catch (error) {
      expect(error).toBeInstanceOf(RateLimited);
      return false;
    }
  }).length;
}

test.each<[RateLimitSettings["keyBy"], Partial<Caller>[], number]>([
  ["owner", [{ key: "x" }, { key: "y" }, { address: "192.0.2.2" }], 2],
  ["owner", [{ owner: "bob" }, { owner: "cid" }, { owner: "dan" }], 3],
  ["owner", [{ owner: undefined }, { owner: undefined, address: "192.0.2.2" }, { owner: undefined }], 2],
  ["owner", [{ owner: undefined }, { owner: undefined, key: "x" }, { owner: undefined }], 3],
  ["api_key", [{ owner: "bob" }, { owner: "cid" }, { owner: "dan" }], 2],
  ["api_key", [{ key: "x" }, { key: "y" }, { key: "z" }], 3],
  [
    "ip",
    [
      { owner: "bob", key: "x" },
      { owner: "cid", key: "y" },
      { owner: "dan", key: "z" },
    ],
    2,
  ],
  ["ip", [{ address: "2001:db8::1" }, { address: "2001:db8::2" }, { address: "2001:db8::3" }], 2],
])("by %s, %j: %d are let through", (keyBy, changes, count) => {
  expect(
    allowed(
      limits({ keyBy }).limits,
      changes.map((change) => ({ ...caller, ...change })),
    ),
  ).toBe(count);
});

test("nobody else's identity can be spelled as one's own", () => {
  const { limits: made } = limits();
  allowed(made, [caller, caller]);
  expect(allowed(made, [{ address: "192.0.2.1", owner: undefined, key: "ann" }])).toBe(1);
  expect(allowed(made, [{ address: "ann", owner: undefined, key: undefined }])).toBe(1);
});

test("switched off, nothing is limited; switched on again, it is", () => {
  const changing = { ...settings, enabled: false };
  const made = new RateLimits({ settings: changing, clock: new FakeClock() });
  expect(allowed(made, Array(10).fill(caller))).toBe(10);
  for (let i = 0; i < 10; i++) made.checkKey("192.0.2.1", undefined);
  changing.enabled = true;
  expect(allowed(made, Array(10).fill(caller))).toBe(2);
});

test("an address that guesses is refused, with a key that is right too", async () => {
  const { limits: made, clock } = limits();
  made.checkKey("192.0.2.1", undefined);
  made.checkKey("192.0.2.1", undefined);
  expect(() => made.checkKey("192.0.2.1", undefined)).toThrow(RateLimited);
  expect(() => made.checkKey("192.0.2.1", "guessed")).toThrow(RateLimited);
  made.checkKey("192.0.2.2", "other address");
  await clock.advance(1_000);
  made.checkKey("192.0.2.1", "somebody");
});

test("how many were refused, which others may read, tells no key either", () => {
  const { limits: made } = limits();
  made.checkKey("192.0.2.1", undefined);
  made.checkKey("192.0.2.1", undefined);
  for (const key of [undefined, "guessed", "guessed", undefined])
    expect(() => made.checkKey("192.0.2.1", key)).toThrow(RateLimited);
  expect(made.totals.limited).toBe(4);
});

test("what is offered to programs and to the service is counted apart, and one value once", () => {
  const { limits: made } = limits();
  const offer = (to: "service" | "program", value: string, key?: string) => () =>
    made.checkOffered("192.0.2.1", { value, key, to });
  offer("program", "a")();
  offer("program", "b", "hit")();
  expect(offer("program", "c")).toThrow(RateLimited);
  expect(offer("program", "d", "another hit")).toThrow(RateLimited);
  made.checkKey("192.0.2.1", "client");
  offer("program", "its value", "client")();
  offer("service", "a")();
  offer("service", "e")();
  offer("service", "f", "third hit")();
  expect(offer("service", "g")).toThrow(RateLimited);
  expect(() => made.checkKey("192.0.2.1", undefined)).toThrow(RateLimited);
  offer("program", "f")();
});

test("a key that was let in from an address before is not shut out by who guesses from there", () => {
  const { limits: made } = limits();
  made.checkKey("192.0.2.1", "good");
  made.checkKey("192.0.2.1", undefined);
  made.checkKey("192.0.2.1", undefined);
  made.checkKey("192.0.2.1", "good");
  expect(() => made.checkKey("192.0.2.1", "guessed")).toThrow(RateLimited);
});

test("what is no longer asked for is cleared away by itself", async () => {
  const { limits: made, clock } = limits({ bucketTtlMs: 3_000 });
  allowed(made, [caller]);
  made.checkKey("192.0.2.1", undefined);
  expect(made.totals.active).toBe(2);
  await clock.advance(5_000);
  expect(made.totals).toEqual({ active: 0, allowed: 1, limited: 0, evicted: 2 });
  made[Symbol.dispose]();
  expect(clock.armed).toBe(0);
});
