import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { AuditFilter, AuditRow, AuditSearch, AuditStore } from "../../ports/audit-store.ts";
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
/** Of strangers' records, where there are more than are to be kept: one for one, and those of an earlier release with time. */
const mostForgottenAtOnce = 10;

/** The table `audit`. */
export class SqliteAudit implements AuditStore {
  readonly #commit: GroupCommit;
  readonly #insert: StatementSync;
  readonly #list: StatementSync;
  readonly #lastLookedAt: StatementSync;
  readonly #count: StatementSync;
  readonly #countOfStrangers: StatementSync;
  readonly #forgetStrangers: StatementSync;
  readonly #purgeOldest: StatementSync;
  readonly #purgeBefore: StatementSync;

  constructor(db: DatabaseSync, commit: GroupCommit) {
    this.#commit = commit;
    this.#insert = prepareInsert(db);
    this.#list = prepareList(db);
    this.#lastLookedAt = db.prepare(
      `SELECT id FROM audit WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ${listSlice - 1}`,
    );
    this.#count = db.prepare("SELECT sum(records) AS count FROM audit_counts");
    this.#countOfStrangers = db.prepare("SELECT records AS count FROM audit_counts WHERE stranger = 1");
    this.#forgetStrangers = db.prepare(`
      DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE stranger = 1 ORDER BY id LIMIT ?)`);
    this.#purgeOldest = db.prepare(`
      DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE stranger = 0 ORDER BY id LIMIT ?)`);
    this.#purgeBefore = db.prepare(`
      DELETE FROM audit WHERE id IN (
        SELECT id FROM audit WHERE created_at < :before ORDER BY created_at, id LIMIT :slice)`);
  }

  async append(
    entry: Omit<AuditRow, "id">,
    { refused = false, ofStrangers }: { refused?: boolean; ofStrangers?: number } = {},
  ): Promise<void> {
    await this.#commit.write(() => {
      if (refused) this.#commit.refuseWhileFull();
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
        ofStrangers === undefined ? 0 : 1,
      );
      if (ofStrangers === undefined) return;
      const tooMany = countOf(this.#countOfStrangers) - ofStrangers;
      this.#forgetOldest(this.#forgetStrangers, tooMany, mostForgottenAtOnce);
    });
  }

  async list(filter: AuditFilter, { signal, turn }: AuditSearch = {}): Promise<AuditRow[]> {
    const found: AuditRow[] = [];
    for (let upper = filter.beforeId ?? Number.MAX_SAFE_INTEGER; ; ) {
      await turn?.();
      signal?.throwIfAborted();
      const startedMs = performance.now();
      const last = this.#lastLookedAt.get(upper) as { id: number } | undefined;
      const records = this.#list.all({
        actor: filter.actor ?? null,
        method: filter.method ?? null,
        status: filter.status ?? null,
        path: filter.path ?? null,
        since: filter.since?.getTime() ?? null,
        until: filter.until?.getTime() ?? null,
        upper,
        lower: last?.id ?? 0,
        limit: filter.limit - found.length,
      }) as unknown as AuditRecord[];
      found.push(...records.map(fromRecord));
      if (found.length >= filter.limit || last === undefined) return found;
      upper = last.id;
      await pauseAfter(startedMs);
    }
  }

  async purge(which: Parameters<AuditStore["purge"]>[0]): Promise<number> {
    const { signal, keep, ofStrangers = keep } = which;
    const strangers = await this.#inSlices(signal, () =>
      this.#forgetOldest(this.#forgetStrangers, countOf(this.#countOfStrangers) - ofStrangers, slice),
    );
    const beyond = await this.#inSlices(signal, () =>
      this.#forgetOldest(this.#purgeOldest, countOf(this.#count) - keep, slice),
    );
    const before = which.before.getTime();
    const old = await this.#inSlices(signal, () => Number(this.#purgeBefore.run({ before, slice }).changes));
    return strangers + beyond + old;
  }

  #forgetOldest(statement: StatementSync, tooMany: number, most: number): number {
    return tooMany <= 0 ? 0 : Number(statement.run(Math.min(tooMany, most)).changes);
  }

  /** @param forget forgets a slice. @returns how many, fewer than a slice when there are no more. */
  async #inSlices(signal: AbortSignal | undefined, forget: () => number): Promise<number> {
    for (let purged = 0; ; ) {
      signal?.throwIfAborted();
      const startedMs = performance.now();
      const forgotten = await this.#commit.write(forget);
      purged += forgotten;
      if (forgotten < slice) return purged;
      await pauseAfter(startedMs);
    }
  }
}

function countOf(counter: StatementSync): number {
  return (counter.get() as { count: number }).count;
}

function prepareInsert(db: DatabaseSync): StatementSync {
  return db.prepare(`
    INSERT INTO audit
      (created_at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, stranger)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`);
}

/** `instr`, unlike LIKE, takes every character for itself. */
function prepareList(db: DatabaseSync): StatementSync {
  return db.prepare(`
    SELECT * FROM audit
    WHERE id < :upper AND id >= :lower
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
