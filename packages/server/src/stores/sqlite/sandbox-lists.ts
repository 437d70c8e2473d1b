import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { SandboxId } from "../../ports/ids.ts";
import type { SandboxFilter, SandboxPage } from "../../ports/store.ts";
import { fromRecord, type SandboxRecord } from "./sandbox-rows.ts";

/** Rows one page looks at, however few of them it shows: some milliseconds. */
const scanBudget = 5_000;

/** A way through the table that one index serves, in the order of lists. */
interface Walk {
  page: StatementSync;
  /** The position after so many rows. */
  ahead: StatementSync;
}

/** Newest, all or live, of everybody or of one owner: each by an index of its own. What is left is filtered row by row. */
export class SandboxLists {
  readonly #walks: Readonly<Record<"all" | "live" | "owned" | "ownedLive", Walk>>;

  constructor(db: DatabaseSync) {
    const live = "state <> 'destroyed'";
    const owned = "owner_id = :owner_id AND owner_id <> ''";
    this.#walks = {
      all: prepareWalk(db, "true"),
      live: prepareWalk(db, live),
      owned: prepareWalk(db, owned),
      ownedLive: prepareWalk(db, `${owned} AND ${live}`),
    };
  }

  page(filter: SandboxFilter): SandboxPage {
    const onlyLive = !filter.states.includes("destroyed");
    const walk =
      filter.ownerId === undefined
        ? this.#walks[onlyLive ? "live" : "all"]
        : this.#walks[onlyLive ? "ownedLive" : "owned"];
    const from = {
      ...(filter.ownerId !== undefined && { owner_id: filter.ownerId }),
      after_created_at: filter.after?.createdAt.getTime() ?? Number.MAX_SAFE_INTEGER,
      after_id: filter.after?.id ?? "",
    };
    const end = walk.ahead.get({ ...from, offset: scanBudget - 1 }) as unknown as Position | undefined;
    const records = walk.page.all({
      ...from,
      until_created_at: end?.created_at ?? 0,
      until_id: end?.id ?? "",
      states: JSON.stringify(filter.states),
      provider: filter.provider ?? null,
      metadata: JSON.stringify(filter.metadata ?? {}),
      limit: filter.limit + 1,
    }) as unknown as SandboxRecord[];
    const rows = records.slice(0, filter.limit).map(fromRecord);
    const last = rows.at(-1);
    if (records.length > filter.limit && last !== undefined) {
      return { rows, next: { createdAt: last.createdAt, id: last.id } };
    }
    if (end === undefined) return { rows };
    return { rows, next: { createdAt: new Date(end.created_at), id: end.id as SandboxId } };
  }
}

interface Position {
  created_at: number;
  id: string;
}

function prepareWalk(db: DatabaseSync, where: string): Walk {
  const range = `${where} AND (created_at, id) < (:after_created_at, :after_id)`;
  const order = "ORDER BY created_at DESC, id DESC";
  return {
    page: db.prepare(`
      SELECT * FROM sandboxes AS s
      WHERE ${range} AND (created_at, id) >= (:until_created_at, :until_id)
        AND state IN (SELECT value FROM json_each(:states))
        AND (:provider IS NULL OR provider = :provider)
        AND NOT EXISTS (
          SELECT 1 FROM json_each(:metadata) AS wanted
          WHERE NOT EXISTS (
            SELECT 1 FROM json_each(s.metadata) AS has WHERE has.key = wanted.key AND has.value = wanted.value))
      ${order} LIMIT :limit`),
    ahead: db.prepare(`SELECT created_at, id FROM sandboxes WHERE ${range} ${order} LIMIT 1 OFFSET :offset`),
  };
}
