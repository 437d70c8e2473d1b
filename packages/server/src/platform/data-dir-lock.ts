import { closeSync, mkdirSync, openSync, readFileSync, writeFileSync } from "node:fs";
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
  writeFileSync(note, `${process.pid}\n`, { mode: 0o600 });
  return {
    directory,
    [Symbol.dispose]() {
      if (db.isOpen) db.close();
    },
  };
}

/** SQLITE_BUSY and SQLITE_LOCKED. */
function isBusy(error: unknown): boolean {
  if (!(error instanceof Error) || !("errcode" in error)) return false;
  return error.errcode === 5 || error.errcode === 6;
}

/** Only for the message: the lock is the truth. */
function holderOf(note: string): string {
  try {
    return ` (process ${readFileSync(note, "utf8").trim()})`;
  } catch {
    return "";
  }
}
