import type { DatabaseSync, StatementSync } from "node:sqlite";
import { setImmediate } from "node:timers/promises";
import type { SandboxState } from "@alcove/wire";
import { type Capacity, type CapacityInUse, capacityDenial, noCapacityLimit } from "../../ports/capacity.ts";
import type { SandboxId } from "../../ports/ids.ts";
import type {
  Birth,
  DestroyedToForget,
  Fence,
  LiveState,
  NewEvent,
  PoolInUse,
  PoolRules,
  Reservation,
  ReserveOutcome,
  SandboxChange,
  SandboxFilter,
  SandboxPage,
  SandboxRow,
  SandboxStore,
  SlotDenial,
} from "../../ports/store.ts";
import type { GroupCommit } from "./group-commit.ts";
import { SandboxLists } from "./sandbox-lists.ts";
import { changed, fromRecord, type SandboxRecord, sandboxColumns, toRecord } from "./sandbox-rows.ts";
import { pauseAfter, slice } from "./slices.ts";
import { SqliteBirths } from "./sqlite-births.ts";
import type { SqliteEvents } from "./sqlite-events.ts";
import type { SqliteIdempotency } from "./sqlite-idempotency.ts";
import { SqlitePool } from "./sqlite-pool.ts";
import type { SqliteQuotas } from "./sqlite-quotas.ts";

/**
 * The table `sandboxes`. Each statement is prepared once and has one function. The counters are kept by triggers, so no
 * statement can forget them. One process writes here, so every fence holds and none is looked at.
 */
export class SqliteSandboxes implements SandboxStore {
  readonly #commit: GroupCommit;
  readonly #claims: SqliteIdempotency;
  readonly #events: Pick<SqliteEvents, "keep">;
  readonly #lists: SandboxLists;
  readonly #quotas: SqliteQuotas;
  readonly #pool: SqlitePool;
  readonly #births: SqliteBirths;
  readonly #usedByAll: StatementSync;
  readonly #used: StatementSync;
  readonly #named: StatementSync;
  readonly #insert: StatementSync;
  readonly #delete: StatementSync;
  readonly #select: StatementSync;
  readonly #updateState: StatementSync;
  readonly #updateRest: StatementSync;
  readonly #live: StatementSync;
  readonly #liveStates: StatementSync;
  readonly #destroyedCount: StatementSync;
  readonly #oldestDestroyed: StatementSync;

  constructor(
    db: DatabaseSync,
    commit: GroupCommit,
    within: { claims: SqliteIdempotency; quotas: SqliteQuotas; events: SqliteEvents },
  ) {
    this.#commit = commit;
    this.#claims = within.claims;
    this.#quotas = within.quotas;
    this.#events = within.events;
    this.#lists = new SandboxLists(db);
    this.#pool = new SqlitePool(db);
    this.#births = new SqliteBirths(db);
    this.#usedByAll = db.prepare("SELECT sandboxes, memory_mb AS memoryMb, vcpus FROM in_use_by_all");
    // Sandboxes of nobody are not counted apart.
    this.#used = db.prepare("SELECT sandboxes, memory_mb AS memoryMb, vcpus FROM in_use WHERE owner_id = ?");
    this.#named = prepareNamed(db);
    this.#insert = prepareInsert(db);
    this.#delete = db.prepare("DELETE FROM sandboxes WHERE id = ?");
    this.#select = db.prepare("SELECT * FROM sandboxes WHERE id = ?");
    this.#updateState = prepareUpdate(db, ", state = ?");
    this.#updateRest = prepareUpdate(db, "");
    this.#live = db.prepare("SELECT * FROM sandboxes WHERE state <> 'destroyed' ORDER BY created_at, id");
    this.#liveStates = prepareLiveStates(db);
    this.#destroyedCount = db.prepare("SELECT value AS count FROM counters WHERE name = 'destroyed'");
    this.#oldestDestroyed = prepareOldestDestroyed(db);
  }

  reserve({ row, limits, claim, pool, birth }: Reservation): Promise<ReserveOutcome> {
    return this.#commit.write(() => {
      this.#commit.refuseNew();
      const held = claim && this.#claims.held(row.ownerId, claim.key, row.createdAt);
      if (held !== undefined) return { admitted: false, reason: "claimed", ...held };
      const namesake = row.name === null ? undefined : this.#namesake(row.ownerId, row.name);
      if (namesake !== undefined) {
        return { admitted: false, reason: "name_taken", sandboxId: namesake.id as SandboxId };
      }
      const inUse = this.#inUse(row.ownerId);
      const applied = limits.of(row.ownerId, this.#quotas.held(row.ownerId));
      const denial = capacityDenial(inUse, applied, row);
      if (denial !== undefined) return { admitted: false, ...denial, inUse, limits: applied };
      const slot = pool && this.#pool.slotFor(row, pool);
      if (slot !== undefined && "reason" in slot)
        return slot.reason === "pool_full"
          ? { admitted: false, ...slot, hopeless: false, inUse, limits: applied }
          : { admitted: false, ...slot };
      this.#insert.run(toRecord(slot === undefined ? row : { ...row, slot }));
      if (claim !== undefined) this.#claims.claim(row, claim);
      return { admitted: true, ...(slot && { slot }), ...(birth && { birth: this.#births.next(birth.run) }) };
    });
  }

  async lastBirth(run: string): Promise<number> {
    return this.#births.last(run);
  }

  async countBirths(births: readonly Birth[]): Promise<void> {
    await this.#commit.write(() => {
      for (const birth of births) this.#births.count(birth);
    });
  }

  async inUse(ownerId: string): Promise<CapacityInUse> {
    return this.#inUse(ownerId);
  }

  async poolInUse(): Promise<PoolInUse> {
    return this.#pool.inUse();
  }

  async poolDenial(wanted: {
    ownerId: string;
    provider: string;
    rules: PoolRules;
  }): Promise<SlotDenial | undefined> {
    const slot = this.#pool.slotFor(wanted, { ...wanted.rules, newVmId: "" });
    return "reason" in slot ? slot : undefined;
  }

  async named(ownerId: string, name: string): Promise<SandboxRow | undefined> {
    const record = this.#namesake(ownerId, name);
    return record === undefined ? undefined : fromRecord(record);
  }

  async remove(id: SandboxId, _fence: Fence): Promise<void> {
    await this.#commit.write(() => {
      this.#claims.releaseAll(id);
      this.#delete.run(id);
    });
  }

  async get(id: SandboxId): Promise<SandboxRow | undefined> {
    const record = this.#select.get(id) as SandboxRecord | undefined;
    return record === undefined ? undefined : fromRecord(record);
  }

  async update(
    id: SandboxId,
    from: readonly SandboxState[],
    change: SandboxChange,
    _fence: Fence,
    events: readonly NewEvent[] = [],
  ): Promise<SandboxRow | undefined> {
    const record = await this.#commit.write(() => {
      const before = this.#select.get(id) as SandboxRecord | undefined;
      if (before === undefined || !from.includes(before.state as SandboxState)) return undefined;
      const after = changed(before, change);
      if (after.state === before.state) this.#updateRest.run(...columnsOf(after), id);
      else this.#updateState.run(...columnsOf(after), after.state, id);
      this.#events.keep(events);
      return after;
    });
    return record === undefined ? undefined : fromRecord(record);
  }

  async list(filter: SandboxFilter): Promise<SandboxPage> {
    return this.#lists.page(filter);
  }

  async listLive(): Promise<SandboxRow[]> {
    return (this.#live.all() as unknown as SandboxRecord[]).map(fromRecord);
  }

  async *liveStates(): AsyncGenerator<readonly LiveState[]> {
    let after = { created_at: -1, id: "" };
    for (;;) {
      const { created_at, id } = after;
      const records = this.#liveStates.all(created_at, id, slice) as unknown as LiveRecord[];
      const last = records.at(-1);
      if (last === undefined) return;
      yield records.map(liveState);
      if (records.length < slice) return;
      after = last;
      await setImmediate();
    }
  }

  async purge({ before, keep, signal }: DestroyedToForget): Promise<number> {
    let purged = 0;
    let after = { destroyed_at: 0, id: "" };
    for (;;) {
      signal?.throwIfAborted();
      const startedMs = performance.now();
      const done = await this.#commit.write(() => this.#purgeSlice({ before, keep, after }));
      purged += done.purged;
      if (done.last === undefined) return purged;
      after = done.last;
      await pauseAfter(startedMs);
    }
  }

  /** Looks at the next oldest destroyed rows. @returns the last of them, undefined when nothing is left to look at. */
  #purgeSlice(at: { before: Date; keep: number; after: DestroyedPosition }) {
    const { count } = this.#destroyedCount.get() as { count: number };
    let tooMany = Math.max(0, count - at.keep);
    const untilMs = tooMany > 0 ? Number.MAX_SAFE_INTEGER : at.before.getTime();
    const { destroyed_at, id } = at.after;
    const oldest = this.#oldestDestroyed.all(
      destroyed_at,
      id,
      untilMs,
      slice,
    ) as unknown as DestroyedPosition[];
    let purged = 0;
    for (const row of oldest) {
      if (tooMany > 0) this.#claims.releaseAll(row.id);
      else if (row.destroyed_at >= at.before.getTime()) return { purged, last: undefined };
      else if (this.#claims.leadsTo(row.id)) continue;
      this.#delete.run(row.id);
      tooMany--;
      purged++;
    }
    return { purged, last: oldest.length < slice ? undefined : oldest.at(-1) };
  }

  #namesake(ownerId: string, name: string): SandboxRecord | undefined {
    return this.#named.get(ownerId, name) as SandboxRecord | undefined;
  }

  #inUse(ownerId: string): CapacityInUse {
    const all = this.#usedByAll.get() as unknown as Capacity;
    const owner = this.#used.get(ownerId) as unknown as Capacity | undefined;
    return { all: { ...all }, owner: owner === undefined ? noCapacityLimit : { ...owner } };
  }
}

interface DestroyedPosition {
  destroyed_at: number;
  id: string;
}

type LiveRecord = Pick<SandboxRecord, "id" | "worker_id" | "state" | "created_at" | "updated_at">;

function liveState(record: LiveRecord): LiveState {
  return {
    id: record.id as SandboxId,
    workerId: record.worker_id,
    state: record.state as SandboxState,
    updatedAt: new Date(record.updated_at),
  };
}

function prepareNamed(db: DatabaseSync): StatementSync {
  return db.prepare(`
    SELECT * FROM sandboxes
    WHERE owner_id = ? AND name = ? AND name IS NOT NULL AND state IN ('creating', 'running', 'unhealthy')`);
}

function prepareInsert(db: DatabaseSync): StatementSync {
  const values = sandboxColumns.map((name) => `:${name}`);
  return db.prepare(`INSERT INTO sandboxes (${sandboxColumns.join(", ")}) VALUES (${values.join(", ")})`);
}

/** @param state empty when the state stays: then neither state indexes nor counters have to change. */
function prepareUpdate(db: DatabaseSync, state: "" | ", state = ?"): StatementSync {
  return db.prepare(`
    UPDATE sandboxes SET runtime_id = ?, image_resolved = ?, metadata = ?, env = ?, expires_at = ?, ends_itself_at = ?, destroyed_at = ?,
      destroy_requested = ?, error = ?, updated_at = ?${state}
    WHERE id = ?`);
}

function columnsOf(record: SandboxRecord) {
  const { runtime_id, image_resolved, metadata, env, expires_at, ends_itself_at, destroyed_at } = record;
  const { destroy_requested, error, updated_at } = record;
  return [
    runtime_id,
    image_resolved,
    metadata,
    env,
    expires_at,
    ends_itself_at,
    destroyed_at,
    destroy_requested,
    error,
    updated_at,
  ] as const;
}

function prepareOldestDestroyed(db: DatabaseSync): StatementSync {
  return db.prepare(`
    SELECT destroyed_at, id FROM sandboxes
    WHERE state = 'destroyed' AND (destroyed_at, id) > (?, ?) AND destroyed_at < ?
    ORDER BY destroyed_at, id LIMIT ?`);
}

function prepareLiveStates(db: DatabaseSync): StatementSync {
  return db.prepare(`
    SELECT id, worker_id, state, created_at, updated_at FROM sandboxes
    WHERE state <> 'destroyed' AND (created_at, id) > (?, ?)
    ORDER BY created_at, id LIMIT ?`);
}
