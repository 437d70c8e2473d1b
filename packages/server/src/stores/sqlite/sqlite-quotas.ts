import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { QuotaRow, QuotaStore, QuotaSummary } from "../../ports/quota-store.ts";
import type { GroupCommit } from "./group-commit.ts";

interface QuotaRecord {
  owner_id: string;
  max_sandboxes: number;
  max_ttl_ms: number;
  max_exec_timeout_ms: number;
  max_memory_mb: number;
  max_vcpus: number;
  created_at: number;
  updated_at: number;
}

/** The table `quotas`. */
export class SqliteQuotas implements QuotaStore {
  readonly #commit: GroupCommit;
  readonly #save: StatementSync;
  readonly #get: StatementSync;
  readonly #list: StatementSync;
  readonly #summary: StatementSync;
  readonly #remove: StatementSync;

  constructor(db: DatabaseSync, commit: GroupCommit) {
    this.#commit = commit;
    this.#save = prepareSave(db);
    this.#get = db.prepare("SELECT * FROM quotas WHERE owner_id = ?");
    this.#list = db.prepare("SELECT * FROM quotas WHERE owner_id > ? ORDER BY owner_id LIMIT ?");
    this.#summary = prepareSummary(db);
    this.#remove = db.prepare("DELETE FROM quotas WHERE owner_id = ?");
  }

  async save(quota: QuotaRow): Promise<QuotaRow> {
    const record = await this.#commit.write(() => {
      this.#commit.refuseNew();
      return this.#save.get(toRecord(quota)) as unknown as QuotaRecord;
    });
    return fromRecord(record);
  }

  async get(ownerId: string): Promise<QuotaRow | undefined> {
    return this.held(ownerId);
  }

  async list(page: { afterOwnerId: string; limit: number }): Promise<QuotaRow[]> {
    const records = this.#list.all(page.afterOwnerId, page.limit) as unknown as QuotaRecord[];
    return records.map(fromRecord);
  }

  async summary(): Promise<QuotaSummary> {
    return { ...(this.#summary.get() as unknown as QuotaSummary) };
  }

  async remove(ownerId: string): Promise<boolean> {
    const { changes } = await this.#commit.write(() => this.#remove.run(ownerId));
    return changes > 0;
  }

  /** Within a transaction of the caller's. */
  held(ownerId: string): QuotaRow | undefined {
    if (ownerId === "") return undefined;
    const record = this.#get.get(ownerId) as QuotaRecord | undefined;
    return record === undefined ? undefined : fromRecord(record);
  }
}

function prepareSave(db: DatabaseSync): StatementSync {
  return db.prepare(`
    INSERT INTO quotas
      (owner_id, max_sandboxes, max_ttl_ms, max_exec_timeout_ms, max_memory_mb, max_vcpus, created_at, updated_at)
    VALUES (:owner_id, :max_sandboxes, :max_ttl_ms, :max_exec_timeout_ms, :max_memory_mb, :max_vcpus, :created_at,
      :updated_at)
    ON CONFLICT (owner_id) DO UPDATE SET max_sandboxes = excluded.max_sandboxes, max_ttl_ms = excluded.max_ttl_ms,
      max_exec_timeout_ms = excluded.max_exec_timeout_ms, max_memory_mb = excluded.max_memory_mb,
      max_vcpus = excluded.max_vcpus, updated_at = excluded.updated_at
    RETURNING *`);
}

function prepareSummary(db: DatabaseSync): StatementSync {
  return db.prepare(`
    SELECT count(*) AS total, count(*) FILTER (WHERE max_sandboxes > 0) AS withMaxSandboxes,
      count(*) FILTER (WHERE max_ttl_ms > 0) AS withMaxTtl,
      count(*) FILTER (WHERE max_exec_timeout_ms > 0) AS withMaxExecTimeout
    FROM quotas`);
}

function toRecord(row: QuotaRow) {
  return {
    owner_id: row.ownerId,
    max_sandboxes: row.maxSandboxes,
    max_ttl_ms: row.maxTtlMs,
    max_exec_timeout_ms: row.maxExecTimeoutMs,
    max_memory_mb: row.maxMemoryMb,
    max_vcpus: row.maxVcpus,
    created_at: row.createdAt.getTime(),
    updated_at: row.updatedAt.getTime(),
  } satisfies QuotaRecord;
}

function fromRecord(record: QuotaRecord): QuotaRow {
  return {
    ownerId: record.owner_id,
    maxSandboxes: record.max_sandboxes,
    maxTtlMs: record.max_ttl_ms,
    maxExecTimeoutMs: record.max_exec_timeout_ms,
    maxMemoryMb: record.max_memory_mb,
    maxVcpus: record.max_vcpus,
    createdAt: new Date(record.created_at),
    updatedAt: new Date(record.updated_at),
  };
}
