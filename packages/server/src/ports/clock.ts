/** Time as the core sees it; tests own it. */
export interface Clock {
  now(): Date;
  /** Monotonic milliseconds, for durations. */
  monotonicMs(): number;
  /** Calls back once after `delayMs`; delays above 24 days are allowed. Timers do not keep the process alive. */
  setTimer(delayMs: number, callback: () => void): Timer;
}

export interface Timer {
  cancel(): void;
}
