import type { Clock, Timer } from "../../ports/clock.ts";

/** Time that stands still until a test moves it. */
export class FakeClock implements Clock {
  /** Monotonic; timers go by it. */
  #nowMs: number;
  readonly #startMs: number;
  /** By how much somebody has set the clock. */
  #setByMs = 0;
  readonly #timers = new Set<{ atMs: number; callback: () => void }>();

  constructor(start = new Date("2030-01-01T00:00:00Z")) {
    this.#nowMs = start.getTime();
    this.#startMs = this.#nowMs;
  }

  now(): Date {
    return new Date(this.#nowMs + this.#setByMs);
  }

  monotonicMs(): number {
    return this.#nowMs - this.#startMs;
  }

  setTimer(delayMs: number, callback: () => void): Timer {
    const timer = { atMs: this.#nowMs + Math.max(0, delayMs), callback };
    this.#timers.add(timer);
    return { cancel: () => this.#timers.delete(timer) };
  }

  /** Timers that are armed. */
  get armed(): number {
    return this.#timers.size;
  }

  /** Somebody sets the clock: no time passes. */
  jump(byMs: number): void {
    this.#setByMs += byMs;
  }

  /** Moves time on, firing what comes due in order, and lets what that starts run until it waits for something else. */
  async advance(ms: number): Promise<void> {
    const untilMs = this.#nowMs + ms;
    for (;;) {
      await settle();
      let next: { atMs: number; callback: () => void } | undefined;
      for (const timer of this.#timers) {
        if (timer.atMs <= untilMs && (next === undefined || timer.atMs < next.atMs)) next = timer;
      }
      if (next === undefined) break;
      this.#timers.delete(next);
      this.#nowMs = Math.max(this.#nowMs, next.atMs);
      next.callback();
    }
    this.#nowMs = untilMs;
    await settle();
  }
}

/** Lets every chain of resolved promises run to where it waits for something outside. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 5; turn++) await new Promise<void>((resolve) => setImmediate(resolve));
}
