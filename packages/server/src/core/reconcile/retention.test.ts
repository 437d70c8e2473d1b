import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { Retention, type RetentionOptions } from "./retention.ts";
import { clock, life, livesPerTest } from "./testing/lives.ts";

const open = new AbortController().signal;

/** A store of which only forgetting is asked, each kind as the test says. */
function retention(kinds: Partial<Record<"idempotency" | "sandboxes" | "events" | "audit", Forget>>) {
  const asked: string[] = [];
  const purge =
    (kind: keyof typeof kinds) =>
    async (...args: unknown[]) => {
      asked.push(kind);
      const { signal } = Object(args.at(-1)) as { signal: AbortSignal };
      await kinds[kind]?.(signal);
      return 0;
    };
  const store = {
    idempotency: { purge: purge("idempotency") },
    sandboxes: { purge: purge("sandboxes") },
    events: { purge: purge("events") },
  };
  const made = new Retention({
    store: store as unknown as RetentionOptions["store"],
    audit: { forgetOld: async (options) => void (await purge("audit")(options)) },
    clock: new FakeClock(),
    logger: silentLogger,
    retentionMs: 1_000,
    maxDestroyed: 10,
    eventsMaxAgeMs: 1_000,
  });
  return { pass: () => made.pass(open), asked };
}
type Forget = (signal: AbortSignal) => Promise<void>;

const endless: Forget = async (signal) => {
  for (;;) {
    signal.throwIfAborted();
    await sleep(10);
  }
};

it("gives each kind its time, says when something was left, and gives a store that fails a rest", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  try {
    const { pass, asked } = retention({ idempotency: endless });
    const done = pass();
    await vi.advanceTimersByTimeAsync(5_100);
    expect(await done).toBe(false);
    expect(asked).toEqual(["idempotency", "sandboxes", "events", "audit"]);
  } finally {
    vi.useRealTimers();
  }
  const failing = retention({ sandboxes: () => Promise.reject(new Error("disk I/O error")) });
  expect(await failing.pass()).toBe(true);
  expect(failing.asked).toHaveLength(4);
});

describe("the reconciler", () => {
  livesPerTest();

  it("goes on within a second with what was left, and otherwise after a minute", async () => {
    const pass = vi
      .spyOn(Retention.prototype, "pass")
      .mockResolvedValueOnce(false)
      .mockResolvedValueOnce(false);
    try {
      life().reconciler.start();
      for (const [afterMs, times] of [
        [0, 1],
        [1_000, 2],
        [1_000, 3],
        [30_000, 3],
        [30_000, 4],
      ] as const) {
        await clock.advance(afterMs);
        expect(pass, `after ${afterMs} ms more`).toHaveBeenCalledTimes(times);
      }
    } finally {
      pass.mockRestore();
    }
  });
});
