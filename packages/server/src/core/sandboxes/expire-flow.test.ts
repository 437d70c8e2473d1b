import { setImmediate } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { SandboxId } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { ScriptedProvider } from "../testing/scripted-provider.ts";
import { ExpiryQueue } from "./expiry-queue.ts";

// Between two reconciliations, which end what has expired as well.
const ttlMs = 45_000;
const count = 200;
const mostAtOnce = 16;

let store: SqliteStore;
let clock: FakeClock;
let h: Harness;
/** Destroys under way, and the most there were at once. */
let under: number;
let most: number;
/** What a destroy waits for. */
let held: PromiseWithResolvers<void>;

beforeEach(async () => {
  store = await SqliteStore.open({ path: ":memory:" });
  clock = new FakeClock();
  under = 0;
  most = 0;
  held = Promise.withResolvers();
});
afterEach(async () => {
  held.resolve();
  await h[Symbol.asyncDispose]();
  await store[Symbol.asyncDispose]();
});

const start = async (more: ScriptedProvider[] = []) => {
  h = await new Harness({ store, clock, more, defaults: { maxSandboxes: 0 } }).start();
};
const spawnAll = (spawns: number) => Promise.all(Array.from({ length: spawns }, () => h.spawn({ ttlMs })));
/** Destroys of the first provider wait for `held`. */
const hold = () => {
  h.provider.hook = async (step) => {
    if (step !== "destroy") return;
    most = Math.max(most, ++under);
    await held.promise;
    under--;
  };
};
const left = () => h.provider.backend.runtimes.size;

describe("sandboxes that expire at one instant", () => {
  it("are destroyed by at most sixteen at once, a bounded number in one turn, and none is forgotten", async () => {
    await start();
    await spawnAll(count);
    const begun: number[] = [];
    let inTurn = 0;
    h.provider.hook = (step) => {
      if (step === "destroy") inTurn++;
    };
    const advanced = clock.advance(ttlMs);
    while (left() > 0) {
      await setImmediate();
      begun.push(inTurn);
      inTurn = 0;
    }
    await advanced;
    expect(begun.reduce((sum, one) => sum + one, 0)).toBe(count);
    // Two turns of the test may hold three of the event loop.
    expect(Math.max(...begun)).toBeLessThanOrEqual(2 * mostAtOnce);
  });

  it("keep no stop waiting for the whole line when their runtimes end by themselves meanwhile", async () => {
    await start();
    await spawnAll(3 * mostAtOnce);
    let begun = 0;
    h.provider.hook = async (step) => {
      if (step !== "destroy") return;
      begun++;
      await held.promise;
    };
    await clock.advance(ttlMs);
    await settle();
    expect(begun).toBe(mostAtOnce);
    for (const runtimeId of [...h.provider.backend.runtimes.keys()]) h.provider.die(runtimeId);
    await settle();
    const stopped = h[Symbol.asyncDispose]();
    await settle();
    held.resolve();
    await stopped;
    expect(begun).toBe(mostAtOnce);
  });

  it("wait in line while sixteen are being destroyed", async () => {
    await start();
    await spawnAll(count);
    hold();
    await clock.advance(ttlMs);
    expect([under, left()]).toEqual([mostAtOnce, count]);
    held.resolve();
    while (left() > 0) await settle();
    expect(most).toBe(mostAtOnce);
  });

  it("wait for those of their own provider alone", async () => {
    await start([new ScriptedProvider({ name: "other" })]);
    await spawnAll(mostAtOnce + 1);
    const { id } = await h.spawn({ ttlMs, provider: "other" });
    hold();
    await clock.advance(ttlMs);
    expect((await store.sandboxes.get(id))?.state).toBe("destroyed");
    expect(left()).toBe(mostAtOnce + 1);
  });

  it("are all expired while they wait in line: nobody can use or extend them, and what destroys one joins", async () => {
    await start();
    const all = await spawnAll(count);
    hold();
    await clock.advance(ttlMs);
    for (const { id } of all) {
      expect((await store.sandboxes.get(id))?.state).toBe("expired");
      expect(() => h.service.running(id)).toThrow(/expired at/);
    }
    const last = all.at(-1)?.id as SandboxId;
    await expect(h.service.extend(last, ttlMs, { signal: forever })).rejects.toThrow(
      /expired at .* cannot be extended/,
    );
    const destroyed = h.service.destroy(last, { signal: forever });
    held.resolve();
    await destroyed;
    while (left() > 0) await settle();
    expect(most).toBe(mostAtOnce);
  });

  it("keep their owners' places until their runtimes have ended, and who waits for one is served then", async () => {
    h = await new Harness({
      store,
      clock,
      defaults: { maxSandboxes: 41, spawnOverflow: "queue", spawnQueueTimeoutMs: 3_600_000 },
    }).start();
    const slow = await Promise.all(Array.from({ length: 40 }, () => h.spawn({ ttlMs, ownerId: "slow" })));
    const { id } = await h.spawn({ ttlMs: ttlMs + 1, ownerId: "other" });
    const state = async () => (await store.sandboxes.get(id))?.state;
    const stuck: (() => void)[] = [];
    const ofSlow = new Set<string | undefined>(slow.map(({ runtimeId }) => runtimeId));
    h.provider.hook = async (step, runtimeId) => {
      if (step !== "destroy" || !ofSlow.has(runtimeId)) return;
      const { promise, resolve } = Promise.withResolvers<void>();
      stuck.push(resolve);
      await Promise.race([promise, held.promise]);
    };
    let served = false;
    const waits = h.spawn({ ttlMs: 10 * ttlMs, ownerId: "third" }).finally(() => {
      served = true;
    });
    await clock.advance(ttlMs + 1);
    expect([await state(), stuck.length]).toEqual(["expired", mostAtOnce]);
    const asked = { ownerId: "slow", provider: h.provider.name };
    expect(await h.service.admission(asked)).toMatchObject({
      allowed: false,
      reason: "max_sandboxes",
      activeSandboxes: 41,
      activeOwnerSandboxes: 40,
    });
    expect([served, h.service.counts.active]).toEqual([false, 41]);
    // One that leaves its lane makes way for the owner who had none: slow destroys of another do not hold that up.
    stuck.shift()?.();
    await settle();
    expect((await waits).state).toBe("running");
    expect(await state()).toBe("destroyed");
    held.resolve();
    while (left() > 1) await settle();
    expect((await store.sandboxes.inUse("slow")).all.sandboxes).toBe(1);
  });

  it("are told to end themselves while they wait in line", async () => {
    await start();
    await spawnAll(mostAtOnce + 2);
    const told: unknown[] = [];
    const ended: unknown[] = [];
    h.provider.hook = async (step, runtimeId) => {
      if (step === "set_expiry") told.push(runtimeId);
      if (step !== "destroy") return;
      ended.push(runtimeId);
      await held.promise;
    };
    await clock.advance(ttlMs);
    await settle();
    const waiting = [...h.provider.backend.runtimes.keys()].filter((id) => !ended.includes(id));
    expect([ended.length, told.toSorted()]).toEqual([mostAtOnce, waiting.toSorted()]);
    for (const id of waiting) expect(h.provider.backend.runtimes.get(id)?.expiresInMs).toBe(0);
    held.resolve();
    while (left() > 0) await settle();
  });

  it("wait for their turn again when a destroy failed: no more than sixteen are ever being destroyed", async () => {
    await start();
    await spawnAll(3 * mostAtOnce);
    let failing = true;
    h.provider.hook = async (step) => {
      if (step !== "destroy") return;
      most = Math.max(most, ++under);
      try {
        if (failing) throw new Error("not now");
        await held.promise;
      } finally {
        under--;
      }
    };
    await clock.advance(ttlMs);
    await settle();
    failing = false;
    // All that failed is repeated after a second.
    await clock.advance(1_000);
    await settle();
    expect([under, most, left()]).toEqual([mostAtOnce, mostAtOnce, 3 * mostAtOnce]);
    held.resolve();
    while (left() > 0) await settle();
    expect(most).toBe(mostAtOnce);
  });

  it("cannot be used from that instant on, before it is written down", async () => {
    await start();
    const { id } = await h.spawn({ ttlMs });
    expect(h.service.running(id).row.id).toBe(id);
    // Timers do not see it before they fire.
    clock.jump(ttlMs);
    expect((await store.sandboxes.get(id))?.state).toBe("running");
    expect(() => h.service.running(id)).toThrow(/expired at/);
  });

  it("are left to the next start when the service stops meanwhile", async () => {
    await start();
    await spawnAll(count);
    hold();
    await clock.advance(ttlMs);
    const stopped = h[Symbol.asyncDispose]();
    held.resolve();
    await stopped;
    for (let turn = 0; turn < 10; turn++) await settle();
    expect(left()).toBe(count - mostAtOnce);
    h = await new Harness({ store, clock, provider: h.provider }).start();
    while (left() > 0) await clock.advance(1_000);
  });

  it("come due a bounded number in one turn", async () => {
    const all = 10_000;
    let due = 0;
    const fired: number[] = [];
    // Counts what one timer brings.
    const counting = Object.assign(Object.create(clock) as FakeClock, {
      now: () => clock.now(),
      monotonicMs: () => clock.monotonicMs(),
      setTimer: (delayMs: number, callback: () => void) =>
        clock.setTimer(delayMs, () => {
          const before = due;
          callback();
          fired.push(due - before);
        }),
    });
    await start();
    using queue = new ExpiryQueue({ clock: counting, onDue: () => due++ });
    const at = new Date(clock.now().getTime() + ttlMs);
    for (let n = 0; n < all; n++) queue.set(`sb-${n}` as SandboxId, at);
    await clock.advance(ttlMs);
    expect(due).toBe(all);
    expect(Math.max(...fired)).toBeLessThanOrEqual(500);
  });
});
