import { closeSync, openSync } from "node:fs";
import path from "node:path";
import type { StatementSync } from "node:sqlite";
import type { DiskReserve } from "../../platform/disk-reserve.ts";
import { freeBytes } from "../../platform/free-space.ts";
import { messageOf } from "../../platform/message-of.ts";
import type { Latencies, Store } from "../../ports/store.ts";
import { DatabaseWatch, identityOf } from "./database-watch.ts";
import { damagedDatabase, isDiskFull, isUnwritable, namingFile } from "./disk-errors.ts";
import { GroupCommit } from "./group-commit.ts";
import { LogCheckpoints, mostLogBytes } from "./log-checkpoints.ts";
import { migrate } from "./migrations.ts";
import { SqliteAudit } from "./sqlite-audit.ts";
import { SqliteEvents } from "./sqlite-events.ts";
import { SqliteIdempotency } from "./sqlite-idempotency.ts";
import { SqliteKeys } from "./sqlite-keys.ts";
import { SqliteQuotas } from "./sqlite-quotas.ts";
import { SqliteSandboxes } from "./sqlite-sandboxes.ts";
import { SqliteTemplates } from "./sqlite-templates.ts";
import { WatchedDatabase } from "./watched-database.ts";

/** How long a statement waits for another process that holds the database, milliseconds. */
const busyTimeoutMs = 5_000;

/**
 * State in one SQLite file.
 *
 * WAL with `synchronous = NORMAL`: a commit is in the kernel's page cache before the call returns, so it outlives any
 * death of this process. A power cut may take the last commits, never the file's consistency; the runtimes such a
 * commit spoke of ended with the machine, or are found by the reconciler. Keys that are made and revoked wait for the disk.
 */
export class SqliteStore implements Store {
  readonly sandboxes: SqliteSandboxes;
  readonly idempotency: SqliteIdempotency;
  readonly events: SqliteEvents;
  readonly quotas: SqliteQuotas;
  readonly templates: SqliteTemplates;
  readonly audit: SqliteAudit;
  readonly keys: SqliteKeys;
  readonly #db: WatchedDatabase;
  readonly #commit: GroupCommit;
  readonly #keepSetting: StatementSync;
  readonly #setting: StatementSync;
  readonly #changeSetting: StatementSync;
  /** One for each table. */
  readonly #looks: readonly StatementSync[];

  private constructor(db: WatchedDatabase, reserve: DiskReserve | undefined) {
    this.#db = db;
    this.#commit = new GroupCommit(db, { reserve });
    this.idempotency = new SqliteIdempotency(db, this.#commit);
    this.quotas = new SqliteQuotas(db, this.#commit);
    this.events = new SqliteEvents(db, this.#commit);
    this.sandboxes = new SqliteSandboxes(db, this.#commit, {
      claims: this.idempotency,
      quotas: this.quotas,
      events: this.events,
    });
    this.templates = new SqliteTemplates(db, this.#commit);
    this.audit = new SqliteAudit(db, this.#commit);
    this.keys = new SqliteKeys(db, this.#commit);
    this.#keepSetting = db.prepare("INSERT OR IGNORE INTO settings (name, value) VALUES (?, ?)");
    this.#setting = db.prepare("SELECT value FROM settings WHERE name = ?");
    this.#changeSetting = db.prepare("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)");
    this.#looks = prepareLooks(db);
  }

  /**
   * Opens the file, made when missing and readable by its owner alone.
   * @param options.reserve lies on the same disk; given up when that is too full to open the file.
   * @throws Error when a newer release made it; when it is damaged, or the disk is full, one that names the way out.
   */
  static async open(options: { path: string; reserve?: DiskReserve }): Promise<SqliteStore> {
    try {
      return SqliteStore.#open(options);
    } catch (error) {
      if (!wantsSpace(error, options.path)) throw namingFile(error, options.path);
      if (options.reserve?.spend() !== true) throw fullDisk(options.path, error);
    }
    try {
      return SqliteStore.#open(options);
    } catch (error) {
      throw wantsSpace(error, options.path) ? fullDisk(options.path, error) : namingFile(error, options.path);
    }
  }

  static #open(options: { path: string; reserve?: DiskReserve }): SqliteStore {
    if (options.path !== ":memory:") closeSync(openSync(options.path, "a", 0o600));
    const db = new WatchedDatabase(options.path, { timeout: busyTimeoutMs });
    try {
      db.exec("PRAGMA journal_mode = WAL");
      db.exec("PRAGMA synchronous = NORMAL");
      // KiB. The default of 2 MiB holds 2,000 sandboxes; with more, each spawn reads pages again.
      db.exec("PRAGMA cache_size = -16384");
      db.exec("PRAGMA foreign_keys = ON");
      // What the log keeps on the disk once it is not needed: it grows as long as somebody else reads.
      db.exec(`PRAGMA journal_size_limit = ${mostLogBytes}`);
      migrate(db, options);
      return new SqliteStore(db, options.reserve);
    } catch (error) {
      db.close();
      throw error;
    }
  }

  async instanceId(candidate: string): Promise<string> {
    this.#keepSetting.run("instance_id", candidate);
    return (this.#setting.get("instance_id") as { value: string }).value;
  }

  async setting(name: string): Promise<string | undefined> {
    return (this.#setting.get(name) as { value: string } | undefined)?.value;
  }

  async changeSetting(name: string, value: string): Promise<void> {
    await this.#commit.write(() => void this.#changeSetting.run(name, value));
  }

  get commits(): Latencies {
    return this.#commit.commits;
  }

  async ping(): Promise<void> {
    for (const look of this.#looks) look.get();
    this.#db.refuseDamaged();
  }

  /** Looks now and then whether what is written arrives; to be closed before the store. */
  async watch(options: {
    logger: ConstructorParameters<typeof DatabaseWatch>[0]["logger"];
  }): Promise<DatabaseWatch> {
    const files = new Map<string, string>();
    const file = this.#db.location() ?? "";
    for (const name of file === "" ? [] : [file, `${file}-wal`]) {
      const identity = await identityOf(name);
      if (identity !== undefined) files.set(name, identity);
    }
    const write = () =>
      this.#commit
        .write(() => void this.#changeSetting.run("watched", "yes"))
        // The commit remembers what counts; a database that is busy or closed is not broken.
        .catch(() => undefined);
    const damage = () =>
      this.#db.damage === undefined ? undefined : damagedDatabase(file, this.#db.damage).message;
    // The connection remembers what counts, here as well: what is damaged from the beginning is told from then on.
    await this.ping().catch(() => undefined);
    return new DatabaseWatch({ ...options, files, commit: this.#commit, damage, write });
  }

  /** Brings the log into the database on a thread of its own from now on; to be closed before the store. */
  checkpoints(options: {
    logger: ConstructorParameters<typeof LogCheckpoints>[0]["logger"];
  }): LogCheckpoints {
    const file = this.#db.location();
    if (file === null) throw new TypeError("a database in memory has no log");
    return new LogCheckpoints({ ...options, db: this.#db, file, commit: this.#commit });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#db.isOpen) return;
    this.#commit.close();
    this.#db.close();
  }
}

/** Of each table the first page, and those on the way to its first row: whole rows in its own order, so that no index does. */
function prepareLooks(db: WatchedDatabase): StatementSync[] {
  const tables = db
    .prepare(`
      SELECT name, wr AS withoutRowid,
        (SELECT group_concat(key.name, ', ' ORDER BY pk) FROM pragma_table_info(tables.name) AS key WHERE pk > 0) AS key
      FROM pragma_table_list AS tables WHERE schema = 'main' AND type = 'table'`)
    .all() as { name: string; withoutRowid: number; key: string }[];
  return tables.map(({ name, withoutRowid, key }) =>
    db.prepare(`SELECT * FROM ${name} ${withoutRowid ? `ORDER BY ${key}` : "NOT INDEXED"} LIMIT 1`),
  );
}

/** Less than this is nothing: what a file system keeps back, and the index of the log needs 32 KiB at once. */
const nothingFreeBytes = 256 * 1_024;

/** A full disk is told by SQLite as an input/output error as well, and then only the disk says which it was. */
function wantsSpace(error: unknown, file: string): boolean {
  if (!(error instanceof Error)) return false;
  if ("code" in error && (error.code === "ENOSPC" || error.code === "EDQUOT")) return true;
  if (isDiskFull(error)) return true;
  return isUnwritable(error) && file !== ":memory:" && freeBytes(path.dirname(file)) < nothingFreeBytes;
}

function fullDisk(file: string, cause: unknown): Error {
  const freeKb = Math.floor(freeBytes(path.dirname(file)) / 1_024);
  return new Error(
    `the database ${file} cannot be opened (${messageOf(cause)}): its disk is full, ${freeKb} KiB are free. Free a few ` +
      `MiB on it, leaving ${file} and ${file}-wal alone, and start again; sandboxes that run go on meanwhile`,
    { cause },
  );
}
