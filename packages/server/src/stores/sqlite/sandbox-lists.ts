import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { SandboxId } from "../../ports/ids.ts";
import type { ListedSandbox, SandboxFilter, SandboxPage } from "../../ports/store.ts";
import { listedFromRecord, type SandboxRecord, sandboxColumns } from "./sandbox-rows.ts";

/** Rows one page looks at, however few of them it shows: some milliseconds. */
const scanBudget = 5_000;
/** So many times the rows of a slice that did not fill the page are looked at next. */
const sliceGrowth = 4;
/** Text of labels one page looks through: some milliseconds. */
const readBudget = 524_288;
/** Text of labels one page shows. Parsing and writing many short ones costs some milliseconds too. */
const shownBudget = 262_144;

/** All that a list tells, so not `env`, which may be large. */
const columns = sandboxColumns.filter((name) => name !== "env").join(", ");

type ListedRecord = Omit<SandboxRecord, "env">;

/** A way through the table that one index serves, in the order of lists. */
interface Walk {
  page: StatementSync;
  /** The position after so many rows. */
  ahead: StatementSync;
}

type Which = "all" | "live" | "named" | "namedLive" | "owned" | "ownedLive" | "ownedNamed" | "ownedNamedLive";

/**
 * Newest, all or live, of any name or of one, of everybody or of one owner: each by an index of its own. What is left is
 * filtered row by row.
 * Labels are compared here and not by the database, which would read a row's labels again for each one that is wanted.
 */
export class SandboxLists {
  readonly #walks: Readonly<Record<Which, Walk>>;

  constructor(db: DatabaseSync) {
    const live = "state <> 'destroyed'";
    const named = "name = :name";
    const owned = "owner_id = :owner_id AND owner_id <> ''";
    this.#walks = {
      all: prepareWalk(db, "sandboxes_newest", "true"),
      live: prepareWalk(db, "sandboxes_live", live),
      named: prepareWalk(db, "sandboxes_of_name", named),
      namedLive: prepareWalk(db, "sandboxes_live_of_name", `${named} AND ${live}`),
      owned: prepareWalk(db, "sandboxes_owned", owned),
      ownedLive: prepareWalk(db, "sandboxes_owned_live", `${owned} AND ${live}`),
      ownedNamed: prepareWalk(db, "sandboxes_owned_of_name", `${owned} AND ${named}`),
      ownedNamedLive: prepareWalk(db, "sandboxes_owned_live_of_name", `${owned} AND ${named} AND ${live}`),
    };
  }

  page(filter: SandboxFilter): SandboxPage {
    const looked = new Look(this.#walks[walkOf(filter)], filter);
    const page = fill(looked.records(), filter);
    const { last: end } = looked;
    if (page.next !== undefined || end === undefined) return page;
    return { ...page, next: { createdAt: new Date(end.created_at), id: end.id as SandboxId } };
  }
}

/**
 * Looks at rows in slices, of as many as the page wants at first: finding the end of a slice walks through it in the index, and whoever
 * wants ten of many thousands is not to wait for the thousands.
 */
class Look {
  readonly #walk: Walk;
  readonly #filter: SandboxFilter;
  /** The last row that was looked at; undefined once none follows. */
  last: Position | undefined;

  constructor(walk: Walk, filter: SandboxFilter) {
    this.#walk = walk;
    this.#filter = filter;
  }

  /** Those that fit, of `scanBudget` rows at most. */
  *records(): Iterable<ListedRecord> {
    const { ownerId, name, after, states, provider, limit } = this.#filter;
    const whose = {
      ...(ownerId !== undefined && { owner_id: ownerId }),
      ...(name !== undefined && { name }),
    };
    let from = {
      after_created_at: after?.createdAt.getTime() ?? Number.MAX_SAFE_INTEGER,
      after_id: after?.id ?? "",
    };
    let left = scanBudget;
    // One more tells whether another page follows.
    for (let wanted = limit + 1; left > 0; wanted *= sliceGrowth) {
      const slice = Math.min(wanted, left);
      left -= slice;
      this.last = this.#walk.ahead.get({ ...whose, ...from, offset: slice - 1 }) as Position | undefined;
      yield* this.#walk.page.iterate({
        ...whose,
        ...from,
        until_created_at: this.last?.created_at ?? 0,
        until_id: this.last?.id ?? "",
        states: JSON.stringify(states),
        provider: provider ?? null,
        name: name ?? null,
      }) as unknown as Iterable<ListedRecord>;
      if (this.last === undefined) return;
      from = { after_created_at: this.last.created_at, after_id: this.last.id };
    }
  }
}

function walkOf({ ownerId, name, states }: SandboxFilter): Which {
  const isLive = !states.includes("destroyed");
  if (name === undefined) {
    if (ownerId === undefined) return isLive ? "live" : "all";
    return isLive ? "ownedLive" : "owned";
  }
  if (ownerId === undefined) return isLive ? "namedLive" : "named";
  return isLive ? "ownedNamedLive" : "ownedNamed";
}

/** Takes rows until the page is full and another would follow, or labels enough were read. */
function fill(records: Iterable<ListedRecord>, filter: SandboxFilter): SandboxPage {
  const wanted = wantedLabels(filter.metadata);
  const rows: ListedSandbox[] = [];
  let read = 0;
  let shown = 0;
  for (const record of records) {
    read += record.metadata.length;
    const row = matching(record, wanted);
    if (row !== undefined) {
      const last = rows.at(-1);
      if (rows.length === filter.limit && last !== undefined) return { rows, next: positionOf(last) };
      rows.push(row);
      shown += record.metadata.length;
    }
    if (read >= readBudget || shown >= shownBudget) {
      return { rows, next: { createdAt: new Date(record.created_at), id: record.id as SandboxId } };
    }
  }
  return { rows };
}

interface WantedLabel {
  key: string;
  value: string;
  /** How it stands in the text of a row's labels. A text that holds it may still mean something else. */
  text: string;
}

function wantedLabels(metadata: Readonly<Record<string, string>> = {}): WantedLabel[] {
  return Object.entries(metadata).map(([key, value]) => ({
    key,
    value,
    text: `${JSON.stringify(key)}:${JSON.stringify(value)}`,
  }));
}

/** @returns the row when it has all labels that are wanted; labels are parsed once, and only where their text holds them. */
function matching(record: ListedRecord, wanted: readonly WantedLabel[]): ListedSandbox | undefined {
  if (!wanted.every(({ text }) => record.metadata.includes(text))) return undefined;
  const row = listedFromRecord(record);
  const has = ({ key, value }: WantedLabel) =>
    Object.hasOwn(row.metadata, key) && row.metadata[key] === value;
  return wanted.every(has) ? row : undefined;
}

function positionOf({ createdAt, id }: ListedSandbox) {
  return { createdAt, id };
}

interface Position {
  created_at: number;
  id: string;
}

/** @param index is named, for the planner takes a wider one of several that serve. */
function prepareWalk(db: DatabaseSync, index: string, where: string): Walk {
  const table = `sandboxes INDEXED BY ${index}`;
  const range = `${where} AND (created_at, id) < (:after_created_at, :after_id)`;
  const order = "ORDER BY created_at DESC, id DESC";
  return {
    page: db.prepare(`
      SELECT ${columns} FROM ${table}
      WHERE ${range} AND (created_at, id) >= (:until_created_at, :until_id)
        AND state IN (SELECT value FROM json_each(:states))
        AND (:provider IS NULL OR provider = :provider)
        AND (:name IS NULL OR name = :name)
      ${order} LIMIT ${scanBudget}`),
    ahead: db.prepare(`SELECT created_at, id FROM ${table} WHERE ${range} ${order} LIMIT 1 OFFSET :offset`),
  };
}
