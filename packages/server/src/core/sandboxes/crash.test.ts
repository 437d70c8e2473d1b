import { describe, expect, it } from "vitest";
import { ProviderError, type SandboxId } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { CrashPoints, type FaultKind, withCrashPoints } from "../testing/crash-points.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { ScriptedBackend, ScriptedProvider } from "../testing/scripted-provider.ts";

const hour = 3_600_000;

/** What clients were told, and what they asked for. */
interface Told {
  spawned: Set<SandboxId>;
  destroyAsked: Set<SandboxId>;
  destroyed: Set<SandboxId>;
  keyed: SandboxId | undefined;
}

/** One life of the control plane on a store and a backend that outlive it. */
function life(
  world: { store: SqliteStore; backend: ScriptedBackend; clock: FakeClock },
  points: CrashPoints,
) {
  const provider = new ScriptedProvider({
    backend: world.backend,
    hook: async (step, runtimeId) => {
      const failing =
        [...provider.specs].find((spec) => spec.runtimeId === runtimeId)?.metadata.fail === "yes";
      if (step === "spawned" && failing) throw new ProviderError("scripted");
      await points.pass(`provider ${step}`);
    },
  });
  return new Harness({ store: withCrashPoints(world.store, points), clock: world.clock, provider });
}

/** Everything a sandbox can go through. Requests may fail; what was answered is noted. */
async function scenario(h: Harness, told: Told): Promise<void> {
  const attempt = async (request: () => Promise<void>) => {
    try {
      await request();
    } catch (error) {
      if (!(error instanceof Error)) throw error;
    }
  };
  const spawn = async (input: Parameters<Harness["spawn"]>[0], idempotencyKey?: string) => {
    const context = { signal: forever, ...(idempotencyKey === undefined ? {} : { idempotencyKey }) };
    const { sandbox } = await h.service.spawn({ ttlMs: 6 * hour, ...input }, context);
    told.spawned.add(sandbox.id);
    return sandbox;
  };
  const destroy = async (id: SandboxId) => {
    told.destroyAsked.add(id);
    await h.service.destroy(id, { signal: forever });
    told.destroyed.add(id);
  };
  await attempt(async () => {
    told.keyed = (await spawn({ metadata: { key: "k" } }, "k")).id;
  });
  await attempt(async () => {
    const { id } = await spawn({ ownerId: "extended" });
    await h.service.extend(id, 7 * hour, { signal: forever });
  });
  await attempt(async () => destroy((await spawn({ ownerId: "destroyed" })).id));
  await attempt(async () => void (await spawn({ metadata: { fail: "yes" } })));
  await attempt(async () => {
    const { id } = await spawn({ ttlMs: 1_000 });
    told.destroyAsked.add(id);
    await h.clock.advance(1_000);
  });
  await attempt(async () => {
    const { id, runtimeId } = await spawn({ ownerId: "vanished" });
    told.destroyAsked.add(id);
    h.provider.die(runtimeId);
    await settle();
  });
  await attempt(() => h.reconciler.reconcile());
}

function nothingTold(): Told {
  return { spawned: new Set(), destroyAsked: new Set(), destroyed: new Set(), keyed: undefined };
}

/** No orphan, no forgotten sandbox, nothing half-made, every answer kept. */
async function expectWhole(h: Harness, store: SqliteStore, told: Told): Promise<void> {
  const rows = await store.sandboxes.listLive();
  const running = rows.filter((row) => row.state === "running");
  expect(rows.filter((row) => row.state !== "running" && row.state !== "error")).toEqual([]);
  expect(rows.filter((row) => row.destroyRequested)).toEqual([]);
  expect([...h.provider.backend.runtimes.keys()].sort()).toEqual(running.map((row) => row.runtimeId).sort());
  for (const row of running) expect(h.service.running(row.id).row.state).toBe("running");
  for (const id of told.spawned) {
    if (!told.destroyAsked.has(id)) expect((await store.sandboxes.get(id))?.state).toBe("running");
  }
  for (const id of told.destroyed) expect((await store.sandboxes.get(id))?.state).toBe("destroyed");
  expect(h.service.figures.live).toBe(rows.filter((row) => row.state !== "error").length);
  expect(h.service.counts.total).toBe(rows.length);
}

async function expectKeyStillWorks(h: Harness, store: SqliteStore, told: Told): Promise<void> {
  const input = { ttlMs: 6 * hour, metadata: { key: "k" } };
  const again = await h.service.spawn(input, { signal: forever, idempotencyKey: "k" });
  if (told.keyed !== undefined) expect(again).toMatchObject({ replayed: true, sandbox: { id: told.keyed } });
  const made = (await store.sandboxes.listLive()).filter((row) => row.metadata.key === "k");
  expect(made.map((row) => row.id)).toEqual([again.sandbox.id]);
}

async function run(strikes: readonly number[], kind: FaultKind): Promise<{ names: string[][] }> {
  await using store = await SqliteStore.open({ path: ":memory:" });
  const backend = new ScriptedBackend();
  const told = nothingTold();
  const names: string[][] = [];
  let now = new FakeClock().now();
  for (const strikeAt of strikes) {
    const points = new CrashPoints({ strikeAt, kind });
    const clock = new FakeClock(now);
    const h = life({ store, backend, clock }, points);
    h.reconciler.start();
    // A first pass that failed is repeated after a second.
    if (kind === "fail") await clock.advance(1_500);
    // A life that crashed is left where it stands, as a killed process would be.
    await Promise.race([
      points.struck,
      h.reconciler.ready
        .then(() => h.reconciler.reconcile().catch(() => undefined))
        .then(() => scenario(h, told)),
    ]);
    if (kind === "fail") {
      await clock.advance(2 * 60_000);
      points.disarm();
      await clock.advance(3 * 60_000);
      await expectWhole(h, store, told);
    }
    if (!points.dead) await h[Symbol.asyncDispose]();
    names.push(points.names);
    now = clock.now();
  }
  const points = new CrashPoints({ strikeAt: -1, kind: "crash" });
  await using last = life({ store, backend, clock: new FakeClock(now) }, points);
  await last.start();
  await last.clock.advance(60_000);
  await expectWhole(last, store, told);
  await expectKeyStillWorks(last, store, told);
  return { names };
}

describe("a control plane that dies", { timeout: 120_000 }, () => {
  it("at any step of any request leaves no orphan and forgets no sandbox", async () => {
    const steps = (await run([-1], "crash")).names[0] ?? [];
    expect(steps.length).toBeGreaterThan(50);
    for (let strikeAt = 0; strikeAt < steps.length; strikeAt++) {
      await run([strikeAt], "crash").catch((error: unknown) => {
        throw new Error(`crash at step ${strikeAt}, ${steps[strikeAt]}`, { cause: error });
      });
    }
  });

  it("again while it recovers still leaves no orphan and forgets no sandbox", async () => {
    const steps = (await run([-1], "crash")).names[0] ?? [];
    for (let first = 3; first < steps.length; first += 7) {
      for (let second = 0; second < 24; second += 2) {
        await run([first, second], "crash").catch((error: unknown) => {
          throw new Error(`crash at step ${first}, ${steps[first]}, then at ${second}`, { cause: error });
        });
      }
    }
  });
});

describe("a store or provider that fails once", { timeout: 120_000 }, () => {
  it("at any step of any request leaves no orphan and forgets no sandbox once it works again", async () => {
    const steps = (await run([-1], "fail")).names[0] ?? [];
    expect(steps.length).toBeGreaterThan(50);
    for (let strikeAt = 0; strikeAt < steps.length; strikeAt++) {
      await run([strikeAt], "fail").catch((error: unknown) => {
        throw new Error(`failure at step ${strikeAt}, ${steps[strikeAt]}`, { cause: error });
      });
    }
  });
});
