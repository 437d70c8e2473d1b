import type { SandboxState } from "@alcove/wire";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { RuntimeId, SandboxId } from "../ids.ts";
import type { NewEvent, SandboxRow, Store } from "../store.ts";

export interface StoreUnderTest {
  /** A store without anything in it. */
  create(): Promise<Store>;
  /** Opens again what the store was opened on, which has been closed. */
  reopen(): Promise<Store>;
  /** Removes what `create` made. */
  cleanUp(): Promise<void>;
}

const start = Date.parse("2030-01-01T00:00:00Z");
const noLimits = { maxSandboxes: 0, maxSandboxesPerOwner: 0 };
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
    memoryMb: 512,
    vcpus: 1,
    ownerId: "",
    metadata: {},
    env: {},
    user: null,
    workdir: null,
    network: null,
    createdAt: new Date(start),
    expiresAt: new Date(start + 60_000),
    updatedAt: new Date(start),
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
      expect(await store.sandboxes.reserve(added, noLimits)).toEqual({ admitted: true });
      return added;
    };

    describe("sandboxes", () => {
      it("gives back every field of a row as it was given, after a restart too", async () => {
        const full = await add({
          ownerId: "Ünïcode 🏠",
          metadata: { "a.b": 'c"d', "": "empty", __proto__x: "y" },
          env: { PATH: "/bin", MULTI: "a\nb" },
          user: "1000:1000",
          workdir: "/w",
          network: "none",
          destroyRequested: true,
          destroyedAt: new Date(start + 5),
          error: "why",
        });
        const bare = await add();
        expect(await store.sandboxes.get(full.id)).toEqual(full);
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        expect(await store.sandboxes.get(full.id)).toEqual(full);
        expect(await store.sandboxes.get(bare.id)).toEqual(bare);
        expect(await store.sandboxes.get("sb-nothere" as SandboxId)).toBeUndefined();
      });

      it("counts creating, running and unhealthy rows against the limits, with the counts in a denial", async () => {
        for (const state of ["creating", "running", "unhealthy"] as const) await add({ state, ownerId: "a" });
        for (const state of ["expired", "error", "destroyed"] as const) await add({ state, ownerId: "a" });
        expect(await store.sandboxes.activeCounts("a")).toEqual({ total: 3, owner: 3 });
        expect(await store.sandboxes.activeCounts("b")).toEqual({ total: 3, owner: 0 });
        const refused = { admitted: false, active: { total: 3, owner: 3 } };
        const limits = { maxSandboxes: 3, maxSandboxesPerOwner: 3 };
        expect(await store.sandboxes.reserve(row({ ownerId: "a" }), limits)).toEqual({
          ...refused,
          reason: "max_sandboxes",
        });
        expect(await store.sandboxes.reserve(row({ ownerId: "a" }), { ...limits, maxSandboxes: 4 })).toEqual({
          ...refused,
          reason: "max_sandboxes_per_owner",
        });
        expect(await store.sandboxes.reserve(row({ ownerId: "b" }), { ...limits, maxSandboxes: 4 })).toEqual({
          admitted: true,
        });
      });

      it("has no owner limit for sandboxes of nobody", async () => {
        await add();
        const limits = { maxSandboxes: 0, maxSandboxesPerOwner: 1 };
        expect(await store.sandboxes.reserve(row(), limits)).toEqual({ admitted: true });
        expect(await store.sandboxes.activeCounts("")).toEqual({ total: 2, owner: 0 });
      });

      it("refuses an id that exists and leaves the rest as it was", async () => {
        const first = await add();
        const outcomes = await Promise.allSettled([
          store.sandboxes.reserve(row(), noLimits),
          store.sandboxes.reserve({ ...row(), id: first.id }, noLimits),
          store.sandboxes.reserve(row(), noLimits),
        ]);
        expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
        expect(await store.sandboxes.get(first.id)).toEqual(first);
        expect(await store.sandboxes.listLive()).toHaveLength(3);
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
            arbitrary: fc.record({ do: fc.constantFrom("remove" as const, "end" as const), at: fc.nat(30) }),
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
                  const counts = await store.sandboxes.activeCounts(ownerId);
                  if (maxSandboxes > 0) expect(counts.total).toBeLessThanOrEqual(maxSandboxes);
                  if (maxSandboxesPerOwner > 0)
                    expect(counts.owner).toBeLessThanOrEqual(maxSandboxesPerOwner);
                }
              };
              for (const one of actions) {
                if (one.do === "reserve") {
                  const made = row({ ownerId: one.owner });
                  rows.push(made);
                  under.push(store.sandboxes.reserve(made, { maxSandboxes, maxSandboxesPerOwner }));
                } else if (one.do === "wait") {
                  await Promise.all(under.splice(0));
                  await check();
                } else {
                  const target = rows[one.at];
                  if (target === undefined) continue;
                  const change = { state: "destroyed", updatedAt: new Date(start) } as const;
                  under.push(
                    one.do === "remove"
                      ? store.sandboxes.remove(target.id)
                      : store.sandboxes.update(target.id, live, change),
                  );
                }
              }
              await Promise.all(under);
              await check();
              await Promise.all(rows.map(({ id }) => store.sandboxes.remove(id)));
            },
          ),
          { numRuns: 50 },
        );
      });

      it("changes a row only from the states that are named", async () => {
        const made = await add();
        const updatedAt = new Date(start + 1);
        expect(
          await store.sandboxes.update(made.id, ["running"], { state: "error", updatedAt }),
        ).toBeUndefined();
        expect(await store.sandboxes.get(made.id)).toEqual(made);
        const running = { ...made, state: "running" as const, image: "resolved", updatedAt };
        const change = { state: "running", image: "resolved", updatedAt } as const;
        expect(await store.sandboxes.update(made.id, ["creating", "error"], change)).toEqual(running);
        expect(await store.sandboxes.get(made.id)).toEqual(running);
        expect(
          await store.sandboxes.update("sb-nothere" as SandboxId, ["running"], { updatedAt }),
        ).toBeUndefined();
      });

      it("changes what a change names and nothing else, to nothing where it says so", async () => {
        const made = await add({ error: "old", env: { A: "1" } });
        const updatedAt = new Date(start + 1);
        const expiresAt = new Date(start + 2);
        const first = { ...made, expiresAt, destroyRequested: true, updatedAt };
        const change = { expiresAt, destroyRequested: true, updatedAt };
        expect(await store.sandboxes.update(made.id, live, change)).toEqual(first);
        const second = { ...first, error: null, env: {}, destroyedAt: expiresAt };
        const clearing = { error: null, env: {}, destroyedAt: expiresAt, updatedAt };
        expect(await store.sandboxes.update(made.id, live, clearing)).toEqual(second);
        expect(await store.sandboxes.get(made.id)).toEqual(second);
      });

      it("lets one of two rival changes win", async () => {
        const made = await add();
        const updatedAt = new Date(start + 1);
        const results = await Promise.all([
          store.sandboxes.update(made.id, ["creating"], { state: "running", updatedAt }),
          store.sandboxes.update(made.id, ["creating"], { state: "error", updatedAt }),
        ]);
        expect(results.filter((result) => result !== undefined)).toHaveLength(1);
      });

      it("lists newest first, page by page, without missing or repeating any", async () => {
        for (let i = 0; i < 25; i++) await add({ createdAt: new Date(start + Math.floor(i / 4)) });
        const seen: SandboxRow[] = [];
        for (;;) {
          const last = seen.at(-1);
          const after = last === undefined ? {} : { after: { createdAt: last.createdAt, id: last.id } };
          const page = await store.sandboxes.list({ states: live, limit: 7, ...after });
          seen.push(...page);
          if (page.length < 7) break;
        }
        expect(new Set(seen.map(({ id }) => id)).size).toBe(25);
        const order = seen.map(({ createdAt, id }) => `${createdAt.getTime()} ${id}`);
        expect(order).toEqual([...order].sort().reverse());
      });

      it("filters by state, owner, provider and every metadata pair", async () => {
        const metadata = { team: "red", "odd.key": 'q"uote' };
        const wanted = await add({ state: "running", ownerId: "a", provider: "docker", metadata });
        await add({ state: "running", ownerId: "b", provider: "docker", metadata: { team: "blue" } });
        const gone = await add({ state: "destroyed", ownerId: "a", metadata: { team: "red" } });
        const ids = async (filter: Partial<Parameters<Store["sandboxes"]["list"]>[0]>) =>
          (await store.sandboxes.list({ states: live, limit: 10, ...filter })).map(({ id }) => id);
        expect(await ids({})).toHaveLength(2);
        expect(await ids({ ownerId: "a" })).toEqual([wanted.id]);
        expect(await ids({ provider: "docker" })).toHaveLength(2);
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

      it("forgets rows destroyed before a time, but those an idempotency key leads to", async () => {
        const old = { state: "destroyed", destroyedAt: new Date(start) } as const;
        const kept = await add(old);
        await store.idempotency.claim(claim({ sandboxId: kept.id }));
        await add(old);
        const recent = await add({ state: "destroyed", destroyedAt: new Date(start + 10) });
        const running = await add({ state: "running" });
        expect(await store.sandboxes.purge(new Date(start + 10))).toBe(1);
        for (const { id } of [kept, recent, running]) expect(await store.sandboxes.get(id)).toBeDefined();
      });
    });

    const claim = (change: Partial<Parameters<Store["idempotency"]["claim"]>[0]> = {}) => ({
      ownerId: "a",
      key: "k",
      bodyHash: "h",
      sandboxId: "sb-first" as SandboxId,
      now: new Date(start),
      expiresAt: new Date(start + 1_000),
      ...change,
    });

    describe("idempotency keys", () => {
      it("belong to the first claim, also among claims at once, and to one owner", async () => {
        const rivals = await Promise.all([
          store.idempotency.claim(claim()),
          store.idempotency.claim(claim({ sandboxId: "sb-second" as SandboxId, bodyHash: "other" })),
        ]);
        expect(rivals).toEqual([{ claimed: true }, { claimed: false, bodyHash: "h", sandboxId: "sb-first" }]);
        expect(await store.idempotency.claim(claim({ ownerId: "b" }))).toEqual({ claimed: true });
      });

      it("are free again once expired or released by their holder", async () => {
        await store.idempotency.claim(claim());
        const sandboxId = "sb-second" as SandboxId;
        await store.idempotency.release({ ownerId: "a", key: "k", sandboxId });
        expect(await store.idempotency.claim(claim({ sandboxId }))).toMatchObject({ claimed: false });
        await store.idempotency.release({ ownerId: "a", key: "k", sandboxId: "sb-first" as SandboxId });
        expect(await store.idempotency.claim(claim({ sandboxId }))).toEqual({ claimed: true });
        const later = new Date(start + 1_000);
        expect(await store.idempotency.claim(claim({ now: later }))).toEqual({ claimed: true });
      });

      it("are forgotten once expired", async () => {
        await store.idempotency.claim(claim());
        await store.idempotency.claim(claim({ key: "later", expiresAt: new Date(start + 9_000) }));
        expect(await store.idempotency.purge(new Date(start + 1_000))).toBe(1);
        expect(await store.idempotency.claim(claim({ key: "later" }))).toMatchObject({ claimed: false });
      });
    });

    describe("events", () => {
      const event = (id: number, change: Partial<NewEvent> = {}) => ({
        id,
        type: "sandbox.created" as const,
        sandboxId: "sb-a",
        timestamp: new Date(start + id),
        ...change,
      });

      it("are listed oldest first after an id, filtered, and survive a restart", async () => {
        expect(await store.events.lastId()).toBe(0);
        await store.events.append([
          event(1),
          event(2, { type: "exec.started", data: { n: 1, deep: { x: [] } } }),
        ]);
        await store.events.append([event(3, { sandboxId: "sb-b" })]);
        await store[Symbol.asyncDispose]();
        store = await under.reopen();
        expect(await store.events.lastId()).toBe(3);
        const ids = async (filter: Partial<Parameters<Store["events"]["list"]>[0]>) =>
          (await store.events.list({ afterId: 0, limit: 10, ...filter })).map(({ id }) => id);
        expect(await ids({})).toEqual(["1", "2", "3"]);
        expect(await ids({ afterId: 1 })).toEqual(["2", "3"]);
        expect(await ids({ limit: 1 })).toEqual(["1"]);
        expect(await ids({ types: ["exec.started"] })).toEqual(["2"]);
        expect(await ids({ types: ["exec.started", "sandbox.created"], sandboxId: "sb-b" })).toEqual(["3"]);
        expect((await store.events.list({ afterId: 1, limit: 1 }))[0]).toEqual({
          id: "2",
          type: "exec.started",
          sandbox_id: "sb-a",
          timestamp: new Date(start + 2).toISOString(),
          data: { n: 1, deep: { x: [] } },
        });
      });

      it("are trimmed to the newest", async () => {
        await store.events.append([1, 2, 3, 4, 5].map((id) => event(id)));
        await store.events.trim(2);
        expect((await store.events.list({ afterId: 0, limit: 10 })).map(({ id }) => id)).toEqual(["4", "5"]);
        await store.events.trim(10);
        expect(await store.events.lastId()).toBe(5);
      });

      it("are written all or none", async () => {
        await store.events.append([event(1)]);
        await expect(store.events.append([event(2), event(1)])).rejects.toThrow();
        expect(await store.events.lastId()).toBe(1);
      });
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
