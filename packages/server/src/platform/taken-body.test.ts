import { expect, it, vi } from "vitest";
import { DeadlineExceeded } from "./deadline.ts";
import { TakenBody } from "./taken-body.ts";

async function* parts(waitMs: number) {
  for (const text of ["a", "b"]) {
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    yield Buffer.from(text);
  }
}

it("a body waits for its sender as long as that takes, and for the other side so long each time", async () => {
  vi.useFakeTimers();
  try {
    using taken = new TakenBody({ atMostMs: 100 });
    const body = taken.pass(parts(1_000));
    for (const text of ["a", "b"]) {
      const next = body.next();
      await vi.advanceTimersByTimeAsync(1_000);
      expect(String((await next).value)).toBe(text);
      await vi.advanceTimersByTimeAsync(99);
    }
    expect((await body.next()).done).toBe(true);
    await vi.advanceTimersByTimeAsync(99);
    expect(taken.signal.aborted).toBe(false);
    await vi.advanceTimersByTimeAsync(1);
    expect(taken.signal.reason).toBeInstanceOf(DeadlineExceeded);
  } finally {
    vi.useRealTimers();
  }
});

it("a part that lies untaken aborts it, and a disposed one aborts no more", async () => {
  vi.useFakeTimers();
  try {
    using stuck = new TakenBody({ atMostMs: 100 });
    const done = new TakenBody({ atMostMs: 100 });
    for (const each of [stuck, done]) {
      const next = each.pass(parts(1)).next();
      await vi.advanceTimersByTimeAsync(1);
      await next;
    }
    done[Symbol.dispose]();
    await vi.advanceTimersByTimeAsync(100);
    expect([stuck.signal.aborted, done.signal.aborted]).toEqual([true, false]);
  } finally {
    vi.useRealTimers();
  }
});
