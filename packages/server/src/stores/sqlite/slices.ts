import { setTimeout } from "node:timers/promises";

/** Rows that one slice of a long work looks at: some milliseconds, between which other writes have their turn. */
export const slice = 100;

const shortestPauseMs = 4;
const longestPauseMs = 100;

/** Waits as long as the slice took that began at `startedMs`: a long work has half of the process at most. */
export async function pauseAfter(startedMs: number): Promise<void> {
  const tookMs = performance.now() - startedMs;
  await setTimeout(Math.min(Math.max(tookMs, shortestPauseMs), longestPauseMs));
}
