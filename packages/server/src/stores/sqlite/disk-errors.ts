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

function errcodeOf(error: unknown): number | undefined {
  if (!(error instanceof Error) || !("errcode" in error)) return undefined;
  return typeof error.errcode === "number" ? error.errcode : undefined;
}
