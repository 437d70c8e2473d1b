import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { SandboxId } from "../../ports/ids.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { type ClockJump, ExpiryQueue } from "./expiry-queue.ts";

const id = (n: number) => `sb-${n}` as SandboxId;

describe("ExpiryQueue", () => {
  it("calls back each deadline once, in order and not before its time, whatever is moved and dropped", async () => {
    const step = fc.oneof(
      fc.record({ do: fc.constant("set" as const), n: fc.nat(30), inMs: fc.nat(1_000) }),
      fc.record({ do: fc.constant("drop" as const), n: fc.nat(30) }),
      fc.record({ do: fc.constant("wait" as const), ms: fc.nat(300) }),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 50 }), async (steps) => {
        const clock = new FakeClock();
        const expected = new Map<SandboxId, number>();
        using queue = new ExpiryQueue({
          clock,
          onDue: (due) => {
            expect(expected.get(due)).toBeLessThanOrEqual(clock.now().getTime());
            expect(expected.delete(due)).toBe(true);
          },
        });
        for (const one of steps) {
          if (one.do === "set") {
            const at = new Date(clock.now().getTime() + one.inMs);
            expected.set(id(one.n), at.getTime());
            queue.set(id(one.n), at);
          } else if (one.do === "drop") {
            expected.delete(id(one.n));
            queue.delete(id(one.n));
          } else {
            await clock.advance(one.ms);
            for (const atMs of expected.values()) expect(atMs).toBeGreaterThan(clock.now().getTime());
          }
          expect(queue.size).toBe(expected.size);
          expect(clock.armed).toBeLessThanOrEqual(1);
        }
        await clock.advance(1_001);
        expect(expected.size).toBe(0);
      }),
      { numRuns: 30 },
    );
  });

  it("keeps no more than it needs when one deadline is moved again and again", async () => {
    const clock = new FakeClock();
    const due: SandboxId[] = [];
    using queue = new ExpiryQueue({ clock, onDue: (one) => due.push(one) });
    for (let i = 0; i < 10_000; i++) queue.set(id(1), new Date(clock.now().getTime() + 1_000 + i));
    await clock.advance(20_000);
    expect(due).toEqual([id(1)]);
  });

  it("tells of a clock that jumps, and how many come due by that, once", async () => {
    const clock = new FakeClock();
    const jumps: ClockJump[] = [];
    using queue = new ExpiryQueue({ clock, onDue: () => undefined, onJump: (jump) => jumps.push(jump) });
    const inMinutes = (minutes: number) => new Date(clock.now().getTime() + minutes * 60_000);
    // Nobody waits yet.
    clock.jump(60_000);
    for (const minutes of [1, 30, 59, 90]) queue.set(id(minutes), inMinutes(minutes));
    await clock.advance(120_000);
    expect(jumps).toEqual([]);
    clock.jump(3_600_000);
    await clock.advance(60_000);
    clock.jump(-600_000);
    await clock.advance(60_000);
    clock.jump(1_000);
    await clock.advance(60_000);
    expect(jumps).toEqual([
      { byMs: 3_600_000, due: 2 },
      { byMs: -600_000, due: 0 },
    ]);
  });
});
