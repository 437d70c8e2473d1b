import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { CallerGone, DeadlineExceeded, ShuttingDown } from "../../platform/deadline.ts";
import { silentLogger } from "../../platform/logger.ts";
import { systemClock } from "../../platform/system-clock.ts";
import { noCapacityLimits } from "../../ports/capacity.ts";
import type { QuotaRow } from "../../ports/index.ts";
import {
  BadRequest,
  Conflict,
  NotFound,
  ProviderError,
  ResourceLimit,
  RuntimeGone,
  type RuntimeId,
  type SandboxId,
  type SandboxOperations,
  Unavailable,
} from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { AnswerBudget } from "../answers/answer-budget.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { hang, ScriptedProvider } from "../testing/scripted-provider.ts";
import { LiveSandboxes } from "./live-sandboxes.ts";
import type { SpawnInput } from "./sandbox-service.ts";

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
      imageResolved: "scripted:1",
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

  it("is refused when env and metadata together are larger than a launcher reads", async () => {
    const h = await harness();
    const most = 524_288;
    const empty = JSON.stringify({ env: { E: "" }, metadata: { m: "" } }).length;
    const fitting = { env: { E: "x".repeat(480_000) }, metadata: { m: "y".repeat(most - empty - 480_000) } };
    await h.spawn(fitting);
    const above = { ...fitting, metadata: { m: `${fitting.metadata.m}y` } };
    await expect(h.spawn(above)).rejects.toThrow(
      new BadRequest(`env and metadata together are ${most + 1} bytes as JSON; at most ${most} are taken`),
    );
    expect(h.provider.specs).toHaveLength(1);
  });

  it("leaves the environment to the runtime and the store", async () => {
    const h = await harness();
    const { id } = await h.spawn({ env: { A: "a" } });
    expect(h.provider.specs[0]?.env).toEqual({ A: "a" });
    expect((await store.sandboxes.get(id))?.env).toEqual({ A: "a" });
    expect(h.service.running(id).row.env).toEqual({});
    await h.service.extend(id, 60_000, { signal: forever });
    expect((await store.sandboxes.get(id))?.env).toEqual({ A: "a" });
    expect(h.service.running(id).row.env).toEqual({});
  });

  it("is refused when its labels are larger than lists hold", async () => {
    const h = await harness();
    const most = 65_536;
    const fitting = { m: "é".repeat((most - 8) / 2) };
    await h.spawn({ metadata: fitting });
    await expect(h.spawn({ metadata: { m: `${fitting.m}y` } })).rejects.toThrow(
      new BadRequest(`metadata is ${most + 1} bytes as JSON; at most ${most} are taken`),
    );
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

  it("is kept although a listener fails, and the other listeners hear of it", async () => {
    const h = await harness();
    const heard: string[] = [];
    const failing = () => {
      throw new Error("listener");
    };
    h.service.subscribe({ started: failing, stopped: failing });
    const stop = h.service.subscribe({
      started: (row, _operations, how) => heard.push(`${how} ${row.id}`),
      stopped: (id) => heard.push(`stopped ${id}`),
    });
    const row = await h.spawn();
    await h.service.destroy(row.id, { signal: forever });
    stop();
    await h.spawn();
    expect(heard).toEqual([`spawned ${row.id}`, `stopped ${row.id}`]);
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

describe("spawn requests", () => {
  it("are refused at once while the provider's last check failed, admission says so, and they count as its failures", async () => {
    const more = new ScriptedProvider({ name: "other" });
    const h = await harness({ more: [more] });
    const look = () => h.registry.healthOf("scripted", { signal: forever, refresh: true });
    h.provider.checkResult = { healthy: false, error: "the engine stands still", notes: [] };
    await look();
    await expect(h.spawn()).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining("the engine stands still"),
      retryAfterS: 5,
      details: { reason: "worker_unavailable" },
    });
    expect(h.provider.specs).toEqual([]);
    expect(await h.service.admission({})).toMatchObject({
      allowed: false,
      queueable: false,
      reason: "worker_unavailable",
    });
    const counted = h.operations.all.find((one) => one.operation === "spawn" && one.provider === "scripted");
    expect(counted).toMatchObject({ failed: 1, succeeded: 0 });
    expect(await h.service.admission({ provider: "other" })).toMatchObject({ allowed: true });
    await h.spawn({ provider: "other" });
    h.provider.checkResult = { healthy: true, notes: [] };
    await look();
    expect((await h.spawn()).state).toBe("running");
  });

  it("are refused by a provider that recovered until somebody asks for one, which has it looked at again", async () => {
    const h = await harness();
    h.provider.checkResult = { healthy: false, error: "no engine", notes: [] };
    await h.registry.healthOf("scripted", { signal: forever, refresh: true });
    h.provider.checkResult = { healthy: true, notes: [] };
    await h.clock.advance(2_000);
    await expect(h.spawn()).rejects.toThrow(/no engine/);
    await settle();
    expect((await h.spawn()).state).toBe("running");
  });

  it("are refused for what makes no sense, naming it, and make nothing", async () => {
    const h = await harness();
    const bad: [SpawnInput, RegExp][] = [
      [{ memoryMb: 4 }, /memory_mb .* from 16/],
      [{ memoryMb: 1.5 }, /memory_mb/],
      [{ vcpus: 0 }, /vcpus/],
      [{ ttlMs: 0 }, /ttl must be longer than 0s/],
      [{ ttlMs: -5 }, /ttl/],
      [{ image: "a b" }, /image "a b"/],
      [{ env: { "A=B": "" } }, /env name "A=B"/],
      [{ env: { A: "\0" } }, /env\.A/],
      [{ workdir: "relative" }, /workdir "relative" must be an absolute path/],
      [{ user: "a b" }, /user "a b"/],
      [{ ownerId: "a/b" }, /path separators/],
      [{ name: "sb-web" }, /name "sb-web" must .* not begin with "sb-"/],
    ];
    for (const [input, message] of bad) {
      const outcome = h.spawn(input);
      await expect(outcome).rejects.toBeInstanceOf(BadRequest);
      await expect(outcome).rejects.toThrow(message);
    }
    await expect(h.spawn({ provider: "nope" })).rejects.toBeInstanceOf(NotFound);
    await expect(h.spawn({ provider: "nope" })).rejects.toThrow(/"nope".*enabled: scripted/);
    expect(h.provider.specs).toEqual([]);
    expect(await store.sandboxes.listLive()).toEqual([]);
  });

  it("reach the provider with every field", async () => {
    const h = await harness();
    const asked = {
      image: "i:1",
      memoryMb: 64,
      vcpus: 2,
      env: { A: "1" },
      user: "u",
      workdir: "/w",
      metadata: { k: "v" },
    };
    const row = await h.spawn({ ...asked, network: "none", ownerId: " acme " });
    expect(h.provider.specs[0]).toMatchObject({ ...asked, network: "none", sandboxId: row.id });
    expect(row.ownerId).toBe("acme");
  });

  it("above max_ttl are a limit, a default above it is cut, and no maximum means none", async () => {
    const h = await harness({ defaults: { maxTtlMs: 60_000, ttlMs: 120_000 } });
    await expect(h.spawn({ ttlMs: 60_001 })).rejects.toThrow(
      /ttl 1m.* is above the maximum of 1m0s \(defaults\.max_ttl\)$/,
    );
    const quotas = { of: (ownerId: string) => ({ ownerId, maxTtlMs: 30_000 }) as QuotaRow };
    const bound = await harness({ quotas, defaults: { maxTtlMs: 60_000 } });
    await expect(bound.spawn({ ttlMs: 30_001, ownerId: "acme" })).rejects.toThrow(
      /maximum of 30s \(max_ttl of the quota of owner "acme"\)$/,
    );
    expect(h.events.types()).toEqual(["resource.limit"]);
    const cut = await h.spawn();
    expect(cut.expiresAt.getTime() - cut.createdAt.getTime()).toBe(60_000);
    await expect(h.service.extend(cut.id, 60_001, { signal: forever })).rejects.toBeInstanceOf(ResourceLimit);
    const free = await harness({ defaults: { maxTtlMs: 0 } });
    expect((await free.spawn({ ttlMs: 1_000 * 3_600_000 })).state).toBe("running");
  });

  it("hold the limits under any concurrency", async () => {
    const h = await harness({ defaults: { maxSandboxes: 5, maxSandboxesPerOwner: 2 } });
    h.provider.hook = () => settle();
    const owners = ["a", "a", "a", "b", "b", "b", "", "", "", "c", "c"];
    const outcomes = await Promise.allSettled(owners.map((ownerId) => h.spawn({ ownerId })));
    expect(outcomes.filter(({ status }) => status === "fulfilled")).toHaveLength(5);
    const rows = await store.sandboxes.listLive();
    for (const owner of "abc")
      expect(rows.filter((row) => row.ownerId === owner).length).toBeLessThanOrEqual(2);
    for (const outcome of outcomes) {
      if (outcome.status === "rejected") expect(outcome.reason).toBeInstanceOf(ResourceLimit);
    }
    expect(h.events.types().filter((type) => type === "resource.limit")).toHaveLength(6);
  });

  it("of a second owner are refused where sandboxes are not separated", async () => {
    const provider = new ScriptedProvider({ capabilities: ["spawn", "userspace_isolation"] });
    const h = await harness({ provider });
    const outcomes = await Promise.allSettled(["a", "b", "a"].map((ownerId) => h.spawn({ ownerId })));
    expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    await expect(h.spawn({ ownerId: "b" })).rejects.toThrow(/another owner/);
    await expect(h.spawn({ ownerId: "b" })).rejects.toBeInstanceOf(Conflict);
    for (const { id } of await store.sandboxes.listLive()) await h.service.destroy(id, { signal: forever });
    expect((await h.spawn({ ownerId: "b" })).state).toBe("running");
  });

  it("wait for capacity with overflow queue, and a waiter whose caller goes away leaves nothing", async () => {
    const h = await harness({ defaults: { maxSandboxes: 1, spawnOverflow: "queue" } });
    const first = await h.spawn();
    const caller = new AbortController();
    const leaving = h.service.spawn({}, { signal: caller.signal });
    const second = h.spawn();
    await settle();
    expect(h.service.figures.queueDepth).toBe(2);
    caller.abort(new CallerGone());
    await expect(leaving).rejects.toBeInstanceOf(CallerGone);
    await h.service.destroy(first.id, { signal: forever });
    expect((await second).state).toBe("running");
    expect(h.provider.specs).toHaveLength(2);
  });

  it("that wait for capacity get the maximum ttl that holds when they have their place", async () => {
    const quota = {
      ownerId: "ann",
      maxTtlMs: 0,
      maxSandboxes: 0,
      maxExecTimeoutMs: 0,
      maxMemoryMb: 0,
      maxVcpus: 0,
    };
    const row = { ...quota, createdAt: new Date(0), updatedAt: new Date(0) };
    const h = await harness({
      defaults: { maxSandboxes: 1, spawnOverflow: "queue" },
      quotas: { of: (ownerId) => (ownerId === "ann" ? row : undefined) },
    });
    const first = await h.spawn();
    const asked = h.spawn({ ownerId: "ann", ttlMs: 3_600_000 });
    const unasked = h.spawn({ ownerId: "ann" });
    await settle();
    expect(h.service.figures.queueDepth).toBe(2);
    row.maxTtlMs = 60_000;
    await Promise.all([
      expect(asked).rejects.toMatchObject({ code: "resource_limit", details: { reason: "max_ttl" } }),
      h.service.destroy(first.id, { signal: forever }),
    ]);
    const { createdAt, expiresAt } = await unasked;
    expect(expiresAt.getTime() - createdAt.getTime()).toBe(60_000);
    expect(h.events.events.filter(({ type }) => type === "resource.limit")).toMatchObject([
      { ownerId: "ann", data: { reason: "max_ttl" } },
    ]);
  });

  it("that wait for capacity are taken out of the queue by a destroy of their id", async () => {
    const h = await harness({ defaults: { maxSandboxes: 1, spawnOverflow: "queue" } });
    const first = await h.spawn();
    const waiting = h.spawn();
    await settle();
    const queued = h.events.events.find(({ type }) => type === "spawn.queued");
    const id = queued?.sandboxId ?? "";
    await Promise.all([
      h.service.destroy(id, { signal: forever }),
      expect(waiting).rejects.toThrow(`sandbox "${id}" was destroyed while it was being created`),
    ]);
    await expect(waiting).rejects.toBeInstanceOf(Conflict);
    expect(h.service.figures).toMatchObject({ live: 1, queueDepth: 0 });
    // Whoever had no answer asks again.
    await h.service.destroy(id, { signal: forever });
    expect(await h.service.ownerOf(id)).toBe("");
    await expect(h.service.destroy(`${id}x`, { signal: forever })).rejects.toThrow(NotFound);
    await h.service.destroy(first.id, { signal: forever });
    expect((await h.spawn()).state).toBe("running");
    expect(h.provider.specs).toHaveLength(2);
  });

  it("that were taken out of the queue are gone to who asks while the destroy before still waits", async () => {
    const h = await harness({ defaults: { maxSandboxes: 1, spawnOverflow: "queue" } });
    await h.spawn();
    const waiting = h.spawn({ ownerId: "ann" });
    await settle();
    const id = h.events.events.find(({ type }) => type === "spawn.queued")?.sandboxId ?? "";
    const first = h.service.destroy(id, { signal: forever });
    await expect(waiting).rejects.toBeInstanceOf(Conflict);
    expect(await h.service.ownerOf(id)).toBe("ann");
    await h.service.destroy(id, { signal: forever });
    await first;
  });

  it("that are being made may be destroyed also where their rows are gone by then", async () => {
    const h = await harness();
    h.provider.hook = (step, _id, signal) => (step === "spawned" ? hang(signal) : undefined);
    const making = expect(h.spawn()).rejects.toBeInstanceOf(Conflict);
    const [row] = await vi.waitFor(async () => {
      const rows = await store.sandboxes.listLive();
      expect(rows).toHaveLength(1);
      return rows;
    });
    // Kept are as many of what has ended as `store.max_destroyed` says.
    vi.spyOn(store.sandboxes, "get").mockResolvedValue(undefined);
    await h.service.destroy(row?.id ?? "", { signal: forever });
    await making;
  });

  it("are not waited for without letting the event loop turn: destroy of a spawn that gets its place", async () => {
    const h = await harness({ defaults: { maxSandboxes: 1, spawnOverflow: "queue" } });
    for (let round = 0; round < 20; round++) {
      const first = await h.spawn();
      const waiting = h.spawn();
      await settle();
      const id = h.events.events.findLast(({ type }) => type === "spawn.queued")?.sandboxId ?? "";
      const outcomes = await Promise.allSettled([
        h.service.destroy(first.id, { signal: forever }),
        h.service.destroy(id, { signal: forever }),
        waiting,
      ]);
      expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "fulfilled", "rejected"]);
    }
    expect(await store.sandboxes.listLive()).toEqual([]);
    expect(h.provider.backend.runtimes.size).toBe(0);
  });

  it("with the shortest ttl and prune beside them leave nothing, and nothing waits for ever", async () => {
    const h = new Harness({
      store,
      clock: systemClock,
      defaults: { maxSandboxes: 3, spawnOverflow: "queue" },
    });
    open.push(h);
    await h.start();
    const spawns = Array.from({ length: 40 }, () => h.spawn({ ttlMs: 1 }));
    const settled = Promise.allSettled(spawns);
    for (let turn = 0; turn < 40; turn++) {
      await h.service.prune({ signal: forever });
      await new Promise((resolve) => setImmediate(resolve));
    }
    for (const outcome of await settled)
      if (outcome.status === "rejected") expect(outcome.reason).toBeInstanceOf(Conflict);
    await vi.waitFor(async () => expect(await store.sandboxes.listLive()).toEqual([]), 10_000);
    expect(h.service.figures).toMatchObject({ live: 0, queueDepth: 0 });
  });
});

describe("admission", () => {
  it("says that nothing can wait where the queue has no place for the owner", async () => {
    const h = await harness({
      defaults: { maxSandboxes: 1, spawnOverflow: "queue", maxSpawnQueue: 2 },
    });
    const { id } = await h.spawn({ ownerId: "a" });
    const queueable = async (ownerId: string) => (await h.service.admission({ ownerId })).queueable;
    const waiting = [h.spawn({ ownerId: "b" })];
    await settle();
    expect([await queueable("b"), await queueable("c")]).toEqual([false, true]);
    const refused = h.spawn({ ownerId: "b" });
    await expect(refused).rejects.toMatchObject({ details: { reason: "max_sandboxes", queue: "full" } });
    const told = h.events.events.filter(({ type }) => type === "resource.limit");
    expect(told).toMatchObject([{ data: { reason: "max_sandboxes", queue: "full" } }]);
    waiting.push(h.spawn({ ownerId: "c" }));
    await settle();
    expect(await queueable("d")).toBe(false);
    h.service.refuseWaiting();
    await Promise.allSettled(waiting);
    await h.service.destroy(id, { signal: forever });
  });

  it("answers with the eight facts and the reason, and reserves nothing", async () => {
    const h = await harness({
      defaults: { maxSandboxes: 2, maxSandboxesPerOwner: 1, spawnOverflow: "queue" },
    });
    const facts = { maxSandboxes: 2, maxOwnerSandboxes: 1, maxTtlMs: 24 * 3_600_000 };
    expect(await h.service.admission({ ownerId: "a" })).toEqual({
      ...facts,
      allowed: true,
      queueable: false,
      reason: "",
      activeSandboxes: 0,
      activeOwnerSandboxes: 0,
    });
    await h.spawn({ ownerId: "a" });
    const denied = { allowed: false, queueable: true };
    expect(await h.service.admission({ ownerId: "a" })).toMatchObject({
      ...denied,
      reason: "max_sandboxes_per_owner",
      activeSandboxes: 1,
      activeOwnerSandboxes: 1,
    });
    await h.spawn({ ownerId: "b" });
    expect(await h.service.admission({ ownerId: "c" })).toMatchObject({ ...denied, reason: "max_sandboxes" });
    expect(await h.service.admission({ ttlMs: 25 * 3_600_000 })).toMatchObject({
      allowed: false,
      queueable: false,
      reason: "max_ttl",
    });
    await expect(h.service.admission({ ttlMs: -1 })).rejects.toBeInstanceOf(BadRequest);
    await expect(h.service.admission({ provider: "nope" })).rejects.toBeInstanceOf(NotFound);
    expect(h.provider.specs).toHaveLength(2);
  });
});

describe("an idempotency key", () => {
  const keyed = (h: Harness, input: SpawnInput = {}, signal = forever) =>
    h.service.spawn(input, { signal, idempotencyKey: "key-1" });

  it("gives the same sandbox again for the same body, and a conflict for another", async () => {
    const h = await harness();
    const first = await keyed(h, { image: "a:1" });
    expect(first.replayed).toBe(false);
    expect(await keyed(h, { image: "a:1" })).toMatchObject({
      replayed: true,
      sandbox: { id: first.sandbox.id },
    });
    await expect(keyed(h, { image: "b:1" })).rejects.toBeInstanceOf(Conflict);
    expect((await keyed(h, { image: "b:1", ownerId: "other" })).replayed).toBe(false);
    await h.service.destroy(first.sandbox.id, { signal: forever });
    expect((await keyed(h, { image: "a:1" })).sandbox).toMatchObject({
      id: first.sandbox.id,
      state: "destroyed",
    });
    expect(h.provider.specs).toHaveLength(2);
  });

  it("is one sandbox also between two control planes on one store", async () => {
    const planes = [await harness(), await harness()];
    const outcomes = await Promise.allSettled(planes.map((h) => keyed(h)));
    const made = outcomes.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
    expect(made.filter(({ replayed }) => !replayed)).toHaveLength(1);
    expect(await store.sandboxes.listLive()).toHaveLength(1);
    for (const h of planes) {
      expect(await keyed(h)).toMatchObject({ replayed: true, sandbox: { id: made[0]?.sandbox.id } });
    }
  });

  it("is free again at once when its spawn was undone by the next process", async () => {
    const row = { ...(await (await harness()).spawn({ ownerId: "" })), id: "sb-left" as SandboxId };
    const claim = { key: "key-1", bodyHash: "h", expiresAt: new Date(Date.now() + 1e12) };
    const left = { ...row, runtimeId: "rt-left" as RuntimeId, state: "creating" as const };
    await store.sandboxes.reserve({
      row: left,
      limits: noCapacityLimits,
      fence: { holder: "local", generation: 0 },
      claim,
    });
    const next = await harness();
    expect(await keyed(next)).toMatchObject({ replayed: false });
  });

  it("is free again after 24 hours", async () => {
    const h = await harness();
    const first = await keyed(h);
    await h.clock.advance(24 * 3_600_000);
    const second = await keyed(h);
    expect(second).toMatchObject({ replayed: false });
    expect(second.sandbox.id).not.toBe(first.sandbox.id);
  });

  it("makes requests in flight wait for the first", async () => {
    const h = await harness();
    h.provider.hook = () => settle();
    const all = await Promise.all([keyed(h), keyed(h), keyed(h)]);
    expect(new Set(all.map(({ sandbox }) => sandbox.id)).size).toBe(1);
    expect(all.map(({ replayed }) => replayed)).toEqual([false, true, true]);
    expect(h.provider.specs).toHaveLength(1);
  });

  it("does not remember a spawn that failed: who waited for it tries in its place", async () => {
    const h = await harness();
    let failures = 1;
    h.provider.hook = async (step) => {
      await settle();
      if (step === "spawned" && failures-- > 0) throw new ProviderError("no luck");
    };
    const outcomes = await Promise.allSettled([keyed(h), keyed(h)]);
    expect(outcomes.map(({ status }) => status)).toEqual(["rejected", "fulfilled"]);
    expect(await store.sandboxes.listLive()).toHaveLength(1);
  });

  it("is refused when it is empty, too long or not printable", async () => {
    const h = await harness();
    for (const idempotencyKey of ["", "x".repeat(256), "a\nb", " a"]) {
      await expect(h.service.spawn({}, { signal: forever, idempotencyKey })).rejects.toBeInstanceOf(
        BadRequest,
      );
    }
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

  it("keeps the labels of a destroyed sandbox, but for those that are large", async () => {
    const h = await harness();
    for (const [size, kept] of [
      [4_000, true],
      [16_000, false],
    ] as const) {
      const metadata = { job: "x".repeat(size) };
      const row = await h.spawn({ metadata });
      await h.service.destroy(row.id, { signal: forever });
      expect((await store.sandboxes.get(row.id))?.metadata).toEqual(kept ? metadata : {});
    }
  });

  it("waits for those who look once more at what it ends, whatever comes of that, and lets nothing begin meanwhile", async () => {
    const h = await harness();
    const row = await h.spawn();
    const look = Promise.withResolvers<void>();
    const seen: string[] = [];
    const listener = { started: () => undefined, stopped: () => seen.push("stopped") };
    h.service.subscribe({
      ...listener,
      ending: () => {
        seen.push("ending");
        return look.promise;
      },
    });
    h.service.subscribe({
      ...listener,
      ending: () => {
        throw new Error("a listener's own failure");
      },
    });
    const ended = h.service.destroy(row.id, { signal: forever });
    await expect.poll(() => seen).toEqual(["ending"]);
    expect(() => h.service.running(row.id)).toThrow(/is being destroyed/);
    look.reject(new Error("it could not look"));
    await ended;
    expect(seen).toEqual(["ending", "stopped", "stopped"]);
  });

  it("shares one end among destroys at once, and goes on when its caller goes away", async () => {
    const h = await harness();
    const row = await h.spawn();
    let destroys = 0;
    let letGo: (() => void) | undefined;
    h.provider.hook = (step) => {
      if (step !== "destroy") return undefined;
      destroys++;
      return new Promise<void>((resolve) => {
        letGo = resolve;
      });
    };
    const caller = new AbortController();
    const first = h.service.destroy(row.id, { signal: caller.signal });
    const second = h.service.destroy(row.id, { signal: forever });
    await settle();
    expect(() => h.service.running(row.id)).toThrow(/is being destroyed/);
    await expect(h.service.extend(row.id, 1_000, { signal: forever })).rejects.toBeInstanceOf(Conflict);
    caller.abort(new CallerGone());
    await expect(first).rejects.toBeInstanceOf(CallerGone);
    letGo?.();
    await second;
    expect(destroys).toBe(1);
    expect(await store.sandboxes.get(row.id)).toMatchObject({ state: "destroyed" });
  });

  it("is unavailable, not an error of the provider, when that has not answered in time; it is done later", async () => {
    const h = await harness();
    const row = await h.spawn();
    let slow = true;
    h.provider.hook = (step) => {
      if (step === "destroy" && slow) throw new DeadlineExceeded(30_000);
      return undefined;
    };
    const refusal = await h.service.destroy(row.id, { signal: forever }).catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(Unavailable);
    expect(refusal).toMatchObject({ retryAfterS: 5 });
    slow = false;
    await h.service.destroy(row.id, { signal: forever });
    expect(await store.sandboxes.get(row.id)).toMatchObject({ state: "destroyed" });
  });

  it("of a spawn that could not be undone is not tried a second time for the same caller, and says why", async () => {
    const h = await harness();
    let destroys = 0;
    h.provider.hook = async (step, _id, signal) => {
      if (step === "spawn") await hang(signal);
      if (step === "destroy") {
        destroys++;
        throw new Unavailable("the engine stands still");
      }
    };
    const spawned = h.spawn();
    await settle();
    const outcome = expect(spawned).rejects.toBeInstanceOf(Conflict);
    const [row] = await store.sandboxes.listLive();
    if (row === undefined) throw new Error("there is no row");
    await expect(h.service.destroy(row.id, { signal: forever })).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining("the engine stands still"),
    });
    expect(destroys).toBe(1);
    await outcome;
    // It takes up its place until its end is confirmed.
    expect(await h.service.get(row.id)).toMatchObject({ state: "creating", destroyRequested: true });
    h.provider.hook = () => undefined;
    await h.service.destroy(row.id, { signal: forever });
    expect(await store.sandboxes.get(row.id)).toMatchObject({ state: "destroyed" });
  });

  it("ends a spawn that is not finished, and the id stays known as destroyed", async () => {
    const h = await harness();
    h.provider.hook = (step, _id, signal) => (step === "spawned" ? hang(signal) : undefined);
    const spawning = h.spawn();
    const outcome = expect(spawning).rejects.toBeInstanceOf(Conflict);
    await settle();
    const [row] = await store.sandboxes.listLive();
    if (row === undefined) throw new Error("there is no row");
    expect(() => h.service.running(row.id)).toThrow(/still being created/);
    await h.service.destroy(row.id, { signal: forever });
    await outcome;
    expect(h.provider.backend.runtimes.size).toBe(0);
    expect(await store.sandboxes.get(row.id)).toMatchObject({ state: "destroyed" });
    await h.service.destroy(row.id, { signal: forever });
    expect(h.service.figures.live).toBe(0);
  });
});

describe("what is asked of a sandbox that is being destroyed", () => {
  it.each(["logs", "stats"] as const)("%s: it says so, not what its provider says", async (question) => {
    const h = await harness();
    const row = await h.spawn();
    const begun = Promise.withResolvers<void>();
    const ended = Promise.withResolvers<never>();
    const answer = () => {
      begun.resolve();
      return ended.promise;
    };
    const { provider } = h;
    provider.logs = answer;
    const sandbox = provider.sandbox.bind(provider);
    provider.sandbox = (id) => Object.assign(sandbox(id), { stats: answer });
    const ask = {
      logs: () => h.service.logs(row.id, 1, { signal: forever }),
      stats: () => h.service.stats(row.id, { signal: forever }),
    };
    const asked = ask[question]();
    asked.catch(() => undefined);
    await begun.promise;
    const letGo = Promise.withResolvers<void>();
    provider.hook = (step) => (step === "destroy" ? letGo.promise : undefined);
    const destroyed = h.service.destroy(row.id, { signal: forever });
    await settle();
    ended.reject(new RuntimeGone(`runtime ${row.runtimeId} has no console`));
    await expect(asked).rejects.toThrow(`sandbox "${row.id}" is being destroyed`);
    letGo.resolve();
    await destroyed;
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
    await h.clock.advance(3_599_999);
    expect(h.service.running(row.id).row.state).toBe("running");
    await h.clock.advance(1);
    expect((await store.sandboxes.get(row.id))?.state).toBe("destroyed");
  });

  it("is refused for what is unknown, expired, ended or not positive", async () => {
    const h = await harness();
    const extend = (id: string, ttlMs = 1_000) => h.service.extend(id, ttlMs, { signal: forever });
    await expect(extend("sb-unknown")).rejects.toBeInstanceOf(NotFound);
    const expired = await h.spawn({ ttlMs: 1_000 });
    h.provider.hook = (step) => {
      if (step === "destroy") throw new ProviderError("engine is down");
    };
    await h.clock.advance(1_000);
    expect((await h.service.get(expired.id)).state).toBe("expired");
    await expect(extend(expired.id)).rejects.toBeInstanceOf(Conflict);
    const running = await h.spawn();
    await expect(extend(running.id, 0)).rejects.toBeInstanceOf(BadRequest);
    h.provider.die(running.runtimeId);
    await settle();
    await expect(extend(running.id)).rejects.toThrow(/is in state error and cannot be extended/);
  });

  it("is refused as what it has become where somebody else has ended it, of which memory has not heard", async () => {
    const h = await harness();
    const { id } = await h.spawn();
    const extend = () => h.service.extend(id, 1_000, { signal: forever });
    const fence = { holder: "local", generation: 0 };
    const change = { state: "error", updatedAt: h.clock.now() } as const;
    await store.sandboxes.update(id, ["running"], change, fence);
    await expect(extend()).rejects.toMatchObject({
      message: expect.stringMatching(/is in state error and cannot be extended/),
      details: { sandbox_ended: "error" },
    });
  });

  it("stands although the sandbox could not be told, which the next reconciliation makes good", async () => {
    const h = await harness();
    const row = await h.spawn();
    h.provider.hook = (step) => {
      if (step === "set_expiry") throw new ProviderError("busy");
    };
    const extended = await h.service.extend(row.id, 7_200_000, { signal: forever });
    expect((await h.service.get(row.id)).expiresAt).toEqual(extended.expiresAt);
    h.provider.hook = () => undefined;
    await h.reconciler.reconcile();
    expect(h.provider.backend.runtimes.get(row.runtimeId)?.expiresInMs).toBe(7_200_000 + 300_000);
  });
});

describe("an extension and a destroy at once", () => {
  it("leave no word of what could not be told", async () => {
    const h = await harness();
    const row = await h.spawn();
    const slow = Promise.withResolvers<void>();
    h.provider.hook = (step) => (step === "set_expiry" ? slow.promise : undefined);
    const warned = vi.spyOn(silentLogger, "warn");
    const extended = h.service.extend(row.id, 60_000, { signal: forever });
    await settle();
    await h.service.destroy(row.id, { signal: forever });
    slow.resolve();
    await extended;
    expect(warned).not.toHaveBeenCalled();
    warned.mockRestore();
  });
});

describe("extensions of one sandbox at once", () => {
  it("leave it with the expiry that its row has, whichever reaches it last", async () => {
    const h = await harness();
    const row = await h.spawn();
    const slow = Promise.withResolvers<void>();
    let tellings = 0;
    h.provider.hook = async (step) => {
      if (step === "set_expiry" && tellings++ === 0) await slow.promise;
    };
    const shorter = h.service.extend(row.id, 60_000, { signal: forever });
    await settle();
    const longer = h.service.extend(row.id, 7_200_000, { signal: forever });
    await settle();
    // What is slow to be told keeps no row from moving.
    const { expiresAt } = await h.service.get(row.id);
    expect(expiresAt.getTime()).toBe(h.clock.now().getTime() + 7_200_000);
    slow.resolve();
    await shorter;
    expect(await longer).toMatchObject({ expiresAt });
    expect((await h.service.get(row.id)).expiresAt).toEqual(expiresAt);
    expect(h.provider.backend.runtimes.get(row.runtimeId)?.expiresInMs).toBe(7_200_000 + 300_000);
    expect(tellings).toBe(2);
  });

  it("cost what they are many, and not the square of it", async () => {
    const h = await harness();
    const row = await h.spawn();
    let tellings = 0;
    h.provider.hook = async (step) => {
      if (step === "set_expiry") tellings++;
    };
    const waits = vi.spyOn(LiveSandboxes.prototype, "finished");
    const extend = (_: unknown, index: number) =>
      h.service.extend(row.id, 60_000 + index, { signal: forever });
    const extended = await Promise.all(Array.from({ length: 200 }, extend));
    expect(waits.mock.calls.length).toBeLessThan(1_000);
    waits.mockRestore();
    expect(tellings).toBeLessThan(1_000);
    const nowMs = h.clock.now().getTime();
    expect(extended.map(({ expiresAt }) => expiresAt.getTime() - nowMs)).toEqual(
      extended.map((_, index) => 60_000 + index),
    );
    expect(h.provider.backend.runtimes.get(row.runtimeId)?.expiresInMs).toBe(60_199 + 300_000);
  });

  it("are overtaken by a destroy, which does not wait for all of them", async () => {
    const h = await harness();
    const row = await h.spawn();
    let moved = 0;
    const extend = () =>
      h.service.extend(row.id, 60_000, { signal: forever }).then(
        () => moved++,
        (error: unknown) => error,
      );
    const extended = Array.from({ length: 200 }, extend);
    await h.service.destroy(row.id, { signal: forever });
    await Promise.all(extended);
    expect(moved).toBeLessThan(20);
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
    expect(h.events.events.at(-1)).toMatchObject({ type: "sandbox.destroyed", data: { reason: "expired" } });
  });

  it("is not made up for by prune where somebody extends the sandbox at that moment", async () => {
    const h = await harness();
    const { id } = await h.spawn({ ttlMs: 1_000 });
    await h.clock.advance(999);
    const gate = Promise.withResolvers<void>();
    const update = store.sandboxes.update.bind(store.sandboxes);
    vi.spyOn(store.sandboxes, "update").mockImplementationOnce(async (...call) => {
      await gate.promise;
      return update(...call);
    });
    const extended = h.service.extend(id, 60_000, { signal: forever });
    await h.clock.advance(1);
    const pruned = h.service.prune({ signal: forever });
    gate.resolve();
    await extended;
    expect(await pruned).toBe(0);
    expect((await h.service.get(id)).state).toBe("running");
  });

  it("is made up for by prune, which counts what is gone", async () => {
    const h = await harness();
    const rows = [await h.spawn({ ttlMs: 1_000 }), await h.spawn({ ttlMs: 1_000 }), await h.spawn()];
    h.provider.hook = (step) => {
      if (step === "destroy") throw new ProviderError("engine is down");
    };
    await h.clock.advance(1_000);
    expect(await h.service.prune({ signal: forever })).toBe(0);
    h.provider.hook = () => undefined;
    expect(await h.service.prune({ signal: forever })).toBe(2);
    expect(await h.service.prune({ signal: forever })).toBe(0);
    expect((await store.sandboxes.listLive()).map(({ id }) => id)).toEqual([rows[2]?.id]);
  });
});

describe("list", () => {
  it("pages newest first through what is not destroyed, and filters", async () => {
    const h = await harness();
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) {
      ids.unshift((await h.spawn({ ownerId: i % 2 === 0 ? "even" : "odd", metadata: { n: String(i) } })).id);
      await h.clock.advance(1);
    }
    const first = await h.service.list({ limit: 2 });
    expect(first.items.map(({ id }) => id)).toEqual(ids.slice(0, 2));
    const second = await h.service.list({
      limit: 3,
      ...(first.nextCursor ? { cursor: first.nextCursor } : {}),
    });
    expect(second.items.map(({ id }) => id)).toEqual(ids.slice(2));
    expect(second.nextCursor).toBeUndefined();
    expect((await h.service.list({ limit: 9, ownerId: "odd" })).items).toHaveLength(2);
    expect((await h.service.list({ limit: 9, metadata: { n: "3" } })).items).toHaveLength(1);
    await h.service.destroy(ids[0] ?? "", { signal: forever });
    expect((await h.service.list({ limit: 9 })).items).toHaveLength(4);
    expect((await h.service.list({ limit: 9, state: "destroyed" })).items.map(({ id }) => id)).toEqual([
      ids[0],
    ]);
  });

  it("are listed within the memory there is for answers, of which they keep what they are", async () => {
    const h = await harness();
    await h.spawn({ metadata: { long: "x".repeat(60_000) } });
    const budget = new AnswerBudget({ totalBytes: 12_000_000, waitMs: 1, clock: systemClock });
    const releases: (() => void)[] = [];
    const list = () =>
      h.service.list(
        { limit: 1_000 },
        {
          answer: budget.open((release) => releases.push(release)),
          signal: new AbortController().signal,
          turn: async () => undefined,
        },
      );
    for (let n = 0; n < 5; n += 1) expect((await list()).items).toHaveLength(1);
    expect(budget.heldBytes).toBeGreaterThan(5 * 60_000);
    expect(budget.heldBytes).toBeLessThan(5 * 300_000);
    budget.open(() => undefined).grow("", 2_500_000, new AbortController().signal);
    await expect(list()).rejects.toThrow(Unavailable);
    expect(releases).toHaveLength(6);
  });

  it("refuses a state, limit or cursor that makes no sense", async () => {
    const h = await harness();
    const labels = (count: number) =>
      Object.fromEntries(Array.from({ length: count }, (_, i) => [`m${i}`, "1"]));
    expect((await h.service.list({ limit: 1, metadata: labels(16) })).items).toEqual([]);
    await expect(h.service.list({ limit: 1, metadata: labels(17) })).rejects.toThrow(
      /at most 16 labels, not 17/,
    );
    await expect(h.service.list({ limit: 1, state: "sleeping" })).rejects.toThrow(/"sleeping".*creating/);
    for (const limit of [0, 1_001, 1.5, Number.NaN]) {
      await expect(h.service.list({ limit })).rejects.toBeInstanceOf(BadRequest);
    }
    for (const cursor of ["x", "%%%", Buffer.from("1.sb-a'; --").toString("base64url"), "a".repeat(500)]) {
      await expect(h.service.list({ limit: 1, cursor })).rejects.toThrow(/cursor/);
    }
  });
});

describe("shutdown", () => {
  it("refuses spawns that wait for their place, and waits for those that are taking it", async () => {
    const h = await harness({ defaults: { maxSandboxes: 2, spawnOverflow: "queue" } });
    await h.spawn();
    const taking = h.spawn();
    const waiting = h.spawn();
    const refused = Promise.allSettled([taking, waiting]);
    await Promise.resolve();
    await h.service[Symbol.asyncDispose]();
    expect(await store.sandboxes.listLive()).toHaveLength(1);
    expect((await refused).map(({ status }) => status)).toEqual(["rejected", "rejected"]);
    expect(h.provider.backend.runtimes.size).toBe(1);
    expect(h.service.figures).toMatchObject({ live: 1, queueDepth: 0 });
  });

  it("undoes spawns under way and leaves finished sandboxes running", async () => {
    const h = await harness();
    const kept = await h.spawn();
    h.provider.hook = (step, _id, signal) => (step === "spawned" ? hang(signal) : undefined);
    const spawning = expect(h.spawn()).rejects.toBeInstanceOf(ShuttingDown);
    await settle();
    await h[Symbol.asyncDispose]();
    await spawning;
    expect((await store.sandboxes.listLive()).map(({ id }) => id)).toEqual([kept.id]);
    expect([...h.provider.backend.runtimes.keys()]).toEqual([kept.runtimeId]);
    await expect(h.spawn()).rejects.toBeInstanceOf(ShuttingDown);
    expect(h.clock.armed).toBe(0);
  });

  it("leaves to the next start what a provider that does not answer keeps it from undoing", async () => {
    const h = await harness();
    h.provider.hook = (step, _id, signal) => {
      if (step === "spawn") return hang(signal);
      return step === "destroy" ? new Promise(() => undefined) : undefined;
    };
    const outcome = expect(h.spawn()).rejects.toThrow(ShuttingDown);
    await settle();
    vi.useFakeTimers();
    try {
      let closed = false;
      const closing = h.service[Symbol.asyncDispose]().then(() => {
        closed = true;
      });
      await vi.advanceTimersByTimeAsync(20_000);
      expect(closed).toBe(true);
      await closing;
      expect(await store.sandboxes.listLive()).toMatchObject([{ state: "creating" }]);
      // Its attempt ends by itself.
      await vi.advanceTimersByTimeAsync(15_000);
    } finally {
      vi.useRealTimers();
    }
    await outcome;
  });

  it("destroys everything when asked to", async () => {
    const h = await harness();
    await h.spawn();
    await h.spawn();
    await h.service.destroyAll({ signal: forever });
    expect(h.provider.backend.runtimes.size).toBe(0);
  });
});

describe("stats", () => {
  it("of a sandbox that does not tell are Unavailable after five seconds", async () => {
    const h = await harness();
    const row = await h.spawn();
    vi.useFakeTimers();
    try {
      const silent = { stats: () => new Promise<never>(() => undefined) };
      vi.spyOn(h.provider, "sandbox").mockReturnValue(silent as unknown as SandboxOperations);
      const told = expect(h.service.stats(row.id, { signal: forever })).rejects.toMatchObject({
        code: "unavailable",
        message: expect.stringContaining("within 5 s"),
      });
      await vi.advanceTimersByTimeAsync(5_000);
      await told;
    } finally {
      vi.useRealTimers();
    }
  });

  it("is asked of a sandbox once for all who want it at the same time, alone or with the list", async () => {
    const h = await harness();
    const row = await h.spawn();
    const sandbox = h.provider.sandbox.bind(h.provider);
    const look = vi.fn(async () => {
      await settle();
      return { pids: 1 };
    });
    vi.spyOn(h.provider, "sandbox").mockImplementation((id) => Object.assign(sandbox(id), { stats: look }));
    const alone = Array.from({ length: 50 }, () => h.service.stats(row.id, { signal: forever }));
    const listed = Array.from({ length: 50 }, () => h.service.usage({ limit: 10 }, { signal: forever }));
    expect(await Promise.all(alone)).toEqual(alone.map(() => ({ pids: 1 })));
    for (const { items } of await Promise.all(listed)) expect(items).toMatchObject([{ stats: { pids: 1 } }]);
    expect(look.mock.calls.length).toBeLessThanOrEqual(3);
  });
});
