import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { systemClock } from "../../platform/system-clock.ts";
import type { RuntimeId, SandboxId, SandboxNote } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { forever, Harness, testDefaults } from "../testing/harness.ts";
import { ScriptedProvider } from "../testing/scripted-provider.ts";

const [older, younger] = ["0123456789abcdef", "fedcba9876543210"];

describe("a database that is older than what runs", () => {
  let open: AsyncDisposableStack;
  let store: SqliteStore;
  let one: ScriptedProvider;
  let two: ScriptedProvider;
  let told: string[];
  let made: number;
  beforeEach(async () => {
    open = new AsyncDisposableStack();
    store = open.use(await SqliteStore.open({ path: ":memory:" }));
    one = new ScriptedProvider({ name: "one" });
    two = new ScriptedProvider({ name: "two" });
    told = [];
    made = 0;
  });
  afterEach(() => open[Symbol.asyncDispose]());

  function harness({ lost = false } = {}) {
    let recovering = lost;
    const recovery = {
      get recovering() {
        return recovering;
      },
      outlived: async () => {
        told.push("older");
        recovering = true;
      },
      recovered: async () => {
        if (recovering) told.push("recovered");
        recovering = false;
      },
    };
    return open.use(new Harness({ store, clock: systemClock, provider: one, more: [two], recovery }));
  }
  const start = (options: { lost?: boolean } = {}) => harness(options).start();

  /** A runtime that no row names. */
  function put(
    provider: ScriptedProvider,
    birth?: { run: string; number: number },
    state: "running" | "dead" = "running",
  ) {
    made += 1;
    const runtimeId = `rt-${made}` as RuntimeId;
    const sandboxId = `sb-00000000000${made}` as SandboxId;
    const note = birth === undefined ? {} : { note: { ownerId: "ada", birth } as unknown as SandboxNote };
    provider.backend.runtimes.set(runtimeId, { sandboxId, state, expiresInMs: null, ...note });
    return { runtimeId, sandboxId, runs: () => provider.backend.runtimes.has(runtimeId) };
  }

  /** They can be taken in at the second try. */
  function hinder(...sandboxes: { sandboxId: SandboxId }[]): void {
    const left = new Set<string>(sandboxes.map(({ sandboxId }) => sandboxId));
    const reserve = store.sandboxes.reserve.bind(store.sandboxes);
    store.sandboxes.reserve = async (reservation) => {
      if (left.delete(reservation.row.id)) throw new Error("busy");
      return await reserve(reservation);
    };
  }

  it("ends nothing that is listed late and cannot be taken in at once, whatever other providers have said", async () => {
    const h = await start();
    const bare = put(one);
    put(one, { run: younger, number: 2 });
    const first = put(one, { run: younger, number: 1 });
    hinder(bare, first);
    for (let pass = 0; pass < 3; pass += 1) await h.reconciler.reconcile();
    expect([bare.runs(), first.runs()]).toEqual([true, true]);
    expect((await store.sandboxes.get(bare.sandboxId))?.state).toBe("running");
    expect((await store.sandboxes.get(first.sandboxId))?.state).toBe("running");
    expect(told).toEqual(["older", "recovered"]);
  });

  it("gives nobody what a spawn left, also when its end fails at first", async () => {
    put(two, { run: older, number: 5 });
    await (await start({ lost: true }))[Symbol.asyncDispose]();
    const left = put(one, { run: older, number: 4 });
    put(one, { run: younger, number: 1 });
    one.hook = (step, id) => {
      if (step === "destroy" && id === left.runtimeId) throw new Error("the backend is away");
    };
    two.hook = (step) => {
      if (step === "inventory") throw new Error("away");
    };
    const h = await start();
    one.hook = () => undefined;
    await h.reconciler.reconcile();
    await expect.poll(left.runs).toBe(false);
    expect(await store.sandboxes.get(left.sandboxId)).toBeUndefined();
  });

  it("shows by one that has ended too", async () => {
    const bare = put(one);
    put(one, { run: younger, number: 1 }, "dead");
    await start();
    expect(bare.runs()).toBe(true);
  });

  it("is told once by what has ended and cannot be removed, over restarts too", async () => {
    const ended = put(one, { run: younger, number: 3 }, "dead");
    one.hook = (step, id) => {
      if (step === "destroy" && id === ended.runtimeId) throw new Error("its disk is busy");
    };
    const first = await start();
    for (let pass = 0; pass < 3; pass += 1) await first.reconciler.reconcile();
    await first[Symbol.asyncDispose]();
    await start();
    expect(ended.runs()).toBe(true);
    expect(told).toEqual(["older", "recovered"]);
  });

  it("has what a spawn left ended once, also where it is listed while that ends", async () => {
    const h = await start();
    const left = put(one);
    const [away, listed] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    let ends = 0;
    one.hook = (step) => {
      if (step === "inventory" && ends > 0) return listed.promise;
      if (step !== "destroy") return undefined;
      ends += 1;
      return away.promise;
    };
    const first = h.reconciler.reconcile();
    await expect.poll(() => ends).toBe(1);
    const second = h.reconciler.reconcile();
    await passed();
    away.resolve();
    await expect.poll(left.runs).toBe(false);
    listed.resolve();
    await Promise.all([first, second]);
    expect(ends).toBe(1);
  });

  it("is not told by a number of the running service itself", async () => {
    const h = await start();
    await h.spawn({ provider: "one" });
    const run = one.specs[0]?.birth?.run ?? "";
    const left = put(one, { run, number: 99 });
    await h.reconciler.reconcile();
    expect(left.runs()).toBe(false);
    expect(told).toEqual([]);
  });

  it("is not shown by what was taken in before a restart, while it runs and when it is listed again after its end", async () => {
    const taken = put(one, { run: younger, number: 1 });
    two.hook = (step) => {
      if (step === "inventory") throw new Error("away");
    };
    const first = await start({ lost: true });
    expect(first.service.running(taken.sandboxId).row.state).toBe("running");
    await first[Symbol.asyncDispose]();
    two.hook = () => undefined;
    const h = await start({ lost: true });
    expect(told).toEqual(["recovered"]);
    // Its record is looked at by each start.
    expect(await store.sandboxes.lastBirth(younger)).toBe(1);
    const listed = one.backend.runtimes.get(taken.runtimeId);
    await h.service.destroy(taken.sandboxId, { signal: forever });
    if (listed !== undefined) one.backend.runtimes.set(taken.runtimeId, { ...listed, state: "dead" });
    await h.reconciler.reconcile();
    expect(told).toEqual(["recovered"]);
    await expect.poll(taken.runs).toBe(false);
  });

  describe("as only what is listed last tells", () => {
    /** `two` says what it runs when it is let. */
    function late() {
      const heard = Promise.withResolvers<void>();
      two.hook = (step) => (step === "inventory" ? heard.promise : undefined);
      return heard;
    }

    /** The store has it as over, and it has been extended since. */
    async function extended(provider: ScriptedProvider) {
      const first = await start();
      const row = await first.spawn({ provider: provider.name, ttlMs: 1 });
      await first[Symbol.asyncDispose]();
      return row;
    }

    it("ends no runtime before, though its own provider shows nothing", async () => {
      const bare = put(one);
      put(two, { run: younger, number: 1 });
      const heard = late();
      const started = start();
      await passed();
      expect(bare.runs()).toBe(true);
      heard.resolve();
      await (await started).reconciler.reconcile();
      expect(bare.runs()).toBe(true);
      expect((await store.sandboxes.get(bare.sandboxId))?.state).toBe("running");
      expect(told).toEqual(["older", "recovered"]);
    });

    it.each(["one", "two"])("ends none that the database has as over, of provider %s", async (name) => {
      const row = await extended(name === "one" ? one : two);
      put(two, { run: younger, number: 1 });
      const heard = late();
      const started = start();
      await passed();
      expect((await store.sandboxes.get(row.id))?.state).toBe("running");
      heard.resolve();
      const h = await started;
      const { state, expiresAt } = h.service.running(row.id).row;
      expect(state).toBe("running");
      expect(expiresAt.getTime()).toBeGreaterThan(Date.now() + testDefaults.ttlMs - 60_000);
      expect(told).toEqual(["older", "recovered"]);
    });

    it("adopts what runs and takes spawns before, elsewhere", async () => {
      const first = await start();
      const row = await first.spawn({ provider: "one" });
      await first[Symbol.asyncDispose]();
      let asked = 0;
      one.hook = (step, id) => {
        if (step === "set_expiry" && id === row.runtimeId) asked += 1;
      };
      const heard = late();
      const h = harness();
      h.reconciler.start();
      await h.reconciler.ready;
      expect((await h.spawn({ provider: "one" })).state).toBe("running");
      // Nobody asks for it, which would adopt it.
      await expect.poll(() => h.service.running(row.id).row.state).toBe("running");
      heard.resolve();
      await passed();
      expect(asked).toBe(1);
    });

    it("adopts what is over soon, before and for good", async () => {
      const first = await start();
      const row = await first.spawn({ provider: "one", ttlMs: 50_000 });
      await first[Symbol.asyncDispose]();
      const heard = late();
      const h = harness();
      h.reconciler.start();
      await expect.poll(() => h.service.running(row.id).row.state).toBe("running");
      heard.resolve();
      // What it was told before is longer than its life: nobody knew how long that is.
      const switchMs = () => one.backend.runtimes.get(row.runtimeId)?.expiresInMs;
      await expect.poll(switchMs).toBeLessThan(60_000 + 300_000);
      expect(h.service.running(row.id).row.expiresAt).toEqual(row.expiresAt);
    });

    it.each(["newest", "older"])(
      "adopts what was extended while it was over, until then in the %s",
      async (age) => {
        const row = await extended(one);
        if (age === "older") put(two, { run: younger, number: 1 });
        const heard = late();
        const h = harness();
        h.reconciler.start();
        await passed();
        const { expiresAt } = await h.service.extend(row.id, 600_000, { signal: forever });
        heard.resolve();
        await expect.poll(() => h.service.running(row.id).row.state).toBe("running");
        await passed();
        expect(h.service.running(row.id).row.expiresAt).toEqual(expiresAt);
      },
    );

    it.each(["says nothing younger", "does not answer"])("ends what is over once it %s", async (how) => {
      const row = await extended(one);
      const bare = put(one);
      const heard = late();
      const h = harness();
      h.reconciler.start();
      await passed();
      expect((await store.sandboxes.get(row.id))?.state).toBe("running");
      if (how === "does not answer") heard.reject(new Error("away"));
      else heard.resolve();
      await expect.poll(async () => (await store.sandboxes.get(row.id))?.state).toBe("destroyed");
      await expect.poll(bare.runs).toBe(false);
      expect(h.events.types(row.id)).toEqual(["sandbox.destroyed"]);
      expect(told).toEqual([]);
    });

    it("lets those live on that were read from the database, though it is heard an hour later", async () => {
      const first = await start();
      const row = await first.spawn({ provider: "one", ttlMs: 600_000 });
      await first[Symbol.asyncDispose]();
      two.hook = (step) => {
        if (step === "inventory") throw new Error("away");
      };
      const h = await start();
      const own = await h.spawn({ provider: "one", ttlMs: 600_000 });
      put(two, { run: younger, number: 1 });
      two.hook = () => undefined;
      for (let pass = 0; pass < 2; pass += 1) await h.reconciler.reconcile();
      const left = ({ id }: { id: SandboxId }) => h.service.running(id).row.expiresAt.getTime() - Date.now();
      expect(left(row)).toBeGreaterThan(testDefaults.ttlMs - 60_000);
      expect(left(own)).toBeLessThan(600_001);
      expect(told).toEqual(["older", "recovered"]);
    });
  });
});

/** Whatever could be done by now was. */
const passed = () => new Promise((resolve) => setTimeout(resolve, 300));
