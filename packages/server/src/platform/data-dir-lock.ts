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

/** Another process holds the directory. */
export class DataDirLocked extends Error {
  constructor(directory: string, holder: string) {
    super(
      `the data directory ${directory} is in use by another alcove service${holder}: stop that one, or set data_dir ` +
        "to another directory",
    );
    this.name = "DataDirLocked";
  }
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
  const file = path.join(directory, "lock.db");
  const note = path.join(directory, "lock.pid");
  // A service whose lock file was removed still holds it: only a directory that was used before can have one.
  const holder = existsSync(file) || readdirSync(directory).length === 0 ? undefined : holderOfRemoved(file);
  if (holder !== undefined)
    throw new DataDirLocked(directory, ` (process ${holder}, whose lock file was removed)`);
  closeSync(openSync(file, "a", 0o600));
  const db = new DatabaseSync(file, { timeout: 0 });
  try {
    // Without a journal file and without writing anything: only the lock matters.
    db.exec("PRAGMA journal_mode = MEMORY");
    db.exec("BEGIN EXCLUSIVE");
  } catch (error) {
    db.close();
    if (isBusy(error)) throw new DataDirLocked(directory, holderOf(note));
    throw new Error(`the data directory ${directory} cannot be locked`, { cause: error });
  }
  writeNote(note);
  return {
    directory,
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
    throw error;
  } finally {
    db.close();
  }
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
