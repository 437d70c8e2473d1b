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

/** SQLITE_CORRUPT, and SQLITE_NOTADB. */
export function isDamage(error: unknown): boolean {
  const code = errcodeOf(error);
  return code === 11 || code === 26;
}

/** Of the error, or of what caused it: a step of a migration says which it was around what SQLite said. */
function errcodeOf(error: unknown): number | undefined {
  if (!(error instanceof Error)) return undefined;
  if ("errcode" in error && typeof error.errcode === "number") return error.errcode;
  return errcodeOf(error.cause);
}
