import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { CallerGone } from "../../platform/deadline.ts";
import type { SandboxRow } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { mostJoined } from "./spawn-line.ts";

let store: SqliteStore;
let clock: FakeClock;
let harness: Harness;

beforeEach(async () => {
  store = await SqliteStore.open({ path: ":memory:" });
  clock = new FakeClock();
  harness = await new Harness({ store, clock }).start();
});
afterEach(async () => {
  await harness[Symbol.asyncDispose]();
  await store[Symbol.asyncDispose]();
});

const acquire = (name = "web") => harness.service.acquire({ name, ownerId: "acme" }, { signal: forever });

describe("acquire()", () => {
  it("gives one that does not answer as it is", async () => {
    const { sandbox } = await acquire();
    await store.sandboxes.update(
      sandbox.id,
      ["running"],
      { state: "unhealthy", updatedAt: clock.now() },
      { holder: "", generation: 0 },
    );
    expect(await acquire()).toMatchObject({ made: false, sandbox: { id: sandbox.id, state: "unhealthy" } });
  });

  it("makes another one once the sandbox has expired", async () => {
    const { sandbox } = await acquire();
    await clock.advance(31 * 60_000);
    await settle();
    const next = await acquire();
    expect(next.made).toBe(true);
    expect(next.sandbox.id).not.toBe(sandbox.id);
  });

  it("makes another one at once when the clock was set to after its end", async () => {
    const { sandbox } = await acquire();
    clock.jump(3_600_000);
    const next = await acquire();
    expect(next).toMatchObject({ made: true });
    expect((await store.sandboxes.get(sandbox.id))?.state).toBe("destroyed");
  });

  it("waits for no runtime's turn to be ended: the name is free once its sandbox has expired", async () => {
    const ttlMs = 45_000;
    const held = Promise.withResolvers<void>();
    harness.provider.hook = async (step) => {
      if (step === "destroy") await held.promise;
    };
    const all = await Promise.all(
      Array.from({ length: 20 }, () => harness.spawn({ ttlMs, ownerId: "acme" })),
    );
    const brief = () =>
      harness.service.acquire({ name: "web", ownerId: "acme", ttlMs: ttlMs + 1 }, { signal: forever });
    const { sandbox } = await brief();
    await clock.advance(ttlMs);
    // The instant has come and is not written down yet.
    const update = store.sandboxes.update.bind(store.sandboxes);
    const written = Promise.withResolvers<void>();
    store.sandboxes.update = async (id, ...rest) => {
      if (id === sandbox.id) await written.promise;
      return update(id, ...rest);
    };
    await clock.advance(1);
    await settle();
    expect((await store.sandboxes.get(sandbox.id))?.state).toBe("running");
    let answered: Awaited<ReturnType<typeof acquire>> | undefined;
    const waiting = brief().then((answer) => {
      answered = answer;
    });
    await settle();
    expect(answered).toBeUndefined();
    written.resolve();
    await settle();
    expect(answered).toMatchObject({ made: true });
    expect([all.length, harness.provider.backend.runtimes.size]).toEqual([20, 22]);
    held.resolve();
    await waiting;
  });

  it("waits for no runtime's turn when it is the first to see that the clock was set", async () => {
    const held = Promise.withResolvers<void>();
    const { sandbox } = await acquire();
    harness.provider.hook = async (step) => {
      if (step === "destroy") await held.promise;
    };
    clock.jump(3_600_000);
    expect(await acquire()).toMatchObject({ made: true });
    expect((await store.sandboxes.get(sandbox.id))?.state).toBe("expired");
    held.resolve();
  });

  it("is refused as a spawn is while the one before takes up the owner's last place", async () => {
    await harness[Symbol.asyncDispose]();
    harness = await new Harness({ store, clock, defaults: { maxSandboxesPerOwner: 1 } }).start();
    await acquire();
    const held = Promise.withResolvers<void>();
    harness.provider.hook = async (step) => {
      if (step === "destroy") await held.promise;
    };
    await clock.advance(31 * 60_000);
    await expect(acquire()).rejects.toMatchObject({
      code: "resource_limit",
      details: { reason: "max_sandboxes_per_owner" },
      retryAfterS: 5,
    });
    held.resolve();
    await settle();
    expect(await acquire()).toMatchObject({ made: true });
  });

  it("gives up on one whose destroy is not confirmed, and makes another once it is", async () => {
    const { sandbox } = await acquire();
    harness.provider.hook = (step) => {
      if (step === "destroy") throw new Error("not now");
    };
    await harness.service.destroy(sandbox.id, { signal: forever }).catch(() => undefined);
    const waiting = acquire();
    const refused = expect(waiting).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining(`the end of its sandbox "${sandbox.id}" is not confirmed`),
    });
    for (let turn = 0; turn < 70; turn++) {
      await settle();
      await clock.advance(100);
    }
    await refused;
    harness.provider.hook = () => undefined;
    await harness.service.destroy(sandbox.id, { signal: forever });
    expect(await acquire()).toMatchObject({ made: true });
  });

  describe("with a spawn queue, and no place for the owner", () => {
    const all = (count: number, signal = forever) =>
      Array.from({ length: count }, () =>
        harness.service.acquire({ name: "web", ownerId: "acme" }, { signal }),
      );
    const queued = () => harness.events.events.filter(({ type }) => type === "spawn.queued").length;
    let first: SandboxRow;

    beforeEach(async () => {
      await harness[Symbol.asyncDispose]();
      const defaults = { maxSandboxesPerOwner: 1, maxSpawnQueue: 8, spawnOverflow: "queue" } as const;
      harness = await new Harness({ store, clock, defaults }).start();
      first = await harness.spawn({ ownerId: "acme" });
    });

    it("takes one place of it, however many ask, and leaves the others to the owner's other spawns", async () => {
      const answers = Promise.all(all(10));
      await settle();
      expect([harness.service.figures.queueDepth, queued()]).toEqual([1, 1]);
      const other = harness.spawn({ ownerId: "acme" });
      await settle();
      expect(harness.service.figures.queueDepth).toBe(2);
      await harness.service.destroy(first.id, { signal: forever });
      const given = await answers;
      expect(given.filter(({ made }) => made)).toHaveLength(1);
      expect(new Set(given.map(({ sandbox }) => sandbox.id)).size).toBe(1);
      await harness.service.destroy(given[0]?.sandbox.id ?? "", { signal: forever });
      await other;
      expect(harness.service.figures).toMatchObject({ queueDepth: 0, queue: { queuedTotal: 2 } });
    });

    it("lets another lead when the one that waits for the place leaves", async () => {
      const leaver = new AbortController();
      const left = expect(Promise.all(all(1, leaver.signal))).rejects.toBeInstanceOf(CallerGone);
      await settle();
      const answers = Promise.all(all(3));
      await settle();
      leaver.abort(new CallerGone());
      await left;
      await settle();
      expect([harness.service.figures.queueDepth, queued()]).toEqual([1, 2]);
      await harness.service.destroy(first.id, { signal: forever });
      expect((await answers).map(({ made }) => made).sort()).toEqual([false, false, true]);
    });

    it("lets one that only joined leave", async () => {
      const answer = Promise.all(all(1));
      await settle();
      const leaver = new AbortController();
      const left = expect(Promise.all(all(1, leaver.signal))).rejects.toBeInstanceOf(CallerGone);
      await settle();
      leaver.abort(new CallerGone());
      await left;
      await harness.service.destroy(first.id, { signal: forever });
      expect(await answer).toMatchObject([{ made: true }]);
    });

    it("lets nobody wait longer for the place than a spawn may, who joined later included", async () => {
      const timedOut = { code: "resource_limit", details: { queue: "timeout", waited_ms: 30_000 } };
      const early = Promise.all(all(3).map((answer) => expect(answer).rejects.toMatchObject(timedOut)));
      await settle();
      await clock.advance(10_000);
      const late = Promise.all(all(2).map((answer) => expect(answer).rejects.toMatchObject(timedOut)));
      await settle();
      await clock.advance(20_000);
      await settle();
      await early;
      expect([harness.service.figures.queueDepth, queued()]).toEqual([1, 2]);
      await clock.advance(10_000);
      await settle();
      await late;
      expect(harness.service.figures).toMatchObject({ queueDepth: 0, queue: { timeouts: 2 } });
    });

    it("lets no more join than it can tell to look again soon", async () => {
      const answers = Promise.all(all(mostJoined + 1));
      await settle();
      await expect(acquire()).rejects.toMatchObject({ code: "unavailable", retryAfterS: 1 });
      await harness.service.destroy(first.id, { signal: forever });
      expect((await answers).filter(({ made }) => made)).toHaveLength(1);
    });
  });

  it("passes a failed spawn's turn on to the next", async () => {
    let failures = 1;
    harness.provider.hook = (step) => {
      if (step === "spawn" && failures-- > 0) throw new Error("not now");
    };
    const answers = await Promise.allSettled([acquire(), acquire(), acquire()]);
    expect(answers.filter(({ status }) => status === "rejected")).toHaveLength(1);
    const given = answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : []));
    expect(given.map(({ made }) => made).sort()).toEqual([false, true]);
    expect(new Set(given.map(({ sandbox }) => sandbox.id)).size).toBe(1);
  });
});
