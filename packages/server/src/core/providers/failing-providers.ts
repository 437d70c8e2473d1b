/** How a check ended. */
export interface CheckOutcome {
  /** When it began, by the monotonic clock. */
  startedMs: number;
  /** Why it failed; undefined: it did not. */
  error: string | undefined;
  /** It had not ended by its deadline, or what tried it has ended first. */
  unanswered: boolean;
}

/**
 * Which providers take no spawns: those whose last check failed, when nothing has gone well since it began. One that was
 * only slow to answer may be busy with spawns that succeed, and one process that was killed is no machine that does
 * not work, so that it takes two such checks in a row, and its answer counts however late it comes: nothing else could,
 * while no spawn is let in.
 */
export class FailingProviders {
  readonly #failing = new Map<string, { error: string; certain: boolean }>();
  /** When a spawn succeeded last. */
  readonly #spawnedMs = new Map<string, number>();

  /** @returns whether it should be looked at again at once, to be certain. */
  checked(name: string, { startedMs, error, unanswered }: CheckOutcome): boolean {
    const spawnedMs = this.#spawnedMs.get(name) ?? Number.NEGATIVE_INFINITY;
    const before = this.#failing.get(name);
    if (error === undefined || spawnedMs >= startedMs) {
      this.#failing.delete(name);
      return false;
    }
    const certain = !unanswered || before !== undefined;
    this.#failing.set(name, { error, certain });
    return !certain;
  }

  /** It said that it is well, if only after the deadline of the checks that waited for it. */
  answered(name: string): void {
    this.#failing.delete(name);
  }

  spawned(name: string, nowMs: number): void {
    this.#spawnedMs.set(name, nowMs);
    this.#failing.delete(name);
  }

  /** Why it takes no spawns; undefined: it does. */
  refusal(name: string): string | undefined {
    const failing = this.#failing.get(name);
    if (failing?.certain !== true) return undefined;
    return `provider "${name}" is not healthy and takes no sandboxes until it is: ${failing.error}`;
  }
}
