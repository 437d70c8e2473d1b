import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { CallerGone } from "../../platform/deadline.ts";
import { noCapacityLimits } from "../../ports/capacity.ts";
import {
  ProviderError,
  RuntimeGone,
  type RuntimeId,
  type SandboxId,
  type SandboxRow,
  Unavailable,
} from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness, testDefaults } from "../testing/harness.ts";
import { hang, ScriptedBackend, ScriptedProvider, type StepHook } from "../testing/scripted-provider.ts";

let store: SqliteStore;
let backend: ScriptedBackend;
let clock: FakeClock;
const open: Harness[] = [];

/** A new process on the same store and backend. */
function life(provider = new ScriptedProvider({ backend })): Harness {
  const made = new Harness({ store, clock, provider });
  open.push(made);
  return made;
}

/** Ends a process without a word to its sandboxes. */
async function end(h: Harness): Promise<void> {
  open.splice(open.indexOf(h), 1);
  await h[Symbol.asyncDispose]();
}

const state = async (id: SandboxId) => (await store.sandboxes.get(id))?.state;

beforeEach(async () => {
  store = await SqliteStore.open({ path: ":memory:" });
  backend = new ScriptedBackend();
  clock = new FakeClock();
});
afterEach(async () => {
  for (const h of [...open]) {
    await end(h);
    expect(h.provider.listeners).toBe(0);
  }
  expect(clock.armed).toBe(0);
  await store[Symbol.asyncDispose]();
});

describe("each pass", () => {
  it("forgets events that are older than they may be", async () => {
    const h = await life().start();
    const old = (ms: number) => ({
      type: "exec.completed" as const,
      sandboxId: "sb-x",
      timestamp: new Date(ms),
    });
    const now = clock.now().getTime();
    await store.events.append([old(now - 25 * 3_600_000), old(now - 23 * 3_600_000)]);
    await h.reconciler.reconcile();
    expect(await store.events.kept()).toBe(1);
  });
});

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
    backend.runtimes.set("rt-later" as RuntimeId, { ...shared, sandboxId: "sb-later" as SandboxId });
    await h.reconciler.reconcile();
    expect([...backend.runtimes.keys()]).toEqual([known, namesake, bare]);
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
    const recovery = { recovering: true, recovered: async () => undefined };
    const h = new Harness({ store, clock, provider, recovery });
    open.push(h);
    h.reconciler.start();
    await h.reconciler.ready;
    await settle();
    expect(await h.service.prune({ signal: forever })).toBe(0);
    expect((await h.service.extend(extended.id, ttlMs, { signal: forever })).expiresAt).toEqual(
      new Date(clock.now().getTime() + ttlMs),
    );
    expect(await h.service.acquire(named, { signal: forever })).toMatchObject({
      sandbox: { id: acquired.id },
      made: false,
    });
    silent = false;
    // Sandboxes that did not answer are asked again.
    await clock.advance(1_000);
    await h.reconciler.reconcile();
    await settle();
    expect(await h.service.prune({ signal: forever })).toBe(0);
    const left = (id: SandboxId) => h.service.running(id).row.expiresAt.getTime() - clock.now().getTime();
    const lives = [left(pruned.id), left(extended.id), left(acquired.id)];
    expect(lives).toEqual([testDefaults.ttlMs, ttlMs - 1_000, testDefaults.ttlMs]);
    await clock.advance(ttlMs);
    expect(await state(extended.id)).toBe("destroyed");
    expect(backend.runtimes.size).toBe(2);
  });

  it("tells a sandbox of an older database no end that may have been put off, before its provider is heard", async () => {
    const first = await life().start();
    const row = await first.spawn({ ttlMs: 60_000 });
    await end(first);
    await clock.advance(600_000);
    const provider = new ScriptedProvider({ backend });
    provider.hook = (step, _runtimeId, signal) => (step === "inventory" ? hang(signal) : undefined);
    const recovery = { recovering: true, recovered: async () => undefined };
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
    expect((await second.service.get(dead.id)).error).toContain("its runtime ended");
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

describe("a start", () => {
  it("takes spawns, and adopts the others, while sandboxes do not answer", async () => {
    const first = await life().start();
    const silent = await Promise.all(Array.from({ length: 30 }, () => first.spawn()));
    const row = await first.spawn();
    await end(first);
    const second = life();
    const ids = new Set(silent.map(({ runtimeId }) => runtimeId));
    second.provider.hook = (step, runtimeId, signal) =>
      step === "adopt" && runtimeId !== undefined && ids.has(runtimeId) ? hang(signal) : undefined;
    second.reconciler.start();
    await second.reconciler.ready;
    expect((await second.spawn()).state).toBe("running");
    await settle();
    expect(second.service.running(row.id).row.state).toBe("running");
    expect(() => second.service.running(silent[0]?.id ?? "")).toThrow(/not connected yet/);
  });

  it("takes spawns of one provider while another does not say what it runs", async () => {
    const other = new ScriptedProvider({
      name: "other",
      hook: (step, _id, signal) => (step === "inventory" ? hang(signal) : undefined),
    });
    const h = new Harness({ store, clock, provider: new ScriptedProvider({ backend }), more: [other] });
    open.push(h);
    h.reconciler.start();
    await h.reconciler.ready;
    expect((await h.spawn()).state).toBe("running");
    const caller = new AbortController();
    const waiting = h.service.spawn({ provider: "other" }, { signal: caller.signal });
    await settle();
    expect(other.specs).toEqual([]);
    caller.abort(new CallerGone());
    await expect(waiting).rejects.toBeInstanceOf(CallerGone);
  });

  it("makes requests wait for the sandbox they mean to be loaded and adopted", async () => {
    const first = await life().start();
    const row = await first.spawn();
    const gone = await first.spawn();
    await end(first);
    const second = life();
    second.provider.hook = (step) => (step === "adopt" || step === "inventory" ? settle() : undefined);
    const early = second.service.locate(row.id, { signal: forever });
    const destroyed = second.service.destroy(gone.id, { signal: forever });
    await settle();
    second.reconciler.start();
    expect((await early).row.id).toBe(row.id);
    await destroyed;
    await expect(second.service.locate(gone.id, { signal: forever })).rejects.toThrow(/does not exist/);
    await expect(second.service.locate("sb-unknown", { signal: forever })).rejects.toThrow(/does not exist/);
  });
});

describe("a spawn that a dead process left behind", () => {
  it("is undone without a trace, and without being called an orphan", async () => {
    const first = await life().start();
    first.provider.hook = (step) => (step === "spawned" ? new Promise(() => undefined) : undefined);
    void first.spawn();
    await settle();
    expect(backend.runtimes.size).toBe(1);
    // The process is killed here: it is never heard of again.
    open.splice(open.indexOf(first), 1);
    const second = new Harness({
      store,
      clock: new FakeClock(),
      provider: new ScriptedProvider({ backend }),
    });
    await second.start();
    expect(backend.runtimes.size).toBe(0);
    expect(await store.sandboxes.listLive()).toEqual([]);
    expect(second.events.events).toEqual([]);
    await second[Symbol.asyncDispose]();
    clock = new FakeClock();
  });
});

describe("a pass", () => {
  it("leaves sandboxes that answer alone while their provider does not", async () => {
    const h = await life().start();
    const row = await h.spawn();
    h.provider.hook = (step) => {
      if (step === "inventory") throw new ProviderError("engine is down");
    };
    await h.reconciler.reconcile();
    expect(h.service.running(row.id).row.state).toBe("running");
    h.provider.hook = (step) => {
      if (step !== "destroy") throw new ProviderError("all is down");
    };
    await h.reconciler.reconcile();
    expect(h.service.running(row.id).row.state).toBe("running");
    await clock.advance(500);
    expect(() => h.service.running(row.id)).toThrow(/all is down/);
    h.provider.hook = () => undefined;
    await clock.advance(1_000);
    expect(h.service.running(row.id).row.state).toBe("running");
  });

  it("keeps commands and readers of a sandbox that does not answer, and tells nothing", async () => {
    const h = await life().start();
    const row = await h.spawn();
    const heard: string[] = [];
    h.service.subscribe({ started: () => heard.push("started"), stopped: () => heard.push("stopped") });
    const told = h.events.events.length;
    h.provider.hook = (step) => {
      if (step === "adopt") throw new ProviderError("it does not answer");
    };
    await h.reconciler.reconcile();
    await clock.advance(5_000);
    expect((await h.service.get(row.id)).state).toBe("unhealthy");
    h.provider.hook = () => undefined;
    await clock.advance(60_000);
    expect(h.service.running(row.id).row.state).toBe("running");
    expect(heard).toEqual([]);
    expect(h.events.events.slice(told)).toEqual([]);
  });

  it("undoes neither a spawn that starts nor one that ends after the inventory was taken", async () => {
    const h = await life().start();
    const gates: Record<string, () => void> = {};
    const gate = (name: string) => new Promise<void>((resolve) => (gates[name] = resolve));
    h.provider.hook = (step) => (step === "spawned" ? gate("early") : undefined);
    const early = h.spawn();
    await settle();
    h.provider.hook = (step) => {
      if (step === "inventory") return gate("inventory");
      if (step === "spawned") return gate("late");
      return undefined;
    };
    const pass = h.reconciler.reconcile();
    await settle();
    const late = h.spawn();
    await settle();
    gates.early?.();
    await early;
    gates.inventory?.();
    await pass;
    gates.late?.();
    for (const { id } of [await early, await late]) expect(h.service.running(id).row.state).toBe("running");
    expect(backend.runtimes.size).toBe(2);
    expect(h.events.types()).not.toContain("sandbox.error");
  });

  it("does not bring back a sandbox that is destroyed after the inventory was taken", async () => {
    const h = await life().start();
    const row = await h.spawn();
    let letGo: (() => void) | undefined;
    h.provider.hook = (step) =>
      step === "inventory" ? new Promise<void>((resolve) => (letGo = resolve)) : undefined;
    const pass = h.reconciler.reconcile();
    await settle();
    await h.service.destroy(row.id, { signal: forever });
    letGo?.();
    await pass;
    expect(await state(row.id)).toBe("destroyed");
    expect(h.service.figures.live).toBe(0);
    expect(h.events.types()).not.toContain("reconcile.action");
  });

  it("removes a runtime that a provider made after its spawn was given up", async () => {
    const h = await life().start();
    const caller = new AbortController();
    h.provider.hook = (step, _id, signal) => (step === "spawned" ? hang(signal) : undefined);
    const spawning = h.service.spawn({}, { signal: caller.signal });
    await settle();
    const spec = h.provider.specs[0];
    caller.abort(new CallerGone());
    await expect(spawning).rejects.toBeInstanceOf(CallerGone);
    if (spec === undefined) throw new Error("no spawn was seen");
    backend.runtimes.set(spec.runtimeId, { sandboxId: spec.sandboxId, state: "running", expiresInMs: 1 });
    await h.reconciler.reconcile();
    expect(backend.runtimes.size).toBe(0);
  });
});

describe("a sandbox of another worker", () => {
  /** Rows of a worker that is not this process, in states that a pass would act on, and past their expiry. */
  async function ofAnotherWorker(h: Harness): Promise<SandboxRow[]> {
    const pattern = await h.spawn({ ttlMs: 60_000 });
    const states = ["creating", "running", "unhealthy", "expired", "error"] as const;
    const rows = states.map((state) => ({
      ...pattern,
      id: `sb-far-${state}` as SandboxId,
      runtimeId: `rt-far-${state}` as RuntimeId,
      workerId: "w2",
      state,
      destroyRequested: state === "unhealthy",
    }));
    const fence = { holder: "w2", generation: 1 };
    for (const row of rows) await store.sandboxes.reserve({ row, limits: noCapacityLimits, fence });
    await h.service.destroy(pattern.id, { signal: forever });
    return rows;
  }

  it("is left alone by passes, expiry, prune and shutdown, and its calls are unavailable", async () => {
    const first = await life().start();
    const rows = await ofAnotherWorker(first);
    await end(first);
    const h = await life().start();
    await clock.advance(48 * 3_600_000);
    await h.reconciler.reconcile();
    expect(await h.service.prune({ signal: forever })).toBe(0);
    await h.service.destroyAll({ signal: forever });
    expect(h.service.figures.live).toBe(0);
    expect(h.service.countOf({ workerId: "local", provider: "scripted" })).toBe(0);
    expect(h.events.events).toEqual([]);
    for (const row of rows) {
      const calls = [
        h.service.locate(row.id, { signal: forever }),
        h.service.stats(row.id, { signal: forever }),
        h.service.logs(row.id, 1, { signal: forever }),
        h.service.extend(row.id, 60_000, { signal: forever }),
        h.service.destroy(row.id, { signal: forever }),
      ];
      for (const outcome of await Promise.allSettled(calls)) {
        expect(outcome).toMatchObject({ status: "rejected", reason: { code: "unavailable" } });
      }
      expect(await h.service.get(row.id)).toEqual(row);
    }
  });
});

describe("a runtime whose provider gave it an id of its own", () => {
  const naming = (hook?: StepHook) =>
    new ScriptedProvider({
      backend,
      nameRuntime: (proposed) => `own-${proposed}` as RuntimeId,
      ...(hook === undefined ? {} : { hook }),
    });
  const runtimes = () => [...backend.runtimes.keys()];

  it("is named by it in the row, after a restart, when it ends and when it is destroyed", async () => {
    const first = await life(naming()).start();
    const kept = await first.spawn();
    const ended = await first.spawn();
    expect(kept.runtimeId).toBe(`own-${first.provider.specs[0]?.runtimeId}`);
    expect(await first.service.get(kept.id)).toEqual(kept);
    await first.reconciler.reconcile();
    expect(runtimes()).toEqual([kept.runtimeId, ended.runtimeId]);
    first.provider.die(ended.runtimeId);
    await settle();
    expect(await state(ended.id)).toBe("error");
    await end(first);
    const second = await life(naming()).start();
    expect(second.service.running(kept.id).row).toEqual(kept);
    expect(await second.service.logs(kept.id, 1, { signal: forever })).toEqual(["booted"]);
    await second.service.destroy(kept.id, { signal: forever });
    expect(runtimes()).toEqual([]);
  });

  it("is no orphan while its spawn is under way", async () => {
    const made = Promise.withResolvers<void>();
    const h = await life(naming((step) => (step === "spawned" ? made.promise : undefined))).start();
    const spawning = h.spawn();
    await settle();
    await h.reconciler.reconcile();
    expect(runtimes()).toHaveLength(1);
    made.resolve();
    const row = await spawning;
    expect(runtimes()).toEqual([row.runtimeId]);
    expect(h.events.types()).not.toContain("reconcile.action");
  });

  it("is destroyed by it when its row cannot be written", async () => {
    const h = await life(naming()).start();
    const { update } = store.sandboxes;
    store.sandboxes.update = () => Promise.reject(new Error("disk"));
    try {
      await expect(h.spawn()).rejects.toThrow("disk");
    } finally {
      store.sandboxes.update = update;
    }
    expect(runtimes()).toEqual([]);
    expect(await store.sandboxes.listLive()).toEqual([]);
  });

  it("is found by its sandbox when the process ended before it was written down", async () => {
    const first = await life().start();
    const pattern = await first.spawn();
    await first.service.destroy(pattern.id, { signal: forever });
    await end(first);
    const left = { ...pattern, id: "sb-left" as SandboxId, state: "creating" as const };
    await store.sandboxes.reserve({
      row: left,
      limits: noCapacityLimits,
      fence: { holder: "local", generation: 0 },
    });
    const own = "own-left" as RuntimeId;
    backend.runtimes.set(own, { sandboxId: left.id, state: "running", expiresInMs: 1 });
    const destroyed: unknown[] = [];
    const second = life(
      naming((step, id) => {
        if (step === "destroy") destroyed.push(id);
        // The sandbox takes its place until its runtime is gone.
        if (step === "destroy" && destroyed.length === 1) throw new ProviderError("busy");
      }),
    );
    await second.start();
    expect(await state(left.id)).toBe("creating");
    await clock.advance(60_000);
    expect(new Set(destroyed)).toEqual(new Set([own]));
    expect(runtimes()).toEqual([]);
    expect(await store.sandboxes.get(left.id)).toBeUndefined();
    expect(second.events.types()).not.toContain("reconcile.action");
  });
});

it("a network that is lost and given again is told, and changes nothing else", async () => {
  const h = await life().start();
  const row = await h.spawn({ ownerId: "acme" });
  const told = h.events.events.length;
  h.provider.tellNetwork(row.runtimeId, { state: "lost", reason: "slirp4netns ended" });
  h.provider.tellNetwork(row.runtimeId, { state: "restored", afterMs: 21 });
  h.provider.tellNetwork("rt-unknown" as RuntimeId, { state: "lost", reason: "slirp4netns ended" });
  await settle();
  const provider = h.provider.name;
  expect(h.events.events.slice(told)).toMatchObject([
    {
      type: "sandbox.network_lost",
      sandboxId: row.id,
      ownerId: "acme",
      data: { provider, reason: "slirp4netns ended", owner_id: "acme" },
    },
    {
      type: "sandbox.network_restored",
      sandboxId: row.id,
      ownerId: "acme",
      data: { provider, after_ms: 21 },
    },
  ]);
  expect(await state(row.id)).toBe("running");
});

describe("a runtime that ends by itself", () => {
  it("puts its sandbox into state error at once and is removed", async () => {
    const h = await life().start();
    const row = await h.spawn();
    const stopped: string[] = [];
    h.service.subscribe({ started: () => undefined, stopped: (id) => stopped.push(id) });
    h.provider.die(row.runtimeId, { reason: "out of memory" });
    await settle();
    expect(await h.service.get(row.id)).toMatchObject({
      state: "error",
      error: "its runtime ended: out of memory",
    });
    expect(stopped).toEqual([row.id]);
    expect(backend.runtimes.size).toBe(0);
    expect(h.events.types(row.id).at(-1)).toBe("sandbox.error");
    await h.service.destroy(row.id, { signal: forever });
    expect(await state(row.id)).toBe("destroyed");
  });

  it("has not ended as long as the inventory says that it runs: it is connected anew and goes on", async () => {
    const h = await life().start();
    const row = await h.spawn();
    const { operations } = h.service.running(row.id);
    h.provider.disconnect(row.runtimeId);
    await expect(operations.stats({ signal: forever })).rejects.toBeInstanceOf(Unavailable);
    h.provider.tellExit(row.runtimeId, "its connection broke");
    await settle();
    expect(await operations.stats({ signal: forever })).toEqual({ pids: 1 });
    expect(h.service.running(row.id).operations).toBe(operations);
    expect(await state(row.id)).toBe("running");
    expect(h.events.types(row.id)).not.toContain("sandbox.error");
  });

  it("is not concluded from one refusal when its expiry is moved", async () => {
    const h = await life().start();
    const row = await h.spawn();
    let refusals = 0;
    h.provider.hook = (step) => {
      if (step === "set_expiry" && refusals++ === 0) throw new RuntimeGone("the connection is not there");
    };
    const extended = await h.service.extend(row.id, 3_600_000, { signal: forever });
    expect(extended.state).toBe("running");
    expect(backend.runtimes.get(row.runtimeId)?.expiresInMs).toBe(3_600_000 + 300_000);
    h.provider.die(row.runtimeId, { silently: true });
    await expect(h.service.extend(row.id, 3_600_000, { signal: forever })).resolves.toBeDefined();
    await clock.advance(60_000);
    expect(await state(row.id)).toBe("error");
  });

  it("asks the inventory a few times, not once for each, when many end at once", async () => {
    const h = await life().start();
    const rows = await Promise.all(Array.from({ length: 50 }, () => h.spawn()));
    let inventories = 0;
    h.provider.hook = (step) => {
      if (step === "inventory") inventories++;
      return step === "inventory" ? settle() : undefined;
    };
    for (const { runtimeId } of rows) h.provider.die(runtimeId);
    await clock.advance(100);
    for (const { id } of rows) expect(await state(id)).toBe("error");
    expect(inventories).toBeLessThanOrEqual(2);
  });

  it("leaves memory, and its row goes when it expires, is destroyed, or too many are kept too long", async () => {
    const h = await life().start();
    const expiring = await h.spawn({ ttlMs: 90_000 });
    const asked = await h.spawn({ ttlMs: 20 * 3_600_000, env: { SECRET: "s" } });
    const old = await h.spawn({ ttlMs: 24 * 3_600_000 });
    const pruned = await h.spawn({ ttlMs: 30_000 });
    for (const { runtimeId } of [expiring, asked, old, pruned]) h.provider.die(runtimeId);
    await clock.advance(100);
    expect(h.service.figures.live).toBe(0);
    expect(await store.sandboxes.get(asked.id)).toMatchObject({ state: "error", env: {} });
    await expect(h.service.logs(asked.id, 1, { signal: forever })).rejects.toThrow(/state error/);
    const extended = h.service.extend(asked.id, 1_000, { signal: forever });
    await expect(extended).rejects.toThrow(/is in state error and cannot be extended/);
    await h.service.destroy(asked.id, { signal: forever });
    expect(await state(asked.id)).toBe("destroyed");
    await clock.advance(45_000);
    expect(await h.service.prune({ signal: forever })).toBe(1);
    expect(await state(pruned.id)).toBe("destroyed");
    await clock.advance(90_000);
    expect(await state(expiring.id)).toBe("destroyed");
    expect(h.events.types(expiring.id).at(-1)).toBe("sandbox.destroyed");
    expect(await state(old.id)).toBe("error");
    await clock.advance(24 * 3_600_000);
    expect(await state(old.id)).toBe("destroyed");
    expect(h.service.figures.live).toBe(0);
  });

  it("stays in memory until nothing of its runtime is left", async () => {
    const h = await life().start();
    const row = await h.spawn();
    h.provider.hook = (step) => {
      if (step === "destroy") throw new ProviderError("engine is down");
    };
    h.provider.die(row.runtimeId);
    await clock.advance(1_000);
    expect(h.service.figures.live).toBe(1);
    h.provider.hook = () => undefined;
    await clock.advance(60_000);
    expect(h.service.figures.live).toBe(0);
    expect(backend.runtimes.size).toBe(0);
    expect(await state(row.id)).toBe("error");
  });

  it("frees its place", async () => {
    const h = new Harness({ store, clock, defaults: { maxSandboxes: 1, spawnOverflow: "queue" } });
    open.push(h);
    await h.start();
    const { runtimeId } = await h.spawn();
    const next = h.spawn();
    await settle();
    h.provider.die(runtimeId);
    expect((await next).state).toBe("running");
  });
});

describe("a destroy that fails", () => {
  it("is answered with the error, kept as an intent and repeated with growing pauses until it is done", async () => {
    const h = await life().start();
    const row = await h.spawn();
    let attempts = 0;
    h.provider.hook = (step) => {
      if (step !== "destroy") return;
      attempts++;
      throw new ProviderError("engine is down");
    };
    await expect(h.service.destroy(row.id, { signal: forever })).rejects.toThrow("engine is down");
    expect(await h.service.get(row.id)).toMatchObject({ state: "unhealthy", destroyRequested: true });
    expect(() => h.service.running(row.id)).toThrow(/is being destroyed/);
    await clock.advance(1_000 + 2_000 + 4_000);
    expect(attempts).toBe(4);
    await clock.advance(7_999);
    expect(attempts).toBe(4);
    h.provider.hook = () => undefined;
    await clock.advance(1);
    expect(await state(row.id)).toBe("destroyed");
    expect(h.events.types(row.id).at(-1)).toBe("sandbox.destroyed");
  });

  it("is repeated by the next process", async () => {
    const first = await life().start();
    const row = await first.spawn();
    first.provider.hook = (step) => {
      if (step === "destroy") throw new ProviderError("engine is down");
    };
    await expect(first.service.destroy(row.id, { signal: forever })).rejects.toThrow("engine is down");
    await end(first);
    await life().start();
    expect(await state(row.id)).toBe("destroyed");
    expect(backend.runtimes.size).toBe(0);
  });

  it("keeps the place of a spawn that could not be undone, until it is", async () => {
    const h = await life().start();
    h.provider.hook = (step) => {
      if (step === "spawned" || step === "destroy") throw new ProviderError("engine is down");
    };
    await expect(h.spawn({ ownerId: "a" })).rejects.toThrow("engine is down");
    const [left] = await store.sandboxes.listLive();
    expect(left).toMatchObject({ state: "creating", error: expect.stringContaining("engine is down") });
    expect((await store.sandboxes.inUse("a")).owner.sandboxes).toBe(1);
    h.provider.hook = () => undefined;
    await clock.advance(1_000);
    expect(await store.sandboxes.listLive()).toEqual([]);
    expect(backend.runtimes.size).toBe(0);
  });

  it("of a spawn that a client destroyed is remembered: the id stays known, its end is told", async () => {
    const h = await life().start();
    h.provider.hook = (step, _id, signal) => {
      if (step === "spawned") return hang(signal);
      if (step === "destroy") throw new ProviderError("engine is down");
    };
    const spawning = h.spawn();
    const refused = expect(spawning).rejects.toThrow(/destroyed while it was being created/);
    await settle();
    const [row] = await store.sandboxes.listLive();
    if (row === undefined) throw new Error("there is no row");
    await expect(h.service.destroy(row.id, { signal: forever })).rejects.toThrow("engine is down");
    await refused;
    h.provider.hook = () => undefined;
    await clock.advance(2_000);
    expect(await state(row.id)).toBe("destroyed");
    expect(h.events.types(row.id)).toContain("sandbox.destroyed");
    await h.service.destroy(row.id, { signal: forever });
    expect(backend.runtimes.size).toBe(0);
  });
});

describe("very many sandboxes", () => {
  it("are loaded, compared and asked few at a time, so that others have their turn", async () => {
    const first = new Harness({
      store,
      clock,
      provider: new ScriptedProvider({ backend }),
      defaults: { maxSandboxes: 0 },
    });
    open.push(first);
    await first.start();
    await Promise.all(Array.from({ length: 1_500 }, () => first.spawn()));
    await end(first);
    let done = { rows: 0, adopts: 0 };
    const most = { rows: 0, adopts: 0 };
    let counting = true;
    const turn = () => {
      most.rows = Math.max(most.rows, done.rows);
      most.adopts = Math.max(most.adopts, done.adopts);
      done = { rows: 0, adopts: 0 };
      if (counting) setImmediate(turn);
    };
    setImmediate(turn);
    const read = store.sandboxes.get.bind(store.sandboxes);
    vi.spyOn(store.sandboxes, "get").mockImplementation((id) => {
      done.rows++;
      return read(id);
    });
    const all = vi.spyOn(store.sandboxes, "listLive");
    const h = life();
    h.provider.hook = (step) => {
      if (step === "adopt") done.adopts++;
      return undefined;
    };
    await h.start();
    await h.reconciler.reconcile();
    counting = false;
    expect(h.service.running([...backend.runtimes.values()][1_499]?.sandboxId ?? "").row.state).toBe(
      "running",
    );
    expect(most.rows).toBeGreaterThan(0);
    expect(most.rows).toBeLessThanOrEqual(300);
    expect(most.adopts).toBeGreaterThan(0);
    expect(most.adopts).toBeLessThanOrEqual(300);
    expect(all).not.toHaveBeenCalled();
  }, 30_000);
});
