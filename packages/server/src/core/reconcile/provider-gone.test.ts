import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { noCapacityLimits } from "../../ports/capacity.ts";
import { ResourceLimit, type RuntimeId, type SandboxId, Unavailable } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { ScriptedBackend, ScriptedProvider } from "../testing/scripted-provider.ts";

const ttlMs = 60_000;
const graceMs = 300_000;

let store: SqliteStore;
let backend: ScriptedBackend;
let clock: FakeClock;
let open: Harness | undefined;

const state = async (id: SandboxId) => (await store.sandboxes.get(id))?.state;

/** A new process; the one before ends. */
async function life(name: "scripted" | "other"): Promise<Harness> {
  await open?.[Symbol.asyncDispose]();
  const provider = new ScriptedProvider(name === "scripted" ? { name, backend } : { name });
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
});
