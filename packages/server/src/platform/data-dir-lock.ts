import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { realDatabase } from "./database-owner.ts";
import { messageOf } from "./message-of.ts";

/** Another process holds the directory, or the database. */
export class DataDirLocked extends Error {
  constructor({ what, elsewhere }: Pick<Place, "what" | "elsewhere">, holder: string) {
    super(`${what} is in use by another alcove service${holder}: stop that one, or ${elsewhere}`);
    this.name = "DataDirLocked";
  }
}

interface Place {
  file: string;
  note: string;
  what: string;
  elsewhere: string;
}

export interface DataDirLock extends Disposable {
  readonly directory: string;
}

/**
 * Takes a directory, made when missing, for this process alone. The lock is SQLite's exclusive lock on a file of its
 * own: the kernel drops it when the process dies, however it dies, and children do not inherit it.
 * @throws DataDirLocked when another process, or another service of this process, holds it.
 */
export function lockDataDir(directory: string): DataDirLock {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const lock = take({
    file: path.join(directory, "lock.db"),
    note: path.join(directory, "lock.pid"),
    what: `the data directory ${directory}`,
    elsewhere: "set data_dir to another directory",
  });
  return { directory, ...lock };
}

/**
 * Takes a database for this process alone, in the same way: it may lie outside the directory of whoever has it.
 * @throws DataDirLocked as `lockDataDir` does; Error where its folder is not there.
 */
export function lockDatabase(database: string): Disposable {
  const folder = path.dirname(database);
  if (!existsSync(folder))
    throw new Error(
      `there is no folder ${folder} for the database ${database}: make it, or set database.path`,
    );
  const file = `${realDatabase(database)}.lock`;
  return take({
    file,
    note: `${file}.pid`,
    what: `the database ${database}`,
    elsewhere: 'give this one its own: "--set database.path=FILE"',
  });
}

function take(place: Place): Disposable {
  const { file, note, what } = place;
  // A service whose lock file was removed still holds it: only a directory that was used before can have one.
  const unused = existsSync(file) || readdirSync(path.dirname(file)).length === 0;
  const holder = unused ? undefined : holderOfRemoved(file);
  if (holder !== undefined)
    throw new DataDirLocked(place, ` (process ${holder}, whose lock file was removed)`);
  closeSync(openSync(file, "a", 0o600));
  const db = new DatabaseSync(file, { timeout: 0 });
  try {
    // Without a journal file and without writing anything: only the lock matters.
    db.exec("PRAGMA journal_mode = MEMORY");
    db.exec("BEGIN EXCLUSIVE");
  } catch (error) {
    db.close();
    if (isBusy(error)) throw new DataDirLocked(place, holderOf(note));
    throw unlockable(what, file, error);
  }
  writeNote(note);
  return {
    [Symbol.dispose]() {
      if (db.isOpen) db.close();
    },
  };
}

/** Whether a service, of this process or another, holds the directory now. Leaves nothing behind. */
export function isDataDirLocked(directory: string): boolean {
  const file = path.join(directory, "lock.db");
  if (!existsSync(file)) return false;
  const db = new DatabaseSync(file, { timeout: 0 });
  try {
    db.exec("BEGIN EXCLUSIVE");
    return false;
  } catch (error) {
    if (isBusy(error)) return true;
    throw unlockable(`the data directory ${directory}`, file, error);
  } finally {
    db.close();
  }
}

/** Without the cause: by its code it would be taken for a failure of the database. */
function unlockable(what: string, file: string, cause: unknown): Error {
  return new Error(
    `${what} cannot be locked: ${messageOf(cause)}; ${file} is there for the lock alone and holds nothing: where it is ` +
      "damaged, remove it while no service runs there",
  );
}

/** The process that has a lock file open which is no longer there. Only what this user may look at is found. */
function holderOfRemoved(file: string): string | undefined {
  const removed = `${path.join(realpathSync(path.dirname(file)), path.basename(file))} (deleted)`;
  for (const pid of namesIn("/proc").filter((name) => /^\d+$/.test(name))) {
    for (const fd of namesIn(`/proc/${pid}/fd`)) if (linkAt(`/proc/${pid}/fd/${fd}`) === removed) return pid;
  }
  return undefined;
}

/** Processes end while they are looked at, and others may not be. */
function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch (error) {
    if (error instanceof Error && "code" in error) return [];
    throw error;
  }
}

function linkAt(file: string): string | undefined {
  try {
    return readlinkSync(file);
  } catch (error) {
    if (error instanceof Error && "code" in error) return undefined;
    throw error;
  }
}

/** SQLITE_BUSY and SQLITE_LOCKED. */
function isBusy(error: unknown): boolean {
  if (!(error instanceof Error) || !("errcode" in error)) return false;
  return error.errcode === 5 || error.errcode === 6;
}

/** Only for the message: the lock is the truth, and a full disk keeps no lock from being held. */
function writeNote(note: string): void {
  try {
    writeFileSync(note, `${process.pid}\n`, { mode: 0o600 });
  } catch (error) {
    if (!(error instanceof Error && "code" in error && (error.code === "ENOSPC" || error.code === "EDQUOT")))
      throw error;
  }
}

function holderOf(note: string): string {
  try {
    const pid = readFileSync(note, "utf8").trim();
    return pid === "" ? "" : ` (process ${pid})`;
  } catch {
    return "";
  }
}
