import { describe, expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { guardStops, ProviderError, RuntimeGone, Unavailable } from "../../ports/index.ts";
import { settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { hang } from "../testing/scripted-provider.ts";
import { backend, clock, end, life, livesPerTest, open, state, store } from "./testing/lives.ts";

livesPerTest();

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
    expect(h.operations.incidents.all.ended).toEqual({ itself: 1, disk_guard: 0, memory_guard: 0 });
    await h.service.destroy(row.id, { signal: forever });
    expect(await state(row.id)).toBe("destroyed");
  });

  it("is not counted as ended when it stays with the installation that this one was restored from", async () => {
    const first = await life().start();
    const row = await first.spawn();
    await end(first);
    backend.runtimes.clear();
    await store.changeSetting("restored_at", clock.now().toISOString());
    const h = await life().start();
    expect(await h.service.get(row.id)).toMatchObject({
      state: "error",
      error: "its runtime ended: it was not brought along by the restore",
    });
    expect(h.operations.incidents.all.ended).toEqual({ itself: 0, disk_guard: 0, memory_guard: 0 });
  });

  it("is counted as stopped when a guard of its provider did it", async () => {
    const h = await life().start();
    for (const [reason, network] of [
      [`${guardStops.disk}written 30 MB and 5 MB were free`, true],
      [`${guardStops.memory}can hold up to 900 MB`, false],
      [`${guardStops.kernelMemory}can hold up to 900 MB`, false],
    ] as const) {
      const { runtimeId } = await h.spawn();
      if (network) h.provider.tellNetwork(runtimeId, { state: "lost", reason: "slirp4netns ended" });
      h.provider.die(runtimeId, { reason });
      await settle();
    }
    expect(h.operations.incidents.all).toEqual({
      ended: { itself: 0, disk_guard: 1, memory_guard: 2 },
      networksLost: 1,
      recovered: 0,
    });
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

  it("is at once the end of its sandbox that was asked for, where its provider had not confirmed that", async () => {
    const h = await life().start();
    const row = await h.spawn();
    let down = true;
    h.provider.hook = (step) => {
      if (step === "destroy" && down) throw new Unavailable("engine is down");
    };
    await expect(h.service.destroy(row.id, { signal: forever })).rejects.toThrow("engine is down");
    for (let minutes = 0; minutes < 5; minutes++) await clock.advance(60_000);
    down = false;
    h.provider.die(row.runtimeId);
    await settle();
    expect(await state(row.id)).toBe("destroyed");
    expect(h.events.types(row.id)).toContain("sandbox.destroyed");
    expect(h.events.types(row.id)).not.toContain("sandbox.error");
    expect(h.operations.incidents.all.ended).toEqual({ itself: 0, disk_guard: 0, memory_guard: 0 });
  });

  it("is not connected anew when its sandbox is to end", async () => {
    const h = await life().start();
    const row = await h.spawn();
    h.provider.hook = (step) => {
      if (step === "destroy") throw new Unavailable("engine is down");
    };
    await expect(h.service.destroy(row.id, { signal: forever })).rejects.toThrow("engine is down");
    h.provider.disconnect(row.runtimeId);
    h.provider.tellExit(row.runtimeId, "its connection broke");
    await settle();
    expect(await h.service.get(row.id)).toMatchObject({ state: "unhealthy", destroyRequested: true });
    expect(() => h.service.running(row.id)).toThrow("is being destroyed");
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
    const warn = vi.spyOn(silentLogger, "warn");
    await clock.advance(1_000 + 2_000 + 4_000);
    expect(attempts).toBe(4);
    // A line for each attempt.
    expect(warn).toHaveBeenCalledTimes(3);
    warn.mockRestore();
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
