const tickMs = 20;

/** No turn of the service's event loop may take longer, whatever happens to it. */
export const longestTurnMs = 200;

/**
 * The most processor time that one turn of this thread's event loop has taken: time that others took from it does not count.
 * A timer that is due fires in the next turn, so that between two ticks lies at most one turn that is longer than a tick.
 */
export class TurnWatch implements Disposable {
  #lastMs = usedMs();
  #longestMs = 0;
  readonly #timer = setInterval(() => this.#look(), tickMs).unref();

  get longestMs(): number {
    return this.#longestMs;
  }

  /** What this turn has taken so far was not the service's. */
  restart(): void {
    this.#lastMs = usedMs();
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }

  #look(): void {
    const nowMs = usedMs();
    this.#longestMs = Math.max(this.#longestMs, nowMs - this.#lastMs - tickMs);
    this.#lastMs = nowMs;
  }
}

function usedMs(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1_000;
}
