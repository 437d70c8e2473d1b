import type { Clock, Timer } from "../../ports/clock.ts";

const firstDelayMs = 1_000;
const longestDelayMs = 5 * 60_000;

/** When a failed destroy is tried again: after one second, then twice as long each time, up to five minutes. */
export class RetrySchedule implements Disposable {
  readonly #clock: Clock;
  readonly #onDue: (id: string) => void;
  /** The timer is gone once it has fired: the clock is not asked again, as timers fire a little early. */
  readonly #pending = new Map<string, { failures: number; timer: Timer | undefined }>();
  #closed = false;

  constructor(options: { clock: Clock; onDue: (id: string) => void }) {
    this.#clock = options.clock;
    this.#onDue = options.onDue;
  }

  /** A destroy failed. Failures that are told twice before the next attempt count once. */
  failed(id: string): void {
    if (this.#closed) return;
    const known = this.#pending.get(id);
    if (known?.timer !== undefined) return;
    const failures = (known?.failures ?? 0) + 1;
    const delayMs = Math.min(firstDelayMs * 2 ** (failures - 1), longestDelayMs);
    const timer = this.#clock.setTimer(delayMs, () => this.#due(id));
    this.#pending.set(id, { failures, timer });
  }

  /** What is to be tried again is tried now: something speaks for it that it succeeds. */
  hasten(id: string): void {
    const timer = this.#pending.get(id)?.timer;
    if (timer === undefined) return;
    timer.cancel();
    this.#due(id);
  }

  /** Whether a sandbox that may have failed before is to be tried now. */
  isDue(id: string): boolean {
    return this.#pending.get(id)?.timer === undefined;
  }

  /** Drops what is known about sandboxes that are gone. */
  keepOnly(exists: (id: string) => boolean): void {
    for (const [id, { timer }] of this.#pending) {
      if (exists(id)) continue;
      timer?.cancel();
      this.#pending.delete(id);
    }
  }

  [Symbol.dispose](): void {
    this.#closed = true;
    for (const { timer } of this.#pending.values()) timer?.cancel();
    this.#pending.clear();
  }

  #due(id: string): void {
    const known = this.#pending.get(id);
    if (known !== undefined) known.timer = undefined;
    this.#onDue(id);
  }
}
