import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { AuditFilter, AuditRow, AuditStore } from "../../ports/audit-store.ts";
import type { GroupCommit } from "./group-commit.ts";
import { slice } from "./slices.ts";

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

/** The table `audit`. */
export class SqliteAudit implements AuditStore {
  readonly #commit: GroupCommit;
  readonly #insert: StatementSync;
  readonly #list: StatementSync;
  readonly #oldestToKeep: StatementSync;
  readonly #purge: StatementSync;

  constructor(db: DatabaseSync, commit: GroupCommit) {
    this.#commit = commit;
    this.#insert = prepareInsert(db);
    this.#list = prepareList(db);
    this.#oldestToKeep = db.prepare("SELECT id FROM audit ORDER BY id DESC LIMIT 1 OFFSET ?");
    this.#purge = db.prepare(`
      DELETE FROM audit WHERE id IN (
        SELECT id FROM audit WHERE created_at < :before OR id < :oldest ORDER BY id LIMIT :slice)`);
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
    const records = this.#list.all({
      actor: filter.actor ?? null,
      method: filter.method ?? null,
      status: filter.status ?? null,
      path: filter.path ?? null,
      since: filter.since?.getTime() ?? null,
      until: filter.until?.getTime() ?? null,
      limit: filter.limit,
    }) as unknown as AuditRecord[];
    return records.map(fromRecord);
  }

  async purge(which: { before: Date; keep: number; signal?: AbortSignal }): Promise<number> {
    let purged = 0;
    for (;;) {
      which.signal?.throwIfAborted();
      const { changes } = await this.#commit.write(() => {
        const kept = this.#oldestToKeep.get(Math.max(0, which.keep - 1)) as { id: number } | undefined;
        const oldest = which.keep === 0 ? Number.MAX_SAFE_INTEGER : (kept?.id ?? 0);
        return this.#purge.run({ before: which.before.getTime(), oldest, slice });
      });
      purged += Number(changes);
      if (Number(changes) < slice) return purged;
    }
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
    WHERE (:actor IS NULL OR actor = :actor) AND (:method IS NULL OR method = :method)
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
