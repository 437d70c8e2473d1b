import { describe, expect, it, vi } from "vitest";
import { CallerGone } from "../../platform/deadline.ts";
import { silentLogger } from "../../platform/logger.ts";
import { ProviderError, type RuntimeId, type SandboxId, Unavailable } from "../../ports/index.ts";
import { settle } from "../testing/fake-clock.ts";
import { forever, Harness, testDefaults } from "../testing/harness.ts";
import { hang, ScriptedProvider } from "../testing/scripted-provider.ts";
import { backend, clock, end, life, livesPerTest, open, state, store } from "./testing/lives.ts";

livesPerTest();

describe("the first pass", () => {
  it("adopts what is alive, tells it its expiry again and says so", async () => {
    const first = await life().start();
    const row = await first.spawn();
    await end(first);
    await clock.advance(60_000);
    const second = life();
    const started: string[] = [];
    second.service.subscribe({
      started: (r, _o, how) => started.push(`${r.id} ${how}`),
      stopped: () => undefined,
    });
    await second.start();
    expect(second.service.running(row.id).row.state).toBe("running");
    expect(started).toEqual([`${row.id} adopted`]);
    expect(backend.runtimes.get(row.runtimeId)?.expiresInMs).toBe(29 * 60_000 + 300_000);
    expect(second.events.events).toEqual([
      {
        type: "reconcile.action",
        ownerId: "",
        sandboxId: row.id,
        data: { action: "adopted_runtime", provider: "scripted", image: "scripted:1" },
      },
    ]);
  });

  it("tells of what it adopts what the machine calls its control groups, where that is another name than the runtime's", async () => {
    const first = await life().start();
    const { id } = await first.spawn();
    const { id: other } = await first.spawn();
    await end(first);
    const info = vi.spyOn(silentLogger, "info");
    using _ = { [Symbol.dispose]: () => info.mockRestore() };
    const second = life();
    const groups = new Map([[(await store.sandboxes.get(id))?.runtimeId, "prepared-1"]]);
    Object.defineProperty(second.provider, "controlGroup", { value: (of: RuntimeId) => groups.get(of) });
    await second.start();
    const told = info.mock.calls.map(([line]) => line as unknown as Record<string, unknown>);
    const adopted = told.filter(({ event }) => event === "sandbox.adopt");
    expect(new Map(adopted.map((line) => [line.sandbox_id, line.control_group]))).toEqual(
      new Map([
        [id, "prepared-1"],
        [other, undefined],
      ]),
    );
  });

  it("keeps spawns waiting until it is done, as long as their callers wait", async () => {
    const h = life();
    let letGo: (() => void) | undefined;
    h.provider.hook = (step) =>
      step === "inventory" ? new Promise<void>((resolve) => (letGo = resolve)) : undefined;
    h.reconciler.start();
    const impatient = new AbortController();
    const gone = h.service.spawn({}, { signal: impatient.signal });
    const patient = h.spawn();
    await settle();
    expect(h.provider.specs).toEqual([]);
    expect(h.service.ready).toBe(false);
    impatient.abort(new CallerGone());
    await expect(gone).rejects.toBeInstanceOf(CallerGone);
    letGo?.();
    expect((await patient).state).toBe("running");
    expect(h.provider.specs).toHaveLength(1);
  });

  it("destroys runtimes of ours that the store does not know", async () => {
    backend.runtimes.set("rt-orphan" as RuntimeId, {
      sandboxId: "sb-forgotten" as SandboxId,
      state: "running",
      expiresInMs: null,
    });
    const h = await life().start();
    expect(backend.runtimes.size).toBe(0);
    expect(h.events.events[0]).toMatchObject({
      type: "reconcile.action",
      sandboxId: "sb-forgotten",
      data: { action: "destroyed_orphan" },
    });
  });

  it("takes in what is younger than the database though nothing else says so, and destroys what a spawn left", async () => {
    const first = await life().start();
    await first.spawn();
    const { birth } = first.provider.specs[0] ?? {};
    if (birth === undefined) throw new Error("a runtime was made without a birth");
    expect(birth.number).toBe(1);
    await end(first);
    const made = (number: number) => {
      const runtimeId = `rt-${number}` as RuntimeId;
      backend.runtimes.set(runtimeId, {
        sandboxId: `sb-${number}` as SandboxId,
        state: "running",
        expiresInMs: null,
        note: {
          image: "scripted:1",
          memoryMb: 64,
          vcpus: 1,
          ownerId: "ada",
          metadata: {},
          env: {},
          createdAt: clock.now(),
          birth: { run: birth.run, number },
        },
      });
    };
    // The first is known to the database, so this is what a spawn of that run left that was taken back.
    for (const number of [1, 2, 3]) made(number);
    let recovering = false;
    const recovery = {
      get recovering() {
        return recovering;
      },
      outlived: async () => {
        recovering = true;
      },
      recovered: async () => {
        recovering = false;
      },
    };
    const provider = new ScriptedProvider({ backend });
    const h = new Harness({ store, clock, provider, recovery });
    open.push(h);
    await h.start();
    const stateOf = (number: number) => state(`sb-${number}` as SandboxId);
    expect([await stateOf(1), await stateOf(2), await stateOf(3)]).toEqual([undefined, "running", "running"]);
    expect(backend.runtimes.has("rt-1" as RuntimeId)).toBe(false);
    expect(recovering).toBe(false);
    expect(await store.sandboxes.lastBirth(birth.run)).toBe(3);
  });

  it("takes in what a lost database does not know, and destroys it later when nobody wants it", async () => {
    const known = "rt-known" as RuntimeId;
    const namesake = "rt-namesake" as RuntimeId;
    const bare = "rt-bare" as RuntimeId;
    const shared = { state: "running", expiresInMs: null } as const;
    const note = {
      image: "scripted",
      imageResolved: "scripted:2",
      memoryMb: 64,
      vcpus: 2,
      ownerId: "ada",
      name: "seven",
      metadata: { a: "b" },
      env: { SECRET: "x" },
      createdAt: new Date(clock.now().getTime() - 1_000),
      expiresAt: new Date(clock.now().getTime() + 7_200_000),
    };
    backend.runtimes.set(known, { ...shared, sandboxId: "sb-known" as SandboxId, note });
    backend.runtimes.set(namesake, { ...shared, sandboxId: "sb-namesake" as SandboxId, note });
    backend.runtimes.set(bare, { ...shared, sandboxId: "sb-bare" as SandboxId });
    backend.runtimes.set("rt-dead" as RuntimeId, {
      ...shared,
      state: "dead",
      sandboxId: "sb-dead" as SandboxId,
    });
    let recovering = true;
    const recovery = {
      get recovering() {
        return recovering;
      },
      outlived: async () => undefined,
      recovered: async () => {
        recovering = false;
      },
    };
    const h = new Harness({ store, clock, provider: new ScriptedProvider({ backend }), recovery });
    open.push(h);
    h.provider.hook = (step) => {
      if (step === "inventory") throw new ProviderError("engine is down");
    };
    await h.start();
    await h.reconciler.reconcile();
    expect(recovering).toBe(true);
    h.provider.hook = () => undefined;
    await h.reconciler.reconcile();
    expect(recovering).toBe(false);
    expect([...backend.runtimes.keys()]).toEqual([known, namesake, bare]);
    expect(h.service.running("sb-known").row).toMatchObject({
      image: "scripted",
      imageResolved: "scripted:2",
      memoryMb: 64,
      ownerId: "ada",
      name: "seven",
      metadata: { a: "b" },
      expiresAt: new Date(clock.now().getTime() + 7_200_000),
    });
    // Two of one owner cannot have one name.
    expect(h.service.running("sb-namesake").row).toMatchObject({ ownerId: "ada", name: null });
    expect(h.service.running("sb-bare").row).toMatchObject({ ownerId: "", memoryMb: 512 });
    expect((await store.sandboxes.inUse("ada")).owner.sandboxes).toBe(2);
    expect(h.operations.incidents.all.recovered).toBe(3);
    backend.runtimes.set("rt-later" as RuntimeId, { ...shared, sandboxId: "sb-later" as SandboxId });
    await h.reconciler.reconcile();
    expect([...backend.runtimes.keys()]).toEqual([known, namesake, bare]);
  });

  it("gives what is taken in the name that a sandbox of an older database had, which has ended since", async () => {
    const other = new ScriptedProvider({ name: "other" });
    const first = new Harness({ store, clock, provider: new ScriptedProvider({ backend }), more: [other] });
    open.push(first);
    await first.start();
    const spawn = (name: string, more: { ttlMs?: number; provider?: string } = {}) =>
      first.spawn({ name, ownerId: "ann", ttlMs: 3_600_000, ...more });
    // More than are settled at once.
    const expired = Array.from({ length: 12 }, (_, index) => `expired-${index}`);
    const ended = [
      ...(await Promise.all(expired.map((name) => spawn(name, { ttlMs: 60_000 })))),
      await spawn("destroyed"),
      await spawn("elsewhere", { ttlMs: 60_000, provider: "other" }),
    ];
    await spawn("lives");
    await end(first);
    for (const { runtimeId } of ended) {
      backend.runtimes.delete(runtimeId);
      other.backend.runtimes.delete(runtimeId);
    }
    const names = [...expired, "destroyed", "elsewhere", "lives"];
    for (const name of names) {
      backend.runtimes.set(`rt-${name}` as RuntimeId, {
        sandboxId: `sb-${name}` as SandboxId,
        state: "running",
        expiresInMs: null,
        note: {
          image: "scripted:1",
          memoryMb: 64,
          vcpus: 1,
          ownerId: "ann",
          name,
          metadata: {},
          env: {},
          createdAt: clock.now(),
        },
      });
    }
    await clock.advance(600_000);
    const recovery = { recovering: true, outlived: async () => undefined, recovered: async () => undefined };
    const slow = new ScriptedProvider({ name: "other", backend: other.backend });
    const asked = Promise.withResolvers<void>();
    slow.hook = (step) => (step === "inventory" ? asked.promise : undefined);
    const provider = new ScriptedProvider({ backend });
    const h = new Harness({ store, clock, provider, more: [slow], recovery });
    open.push(h);
    h.reconciler.start();
    await settle();
    // Until it is known whose the names are none is given to somebody else.
    expect(h.service.ready).toBe(false);
    asked.resolve();
    await settle();
    await clock.advance(1_000);
    await h.reconciler.reconcile();
    const named = names.map((name) => h.service.running(`sb-${name}`).row.name);
    expect(named).toEqual([...names.slice(0, -1), null]);
  });

  it("prune, extend and acquire do not take an older database's word for an expiry either", async () => {
    const first = await life().start();
    const ttlMs = 60_000;
    const named = { ttlMs, name: "kept", ownerId: "ann" };
    const [pruned, extended, acquired] = [
      await first.spawn({ ttlMs }),
      await first.spawn({ ttlMs }),
      await first.spawn(named),
    ];
    await end(first);
    await clock.advance(10 * ttlMs);
    const provider = new ScriptedProvider({ backend });
    let silent = true;
    provider.hook = (step) => {
      if (step === "inventory" && silent) throw new ProviderError("engine is down");
    };
    const recovery = { recovering: true, outlived: async () => undefined, recovered: async () => undefined };
    const h = new Harness({ store, clock, provider, recovery });
    open.push(h);
    h.reconciler.start();
    await h.reconciler.ready;
    await settle();
    expect(await h.service.prune({ signal: forever })).toBe(0);
    expect((await h.service.extend(extended.id, ttlMs, { signal: forever })).expiresAt).toEqual(
      new Date(clock.now().getTime() + ttlMs),
    );
    silent = false;
    // Sandboxes that did not answer are asked again.
    await clock.advance(1_000);
    await h.reconciler.reconcile();
    await settle();
    expect(await h.service.acquire(named, { signal: forever })).toMatchObject({
      sandbox: { id: acquired.id },
      made: false,
    });
    expect(await h.service.prune({ signal: forever })).toBe(0);
    const left = (id: SandboxId) => h.service.running(id).row.expiresAt.getTime() - clock.now().getTime();
    const lives = [left(pruned.id), left(extended.id), left(acquired.id)];
    expect(lives).toEqual([testDefaults.ttlMs, ttlMs - 1_000, testDefaults.ttlMs]);
    await clock.advance(ttlMs);
    expect(await state(extended.id)).toBe("destroyed");
    expect(backend.runtimes.size).toBe(2);
  });

  it("acquire waits for what an older database cannot say: whether a sandbox whose time is over has ended", async () => {
    const first = await life().start();
    const spawn = (name: string) => first.spawn({ ttlMs: 60_000, name, ownerId: "ann" });
    const [gone, runs] = [await spawn("gone"), await spawn("runs")];
    await end(first);
    backend.runtimes.delete(gone.runtimeId);
    await clock.advance(600_000);
    const provider = new ScriptedProvider({ backend });
    const heard = Promise.withResolvers<void>();
    let silent = true;
    provider.hook = async (step) => {
      if (step !== "inventory") return;
      await heard.promise;
      if (silent) throw new ProviderError("engine is down");
    };
    const recovery = { recovering: true, outlived: async () => undefined, recovered: async () => undefined };
    const h = new Harness({ store, clock, provider, recovery });
    open.push(h);
    h.reconciler.start();
    await settle();
    const acquire = (name: string) => h.service.acquire({ name, ownerId: "ann" }, { signal: forever });
    const refused = expect(acquire("gone")).rejects.toThrow(Unavailable);
    heard.resolve();
    await settle();
    for (let turn = 0; turn < 70; turn++) await clock.advance(100);
    await refused;
    silent = false;
    const [another, same] = [acquire("gone"), acquire("runs")];
    await h.reconciler.reconcile();
    for (let turn = 0; turn < 3; turn++) await clock.advance(100);
    expect(await another).toMatchObject({ made: true });
    expect(await same).toMatchObject({ made: false, sandbox: { id: runs.id } });
  });

  it("tells a sandbox of an older database no end that may have been put off, before its provider is heard", async () => {
    const first = await life().start();
    const row = await first.spawn({ ttlMs: 60_000 });
    await end(first);
    await clock.advance(600_000);
    const provider = new ScriptedProvider({ backend });
    provider.hook = (step, _runtimeId, signal) => (step === "inventory" ? hang(signal) : undefined);
    const recovery = { recovering: true, outlived: async () => undefined, recovered: async () => undefined };
    const h = new Harness({ store, clock, provider, recovery });
    open.push(h);
    h.reconciler.start();
    await h.service.locate(row.id, { signal: forever });
    expect(backend.runtimes.get(row.runtimeId)?.expiresInMs).toBe(testDefaults.ttlMs + 300_000);
  });

  it("an older database ends no sandbox that runs: it may have been extended since", async () => {
    const first = await life().start();
    const ttlMs = 60_000;
    const [overdue, short, dead, long] = [
      await first.spawn({ ttlMs }),
      await first.spawn({ ttlMs: 11 * ttlMs }),
      await first.spawn({ ttlMs }),
      await first.spawn({ ttlMs: 24 * 3_600_000 }),
    ];
    await end(first);
    backend.runtimes.delete(dead.runtimeId);
    await clock.advance(10 * ttlMs);
    let recovering = true;
    const recovery = {
      get recovering() {
        return recovering;
      },
      outlived: async () => undefined,
      recovered: async () => {
        recovering = false;
      },
    };
    const h = new Harness({ store, clock, provider: new ScriptedProvider({ backend }), recovery });
    open.push(h);
    let silent = true;
    h.provider.hook = (step) => {
      if (step === "inventory" && silent) throw new ProviderError("engine is down");
    };
    h.reconciler.start();
    await h.reconciler.ready;
    await h.reconciler.reconcile();
    await clock.advance(ttlMs);
    await settle();
    expect(backend.runtimes.size).toBe(3);
    silent = false;
    await h.reconciler.reconcile();
    await settle();
    expect(recovering).toBe(false);
    const least = new Date(clock.now().getTime() + testDefaults.ttlMs);
    expect(h.service.running(overdue.id).row.expiresAt).toEqual(least);
    expect(h.service.running(short.id).row.expiresAt).toEqual(least);
    expect(h.service.running(long.id).row.expiresAt).toEqual(long.expiresAt);
    expect((await store.sandboxes.get(dead.id))?.state).toBe("destroyed");
    await clock.advance(testDefaults.ttlMs);
    await settle();
    expect((await store.sandboxes.get(overdue.id))?.state).toBe("destroyed");
  });

  it("leaves runtimes alone whose records it cannot read, their sandboxes unhealthy", async () => {
    const first = await life().start();
    const row = await first.spawn();
    await end(first);
    const runtime = backend.runtimes.get(row.runtimeId);
    if (runtime === undefined) throw new Error("no runtime");
    runtime.state = "unreadable";
    const strange = "rt-strange" as RuntimeId;
    backend.runtimes.set(strange, { ...runtime, sandboxId: "sb-strange" as SandboxId });
    const second = await life().start();
    await clock.advance(1_000);
    await second.reconciler.reconcile();
    expect([...backend.runtimes.keys()]).toEqual([row.runtimeId, strange]);
    expect(await second.service.get(row.id)).toMatchObject({
      state: "unhealthy",
      error: expect.stringContaining("cannot be read by this release"),
    });
    runtime.state = "running";
    await clock.advance(60_000);
    expect(second.service.running(row.id).row.state).toBe("running");
    runtime.state = "unreadable";
    await second.service.destroy(row.id, { signal: forever });
    expect([...backend.runtimes.keys()]).toEqual([strange]);
  });

  it("never ends a sandbox that answers, whatever became of the records its provider goes by", async () => {
    const h = await life().start();
    const [lost, gone] = [await h.spawn(), await h.spawn()];
    const runtime = backend.runtimes.get(lost.runtimeId);
    h.provider.unlisted.add(lost.runtimeId);
    h.provider.unlisted.add(gone.runtimeId);
    backend.runtimes.delete(gone.runtimeId);
    await h.reconciler.reconcile();
    h.provider.tellExit(lost.runtimeId, "its record is gone");
    await settle();
    expect(h.service.running(lost.id).row.state).toBe("running");
    expect(backend.runtimes.get(lost.runtimeId)).toBe(runtime);
    expect((await h.service.get(gone.id)).error).toContain("its runtime ended");
    h.provider.unlisted.clear();
    await h.reconciler.reconcile();
    expect(h.service.running(lost.id).row.state).toBe("running");
    h.provider.disconnect(lost.runtimeId);
    h.provider.unlisted.add(lost.runtimeId);
    await h.reconciler.reconcile();
    expect((await h.service.get(lost.id)).error).toContain("its runtime ended");
  });

  it("puts what ended meanwhile into state error, and destroys what expired", async () => {
    const first = await life().start();
    const dead = await first.spawn();
    const missing = await first.spawn();
    const expired = await first.spawn({ ttlMs: 1_000 });
    await end(first);
    first.provider.die(dead.runtimeId, { silently: true });
    backend.runtimes.delete(missing.runtimeId);
    await clock.advance(1_000);
    const second = await life().start();
    expect(await state(dead.id)).toBe("error");
    expect(await state(missing.id)).toBe("error");
    expect(await state(expired.id)).toBe("destroyed");
    expect((await second.service.get(dead.id)).error).toMatch(
      /its runtime ended: .* a restart of the machine/,
    );
    const located = second.service.locate(dead.id, { signal: forever });
    await expect(located).rejects.toThrow(/state error: its runtime ended/);
    expect(backend.runtimes.size).toBe(0);
    await clock.advance(30 * 60_000);
    expect(await state(dead.id)).toBe("destroyed");
  });

  it("counts the sandboxes of an in-process provider as destroyed", async () => {
    const first = await life(new ScriptedProvider({ inProcess: true })).start();
    const row = await first.spawn();
    await end(first);
    const second = await life(new ScriptedProvider({ inProcess: true })).start();
    expect(await state(row.id)).toBe("destroyed");
    expect(second.events.types(row.id)).toEqual(["sandbox.destroyed"]);
  });

  it("leaves the sandboxes of a provider that is not enabled any more, unhealthy and not destroyable", async () => {
    const first = await life().start();
    const row = await first.spawn();
    await end(first);
    const second = await life(new ScriptedProvider({ name: "other" })).start();
    expect(await second.service.get(row.id)).toMatchObject({
      state: "unhealthy",
      error: expect.stringContaining('provider "scripted" is not enabled'),
    });
    await expect(second.service.destroy(row.id, { signal: forever })).rejects.toBeInstanceOf(Unavailable);
    await end(second);
    await clock.advance(60_000);
    await life().start();
    expect(await state(row.id)).toBe("destroyed");
  });

  it("opens for spawns although a provider does not answer, and adopts once it does", async () => {
    const first = await life().start();
    const row = await first.spawn();
    await end(first);
    const second = life();
    second.provider.hook = () => {
      throw new ProviderError("engine is down");
    };
    await second.start();
    expect((await second.service.get(row.id)).state).toBe("running");
    expect(() => second.service.running(row.id)).toThrow(/not connected yet/);
    await clock.advance(500);
    expect((await second.service.get(row.id)).state).toBe("unhealthy");
    expect(() => second.service.running(row.id)).toThrow(/engine is down/);
    second.provider.hook = () => undefined;
    await clock.advance(5_000);
    expect((await second.service.get(row.id)).error).toBeNull();
    expect(second.service.running(row.id).row.state).toBe("running");
  });
});
