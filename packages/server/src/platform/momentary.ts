const codes: ReadonlySet<unknown> = new Set(["EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "EINTR"]);

/**
 * Whether something failed for want of what the machine, or this process, has too few of for a moment: descriptors, memory,
 * processes. That says nothing of what the machine can do, and is asked again.
 */
export function isMomentary(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  return ("code" in error && codes.has(error.code)) || isMomentary(error.cause);
}
