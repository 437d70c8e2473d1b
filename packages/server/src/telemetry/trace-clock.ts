/** Seconds and nanoseconds since the epoch, as OpenTelemetry takes times. */
export type EpochTime = [number, number];

/**
 * Tells times of the monotonic clock as times of day. One for a whole trace: each span by itself would read both clocks
 * anew, and a part would begin before the whole, by what the reading of the one rounds off.
 */
export class TraceClock {
  readonly #offsetMs: number;

  /** @param monotonicMs the same moment as `now`. */
  constructor(now: Date, monotonicMs: number) {
    this.#offsetMs = now.getTime() - monotonicMs;
  }

  at(monotonicMs: number): EpochTime {
    const ms = this.#offsetMs + monotonicMs;
    const seconds = Math.floor(ms / 1_000);
    return [seconds, Math.round((ms - seconds * 1_000) * 1e6) % 1e9];
  }
}
