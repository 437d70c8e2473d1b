import { messageOf } from "../../platform/message-of.ts";

/** SQLITE_READONLY, SQLITE_IOERR and SQLITE_CANTOPEN, whatever the details. */
export function isUnwritable(error: unknown): boolean {
  const code = errcodeOf(error);
  return code !== undefined && [8, 10, 14].includes(code & 0xff);
}

/** SQLITE_FULL, and SQLITE_IOERR_SHMSIZE, which is the same for the index of the log. */
export function isDiskFull(error: unknown): boolean {
  const code = errcodeOf(error);
  return code === 13 || code === 4874;
}

/** SQLITE_CORRUPT, whatever the details, and SQLITE_NOTADB. */
export function isDamage(error: unknown): boolean {
  const code = errcodeOf(error);
  return code !== undefined && [11, 26].includes(code & 0xff);
}

/** @returns for damage, an error that names the file and the way out; any other as it is. */
export function namingDamage(error: unknown, file: string): unknown {
  return isDamage(error) ? damagedDatabase(file, error) : error;
}

/** As `namingDamage`, and for whatever else SQLite refused the file for as a whole. */
export function namingFile(error: unknown, file: string): unknown {
  // What has its cause in SQLite, a step of a migration for instance, says more already.
  if (isDamage(error) || saidBySqlite(error) !== error) return namingDamage(error, file);
  return new Error(
    `the database ${file} cannot be opened (${messageOf(error)}): see whose it is and who else has it open; where it is ` +
      "damaged, put a backup in its place (docs/operations/backup.md)",
    { cause: error },
  );
}

export function damagedDatabase(file: string, cause: unknown): Error {
  return new Error(
    `the database ${file} is damaged (${messageOf(saidBySqlite(cause))}): put a backup in its place ` +
      `(docs/operations/backup.md), or move ${file}, ${file}-wal and ${file}-shm away; sandboxes that run are then taken ` +
      "in again from their records",
    { cause },
  );
}

/** SQLite itself refused. */
export function isOfSqlite(error: unknown): boolean {
  return errcodeOf(error) !== undefined;
}

function errcodeOf(error: unknown): number | undefined {
  return saidBySqlite(error)?.errcode;
}

/** The error, or what caused it: a step of a migration says which it was around what SQLite said. */
function saidBySqlite(error: unknown): (Error & { errcode: number }) | undefined {
  if (!(error instanceof Error)) return undefined;
  if ("errcode" in error && typeof error.errcode === "number") return error as Error & { errcode: number };
  return saidBySqlite(error.cause);
}
