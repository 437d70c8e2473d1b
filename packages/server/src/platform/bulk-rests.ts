/** For how long after its begin a short work counts as under way, and how long a rest is at most, milliseconds: somewhat more than a command takes. */
const aboutMs = 2;
/** For how much of what a rest took everybody goes on after it. */
const goesOnShare = 1 / 3;

/**
 * Room for short work beside what moves much. A turn of the loop that moves 64 KiB takes 0.3 ms, and the processes on both ends of that
 * take the machine's processors meanwhile: a short command of somebody else waits for both at each of its hops. While such begin, what
 * moves much rests after a piece until the next one has begun, which then has its own way to go, 2 ms at most. Then all go on for a
 * third of what that took: a begin every 2 ms costs next to nothing, and leaves others a fourth of the time. While nobody else begins
 * anything it never rests.
 */
export class BulkRests {
  readonly #now: () => number;
  /** The two of whom something began last, the later one first. */
  #last = "";
  #lastMs = Number.NEGATIVE_INFINITY;
  #beforeMs = Number.NEGATIVE_INFINITY;
  #resting: (() => void)[] = [];
  #timer: NodeJS.Timeout | undefined;
  #restsSinceMs = 0;
  #goesOnUntilMs = Number.NEGATIVE_INFINITY;
  /** They go on as soon as what goes on now is through. */
  #waking = false;

  /** @param options.now milliseconds. */
  constructor(options: { now?: () => number } = {}) {
    this.#now = options.now ?? (() => performance.now());
  }

  /** Something short was sent on its way for `who`. */
  begun(who: string): void {
    if (this.#last !== who) {
      this.#beforeMs = this.#lastMs;
      this.#last = who;
    }
    this.#lastMs = this.#now();
    if (this.#resting.length === 0 || this.#waking) return;
    this.#waking = true;
    setImmediate(() => this.#wake());
  }

  /**
   * After a piece of what moves much for `who`.
   * @param goOn called when the rest is over.
   * @returns false for who goes on at once: nobody else has anything under way, or the last rest is not long ago.
   */
  rest(who: string, goOn: () => void): boolean {
    const othersMs = this.#last === who ? this.#beforeMs : this.#lastMs;
    const nowMs = this.#now();
    if (nowMs - othersMs >= aboutMs || nowMs < this.#goesOnUntilMs) return false;
    if (this.#resting.length === 0) this.#restsSinceMs = nowMs;
    this.#resting.push(goOn);
    this.#timer ??= setTimeout(() => this.#wake(), aboutMs);
    return true;
  }

  #wake(): void {
    this.#waking = false;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const nowMs = this.#now();
    this.#goesOnUntilMs = nowMs + (nowMs - this.#restsSinceMs) * goesOnShare;
    for (const goOn of this.#resting.splice(0)) goOn();
  }
}
