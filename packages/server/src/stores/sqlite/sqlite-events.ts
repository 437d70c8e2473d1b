import type { DatabaseSync, StatementSync } from "node:sqlite";
import { setImmediate } from "node:timers/promises";
import type { Event, EventType } from "@alcove/wire";
import type { EventPage, EventStore, NewEvent } from "../../ports/store.ts";
import type { GroupCommit } from "./group-commit.ts";
import { pauseAfter } from "./slices.ts";
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
/** Events that are forgotten in one turn of the event loop, and owners that they are taken from. */
const mostTrimmedAtOnce = 500;
const mostTakes = 100;
/** So much older than the one before it is an event only when the clock was set back, or it is told late. */
const setBackMs = 60_000;
/** Owners without events of whom is kept what was forgotten; of others, what was of the last of them that is not. */
const mostOwnersWithout = 1_000;

/** The table `events`. */
export class SqliteEvents implements EventStore {
  readonly #db: DatabaseSync;
  readonly #commit: Pick<GroupCommit, "refuseWhileFull">;
  readonly #lastId: StatementSync;
  readonly #takeIds: StatementSync;
  readonly #insert: StatementSync;
  readonly #all: Lists;
  readonly #owned: Lists;
  readonly #keep: StatementSync;
  readonly #told: StatementSync;
  readonly #untold: StatementSync;
  readonly #keptBy: StatementSync;
  readonly #kept: StatementSync;
  readonly #changeKept: StatementSync;
  readonly #most: StatementSync;
  readonly #trim: StatementSync;
  readonly #oldest: StatementSync;
  readonly #forgetUpto: StatementSync;
  readonly #took: StatementSync;
  readonly #changeForgotten: StatementSync;
  readonly #forgetOwners: StatementSync;
  readonly #forgotten: StatementSync;
  readonly #forgottenOf: StatementSync;
  readonly #unordered: StatementSync;
  readonly #setUnordered: StatementSync;
  readonly #setLastId: StatementSync;
  readonly #setPassedOver: StatementSync;
  readonly #forgetOfAll: StatementSync;
  /** When the newest event was, milliseconds. */
  #newestMs: number;

  constructor(db: DatabaseSync, commit: Pick<GroupCommit, "refuseWhileFull">) {
    this.#db = db;
    this.#commit = commit;
    this.#lastId = db.prepare("SELECT value AS id FROM counters WHERE name = 'events'");
    // Changed in the transaction of the events, so ids are given in the order of the commits.
    this.#takeIds = db.prepare(
      "UPDATE counters SET value = value + ? WHERE name = 'events' RETURNING value AS id",
    );
    this.#insert = db.prepare(
      "INSERT INTO events (id, type, sandbox_id, owner_id, timestamp, data) VALUES (?, ?, ?, ?, ?, ?)",
    );
    this.#all = prepareLists(db, "");
    this.#owned = prepareLists(db, "AND owner_id = :owner_id");
    this.#keep = db.prepare(
      "INSERT OR REPLACE INTO untold (sandbox_id, type, owner_id, timestamp, data) VALUES (?, ?, ?, ?, ?)",
    );
    this.#told = db.prepare("DELETE FROM untold WHERE sandbox_id = ? AND type = ?");
    // A sandbox may be destroyed in the millisecond in which it was made.
    this.#untold = db.prepare(`
      SELECT 0 AS id, * FROM untold
      ORDER BY timestamp, type NOT IN ('sandbox.created', 'sandbox.running'), type`);
    this.#keptBy = db.prepare(`
      INSERT INTO event_owners (owner_id, events, forgotten, forgotten_upto)
      SELECT ?, ?, value, value FROM counters WHERE name = 'events_forgotten_of_others'
      ON CONFLICT (owner_id) DO UPDATE SET events = events + excluded.events`);
    this.#kept = db.prepare("SELECT value AS count FROM counters WHERE name = 'events_kept'");
    this.#changeKept = db.prepare("UPDATE counters SET value = value + ? WHERE name = 'events_kept'");
    this.#most = db.prepare("SELECT owner_id, events FROM event_owners ORDER BY events DESC LIMIT 2");
    this.#trim = db.prepare(
      "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE owner_id = ? ORDER BY id LIMIT ?) RETURNING id",
    );
    this.#oldest = db.prepare("SELECT id, owner_id, timestamp FROM events WHERE id > ? ORDER BY id LIMIT ?");
    this.#forgetUpto = db.prepare("DELETE FROM events WHERE id > ? AND id <= ? AND timestamp < ?");
    this.#took = db.prepare(`
      UPDATE event_owners SET events = events - :taken, forgotten = forgotten + :taken,
        forgotten_upto = max(forgotten_upto, :upto)
      WHERE owner_id = :owner_id`);
    this.#changeForgotten = db.prepare("UPDATE counters SET value = max(value, ?) WHERE name = ?");
    this.#forgetOwners = db.prepare(`
      DELETE FROM event_owners WHERE owner_id IN (
        SELECT owner_id FROM event_owners WHERE events <= 0
        ORDER BY forgotten_upto DESC LIMIT -1 OFFSET ${mostOwnersWithout})
      RETURNING forgotten_upto AS upto`);
    this.#forgotten = db.prepare(`
      SELECT upto.value AS upto, last.value - kept.value AS atMost,
        coalesce((SELECT value FROM counters WHERE name = 'events_passed_over_upto'), 0) AS passedOverUpto
      FROM counters AS upto, counters AS last, counters AS kept
      WHERE upto.name = 'events_forgotten_upto' AND last.name = 'events' AND kept.name = 'events_kept'`);
    this.#forgottenOf = db.prepare(`
      SELECT coalesce(owner.forgotten_upto, value) AS upto, coalesce(owner.forgotten, value) AS atMost
      FROM counters LEFT JOIN event_owners AS owner ON owner.owner_id = ?
      WHERE name = 'events_forgotten_of_others'`);
    // The last event that is older than one before it; behind it ids are in the order of time.
    this.#unordered = db.prepare("SELECT value AS upto FROM counters WHERE name = 'events_unordered_upto'");
    this.#setUnordered = db.prepare(
      "INSERT OR REPLACE INTO counters (name, value) VALUES ('events_unordered_upto', ?)",
    );
    this.#setLastId = db.prepare("UPDATE counters SET value = ? WHERE name = 'events'");
    this.#setPassedOver = db.prepare(
      "INSERT OR REPLACE INTO counters (name, value) VALUES ('events_passed_over_upto', ?)",
    );
    this.#forgetOfAll = db.prepare(
      "UPDATE event_owners SET forgotten = forgotten + :count, forgotten_upto = max(forgotten_upto, :upto)",
    );
    const newest = db.prepare("SELECT timestamp FROM events ORDER BY id DESC LIMIT 1").get();
    this.#newestMs = (newest as { timestamp: number } | undefined)?.timestamp ?? 0;
  }

  async lastId(): Promise<number> {
    return (this.#lastId.get() as { id: number }).id;
  }

  async passOver(upto: number): Promise<void> {
    inTransaction(this.#db, () => {
      const { id } = this.#lastId.get() as { id: number };
      if (upto <= id) return;
      this.#setLastId.run(upto);
      this.#setPassedOver.run(upto);
      this.#forgetOfAll.run({ count: upto - id, upto });
      for (const name of ["events_forgotten_upto", "events_forgotten_of_others"])
        this.#changeForgotten.run(upto, name);
    });
  }

  async append(events: readonly NewEvent[]): Promise<number> {
    this.#commit.refuseWhileFull();
    let newestMs = this.#newestMs;
    const first = inTransaction(this.#db, () => {
      const last = (this.#takeIds.get(events.length) as { id: number }).id;
      const first = last - events.length + 1;
      const owners = new Map<string, number>();
      for (const [index, event] of events.entries()) {
        const data = event.data === undefined ? null : JSON.stringify(event.data);
        const { type, sandboxId, ownerId = "", timestamp } = event;
        owners.set(ownerId, (owners.get(ownerId) ?? 0) + 1);
        this.#insert.run(first + index, type, sandboxId, ownerId, timestamp.getTime(), data);
        if (type.startsWith("sandbox.")) this.#told.run(sandboxId, type);
        if (timestamp.getTime() < newestMs - setBackMs) this.#setUnordered.run(first + index);
        newestMs = timestamp.getTime();
      }
      for (const [ownerId, count] of owners) this.#keptBy.run(ownerId, count);
      this.#changeKept.run(events.length);
      return first;
    });
    this.#newestMs = newestMs;
    return first;
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
    const lists = filter.ownerId === undefined ? this.#all : this.#owned;
    const whose = filter.ownerId === undefined ? {} : { owner_id: filter.ownerId };
    const last = lists.lastLookedAt.get({ ...whose, after_id: filter.afterId }) as { id: number } | undefined;
    const records = lists.list.all({
      ...whose,
      after_id: filter.afterId,
      upto_id: last?.id ?? Number.MAX_SAFE_INTEGER,
      types: filter.types === undefined ? null : JSON.stringify(filter.types),
      sandbox_id: filter.sandboxId ?? null,
      limit: filter.limit,
    }) as unknown as EventRecord[];
    const reached = records.length === filter.limit ? records.at(-1)?.id : last?.id;
    const { passedOverUpto, ...forgotten } = (
      filter.ownerId === undefined ? this.#forgotten.get() : this.#forgottenOf.get(filter.ownerId)
    ) as EventPage["forgotten"];
    return {
      events: records.map(fromRecord),
      reached,
      forgotten: { ...forgotten, ...(passedOverUpto && { passedOverUpto }) },
    };
  }

  async kept(): Promise<number> {
    return (this.#kept.get() as { count: number }).count;
  }

  async purge({ before, signal }: { before: Date; signal?: AbortSignal }): Promise<number> {
    let purged = 0;
    for (let after: number | undefined = 0; ; ) {
      signal?.throwIfAborted();
      const startedMs = performance.now();
      const from: number = after;
      const slice = inTransaction(this.#db, () => this.#purgeSlice({ after: from, before }));
      purged += slice.taken;
      after = slice.next;
      if (after === undefined) return purged;
      await pauseAfter(startedMs);
    }
  }

  /**
   * Ids are given in the order of time, so that the oldest events have the lowest. What was written while the clock was ahead
   * is passed over, however much it is: it keeps none that came later.
   * @returns after which id to go on; none when nothing behind this slice can be old.
   */
  #purgeSlice({ after, before }: { after: number; before: Date }): { taken: number; next?: number } {
    const oldest = this.#oldest.all(after, mostTrimmedAtOnce) as unknown as OldEvent[];
    const old = oldest.filter(({ timestamp }) => timestamp < before.getTime());
    const upto = old.at(-1)?.id;
    if (upto === undefined) {
      const next = oldest.at(-1)?.id ?? 0;
      return next < this.#unorderedUpto() ? { taken: 0, next } : { taken: 0 };
    }
    this.#forgetUpto.run(after, upto, before.getTime());
    for (const [owner_id, events] of Map.groupBy(old, ({ owner_id }) => owner_id))
      this.#took.run({ owner_id, taken: events.length, upto: highest(events, ({ id }) => id) });
    this.#changeForgotten.run(upto, "events_forgotten_upto");
    this.#changeKept.run(-old.length);
    this.#forgetOwnersWithout();
    return oldest.length < mostTrimmedAtOnce ? { taken: old.length } : { taken: old.length, next: upto };
  }

  #unorderedUpto(): number {
    return (this.#unordered.get() as { upto: number } | undefined)?.upto ?? 0;
  }

  async trim(keep: number): Promise<void> {
    while (inTransaction(this.#db, () => this.#trimSlice(keep))) await setImmediate();
  }

  /** Takes from whoever has most, down to the next, or a tenth where many have as much. @returns whether there is more. */
  #trimSlice(keep: number): boolean {
    const { count } = this.#kept.get() as { count: number };
    let left = Math.min(count - keep, mostTrimmedAtOnce);
    for (let takes = 0; left > 0 && takes < mostTakes; takes++) {
      const [most, next] = this.#most.all() as { owner_id: string; events: number }[];
      if (most === undefined || most.events <= 0) return false;
      const fair = Math.max(most.events - (next?.events ?? 0), Math.ceil(most.events / 10));
      const taken = Math.min(left, fair);
      const upto = highest(this.#trim.all(most.owner_id, taken) as { id: number }[], ({ id }) => id);
      this.#took.run({ owner_id: most.owner_id, taken, upto });
      this.#changeForgotten.run(upto, "events_forgotten_upto");
      this.#changeKept.run(-taken);
      left -= taken;
    }
    this.#forgetOwnersWithout();
    return (this.#kept.get() as { count: number }).count > keep;
  }

  #forgetOwnersWithout(): void {
    const without = this.#forgetOwners.all() as { upto: number }[];
    if (without.length > 0)
      this.#changeForgotten.run(
        highest(without, ({ upto }) => upto),
        "events_forgotten_of_others",
      );
  }
}

interface OldEvent {
  id: number;
  owner_id: string;
  timestamp: number;
}

interface Lists {
  list: StatementSync;
  /** The last event that one page looks at. */
  lastLookedAt: StatementSync;
}

/** @param whose a condition, by which one owner's events are found without looking at the others'. */
function prepareLists(db: DatabaseSync, whose: "" | "AND owner_id = :owner_id"): Lists {
  return {
    list: db.prepare(`
      SELECT * FROM events WHERE id > :after_id AND id <= :upto_id ${whose}
        AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
        AND (:sandbox_id IS NULL OR sandbox_id = :sandbox_id)
      ORDER BY id LIMIT :limit`),
    lastLookedAt: db.prepare(`
      SELECT id FROM events WHERE id > :after_id ${whose} ORDER BY id LIMIT 1 OFFSET ${lookedAt - 1}`),
  };
}

function highest<T>(rows: readonly T[], of: (row: T) => number): number {
  return rows.reduce((most, row) => Math.max(most, of(row)), 0);
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
