import type { SandboxState } from "@alcove/wire";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type Capacity, type CapacityRules, noCapacityLimit, noCapacityLimits } from "../capacity.ts";
import type { RuntimeId, SandboxId } from "../ids.ts";
import type {
  Fence,
  IdempotencyClaim,
  ListedSandbox,
  LiveState,
  NewEvent,
  SandboxFilter,
  SandboxRow,
  Store,
} from "../store.ts";
import { poolContract } from "./store/pool-contract.ts";
import { sharedUseContract } from "./store/shared-use-contract.ts";

export interface StoreUnderTest {
  /** A store without anything in it. */
  create(): Promise<Store>;
  /** Opens again what the store was opened on, which has been closed. */
  reopen(): Promise<Store>;
  /** Removes what `create` made. */
  cleanUp(): Promise<void>;
}

const start = Date.parse("2030-01-01T00:00:00Z");
const fence: Fence = { holder: "local", generation: 0 };
const limited = (all: number, owner: number): CapacityRules => ({
  of: () => ({
    all: { ...noCapacityLimit, sandboxes: all },
    owner: { ...noCapacityLimit, sandboxes: owner },
  }),
});
const noLimits = noCapacityLimits;
/** What so many of the rows below take up. */
const taken = (sandboxes: number) => ({ sandboxes, memoryMb: 512 * sandboxes, vcpus: sandboxes });
const live: SandboxState[] = ["creating", "running", "unhealthy", "expired", "error"];

let serial = 0;
function row(change: Partial<SandboxRow> = {}): SandboxRow {
  const name = (++serial).toString(36).padStart(12, "0");
  return {
    id: `sb-${name}` as SandboxId,
    runtimeId: `rt-${name}` as RuntimeId,
    state: "creating",
    provider: "native",
    workerId: "local",
    image: "host",
    imageResolved: null,
    memoryMb: 512,
    vcpus: 1,
    ownerId: "",
    name: null,
    metadata: {},
    env: {},
    user: null,
    workdir: null,
    network: null,
    createdAt: new Date(start),
    expiresAt: new Date(start + 60_000),
    updatedAt: new Date(start),
    endsItselfAt: null,
    destroyedAt: null,
    destroyRequested: false,
    error: null,
    ...change,
  };
}

/** What every store must do. */
export function storeContract(name: string, make: () => StoreUnderTest): void {
  describe(`${name} keeps the store contract`, () => {
    let under: StoreUnderTest;
    let store: Store;
    beforeEach(async () => {
      under = make();
      store = await under.create();
    });
    afterEach(async () => {
      await store[Symbol.asyncDispose]();
      await under.cleanUp();
    });
    const add = async (change: Partial<SandboxRow> = {}) => {
      const added = row(change);
      expect(await reserve(added)).toEqual({ admitted: true });
      return added;
    };
    const reserve = (made: SandboxRow, limits = noLimits, claim?: IdempotencyClaim) =>
      store.sandboxes.reserve({ row: made, limits, fence, ...(claim && { claim }) });

    describe("pool", () =>
      poolContract({
        store: () => store,
        reopen: async () => {
          await store[Symbol.asyncDispose]();
          store = await under.reopen();
          return store;
        },
        row,
      }));

    describe("sandboxes", () => {
      it("gives back every field of a row as it was given, after a restart too", async () => {
        // A field that is new is asked for here by the compiler, with a value that shows.
        const told: { [Field in Exclude<keyof SandboxRow, "id" | "slot">]: NonNullable<SandboxRow[Field]> } =
          {
            runtimeId: "rt-of-full" as RuntimeId,
            state: "running",
            provider: "docker",
            workerId: "local",
            image: "debian",
            imageResolved: "debian:13",
            memoryMb: 77,
            vcpus: 3,
            ownerId: "Ünïcode 🏠",
            name: "full",
            metadata: { "a.b": 'c"d', "": "empty", __proto__x: "y" },
            env: { PATH: "/bin", MULTI: "a\nb" },
            user: "1000:1000",
            workdir: "/w",
            network: "none",
            createdAt: new Date(start + 1),
            expiresAt: new Date(start + 2),
            updatedAt: new Date(start + 3),
            destroyRequested: true,
            endsItselfAt: new Date(start + 4),
            destroyedAt: new Date(start + 5),
            error: "why",
          };
        const full = await add(told);
        const bare = await add();
        const { env: _, ...listed } = full;
        expect((await store.sandboxes.list({ states: ["running"], limit: 9 })).rows).toEqual([listed]);
        expect(await store.sandboxes.get(full.id)).toEqual(full);
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        expect(await store.sandboxes.get(full.id)).toEqual(full);
        expect(await store.sandboxes.get(bare.id)).toEqual(bare);
        expect(await store.sandboxes.get("sb-nothere" as SandboxId)).toBeUndefined();
      });

      it("counts the births of a run with their rows, for good, and those that others gave by their numbers", async () => {
        const born = (run: string, limits = noLimits) =>
          store.sandboxes.reserve({ row: row(), limits, fence, birth: { run } });
        expect(await born("one")).toEqual({ admitted: true, birth: { run: "one", number: 1 } });
        expect(await Promise.all([born("one"), born("two")])).toMatchObject([
          { birth: { number: 2 } },
          { birth: { number: 1 } },
        ]);
        expect(await born("one", limited(1, 1))).toMatchObject({ admitted: false });
        expect(await store.sandboxes.lastBirth("one")).toBe(2);
        await store.sandboxes.countBirths([
          { run: "lost", number: 7 },
          { run: "two", number: 1 },
        ]);
        await store.sandboxes.countBirths([{ run: "lost", number: 3 }]);
        expect(await born("two")).toMatchObject({ birth: { number: 2 } });
        for (const { id } of await store.sandboxes.listLive()) await store.sandboxes.remove(id, fence);
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        const runs = ["one", "two", "lost", "unknown"];
        expect(await Promise.all(runs.map((run) => store.sandboxes.lastBirth(run)))).toEqual([2, 2, 7, 0]);
      });

      it("counts creating, running and unhealthy rows against the limits, with the counts in a denial", async () => {
        for (const state of ["creating", "running", "unhealthy"] as const) await add({ state, ownerId: "a" });
        for (const state of ["error", "destroyed"] as const) await add({ state, ownerId: "a" });
        expect(await store.sandboxes.inUse("a")).toEqual({ all: taken(3), owner: taken(3) });
        expect(await store.sandboxes.inUse("b")).toEqual({ all: taken(3), owner: taken(0) });
        const refused = { admitted: false, inUse: { all: taken(3), owner: taken(3) } };
        expect(await reserve(row({ ownerId: "a" }), limited(3, 4))).toMatchObject({
          ...refused,
          reason: "max_sandboxes",
        });
        // What others give back does not help an owner that has all it may have.
        expect(await reserve(row({ ownerId: "a" }), limited(3, 3))).toMatchObject({
          ...refused,
          reason: "max_sandboxes_per_owner",
        });
        expect(await reserve(row({ ownerId: "a" }), limited(4, 3))).toMatchObject({
          ...refused,
          reason: "max_sandboxes_per_owner",
        });
        expect(await reserve(row({ ownerId: "b" }), limited(4, 3))).toEqual({
          admitted: true,
        });
      });

      it("counts what has expired until it is destroyed, after a restart too, but for what was in state error", async () => {
        const updatedAt = new Date(start + 1);
        const become = (id: SandboxId, state: SandboxState) =>
          store.sandboxes.update(id, live, { state, updatedAt }, fence);
        const [expired, removed, failed] = [
          await add({ state: "running", ownerId: "a" }),
          await add({ state: "creating", ownerId: "a" }),
          await add({ state: "running", ownerId: "a" }),
        ];
        for (const { id } of [expired, removed]) await become(id, "expired");
        for (const state of ["error", "expired"] as const) await become(failed.id, state);
        expect(await store.sandboxes.inUse("a")).toEqual({ all: taken(2), owner: taken(2) });
        expect(await reserve(row({ ownerId: "a" }), limited(0, 2))).toMatchObject({
          admitted: false,
          reason: "max_sandboxes_per_owner",
          inUse: { all: taken(2), owner: taken(2) },
        });
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        // Of a write that is made twice nothing is counted twice.
        await become(expired.id, "expired");
        expect(await store.sandboxes.inUse("a")).toEqual({ all: taken(2), owner: taken(2) });
        const destroyedAt = updatedAt;
        for (const { id } of [failed, expired])
          await store.sandboxes.update(id, live, { state: "destroyed", destroyedAt, updatedAt }, fence);
        expect(await store.sandboxes.inUse("a")).toEqual({ all: taken(1), owner: taken(1) });
        await store.sandboxes.remove(removed.id, fence);
        await store.sandboxes.purge({ before: new Date(start + 9_000), keep: 0 });
        expect(await store.sandboxes.inUse("a")).toEqual({ all: taken(0), owner: taken(0) });
      });

      it("counts memory and processors as it counts sandboxes, of all and of an owner", async () => {
        const within = (all: Partial<Capacity>, owner: Partial<Capacity>): CapacityRules => ({
          of: () => ({ all: { ...noCapacityLimit, ...all }, owner: { ...noCapacityLimit, ...owner } }),
        });
        await add({ ownerId: "a", memoryMb: 600, vcpus: 3 });
        await add({ ownerId: "b", memoryMb: 300, vcpus: 2 });
        const wanted = () => row({ ownerId: "a", memoryMb: 100, vcpus: 1 });
        const reason = async (rules: CapacityRules) => {
          const outcome = await reserve(wanted(), rules);
          return outcome.admitted ? "" : outcome.reason;
        };
        expect(await reason(within({ memoryMb: 999 }, {}))).toBe("max_memory_mb");
        expect(await reason(within({ vcpus: 5 }, {}))).toBe("max_vcpus");
        expect(await reason(within({}, { memoryMb: 699 }))).toBe("max_memory_mb_per_owner");
        expect(await reason(within({}, { vcpus: 3 }))).toBe("max_vcpus_per_owner");
        expect(await reason(within({ memoryMb: 1_000, vcpus: 6 }, { memoryMb: 700, vcpus: 4 }))).toBe("");
        expect(await store.sandboxes.inUse("a")).toEqual({
          all: { sandboxes: 3, memoryMb: 1_000, vcpus: 6 },
          owner: { sandboxes: 2, memoryMb: 700, vcpus: 4 },
        });
      });

      it("counts against the owner's quota of this very moment", async () => {
        const rules: CapacityRules = {
          of: (_owner, quota) => ({
            all: noCapacityLimit,
            owner: { ...noCapacityLimit, sandboxes: quota?.maxSandboxes ?? 1 },
          }),
        };
        const quota = { maxTtlMs: 0, maxExecTimeoutMs: 0, maxMemoryMb: 0, maxVcpus: 0 };
        await add({ ownerId: "a" });
        expect(await reserve(row({ ownerId: "a" }), rules)).toMatchObject({ admitted: false });
        const saved = store.quotas.save({
          ...quota,
          ownerId: "a",
          maxSandboxes: 2,
          createdAt: new Date(start),
          updatedAt: new Date(start),
        });
        expect(await reserve(row({ ownerId: "a" }), rules)).toEqual({ admitted: true });
        await saved;
        expect(await reserve(row({ ownerId: "b" }), rules)).toEqual({ admitted: true });
        expect(await reserve(row({ ownerId: "b" }), rules)).toMatchObject({ admitted: false });
      });

      it("gives a name to one sandbox of an owner at a time, and finds it by that", async () => {
        const rivals = Array.from({ length: 5 }, () => row({ ownerId: "a", name: "web" }));
        const outcomes = await Promise.all(rivals.map((rival) => reserve(rival)));
        const winner = rivals[0] as SandboxRow;
        const taken = { admitted: false, reason: "name_taken", sandboxId: winner.id };
        expect(outcomes).toEqual([{ admitted: true }, taken, taken, taken, taken]);
        await add({ ownerId: "b", name: "web" });
        await add({ ownerId: "", name: "web" });
        expect((await store.sandboxes.named("a", "web"))?.id).toBe(winner.id);
        expect(await store.sandboxes.named("a", "other")).toBeUndefined();
        const updatedAt = new Date(start + 1);
        await store.sandboxes.update(winner.id, live, { state: "expired", updatedAt }, fence);
        expect(await store.sandboxes.named("a", "web")).toBeUndefined();
        expect(await reserve(row({ ownerId: "a", name: "web" }))).toEqual({ admitted: true });
        expect((await store.sandboxes.get(winner.id))?.name).toBe("web");
      });

      it("has no owner limit for sandboxes of nobody", async () => {
        await add();
        expect(await reserve(row(), limited(0, 1))).toEqual({ admitted: true });
        expect(await store.sandboxes.inUse("")).toEqual({ all: taken(2), owner: taken(0) });
      });

      it("refuses an id that exists and leaves the rest as it was", async () => {
        const first = await add();
        const outcomes = await Promise.allSettled([
          reserve(row()),
          reserve({ ...row(), id: first.id, ownerId: "a" }, noLimits, claim()),
          reserve(row()),
        ]);
        expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
        expect(await store.sandboxes.get(first.id)).toEqual(first);
        expect(await store.sandboxes.listLive()).toHaveLength(3);
        expect(await store.sandboxes.inUse("a")).toEqual({ all: taken(3), owner: taken(0) });
        expect(
          await store.idempotency.find({ ownerId: "a", key: "k", now: new Date(start) }),
        ).toBeUndefined();
      });

      it("never exceeds the limits, whatever is reserved, ended and removed at once", async () => {
        const action = fc.oneof(
          {
            weight: 4,
            arbitrary: fc.record({
              do: fc.constant("reserve" as const),
              owner: fc.constantFrom("", "a", "b"),
            }),
          },
          {
            weight: 1,
            arbitrary: fc.record({
              do: fc.constantFrom("remove" as const, "end" as const, "fail" as const),
              at: fc.nat(30),
            }),
          },
          { weight: 1, arbitrary: fc.record({ do: fc.constant("wait" as const) }) },
        );
        await fc.assert(
          fc.asyncProperty(
            fc.array(action, { maxLength: 40 }),
            fc.nat(6),
            fc.nat(3),
            async (actions, maxSandboxes, maxSandboxesPerOwner) => {
              const rows: SandboxRow[] = [];
              const under: Promise<unknown>[] = [];
              const check = async () => {
                for (const ownerId of ["a", "b"]) {
                  const { all, owner } = await store.sandboxes.inUse(ownerId);
                  const rows = (await store.sandboxes.listLive()).filter(({ state }) => state === "creating");
                  expect(all).toEqual(taken(rows.length));
                  expect(owner).toEqual(taken(rows.filter((kept) => kept.ownerId === ownerId).length));
                  if (maxSandboxes > 0) expect(all.sandboxes).toBeLessThanOrEqual(maxSandboxes);
                  if (maxSandboxesPerOwner > 0)
                    expect(owner.sandboxes).toBeLessThanOrEqual(maxSandboxesPerOwner);
                }
              };
              for (const one of actions) {
                if (one.do === "reserve") {
                  const made = row({ ownerId: one.owner });
                  rows.push(made);
                  under.push(reserve(made, limited(maxSandboxes, maxSandboxesPerOwner)));
                } else if (one.do === "wait") {
                  await Promise.all(under.splice(0));
                  await check();
                } else {
                  const target = rows[one.at];
                  if (target === undefined) continue;
                  const state = one.do === "fail" ? "error" : "destroyed";
                  const change = { state, updatedAt: new Date(start) } as const;
                  under.push(
                    one.do === "remove"
                      ? store.sandboxes.remove(target.id, fence)
                      : store.sandboxes.update(target.id, live, change, fence),
                  );
                }
              }
              await Promise.all(under);
              await check();
              await Promise.all(rows.map(({ id }) => store.sandboxes.remove(id, fence)));
            },
          ),
          { numRuns: 50 },
        );
      });

      it("changes a row only from the states that are named", async () => {
        const made = await add();
        const updatedAt = new Date(start + 1);
        expect(
          await store.sandboxes.update(made.id, ["running"], { state: "error", updatedAt }, fence),
        ).toBeUndefined();
        expect(await store.sandboxes.get(made.id)).toEqual(made);
        const running = { ...made, state: "running" as const, imageResolved: "resolved", updatedAt };
        const change = { state: "running", imageResolved: "resolved", updatedAt } as const;
        expect(await store.sandboxes.update(made.id, ["creating", "error"], change, fence)).toEqual(running);
        expect(await store.sandboxes.get(made.id)).toEqual(running);
        expect(
          await store.sandboxes.update("sb-nothere" as SandboxId, ["running"], { updatedAt }, fence),
        ).toBeUndefined();
      });

      it("changes what a change names and nothing else, to nothing where it says so", async () => {
        const made = await add({ error: "old", env: { A: "1" } });
        const updatedAt = new Date(start + 1);
        const expiresAt = new Date(start + 2);
        const endsItselfAt = new Date(start + 3);
        const first = { ...made, expiresAt, endsItselfAt, destroyRequested: true, updatedAt };
        const change = { expiresAt, endsItselfAt, destroyRequested: true, updatedAt };
        expect(await store.sandboxes.update(made.id, live, change, fence)).toEqual(first);
        const runtimeId = "rt-of-the-provider" as RuntimeId;
        const running = { ...first, state: "running" as const, runtimeId };
        const naming = { state: "running", runtimeId, updatedAt } as const;
        expect(await store.sandboxes.update(made.id, live, naming, fence)).toEqual(running);
        const second = { ...running, error: null, env: {}, destroyedAt: expiresAt };
        const clearing = { error: null, env: {}, destroyedAt: expiresAt, updatedAt };
        expect(await store.sandboxes.update(made.id, live, clearing, fence)).toEqual(second);
        expect(await store.sandboxes.get(made.id)).toEqual(second);
      });

      it("reads the limits inside the reservation", async () => {
        let most = 1;
        const rules: CapacityRules = { of: (owner, quota) => limited(most, 0).of(owner, quota) };
        await add();
        const reserved = reserve(row(), rules);
        most = 2;
        expect(await reserved).toEqual({ admitted: true });
      });

      it("lets one of two rival changes win", async () => {
        const made = await add();
        const updatedAt = new Date(start + 1);
        const results = await Promise.all([
          store.sandboxes.update(made.id, ["creating"], { state: "running", updatedAt }, fence),
          store.sandboxes.update(made.id, ["creating"], { state: "error", updatedAt }, fence),
        ]);
        expect(results.filter((result) => result !== undefined)).toHaveLength(1);
      });

      it("lists newest first, page by page, without missing or repeating any", async () => {
        for (let i = 0; i < 25; i++) await add({ createdAt: new Date(start + Math.floor(i / 4)) });
        const seen = await listAll({ states: live, limit: 7 });
        expect(new Set(seen.map(({ id }) => id)).size).toBe(25);
        const order = seen.map(({ createdAt, id }) => `${createdAt.getTime()} ${id}`);
        expect(order).toEqual([...order].sort().reverse());
      });

      it("filters by state, owner, name, provider and every metadata pair", async () => {
        const metadata = { team: "red", "odd.key": 'q"uote' };
        const named = { ownerId: "a", name: "web" };
        const wanted = await add({ state: "running", ...named, provider: "docker", metadata });
        await add({ state: "running", ownerId: "b", provider: "docker", metadata: { team: "blue" } });
        const gone = await add({ state: "destroyed", ownerId: "a", metadata: { team: "red" } });
        const ids = async (filter: Partial<Parameters<Store["sandboxes"]["list"]>[0]>) =>
          (await listAll({ states: live, limit: 10, ...filter })).map(({ id }) => id);
        expect(await ids({})).toHaveLength(2);
        expect(await ids({ ownerId: "a" })).toEqual([wanted.id]);
        expect(await ids({ provider: "docker" })).toHaveLength(2);
        expect(await ids({ name: "web" })).toEqual([wanted.id]);
        expect(await ids({ name: "web", ownerId: "b" })).toEqual([]);
        expect(await ids({ metadata: { team: "red" } })).toEqual([wanted.id]);
        expect(await ids({ metadata: { team: "red", "odd.key": 'q"uote' } })).toEqual([wanted.id]);
        expect(await ids({ metadata: { team: "red", other: "x" } })).toEqual([]);
        expect(await ids({ metadata: { red: "team" } })).toEqual([]);
        expect(await ids({ states: ["destroyed"] })).toEqual([gone.id]);
        expect(await ids({ states: ["running", "destroyed"], ownerId: "a" })).toHaveLength(2);
      });

      it("lists every row that is not destroyed", async () => {
        for (const state of [...live, "destroyed" as const]) await add({ state });
        expect((await store.sandboxes.listLive()).map(({ state }) => state).sort()).toEqual([...live].sort());
      });

      it("tells what is live in slices, between which others have their turn", async () => {
        const rows = await Promise.all(Array.from({ length: 1_000 }, () => add({ state: "running" })));
        const gone = await add({ state: "destroyed" });
        let turns = 0;
        let counting = true;
        const count = () => {
          turns++;
          if (counting) setImmediate(count);
        };
        setImmediate(count);
        const told = new Map<string, LiveState>();
        const slices: { length: number; turn: number }[] = [];
        for await (const slice of store.sandboxes.liveStates()) {
          slices.push({ length: slice.length, turn: turns });
          for (const one of slice) told.set(one.id, one);
        }
        counting = false;
        expect(told.size).toBe(1_000);
        expect(told.has(gone.id)).toBe(false);
        for (const { id, workerId, state, updatedAt } of rows)
          expect(told.get(id)).toEqual({ id, workerId, state, updatedAt });
        expect(Math.max(...slices.map(({ length }) => length))).toBeLessThanOrEqual(250);
        expect(new Set(slices.map(({ turn }) => turn)).size).toBe(slices.length);
      });

      it("tells what is live once, while rows come and go", async () => {
        const rows = await Promise.all(Array.from({ length: 600 }, () => add({ state: "running" })));
        const told: string[] = [];
        for await (const slice of store.sandboxes.liveStates()) {
          told.push(...slice.map(({ id }) => id));
          const next = rows.find(({ id }) => !told.includes(id));
          if (next !== undefined) await store.sandboxes.remove(next.id, fence);
          await add({ state: "running", createdAt: new Date(start + 10) });
        }
        expect(new Set(told).size).toBe(told.length);
        for (const { id } of rows)
          if ((await store.sandboxes.get(id)) !== undefined) expect(told).toContain(id);
      });

      it("forgets rows destroyed before a time, but those an idempotency key leads to", async () => {
        const old = { state: "destroyed", destroyedAt: new Date(start) } as const;
        const kept = row(old);
        expect(await reserve(kept, noLimits, claim())).toEqual({ admitted: true });
        await add(old);
        const recent = await add({ state: "destroyed", destroyedAt: new Date(start + 10) });
        const running = await add({ state: "running" });
        expect(await store.sandboxes.purge({ before: new Date(start + 10), keep: 100 })).toBe(1);
        for (const { id } of [kept, recent, running]) expect(await store.sandboxes.get(id)).toBeDefined();
      });

      it("forgets the oldest destroyed rows beyond a number, with the keys that lead to them", async () => {
        const destroyed = (n: number) =>
          row({ state: "destroyed", ownerId: "a", destroyedAt: new Date(start + n) });
        const rows = [3, 1, 2].map(destroyed);
        for (const one of rows) await reserve(one, noLimits, claim({ key: one.id }));
        await add({ state: "running" });
        expect(await store.sandboxes.purge({ before: new Date(start), keep: 2 })).toBe(1);
        expect(await store.sandboxes.get(rows[1]?.id as SandboxId)).toBeUndefined();
        const now = new Date(start);
        const left = await Promise.all(
          rows.map(({ id }) => store.idempotency.find({ ownerId: "a", key: id, now })),
        );
        expect(left.map((held) => held?.sandboxId)).toEqual([rows[0]?.id, undefined, rows[2]?.id]);
      });

      it("forgets in slices that let other writes through, and stops when told to", async () => {
        const old = { state: "destroyed", destroyedAt: new Date(start) } as const;
        await Promise.all(Array.from({ length: 900 }, () => add(old)));
        const stop = new AbortController();
        let purged = false;
        const which = { before: new Date(start + 1), keep: 10_000 };
        const stopped = store.sandboxes.purge({ ...which, signal: stop.signal }).finally(() => {
          purged = true;
        });
        await reserve(row());
        expect(purged).toBe(false);
        stop.abort();
        await expect(stopped).rejects.toBe(stop.signal.reason);
        const left = await store.sandboxes.purge(which);
        expect(left).toBeGreaterThan(0);
        expect(left).toBeLessThan(900);
        expect((await store.sandboxes.list({ states: ["destroyed"], limit: 10 })).rows).toEqual([]);
      });

      it("looks at a bounded number of rows for one page, and finds what is behind them on a later one", async () => {
        const wanted = await add({ state: "destroyed", metadata: { team: "red" } });
        const others = Array.from({ length: 12_000 }, () =>
          add({ state: "destroyed", createdAt: new Date(start + 1) }),
        );
        await Promise.all(others);
        const filter: SandboxFilter = { states: ["destroyed"], metadata: { team: "red" }, limit: 5 };
        const first = await store.sandboxes.list(filter);
        expect(first.rows).toEqual([]);
        expect(first.next).toBeDefined();
        expect((await listAll(filter)).map(({ id }) => id)).toEqual([wanted.id]);
      });

      it("reads a bounded amount of labels for one page, and all rows on the later ones", async () => {
        const long = "x".repeat(60_000);
        const rows = await Promise.all(
          Array.from({ length: 40 }, (_, n) =>
            add({ state: "running", metadata: { long, team: n === 0 ? "red" : "blue" } }),
          ),
        );
        for (const filter of [{}, { metadata: { team: "blue" } }, { metadata: { team: "red" } }]) {
          const wanted = { states: ["running"], limit: 1_000, ...filter } as const;
          const first = await store.sandboxes.list(wanted);
          expect(first.rows.length).toBeLessThan(20);
          expect(first.next).toBeDefined();
          const team = filter.metadata?.team;
          const ids = rows.filter(({ metadata }) => team === undefined || metadata.team === team);
          expect((await listAll(wanted)).map(({ id }) => id).sort()).toEqual(ids.map(({ id }) => id).sort());
        }
      });

      it("finds labels of any text, whole and of their own key", async () => {
        const odd = { ",": ":", 'a"b': 'c\\"d', __proto__x: "é\u2028", ":": "v", nested: '"team":"red"' };
        const found = await add({ state: "running", metadata: { ...odd, ["__proto__"]: "p" } });
        const list = async (metadata: Record<string, string>) =>
          (await store.sandboxes.list({ states: ["running"], limit: 9, metadata })).rows.map(({ id }) => id);
        for (const [key, value] of Object.entries(odd))
          expect(await list({ [key]: value })).toEqual([found.id]);
        expect(await list(odd)).toEqual([found.id]);
        expect(await list({ ["__proto__"]: "p" })).toEqual([found.id]);
        for (const other of [{ team: "red" }, { ":": ":" }, { ":": "" }, { toString: "x" }, { ":": "V" }]) {
          expect(await list(other)).toEqual([]);
        }
      });
    });

    const claim = (change: Partial<IdempotencyClaim> = {}): IdempotencyClaim => ({
      key: "k",
      bodyHash: "h",
      expiresAt: new Date(start + 1_000),
      ...change,
    });
    /** Every page. */
    const listAll = async (filter: SandboxFilter) => {
      const rows: ListedSandbox[] = [];
      for (let after = filter.after; ; ) {
        const page = await store.sandboxes.list({ ...filter, ...(after && { after }) });
        expect(page.rows.length).toBeLessThanOrEqual(filter.limit);
        rows.push(...page.rows);
        if (page.next === undefined) return rows;
        after = page.next;
      }
    };

    describe("idempotency keys", () => {
      const find = (key = "k", now = new Date(start), ownerId = "a") =>
        store.idempotency.find({ ownerId, key, now });

      it("belong to the first reservation, also among reservations at once, and to one owner", async () => {
        const [first, second] = [row({ ownerId: "a" }), row({ ownerId: "a" })];
        const rivals = await Promise.all([
          reserve(first, noLimits, claim()),
          reserve(second, noLimits, claim({ bodyHash: "other" })),
        ]);
        const held = { bodyHash: "h", sandboxId: first.id };
        expect(rivals).toEqual([{ admitted: true }, { admitted: false, reason: "claimed", ...held }]);
        expect(await store.sandboxes.get(second.id)).toBeUndefined();
        expect(await find()).toEqual(held);
        expect(await reserve(row({ ownerId: "b" }), noLimits, claim())).toEqual({ admitted: true });
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        expect(await find()).toEqual(held);
      });

      it("are looked at before the limits, and not claimed by a reservation that is denied", async () => {
        const first = row({ ownerId: "a" });
        await reserve(first, limited(1, 0), claim());
        expect(await reserve(row({ ownerId: "a" }), limited(1, 0), claim())).toMatchObject({
          reason: "claimed",
        });
        expect(await reserve(row({ ownerId: "a" }), limited(1, 0), claim({ key: "new" }))).toMatchObject({
          reason: "max_sandboxes",
        });
        expect(await find("new")).toBeUndefined();
      });

      it("are free again once expired, released by their holder, or their sandbox was removed", async () => {
        const [first, second, third] = [0, 1, 2].map(() => row({ ownerId: "a" })) as [
          SandboxRow,
          SandboxRow,
          SandboxRow,
        ];
        await reserve(first, noLimits, claim());
        await store.idempotency.release({ ownerId: "a", key: "k", sandboxId: second.id });
        expect(await find()).toBeDefined();
        await store.idempotency.release({ ownerId: "a", key: "k", sandboxId: first.id });
        expect(await reserve(second, noLimits, claim())).toEqual({ admitted: true });
        await store.sandboxes.remove(second.id, fence);
        expect(await find()).toBeUndefined();
        expect(await reserve(third, noLimits, claim())).toEqual({ admitted: true });
        const later = row({ ownerId: "a", createdAt: new Date(start + 1_000) });
        expect(await reserve(later, noLimits, claim({ expiresAt: new Date(start + 9_000) }))).toEqual({
          admitted: true,
        });
        expect(await find("k", later.createdAt)).toEqual({ bodyHash: "h", sandboxId: later.id });
      });

      it("are forgotten once expired", async () => {
        await reserve(row({ ownerId: "a" }), noLimits, claim());
        await reserve(
          row({ ownerId: "a" }),
          noLimits,
          claim({ key: "later", expiresAt: new Date(start + 9_000) }),
        );
        expect(await store.idempotency.purge(new Date(start + 1_000))).toBe(1);
        expect(await find("later")).toBeDefined();
      });
    });

    describe("events", () => {
      const event = (n: number, change: Partial<NewEvent> = {}): NewEvent => ({
        type: "sandbox.created" as const,
        sandboxId: "sb-a",
        timestamp: new Date(start + n),
        ...change,
      });

      it("are listed oldest first after an id, filtered, and survive a restart", async () => {
        expect(await store.events.lastId()).toBe(0);
        expect(
          await store.events.append([
            event(1),
            event(2, { type: "exec.started", data: { n: 1, deep: { x: [] } } }),
          ]),
        ).toBe(1);
        expect(await store.events.append([event(3, { sandboxId: "sb-b" })])).toBe(3);
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        expect(await store.events.lastId()).toBe(3);
        const ids = async (filter: Partial<Parameters<Store["events"]["list"]>[0]>) =>
          (await store.events.list({ afterId: 0, limit: 10, ...filter })).events.map(({ id }) => id);
        expect(await ids({})).toEqual(["1", "2", "3"]);
        expect(await ids({ afterId: 1 })).toEqual(["2", "3"]);
        expect(await ids({ limit: 1 })).toEqual(["1"]);
        expect(await ids({ types: ["exec.started"] })).toEqual(["2"]);
        expect(await ids({ types: ["exec.started", "sandbox.created"], sandboxId: "sb-b" })).toEqual(["3"]);
        expect((await store.events.list({ afterId: 1, limit: 1 })).events[0]).toEqual({
          id: "2",
          type: "exec.started",
          sandbox_id: "sb-a",
          timestamp: new Date(start + 2).toISOString(),
          data: { n: 1, deep: { x: [] } },
        });
      });

      it("are kept with the change of a sandbox that they mean, until they are appended", async () => {
        const made = await add({ state: "creating" });
        const told = { ...event(1, { sandboxId: made.id }), ownerId: "a", data: { n: 1 } };
        const running = { state: "running", updatedAt: new Date(start) } as const;
        await store.sandboxes.update(made.id, ["error"], running, fence, [told]);
        expect(await store.events.untold()).toEqual([]);
        await store.sandboxes.update(made.id, ["creating"], running, fence, [told]);
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        expect(await store.events.untold()).toEqual([told]);
        await store.events.append([told]);
        expect(await store.events.untold()).toEqual([]);
      });

      it("are trimmed to the newest", async () => {
        await store.events.append([1, 2, 3, 4, 5].map((id) => event(id)));
        await store.events.trim(2);
        expect(await store.events.kept()).toBe(2);
        expect((await store.events.list({ afterId: 0, limit: 10 })).events.map(({ id }) => id)).toEqual([
          "4",
          "5",
        ]);
        await store.events.trim(10);
        expect(await store.events.lastId()).toBe(5);
        await store.events.passOver(3);
        expect(await store.events.append([event(6)])).toBe(6);
        await store.events.passOver(90);
        expect(await store.events.lastId()).toBe(90);
        expect(await store.events.append([event(7)])).toBe(91);
        const { forgotten } = await store.events.list({ afterId: 0, limit: 10 });
        expect(forgotten).toEqual({ upto: 90, atMost: 87, passedOverUpto: 90 });
      });

      it("are forgotten by age, each owner told what it has lost", async () => {
        const at = (ms: number, ownerId: string) => ({ ...event(1), ownerId, timestamp: new Date(ms) });
        await store.events.append([at(1_000, "alice"), at(1_000, "bob"), at(2_000, "bob"), at(3_000, "bob")]);
        expect(await store.events.purge({ before: new Date(1_000) })).toBe(0);
        expect(await store.events.purge({ before: new Date(2_001) })).toBe(3);
        const left = async (ownerId: string) => {
          const { events, forgotten } = await store.events.list({ afterId: 0, limit: 10, ownerId });
          return [events.map(({ id }) => id), forgotten];
        };
        expect(await left("alice")).toEqual([[], { upto: 1, atMost: 1 }]);
        expect(await left("bob")).toEqual([["4"], { upto: 3, atMost: 2 }]);
        expect(await store.events.kept()).toBe(1);
        await store.events.append([at(4_000, "alice")]);
        expect((await left("alice"))[0]).toEqual(["5"]);
      });

      it("are forgotten by age also behind one that was written while the clock was ahead", async () => {
        const at = (ms: number) => ({ ...event(1), timestamp: new Date(ms) });
        const many = Array.from({ length: 700 }, () => at(2_000));
        await store.events.append([at(1_000), at(90_000), ...many, at(5_000)]);
        expect(await store.events.purge({ before: new Date(3_000) })).toBe(701);
        const { events } = await store.events.list({ afterId: 0, limit: 10 });
        expect(events.map(({ id }) => id)).toEqual(["2", "703"]);
        expect(await store.events.kept()).toBe(2);
        expect(await store.events.purge({ before: new Date(90_001) })).toBe(2);
      });

      it("are forgotten by age also behind any number that were written while the clock was ahead", async () => {
        const at = (ms: number, count: number) =>
          Array.from({ length: count }, () => ({ ...event(1), timestamp: new Date(ms) }));
        await store.events.append(at(1_000, 1));
        await store.events.append(at(90_000, 1_100));
        await store.events.append(at(2_000, 700));
        await store.events.append(at(92_000, 600));
        expect(await store.events.purge({ before: new Date(3_000) })).toBe(701);
        expect(await store.events.kept()).toBe(1_700);
        expect(await store.events.purge({ before: new Date(90_001) })).toBe(1_100);
      });

      it("are trimmed of whoever has most: nobody pushes out what others have less of", async () => {
        const of = (ownerId: string, count: number, from: number) =>
          store.events.append(Array.from({ length: count }, (_, at) => ({ ...event(from + at), ownerId })));
        await of("bob", 20, 0);
        await of("alice", 2_000, 20);
        await of("carol", 60, 2_020);
        await store.events.trim(100);
        const kept = async (ownerId: string) =>
          (await store.events.list({ afterId: 0, limit: 500, ownerId })).events.map(({ id }) => Number(id));
        const numbers = (from: number, to: number) =>
          Array.from({ length: to - from + 1 }, (_, at) => from + at);
        expect(await kept("bob")).toEqual(numbers(1, 20));
        const [alice, carol] = [await kept("alice"), await kept("carol")];
        expect(alice).toEqual(numbers(2_021 - alice.length, 2_020));
        expect(carol).toEqual(numbers(2_081 - carol.length, 2_080));
        expect(alice.length + carol.length).toBe(80);
        expect(Math.abs(alice.length - carol.length)).toBeLessThanOrEqual(10);
        await store.events.trim(0);
        await of("alice", 2, 0);
        await store.events.trim(1);
        expect(await kept("alice")).toEqual([2_082]);
      });

      it("leave behind up to which id each owner's were trimmed, and at most how many", async () => {
        const of = (ownerId: string, count: number) =>
          store.events.append(Array.from({ length: count }, (_, at) => ({ ...event(at), ownerId })));
        const forgotten = async (ownerId?: string) =>
          (await store.events.list({ afterId: 0, limit: 1, ...(ownerId === undefined ? {} : { ownerId }) }))
            .forgotten;
        const nothing = { upto: 0, atMost: 0 };
        await of("alice", 20);
        await of("bob", 5);
        expect(await Promise.all([forgotten(), forgotten("alice")])).toEqual([nothing, nothing]);
        await store.events.trim(15);
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        expect(await forgotten("alice")).toEqual({ upto: 10, atMost: 10 });
        expect(await forgotten("bob")).toEqual(nothing);
        expect(await forgotten("carol")).toEqual(nothing);
        expect(await forgotten()).toEqual({ upto: 10, atMost: 10 });
        await store.events.trim(0);
        await of("alice", 1);
        expect(await forgotten("alice")).toEqual({ upto: 20, atMost: 20 });
        expect(await forgotten("bob")).toEqual({ upto: 25, atMost: 5 });
        expect(await forgotten()).toEqual({ upto: 25, atMost: 25 });
      });

      it("are written all or none, and no id is given twice, though every event was trimmed", async () => {
        await store.events.append([event(1)]);
        const unwritable = event(2, { sandboxId: undefined as unknown as string });
        await expect(store.events.append([event(2), unwritable])).rejects.toThrow();
        expect(await store.events.lastId()).toBe(1);
        expect(await store.events.append([event(2), event(3)])).toBe(2);
        await store.events.trim(0);
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        expect(await store.events.lastId()).toBe(3);
        expect(await store.events.append([event(4)])).toBe(4);
      });

      it("have ids in the order of their writes, and nothing comes in below one that was read", async () => {
        const batches = Array.from({ length: 20 }, (_, at) => [event(at), event(at, { sandboxId: "sb-b" })]);
        const reads: number[][] = [];
        const firsts = await Promise.all(
          batches.map(async (batch) => {
            const first = await store.events.append(batch);
            reads.push(
              (await store.events.list({ afterId: 0, limit: 100 })).events.map(({ id }) => Number(id)),
            );
            return first;
          }),
        );
        expect(firsts).toEqual(Array.from({ length: 20 }, (_, at) => at * 2 + 1));
        for (const ids of reads) expect(ids).toEqual(ids.map((_, at) => at + 1));
      });
    });

    sharedUseContract({
      store: () => store,
      reopen: async () => {
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
      },
    });

    it("names the installation once", async () => {
      expect(await store.instanceId("first")).toBe("first");
      expect(await store.instanceId("second")).toBe("first");
      await store[Symbol.asyncDispose]();
      store = await under.reopen();
      expect(await store.instanceId("third")).toBe("first");
      await store.ping();
    });

    it("keeps settings, the last of each name", async () => {
      expect(await store.setting("generation")).toBeUndefined();
      await store.changeSetting("generation", "1");
      await store.changeSetting("generation", "2");
      await store[Symbol.asyncDispose]();
      store = await under.reopen();
      expect(await store.setting("generation")).toBe("2");
    });

    it("closes twice without harm", async () => {
      await store[Symbol.asyncDispose]();
      await store[Symbol.asyncDispose]();
    });
  });
}
