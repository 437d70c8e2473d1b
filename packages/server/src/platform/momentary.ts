const codes: ReadonlySet<unknown> = new Set(["EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "EINTR"]);
const tableCodes: ReadonlySet<unknown> = new Set(["EMFILE", "ENFILE"]);

/**
 * Whether something failed for want of what the machine, or this process, has too few of for a moment: descriptors, memory,
 * processes. That says nothing of what the machine can do, and is asked again.
 */
export function isMomentary(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  return ("code" in error && codes.has(error.code)) || isMomentary(error.cause);
}

/** Whether this process, or the machine, has no descriptor left: whoever needs one to look can say nothing of what is there. */
export function isOutOfDescriptors(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  return ("code" in error && tableCodes.has(error.code)) || isOutOfDescriptors(error.cause);
}

/** What an operator of a service without descriptors does about it. */
export const moreDescriptors =
  "the service has no file descriptor left: raise LimitNOFILE= in its unit, or ulimit -n";
