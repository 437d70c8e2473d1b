import fc from "fast-check";
import { expect, test } from "vitest";
import { TokenBuckets } from "./token-buckets.ts";

class StillClock {
  nowMs = 0;
  monotonicMs(): number {
    return this.nowMs;
  }
}

const settings = { requestsPerMinute: 60, burst: 3, bucketTtlMs: 10_000 };

test("a bucket gives its burst, then as much as comes back, and says when", () => {
  const clock = new StillClock();
  const buckets = new TokenBuckets({ settings, clock });
  expect([1, 2, 3].map(() => buckets.take("a").remaining)).toEqual([2, 1, 0]);
  expect(buckets.take("a")).toEqual({ allowed: false, remaining: 0, retryAfterS: 1 });
  expect(buckets.take("b").allowed).toBe(true);
  clock.nowMs += 999;
  expect(buckets.take("a").allowed).toBe(false);
  clock.nowMs += 1;
  expect(buckets.take("a").allowed).toBe(true);
  expect(buckets.take("a").allowed).toBe(false);
});

test("nobody is let through more often than the limit says, whatever the pace", () => {
  fc.assert(
    fc.property(
      fc.array(fc.nat(3_000), { minLength: 1, maxLength: 200 }),
      fc.integer({ min: 1, max: 600 }),
      fc.integer({ min: 1, max: 20 }),
      (pausesMs, requestsPerMinute, burst) => {
        const clock = new StillClock();
        const buckets = new TokenBuckets({
          settings: { requestsPerMinute, burst, bucketTtlMs: 1_000 },
          clock,
        });
        let [allowed, passedMs] = [0, 0];
        for (const pauseMs of pausesMs) {
          clock.nowMs += pauseMs;
          passedMs += pauseMs;
          buckets.prune();
          const verdict = buckets.take("a");
          if (verdict.allowed) allowed++;
          // Nobody is refused for longer than a token takes to come back.
          else expect(verdict.retryAfterS).toBeLessThanOrEqual(Math.ceil(60 / requestsPerMinute));
          expect(allowed).toBeLessThanOrEqual(burst + (passedMs / 60_000) * requestsPerMinute + 1e-6);
        }
      },
    ),
  );
});

test("waiting as long as it was told is enough", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 6_000 }), (requestsPerMinute) => {
      const clock = new StillClock();
      const buckets = new TokenBuckets({ settings: { ...settings, requestsPerMinute, burst: 1 }, clock });
      buckets.take("a");
      const { retryAfterS } = buckets.take("a");
      clock.nowMs += retryAfterS * 1_000;
      expect(buckets.take("a").allowed).toBe(true);
    }),
  );
});

test("buckets that nobody takes from are forgotten after their time, others stay", () => {
  const clock = new StillClock();
  const buckets = new TokenBuckets({ settings, clock });
  buckets.take("idle");
  clock.nowMs += 6_000;
  buckets.take("busy");
  clock.nowMs += 5_000;
  buckets.prune();
  expect(buckets.totals).toEqual({ active: 1, allowed: 2, limited: 0, evicted: 1 });
});

test("of more identities than there is room for, the one used longest ago is forgotten", () => {
  const clock = new StillClock();
  const buckets = new TokenBuckets({ settings: { ...settings, burst: 1 }, clock, maxBuckets: 2 });
  buckets.take("a");
  buckets.take("b");
  buckets.take("a");
  buckets.take("c");
  expect(buckets.totals).toMatchObject({ active: 2, evicted: 1 });
  expect(buckets.take("a").allowed).toBe(false);
  expect(buckets.take("b").allowed).toBe(true);
});

test("whatever was taken, forgotten and pruned before, the one used longest ago goes", () => {
  const step = fc.oneof(
    { weight: 9, arbitrary: fc.record({ take: fc.nat(12) }) },
    fc.record({ waitMs: fc.nat(6_000) }),
    fc.record({ prune: fc.constant(true) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200 }), fc.integer({ min: 0, max: 5 }), (steps, maxBuckets) => {
      const clock = new StillClock();
      const slow = { ...settings, burst: 1_000, requestsPerMinute: 1e-6 };
      const buckets = new TokenBuckets({ settings: slow, clock, maxBuckets });
      const expected = new Map<string, { used: number; atMs: number }>();
      for (const one of steps) {
        if ("take" in one) {
          const identity = `${one.take}`;
          const used = (expected.get(identity)?.used ?? 0) + 1;
          expected.delete(identity);
          expected.set(identity, { used, atMs: clock.nowMs });
          buckets.take(identity);
          if (expected.size > maxBuckets) expected.delete([...expected.keys()][0] as string);
        } else if ("waitMs" in one) clock.nowMs += one.waitMs;
        else {
          // None is kept because it has to fill first.
          slow.requestsPerMinute = 1e6;
          buckets.prune();
          slow.requestsPerMinute = 1e-6;
          for (const [identity, { atMs }] of expected)
            if (atMs <= clock.nowMs - settings.bucketTtlMs) expected.delete(identity);
        }
        expect(buckets.totals.active).toBe(expected.size);
        for (let n = 0; n <= 12; n++)
          expect(buckets.look(`${n}`).remaining < 1_000).toBe(expected.has(`${n}`));
      }
    }),
  );
});

test("one identity that asks again and again costs no more beside a hundred thousand", () => {
  const clock = { monotonicMs: () => 0 };
  const many = new TokenBuckets({
    settings: { requestsPerMinute: 60, burst: 1_000_000, bucketTtlMs: 60_000 },
    clock,
  });
  for (let one = 0; one < 100_000; one++) many.take(`${one}`);
  const before = process.threadCpuUsage();
  for (let time = 0; time < 50_000; time++) many.take("99999");
  const { user, system } = process.threadCpuUsage(before);
  expect((user + system) / 1_000).toBeLessThan(250);
});

test("looking takes nothing and makes no bucket", () => {
  const buckets = new TokenBuckets({ settings, clock: new StillClock() });
  expect(buckets.look("a")).toEqual({ allowed: true, remaining: 3, retryAfterS: 0 });
  expect(buckets.totals).toEqual({ active: 0, allowed: 0, limited: 0, evicted: 0 });
});
