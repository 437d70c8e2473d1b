import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { NotFound, ResourceLimit, type SandboxId } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { longestLookMs } from "./expiry-queue.ts";

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;
const graceMs = 5 * minuteMs;
let store: SqliteStore;
let clock: FakeClock;
let h: Harness;

const start = async (options: Partial<ConstructorParameters<typeof Harness<FakeClock>>[0]> = {}) => {
  h = await new Harness({ store, clock, ...options }).start();
};
const state = async (id: SandboxId) => (await store.sandboxes.get(id))?.state;

beforeEach(async () => {
  store = await SqliteStore.open({ path: ":memory:" });
  clock = new FakeClock();
});
afterEach(async () => {
  await h[Symbol.asyncDispose]();
  expect(clock.armed).toBe(0);
  await store[Symbol.asyncDispose]();
});

describe("the clock of the machine is set by an hour", () => {
  it("forwards: what has expired by it ends within seconds, everything else at its time", async () => {
    await start();
    const short = await h.spawn({ ttlMs: 30 * minuteMs });
    const long = await h.spawn({ ttlMs: 2 * hourMs });
    clock.jump(hourMs);
    await clock.advance(longestLookMs);
    expect(await state(short.id)).toBe("destroyed");
    await clock.advance(hourMs - longestLookMs - 1);
    expect(await state(long.id)).toBe("running");
    await clock.advance(1);
    expect(await state(long.id)).toBe("destroyed");
  });

  it("backwards: nothing ends before the instant it was told, nor is its own switch left behind, nor does it stay", async () => {
    await start();
    const row = await h.spawn({ ttlMs: 30 * minuteMs });
    clock.jump(-hourMs);
    for (let minute = 0; minute < 89; minute++) {
      await clock.advance(minuteMs);
      expect(await state(row.id)).toBe("running");
      const told = h.provider.backend.runtimes.get(row.runtimeId)?.expiresInMs ?? 0;
      expect(told).toBeGreaterThanOrEqual(graceMs);
      if (minute > 0) expect(told).toBeGreaterThan((88 - minute) * minuteMs + graceMs);
    }
    await clock.advance(minuteMs);
    expect(await state(row.id)).toBe("destroyed");
  });

  it.each([hourMs, -hourMs])("by %d ms: a spawn waits in the queue as long as it may", async (byMs) => {
    await start({ defaults: { maxSandboxes: 1, spawnOverflow: "queue", spawnQueueTimeoutMs: 30_000 } });
    await h.spawn({ ttlMs: 10 * hourMs });
    let refused: unknown;
    const waiting = h.spawn().catch((error: unknown) => {
      refused = error;
    });
    await settle();
    clock.jump(byMs);
    await clock.advance(29_999);
    expect(refused).toBeUndefined();
    await clock.advance(1);
    await waiting;
    expect(refused).toBeInstanceOf(ResourceLimit);
  });

  it.each([hourMs, -hourMs])("by %d ms: a destroy that failed is repeated in its time", async (byMs) => {
    await start();
    const row = await h.spawn({ ttlMs: 10 * hourMs });
    let failing = true;
    h.provider.hook = (step) => {
      if (step === "destroy" && failing) throw new Error("not now");
    };
    await expect(h.service.destroy(row.id, { signal: forever })).rejects.toThrow();
    failing = false;
    clock.jump(byMs);
    await clock.advance(1_000);
    expect(await state(row.id)).toBe("destroyed");
  });

  it.each([
    [hourMs, 22],
    [-hourMs, 24],
  ])(
    "by %d ms: keys and destroyed sandboxes are remembered an hour longer or shorter",
    async (byMs, hours) => {
      await start();
      const keyed = { signal: forever, idempotencyKey: "key" };
      const { sandbox } = await h.service.spawn({}, keyed);
      await h.service.destroy(sandbox.id, { signal: forever });
      clock.jump(byMs);
      await clock.advance(hours * hourMs);
      expect(await h.service.spawn({}, keyed)).toMatchObject({ replayed: true, sandbox: { id: sandbox.id } });
      await clock.advance(2 * hourMs);
      await expect(h.service.get(sandbox.id)).rejects.toBeInstanceOf(NotFound);
      expect(await store.sandboxes.get(sandbox.id)).toBeUndefined();
      expect((await h.service.spawn({}, keyed)).replayed).toBe(false);
    },
  );
});
