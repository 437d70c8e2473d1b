import { describe, expect, it, vi } from "vitest";
import { CallerGone } from "../../platform/deadline.ts";
import { silentLogger } from "../../platform/logger.ts";
import { currentRequestId, withinRequest } from "../../platform/request-scope.ts";
import { noCapacityLimits } from "../../ports/capacity.ts";
import {
  ProviderError,
  RuntimeElsewhere,
  type RuntimeId,
  type SandboxId,
  type SandboxRow,
} from "../../ports/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { hang, ScriptedProvider, type StepHook } from "../testing/scripted-provider.ts";
import { backend, clock, end, life, livesPerTest, newClock, open, state, store } from "./testing/lives.ts";

livesPerTest();

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

describe("a sandbox that was made where its provider is not any more", () => {
  const elsewhere: StepHook = (step) => {
    if (step === "adopt" || step === "destroy") throw new RuntimeElsewhere("it was made at another engine");
  };

  it("is unhealthy, and runs again once its provider is there again", async () => {
    const first = await life().start();
    const row = await first.spawn();
    await end(first);
    const runtime = backend.runtimes.get(row.runtimeId);
    if (runtime === undefined) throw new Error("there is no runtime");
    runtime.state = "elsewhere";
    const second = life();
    second.provider.hook = elsewhere;
    await second.start();
    await clock.advance(60_000);
    expect((await second.service.get(row.id)).state).toBe("unhealthy");
    await end(second);
    runtime.state = "running";
    const third = await life().start();
    expect(third.service.running(row.id).row.state).toBe("running");
  });

  it("is not said to be destroyed before it has ended itself", async () => {
    const first = await life().start();
    const row = await first.spawn();
    await end(first);
    const runtime = backend.runtimes.get(row.runtimeId);
    if (runtime === undefined) throw new Error("there is no runtime");
    runtime.state = "elsewhere";
    const second = life();
    second.provider.hook = elsewhere;
    await second.start();
    await expect(second.service.destroy(row.id, { signal: forever })).rejects.toThrow(/another engine/);
    await clock.advance(31 * 60_000);
    expect(await state(row.id)).not.toBe("destroyed");
    await clock.advance(10 * 60_000);
    expect(await state(row.id)).toBe("destroyed");
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
    newClock();
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

it("a network's lines have the fields of every sandbox's, and are told for no request", async () => {
  const h = await life().start();
  const row = await h.spawn({ ownerId: "acme" });
  const requests: (string | undefined)[] = [];
  const warn = vi.spyOn(silentLogger, "warn").mockImplementation(() => requests.push(currentRequestId()));
  const info = vi.spyOn(silentLogger, "info").mockImplementation(() => requests.push(currentRequestId()));
  try {
    withinRequest({ id: "spawn-of-long-ago", span: undefined }, () => {
      h.provider.tellNetwork(row.runtimeId, { state: "lost", reason: "slirp4netns ended" });
      h.provider.tellNetwork(row.runtimeId, { state: "restored", afterMs: 21 });
    });
    const of = { sandbox_id: row.id, runtime_id: row.runtimeId, owner_id: "acme", provider: h.provider.name };
    expect(warn.mock.calls[0]?.[0]).toEqual({
      ...of,
      event: "sandbox.network_lost",
      outcome: "failed",
      reason: "slirp4netns ended",
    });
    expect(info.mock.calls[0]?.[0]).toEqual({
      ...of,
      event: "sandbox.network_restored",
      outcome: "ok",
      duration_ms: 21,
    });
    expect(requests).toEqual([undefined, undefined]);
  } finally {
    vi.restoreAllMocks();
  }
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
