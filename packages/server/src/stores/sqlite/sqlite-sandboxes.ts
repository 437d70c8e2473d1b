import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { SandboxState } from "@alcove/wire";
import type { SandboxId } from "../../ports/ids.ts";
import type {
  ActiveCounts,
  CapacityLimits,
  SandboxChange,
  SandboxFilter,
  SandboxRow,
  SandboxStore,
} from "../../ports/store.ts";
import type { GroupCommit } from "./group-commit.ts";
import { changed, fromRecord, type SandboxRecord, toRecord } from "./sandbox-rows.ts";

/** The table `sandboxes`. Each statement is prepared once and has one function. */
export class SqliteSandboxes implements SandboxStore {
  readonly #commit: GroupCommit;
  readonly #count: StatementSync;
  readonly #insert: StatementSync;
  readonly #delete: StatementSync;
  readonly #select: StatementSync;
  readonly #updateState: StatementSync;
  readonly #updateRest: StatementSync;
  readonly #listAll: StatementSync;
  readonly #listLive: StatementSync;
  readonly #live: StatementSync;
  readonly #purge: StatementSync;

  constructor(db: DatabaseSync, commit: GroupCommit) {
    this.#commit = commit;
    this.#count = prepareCount(db);
    this.#insert = prepareInsert(db);
    this.#delete = db.prepare("DELETE FROM sandboxes WHERE id = ?");
    this.#select = db.prepare("SELECT * FROM sandboxes WHERE id = ?");
    this.#updateState = prepareUpdate(db, ", state = ?");
    this.#updateRest = prepareUpdate(db, "");
    this.#listAll = prepareList(db, "");
    this.#listLive = prepareList(db, "state <> 'destroyed' AND");
    this.#live = db.prepare("SELECT * FROM sandboxes WHERE state <> 'destroyed' ORDER BY created_at, id");
    this.#purge = preparePurge(db);
  }

  reserve(row: SandboxRow, limits: CapacityLimits): ReturnType<SandboxStore["reserve"]> {
    return this.#commit.write(() => {
      const active = this.#counts(row.ownerId);
      if (limits.maxSandboxes > 0 && active.total >= limits.maxSandboxes) {
        return { admitted: false, reason: "max_sandboxes", active };
      }
      const ownerLimited = row.ownerId !== "" && limits.maxSandboxesPerOwner > 0;
      if (ownerLimited && active.owner >= limits.maxSandboxesPerOwner) {
        return { admitted: false, reason: "max_sandboxes_per_owner", active };
      }
      this.#insert.run(toRecord(row));
      return { admitted: true };
    });
  }

  async activeCounts(ownerId: string): Promise<ActiveCounts> {
    return this.#counts(ownerId);
  }

  async remove(id: SandboxId): Promise<void> {
    await this.#commit.write(() => this.#delete.run(id));
  }

  async get(id: SandboxId): Promise<SandboxRow | undefined> {
    const record = this.#select.get(id) as SandboxRecord | undefined;
    return record === undefined ? undefined : fromRecord(record);
  }

  async update(
    id: SandboxId,
    from: readonly SandboxState[],
    change: SandboxChange,
  ): Promise<SandboxRow | undefined> {
    const record = await this.#commit.write(() => {
      const before = this.#select.get(id) as SandboxRecord | undefined;
      if (before === undefined || !from.includes(before.state as SandboxState)) return undefined;
      const after = changed(before, change);
      if (after.state === before.state) this.#updateRest.run(...columnsOf(after), id);
      else this.#updateState.run(...columnsOf(after), after.state, id);
      return after;
    });
    return record === undefined ? undefined : fromRecord(record);
  }

  async list(filter: SandboxFilter): Promise<SandboxRow[]> {
    const statement = filter.states.includes("destroyed") ? this.#listAll : this.#listLive;
    const records = statement.all({
      states: JSON.stringify(filter.states),
      owner_id: filter.ownerId ?? null,
      provider: filter.provider ?? null,
      metadata: JSON.stringify(filter.metadata ?? {}),
      after_created_at: filter.after?.createdAt.getTime() ?? Number.MAX_SAFE_INTEGER,
      after_id: filter.after?.id ?? "",
      limit: filter.limit,
    }) as unknown as SandboxRecord[];
    return records.map(fromRecord);
  }

  async listLive(): Promise<SandboxRow[]> {
    return (this.#live.all() as unknown as SandboxRecord[]).map(fromRecord);
  }

  async purge(before: Date): Promise<number> {
    return Number((await this.#commit.write(() => this.#purge.run(before.getTime()))).changes);
  }

  #counts(ownerId: string): ActiveCounts {
    const counts = this.#count.get(ownerId) as { total: number; owner: number };
    return { total: counts.total, owner: ownerId === "" ? 0 : counts.owner };
  }
}

function prepareCount(db: DatabaseSync): StatementSync {
  return db.prepare(`
    SELECT count(*) AS total, count(*) FILTER (WHERE owner_id = ?) AS owner
    FROM sandboxes WHERE state IN ('creating', 'running', 'unhealthy')`);
}

function prepareInsert(db: DatabaseSync): StatementSync {
  return db.prepare(`
    INSERT INTO sandboxes (id, runtime_id, state, provider, worker_id, image, memory_mb, vcpus, owner_id, metadata,
      env, user, workdir, network, created_at, expires_at, updated_at, destroyed_at, destroy_requested, error)
    VALUES (:id, :runtime_id, :state, :provider, :worker_id, :image, :memory_mb, :vcpus, :owner_id, :metadata,
      :env, :user, :workdir, :network, :created_at, :expires_at, :updated_at, :destroyed_at, :destroy_requested,
      :error)`);
}

/** @param state empty when the state stays: then no index has to change. */
function prepareUpdate(db: DatabaseSync, state: "" | ", state = ?"): StatementSync {
  return db.prepare(`
    UPDATE sandboxes SET image = ?, env = ?, expires_at = ?, destroyed_at = ?, destroy_requested = ?, error = ?,
      updated_at = ?${state}
    WHERE id = ?`);
}

function columnsOf(record: SandboxRecord) {
  const { image, env, expires_at, destroyed_at, destroy_requested, error, updated_at } = record;
  return [image, env, expires_at, destroyed_at, destroy_requested, error, updated_at] as const;
}

/** @param live a condition that lets the partial index of live rows serve the query. */
function prepareList(db: DatabaseSync, live: string): StatementSync {
  return db.prepare(`
    SELECT * FROM sandboxes AS s
    WHERE ${live} (created_at, id) < (:after_created_at, :after_id)
      AND state IN (SELECT value FROM json_each(:states))
      AND (:owner_id IS NULL OR owner_id = :owner_id)
      AND (:provider IS NULL OR provider = :provider)
      AND NOT EXISTS (
        SELECT 1 FROM json_each(:metadata) AS wanted
        WHERE NOT EXISTS (
          SELECT 1 FROM json_each(s.metadata) AS has WHERE has.key = wanted.key AND has.value = wanted.value))
    ORDER BY created_at DESC, id DESC LIMIT :limit`);
}

/** A row that an idempotency key still leads to stays, so that the key keeps its answer. */
function preparePurge(db: DatabaseSync): StatementSync {
  return db.prepare(`
    DELETE FROM sandboxes WHERE state = 'destroyed' AND destroyed_at < ?
      AND NOT EXISTS (SELECT 1 FROM idempotency WHERE idempotency.sandbox_id = sandboxes.id)`);
}
