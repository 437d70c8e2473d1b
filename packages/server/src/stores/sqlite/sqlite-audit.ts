import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { AuditFilter, AuditRow, AuditStore } from "../../ports/audit-store.ts";
import type { GroupCommit } from "./group-commit.ts";
import { pauseAfter, slice } from "./slices.ts";

interface AuditRecord {
  id: number;
  created_at: number;
  actor: string;
  method: string;
  path: string;
  status: number;
  duration_ms: number;
  request_id: string;
  remote_addr: string;
  user_agent: string;
}

/** Records that one slice of a list looks at: a few kilobytes each at most. */
const listSlice = 500;

/** The table `audit`. */
export class SqliteAudit implements AuditStore {
  readonly #commit: GroupCommit;
  readonly #insert: StatementSync;
  readonly #list: StatementSync;
  readonly #newestId: StatementSync;
  readonly #anyBelow: StatementSync;
  readonly #purgeBelow: StatementSync;
  readonly #purgeBefore: StatementSync;

  constructor(db: DatabaseSync, commit: GroupCommit) {
    this.#commit = commit;
    this.#insert = prepareInsert(db);
    this.#list = prepareList(db);
    this.#newestId = db.prepare("SELECT max(id) AS id FROM audit");
    this.#anyBelow = db.prepare("SELECT id FROM audit WHERE id <= ? LIMIT 1");
    this.#purgeBelow = db.prepare(
      "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id < :oldest ORDER BY id LIMIT :slice)",
    );
    this.#purgeBefore = db.prepare(`
      DELETE FROM audit WHERE id IN (
        SELECT id FROM audit WHERE created_at < :before ORDER BY created_at, id LIMIT :slice)`);
  }

  async append(entry: Omit<AuditRow, "id">): Promise<void> {
    await this.#commit.write(() =>
      this.#insert.run(
        entry.createdAt.getTime(),
        entry.actor,
        entry.method,
        entry.path,
        entry.status,
        entry.durationMs,
        entry.requestId,
        entry.remoteAddr,
        entry.userAgent,
      ),
    );
  }

  async list(filter: AuditFilter): Promise<AuditRow[]> {
    const found: AuditRow[] = [];
    for (let upper = this.#newest(); upper > 0; upper -= listSlice) {
      const startedMs = performance.now();
      const records = this.#list.all({
        actor: filter.actor ?? null,
        method: filter.method ?? null,
        status: filter.status ?? null,
        path: filter.path ?? null,
        since: filter.since?.getTime() ?? null,
        until: filter.until?.getTime() ?? null,
        upper,
        lower: upper - listSlice,
        limit: filter.limit - found.length,
      }) as unknown as AuditRecord[];
      found.push(...records.map(fromRecord));
      if (found.length >= filter.limit || !this.#hasBelow(upper - listSlice)) break;
      await pauseAfter(startedMs);
    }
    return found;
  }

  async purge(which: { before: Date; keep: number; signal?: AbortSignal }): Promise<number> {
    // Ids are given in a row, so that their difference is their number; where one is missing fewer are kept.
    const oldest = this.#newest() - which.keep + 1;
    const beyond = await this.#inSlices(this.#purgeBelow, { oldest }, which.signal);
    return (
      beyond + (await this.#inSlices(this.#purgeBefore, { before: which.before.getTime() }, which.signal))
    );
  }

  async #inSlices(
    statement: StatementSync,
    bound: Record<string, number>,
    signal: AbortSignal | undefined,
  ): Promise<number> {
    for (let purged = 0; ; ) {
      signal?.throwIfAborted();
      const startedMs = performance.now();
      const { changes } = await this.#commit.write(() => statement.run({ ...bound, slice }));
      purged += Number(changes);
      if (Number(changes) < slice) return purged;
      await pauseAfter(startedMs);
    }
  }

  #newest(): number {
    return (this.#newestId.get() as { id: number | null }).id ?? 0;
  }

  #hasBelow(id: number): boolean {
    return this.#anyBelow.get(id) !== undefined;
  }
}

function prepareInsert(db: DatabaseSync): StatementSync {
  return db.prepare(`
    INSERT INTO audit
      (created_at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`);
}

/** `instr`, unlike LIKE, takes every character for itself. */
function prepareList(db: DatabaseSync): StatementSync {
  return db.prepare(`
    SELECT * FROM audit
    WHERE id <= :upper AND id > :lower
      AND (:actor IS NULL OR actor = :actor) AND (:method IS NULL OR method = :method)
      AND (:status IS NULL OR status = :status) AND (:path IS NULL OR instr(path, :path) > 0)
      AND (:since IS NULL OR created_at >= :since) AND (:until IS NULL OR created_at <= :until)
    ORDER BY id DESC LIMIT :limit`);
}

function fromRecord(record: AuditRecord): AuditRow {
  return {
    id: record.id,
    createdAt: new Date(record.created_at),
    actor: record.actor,
    method: record.method,
    path: record.path,
    status: record.status,
    durationMs: record.duration_ms,
    requestId: record.request_id,
    remoteAddr: record.remote_addr,
    userAgent: record.user_agent,
  };
}
