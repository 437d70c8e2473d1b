/**
 * Tells stages that follow one another, each with how long it took since the one before was over.
 * @param told name and milliseconds.
 * @returns to be called at the end of each.
 */
export function stagesOf(
  told: ((stage: string, durationMs: number) => void) | undefined,
  nowMs = () => performance.now(),
): (stage: string) => void {
  let sinceMs = nowMs();
  return (stage) => {
    const atMs = nowMs();
    told?.(stage, atMs - sinceMs);
    sinceMs = atMs;
  };
}
