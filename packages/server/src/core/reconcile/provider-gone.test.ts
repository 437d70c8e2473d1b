import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { noCapacityLimits } from "../../ports/capacity.ts";
import { ResourceLimit, type RuntimeId, type SandboxId, Unavailable } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { ScriptedBackend, ScriptedProvider, type StepHook } from "../testing/scripted-provider.ts";

const ttlMs = 60_000;
const graceMs = 300_000;

let store: SqliteStore;
let backend: ScriptedBackend;
let clock: FakeClock;
let open: Harness | undefined;

const state = async (id: SandboxId) => (await store.sandboxes.get(id))?.state;

/** A new process; the one before ends. */
async function life(name: "scripted" | "other", hook?: StepHook): Promise<Harness> {
  await open?.[Symbol.asyncDispose]();
  const scripted = { ...(name === "scripted" && { backend }), ...(hook && { hook }) };
  const provider = new ScriptedProvider({ name, ...scripted });
  open = new Harness({ store, clock, provider, defaults: { maxSandboxes: 1 } });
  return open.start();
}

beforeEach(async () => {
  store = await SqliteStore.open({ path: ":memory:" });
  backend = new ScriptedBackend();
  clock = new FakeClock();
});
afterEach(async () => {
  await open?.[Symbol.asyncDispose]();
  open = undefined;
  expect(clock.armed).toBe(0);
  await store[Symbol.asyncDispose]();
});

describe("a sandbox whose provider is enabled no longer", () => {
  it("frees its place once it has ended itself, and what it left goes when its provider is back", async () => {
    const row = await (await life("scripted")).spawn({ ttlMs });
    const h = await life("other");
    await expect(h.spawn()).rejects.toBeInstanceOf(ResourceLimit);
    await clock.advance(ttlMs);
    expect(await state(row.id)).toBe("expired");
    const refusal = h.service.destroy(row.id, { signal: forever });
    await expect(refusal).rejects.toBeInstanceOf(Unavailable);
    await expect(refusal).rejects.toThrow(new Date(row.expiresAt.getTime() + graceMs).toISOString());
    await expect(h.spawn()).rejects.toBeInstanceOf(ResourceLimit);
    // Destroys that failed are repeated after five minutes at the latest.
    await clock.advance(2 * graceMs);
    expect(await state(row.id)).toBe("destroyed");
    expect(h.events.types(row.id).at(-1)).toBe("sandbox.destroyed");
    const next = await h.spawn();
    await h.service.destroy(next.id, { signal: forever });
    expect([...backend.runtimes.keys()]).toEqual([row.runtimeId]);
    await life("scripted");
    expect(backend.runtimes.size).toBe(0);
  });

  it("can be destroyed at once when it has ended itself before the start", async () => {
    const row = await (await life("scripted")).spawn({ ttlMs });
    await open?.[Symbol.asyncDispose]();
    await clock.advance(ttlMs + graceMs);
    const h = await life("other");
    await h.service.destroy(row.id, { signal: forever });
    expect(await state(row.id)).toBe("destroyed");
  });

  it("frees its place as well when it was never finished", async () => {
    const h = await life("scripted");
    const pattern = await h.spawn({ ttlMs });
    await h.service.destroy(pattern.id, { signal: forever });
    const left = {
      ...pattern,
      id: "sb-left" as SandboxId,
      runtimeId: "rt-left" as RuntimeId,
      state: "creating" as const,
    };
    const fence = { holder: "local", generation: 0 };
    await store.sandboxes.reserve({ row: left, limits: noCapacityLimits, fence });
    const later = await life("other");
    await expect(later.spawn()).rejects.toBeInstanceOf(ResourceLimit);
    await clock.advance(ttlMs + 2 * graceMs);
    expect(await store.sandboxes.get(left.id)).toBeUndefined();
    expect((await later.spawn()).state).toBe("running");
  });

  it.each([ttlMs / 2, ttlMs * 2])("cannot be extended, to %d ms: nobody can tell it", async (newTtlMs) => {
    const row = await (await life("scripted")).spawn({ ttlMs });
    const h = await life("other");
    const refusal = h.service.extend(row.id, newTtlMs, { signal: forever });
    await expect(refusal).rejects.toBeInstanceOf(Unavailable);
    await expect(refusal).rejects.toThrow(/cannot be extended now: provider "scripted" is not enabled/);
    expect((await h.service.get(row.id)).expiresAt).toEqual(row.expiresAt);
  });

  it("says of its console what it says of everything: 503, and why", async () => {
    const row = await (await life("scripted")).spawn({ ttlMs });
    const h = await life("other");
    const refusal = h.service.logs(row.id, 10, { signal: forever });
    await expect(refusal).rejects.toBeInstanceOf(Unavailable);
    await expect(refusal).rejects.toThrow(/provider "scripted" is not enabled/);
  });

  /** Milliseconds from now until the sandbox can be destroyed without its provider, to a second. */
  async function freedAfter(h: Harness, id: SandboxId): Promise<number> {
    for (let waitedMs = 0; ; waitedMs += 1_000) {
      try {
        await h.service.destroy(id, { signal: forever });
        return waitedMs;
      } catch (error) {
        expect(error).toBeInstanceOf(Unavailable);
        await clock.advance(1_000);
      }
    }
  }

  it.each([
    ["was told of a shorter life", undefined, 10_000],
    ["could not be told of a shorter life", "set_expiry", ttlMs],
  ] as const)("that %s counts as ended when what it was told last is over", async (_, failing, livesMs) => {
    let fails = false;
    const hook: StepHook = (step) => {
      if (fails && step === failing) throw new Error("not now");
    };
    const first = await life("scripted", hook);
    const row = await first.spawn({ ttlMs });
    fails = true;
    await first.service.extend(row.id, 10_000, { signal: forever });
    expect(backend.runtimes.get(row.runtimeId)?.expiresInMs).toBe(livesMs + graceMs);
    expect(await freedAfter(await life("other"), row.id)).toBe(livesMs + graceMs);
  });

  it("that was told of a shorter life by a reconciliation counts as ended when that is over", async () => {
    let fails = true;
    const hook: StepHook = (step) => {
      if (fails && step === "set_expiry") throw new Error("not now");
    };
    const first = await life("scripted", hook);
    const row = await first.spawn({ ttlMs });
    await first.service.extend(row.id, 10_000, { signal: forever });
    fails = false;
    await first.reconciler.reconcile();
    expect(backend.runtimes.get(row.runtimeId)?.expiresInMs).toBe(10_000 + graceMs);
    expect(await freedAfter(await life("other"), row.id)).toBe(10_000 + graceMs);
  });

  it("counts as ended by what it was told, though the process dies between writing a shorter life and telling it", async () => {
    const died = Promise.withResolvers<never>();
    const first = await life("scripted", (step) => (step === "set_expiry" ? died.promise : undefined));
    const row = await first.spawn({ ttlMs });
    const asked = first.service.extend(row.id, 10_000, { signal: forever }).catch(() => undefined);
    await settle();
    expect((await store.sandboxes.get(row.id))?.expiresAt.getTime()).toBe(clock.now().getTime() + 10_000);
    const second = await life("other");
    expect(await freedAfter(second, row.id)).toBe(ttlMs + graceMs);
    died.reject(new Error("it died"));
    await asked;
  });

  it("counts as ended by the grace it was told, though that is a shorter one by now", async () => {
    const row = await (await life("scripted")).spawn({ ttlMs });
    await open?.[Symbol.asyncDispose]();
    const provider = new ScriptedProvider({ name: "other" });
    open = new Harness({ store, clock, provider, deadmanGraceMs: 10_000 });
    expect(await freedAfter(await open.start(), row.id)).toBe(ttlMs + graceMs);
  });

  it("counts as ended by when it was told, which of a spawn that takes its time is later than its expiry and the grace", async () => {
    const first = await life("scripted", async (step) => {
      if (step === "spawned") await clock.advance(20_000);
    });
    const row = await first.spawn({ ttlMs });
    expect(row.expiresAt.getTime()).toBe(clock.now().getTime() + ttlMs - 20_000);
    expect(await freedAfter(await life("other"), row.id)).toBe(ttlMs + graceMs);
  });

  it("is waited for by what is asked of it right after its provider is back", async () => {
    const row = await (await life("scripted")).spawn({ ttlMs });
    await life("other");
    expect(await state(row.id)).toBe("unhealthy");
    await open?.[Symbol.asyncDispose]();
    const inventory = Promise.withResolvers<void>();
    const hook: StepHook = (step) => (step === "inventory" ? inventory.promise : undefined);
    open = new Harness({ store, clock, provider: new ScriptedProvider({ name: "scripted", backend, hook }) });
    open.reconciler.start();
    const { row: found } = await open.service.locate(row.id, { signal: forever });
    expect(found).toMatchObject({ state: "running", error: null });
    inventory.resolve();
    await open.reconciler.reconcile();
  });

  it("says what keeps it from being reached when its provider is back, not that this is not enabled", async () => {
    const row = await (await life("scripted")).spawn({ ttlMs });
    await life("other");
    const hook: StepHook = (step) => {
      if (step === "adopt") throw new Unavailable("it stands still");
    };
    const h = await life("scripted", hook);
    await expect(h.service.locate(row.id, { signal: forever })).rejects.toThrow(/it stands still/);
  });
});
