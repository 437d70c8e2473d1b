import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { CallerGone } from "../../platform/deadline.ts";
import { ProviderError } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { hang } from "../testing/scripted-provider.ts";

let store: SqliteStore;
const open: AsyncDisposable[] = [];

async function harness(options: Partial<ConstructorParameters<typeof Harness<FakeClock>>[0]> = {}) {
  const made = new Harness({ store, clock: new FakeClock(), ...options });
  open.push(made);
  return made.start();
}

beforeEach(async () => {
  store = await SqliteStore.open({ path: ":memory:" });
});
afterEach(async () => {
  for (const one of open.splice(0)) await one[Symbol.asyncDispose]();
  await store[Symbol.asyncDispose]();
});

describe("spawn", () => {
  it("makes a running sandbox with the defaults and tells created, then running", async () => {
    const h = await harness();
    const row = await h.spawn();
    expect(row).toMatchObject({
      state: "running",
      image: "scripted:1",
      memoryMb: 512,
      vcpus: 1,
      ownerId: "",
    });
    expect(row.expiresAt.getTime() - row.createdAt.getTime()).toBe(30 * 60_000);
    expect(h.events.types(row.id)).toEqual(["sandbox.created", "sandbox.running"]);
    expect(h.provider.specs[0]).toMatchObject({ sandboxId: row.id, expiresInMs: 35 * 60_000 });
    expect((await h.service.get(row.id)).state).toBe("running");
    expect(h.service.running(row.id).row.id).toBe(row.id);
  });

  it("has written the intent before the provider is called", async () => {
    const h = await harness();
    let seen: unknown;
    h.provider.hook = async (step, runtimeId) => {
      if (step === "spawn")
        seen = (await store.sandboxes.listLive()).map((row) => [row.state, row.runtimeId === runtimeId]);
    };
    await h.spawn();
    expect(seen).toEqual([["creating", true]]);
  });

  it("leaves nothing behind when the provider fails", async () => {
    const h = await harness();
    h.provider.hook = (step) => {
      if (step === "spawned") throw new ProviderError("no luck");
    };
    await expect(h.spawn()).rejects.toThrow("no luck");
    expect(await store.sandboxes.listLive()).toEqual([]);
    expect(h.provider.backend.runtimes.size).toBe(0);
    expect(h.events.types()).toEqual(["provider.failed", "operation.failed", "sandbox.error"]);
  });

  it("is undone when the caller goes away before it is finished", async () => {
    const h = await harness();
    const caller = new AbortController();
    h.provider.hook = (step, _id, signal) => (step === "spawned" ? hang(signal) : undefined);
    const spawning = h.service.spawn({}, { signal: caller.signal });
    await settle();
    expect(h.provider.backend.runtimes.size).toBe(1);
    caller.abort(new CallerGone());
    await expect(spawning).rejects.toBeInstanceOf(CallerGone);
    expect(h.provider.backend.runtimes.size).toBe(0);
    expect(await store.sandboxes.listLive()).toEqual([]);
    expect(h.events.types()).not.toContain("provider.failed");
  });
});

describe("destroy", () => {
  it("ends the runtime, keeps the row as destroyed without its environment, and may be repeated", async () => {
    const h = await harness();
    const row = await h.spawn({ env: { TOKEN: "secret" } });
    await h.service.destroy(row.id, { signal: forever });
    await h.service.destroy(row.id, { signal: forever });
    expect(h.provider.backend.runtimes.size).toBe(0);
    expect(await store.sandboxes.get(row.id)).toMatchObject({ state: "destroyed", env: {} });
    await expect(h.service.get(row.id)).rejects.toThrow(row.id);
    expect(() => h.service.running(row.id)).toThrow(row.id);
    await expect(h.service.destroy("sb-unknown", { signal: forever })).rejects.toThrow("sb-unknown");
    expect(h.events.types(row.id).at(-1)).toBe("sandbox.destroyed");
  });
});

describe("extend", () => {
  it("sets the expiry to now + ttl and tells the sandbox", async () => {
    const h = await harness();
    const row = await h.spawn();
    await h.clock.advance(60_000);
    const extended = await h.service.extend(row.id, 3_600_000, { signal: forever });
    expect(extended.expiresAt.getTime()).toBe(h.clock.now().getTime() + 3_600_000);
    expect(h.provider.backend.runtimes.get(row.runtimeId)?.expiresInMs).toBe(3_600_000 + 300_000);
  });
});

describe("expiry", () => {
  it("destroys a sandbox when its time has come", async () => {
    const h = await harness();
    const row = await h.spawn({ ttlMs: 5_000 });
    await h.clock.advance(4_999);
    expect(h.service.running(row.id).row.state).toBe("running");
    await h.clock.advance(1);
    expect((await store.sandboxes.get(row.id))?.state).toBe("destroyed");
  });
});
