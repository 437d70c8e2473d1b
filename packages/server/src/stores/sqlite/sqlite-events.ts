import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { Event, EventType } from "@alcove/wire";
import type { EventPage, EventStore, NewEvent } from "../../ports/store.ts";
import type { GroupCommit } from "./group-commit.ts";
import { inTransaction } from "./transaction.ts";

interface EventRecord {
  id: number;
  type: string;
  sandbox_id: string;
  timestamp: number;
  data: string | null;
}

/** Events that one page of a list looks at: less than a millisecond. */
const lookedAt = 500;

/** The table `events`. */
export class SqliteEvents implements EventStore {
  readonly #db: DatabaseSync;
  readonly #commit: Pick<GroupCommit, "refuseNew">;
  readonly #lastId: StatementSync;
  readonly #oldestId: StatementSync;
  readonly #takeIds: StatementSync;
  readonly #insert: StatementSync;
  readonly #list: StatementSync;
  readonly #lastLookedAt: StatementSync;
  readonly #keep: StatementSync;
  readonly #told: StatementSync;
  readonly #untold: StatementSync;
  readonly #trim: StatementSync;
  readonly #highWater: StatementSync;

  constructor(db: DatabaseSync, commit: Pick<GroupCommit, "refuseNew">) {
    this.#db = db;
    this.#commit = commit;
    this.#lastId = db.prepare("SELECT value AS id FROM counters WHERE name = 'events'");
    this.#oldestId = db.prepare("SELECT min(id) AS id FROM events");
    // Changed in the transaction of the events, so ids are given in the order of the commits.
    this.#takeIds = db.prepare(
      "UPDATE counters SET value = value + ? WHERE name = 'events' RETURNING value AS id",
    );
    this.#insert = db.prepare(
      "INSERT INTO events (id, type, sandbox_id, owner_id, timestamp, data) VALUES (?, ?, ?, ?, ?, ?)",
    );
    this.#list = db.prepare(`
      SELECT * FROM events WHERE id > :after_id AND id <= :upto_id
        AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
        AND (:sandbox_id IS NULL OR sandbox_id = :sandbox_id)
        AND (:owner_id IS NULL OR owner_id = :owner_id)
      ORDER BY id LIMIT :limit`);
    this.#lastLookedAt = db.prepare(
      `SELECT id FROM events WHERE id > ? ORDER BY id LIMIT 1 OFFSET ${lookedAt - 1}`,
    );
    this.#keep = db.prepare(
      "INSERT OR REPLACE INTO untold (sandbox_id, type, owner_id, timestamp, data) VALUES (?, ?, ?, ?, ?)",
    );
    this.#told = db.prepare("DELETE FROM untold WHERE sandbox_id = ? AND type = ?");
    // A sandbox may be destroyed in the millisecond in which it was made.
    this.#untold = db.prepare(`
      SELECT 0 AS id, * FROM untold
      ORDER BY timestamp, type NOT IN ('sandbox.created', 'sandbox.running'), type`);
    this.#trim = db.prepare("DELETE FROM events WHERE id <= ?");
    this.#highWater = db.prepare("SELECT id FROM events ORDER BY id DESC LIMIT 1 OFFSET ?");
  }

  async lastId(): Promise<number> {
    return (this.#lastId.get() as { id: number }).id;
  }

  async oldestId(): Promise<number | undefined> {
    return (this.#oldestId.get() as { id: number | null }).id ?? undefined;
  }

  async append(events: readonly NewEvent[]): Promise<number> {
    this.#commit.refuseNew();
    return inTransaction(this.#db, () => {
      const last = (this.#takeIds.get(events.length) as { id: number }).id;
      const first = last - events.length + 1;
      for (const [index, event] of events.entries()) {
        const data = event.data === undefined ? null : JSON.stringify(event.data);
        const { type, sandboxId, ownerId = null, timestamp } = event;
        this.#insert.run(first + index, type, sandboxId, ownerId, timestamp.getTime(), data);
        if (type.startsWith("sandbox.")) this.#told.run(sandboxId, type);
      }
      return first;
    });
  }

  /** Within a transaction of the caller's. */
  keep(events: readonly NewEvent[]): void {
    for (const { type, sandboxId, ownerId = "", timestamp, data } of events)
      this.#keep.run(sandboxId, type, ownerId, timestamp.getTime(), data ? JSON.stringify(data) : null);
  }

  async untold(): Promise<NewEvent[]> {
    const records = this.#untold.all() as unknown as (EventRecord & { owner_id: string })[];
    return records.map(({ type, sandbox_id, owner_id, timestamp, data }) => ({
      type: type as EventType,
      sandboxId: sandbox_id,
      ownerId: owner_id,
      timestamp: new Date(timestamp),
      ...(data === null ? {} : { data: JSON.parse(data) as Record<string, unknown> }),
    }));
  }

  async list(filter: Parameters<EventStore["list"]>[0]): Promise<EventPage> {
    const last = this.#lastLookedAt.get(filter.afterId) as { id: number } | undefined;
    const records = this.#list.all({
      after_id: filter.afterId,
      upto_id: last?.id ?? Number.MAX_SAFE_INTEGER,
      types: filter.types === undefined ? null : JSON.stringify(filter.types),
      sandbox_id: filter.sandboxId ?? null,
      owner_id: filter.ownerId ?? null,
      limit: filter.limit,
    }) as unknown as EventRecord[];
    const reached = records.length === filter.limit ? records.at(-1)?.id : last?.id;
    return { events: records.map(fromRecord), reached };
  }

  async trim(keep: number): Promise<void> {
    const newestToGo = this.#highWater.get(keep) as { id: number } | undefined;
    if (newestToGo !== undefined) this.#trim.run(newestToGo.id);
  }
}

function fromRecord(record: EventRecord): Event {
  return {
    id: String(record.id),
    type: record.type as EventType,
    sandbox_id: record.sandbox_id,
    timestamp: new Date(record.timestamp).toISOString(),
    ...(record.data === null ? {} : { data: JSON.parse(record.data) as Record<string, unknown> }),
  };
}
