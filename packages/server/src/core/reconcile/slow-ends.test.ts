import { afterEach, beforeEach, expect, it } from "vitest";
import type { RuntimeId, SandboxId } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";
import { hang, ScriptedBackend, ScriptedProvider } from "../testing/scripted-provider.ts";
import type { ReconcilerOptions } from "./reconciler.ts";

let store: SqliteStore;
let backend: ScriptedBackend;
let clock: FakeClock;
let h: Harness | undefined;
/** Runtimes whose end takes until it is let go. */
let slow: Map<RuntimeId, PromiseWithResolvers<void>>;
/** What the provider was asked to end, in order. */
let ended: RuntimeId[];
let inventories: number;

const state = async (id: SandboxId) => (await store.sandboxes.get(id))?.state;
const slowly = (id: RuntimeId) => void slow.set(id, Promise.withResolvers());

beforeEach(async () => {
  store = await SqliteStore.open({ path: ":memory:" });
  backend = new ScriptedBackend();
  clock = new FakeClock();
  slow = new Map();
  ended = [];
  inventories = 0;
});
afterEach(async () => {
  for (const { resolve } of slow.values()) resolve();
  await h?.[Symbol.asyncDispose]();
  h = undefined;
  expect(clock.armed).toBe(0);
  await store[Symbol.asyncDispose]();
});

/** The sandboxes of a process that has ended since. */
async function before(count: number, input: { ownerId?: string; ttlMs?: number }) {
  const first = await new Harness({ store, clock, provider: new ScriptedProvider({ backend }) }).start();
  const rows = await Promise.all(Array.from({ length: count }, () => first.spawn(input)));
  await first[Symbol.asyncDispose]();
  return rows;
}

/** A new process, whose first pass is under way. */
function restart(recovery?: NonNullable<ReconcilerOptions["recovery"]>): Harness {
  const provider = new ScriptedProvider({ backend });
  provider.hook = (step, runtimeId, signal) => {
    if (step === "inventory") inventories++;
    if (step !== "destroy" || runtimeId === undefined) return undefined;
    ended.push(runtimeId);
    const held = slow.get(runtimeId);
    return held && Promise.race([held.promise, hang(signal)]);
  };
  h = new Harness({ store, clock, provider, ...(recovery && { recovery }) });
  h.reconciler.start();
  return h;
}

it("of one owner hold up neither the first pass nor the next, and others' come by turns", async () => {
  const theirs = await before(40, { ownerId: "slow", ttlMs: 60_000 });
  const [anns] = await before(1, { ownerId: "ann", ttlMs: 60_000 });
  const [kept] = await before(1, { ownerId: "ann" });
  if (anns === undefined || kept === undefined) throw new Error("nothing was spawned");
  for (const { runtimeId } of theirs) slowly(runtimeId);
  await clock.advance(120_000);
  const { service } = restart();
  await settle();
  for (const { id } of theirs) expect(await state(id)).toBe("expired");
  // Rows are read in the order of their ids: Ann's may have come before the lanes were full.
  expect(["expired", "destroyed"]).toContain(await state(anns.id));
  expect(service.running(kept.id).row.state).toBe("running");
  await clock.advance(60_000);
  expect(inventories).toBe(2);
  const first = ended.find((id) => slow.has(id));
  if (first !== undefined) slow.get(first)?.resolve();
  await settle();
  expect(await state(anns.id)).toBe("destroyed");
  expect(new Set(ended).size).toBe(ended.length);
});

it("keep no spawn waiting while a database is being recovered, and what runs is taken in", async () => {
  const dead = Array.from({ length: 30 }, (_, n) => `rt-dead-${n}` as RuntimeId);
  for (const id of dead) {
    backend.runtimes.set(id, { sandboxId: `sb-${id}` as SandboxId, state: "dead", expiresInMs: null });
    slowly(id);
  }
  const running = { sandboxId: "sb-known" as SandboxId, state: "running", expiresInMs: null } as const;
  backend.runtimes.set("rt-known" as RuntimeId, running);
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
  const { service, reconciler, events } = restart(recovery);
  await settle();
  expect(service.ready).toBe(true);
  expect(recovering).toBe(false);
  expect(service.running("sb-known").row.state).toBe("running");
  // A pass meets orphans that still wait for their turn: each is ended once.
  await clock.advance(60_000);
  for (const { resolve } of slow.values()) resolve();
  await reconciler.reconcile();
  expect(ended.toSorted()).toEqual(dead.toSorted());
  const told = events.events.filter(({ data }) => data?.action === "destroyed_orphan");
  expect(told).toHaveLength(dead.length);
});

it("of remains keep nobody from destroying a sandbox in state error", async () => {
  const rows = await before(30, {});
  for (const { runtimeId } of rows) {
    slowly(runtimeId);
    const runtime = backend.runtimes.get(runtimeId);
    if (runtime !== undefined) runtime.state = "dead";
  }
  const { service } = restart();
  await settle();
  for (const { id } of rows) expect(await state(id)).toBe("error");
  const waiting = rows.find(({ runtimeId }) => !ended.includes(runtimeId));
  if (waiting === undefined) throw new Error("none waits for its turn");
  slow.get(waiting.runtimeId)?.resolve();
  await service.destroy(waiting.id, { signal: forever });
  expect(await state(waiting.id)).toBe("destroyed");
});
