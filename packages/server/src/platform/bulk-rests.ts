/** For how long after its begin a short work counts as under way, and how long a rest is at most, milliseconds: somewhat more than a command takes. */
const aboutMs = 2;

/**
 * Room for short work beside what moves much. A turn of the loop that moves 64 KiB takes 0.3 ms, and the processes on both ends of that
 * take the machine's processors meanwhile: a short command of somebody else waits for both at each of its hops. While such begin, what
 * moves much rests after each piece until the next one has begun, which then has its own way to go, 2 ms at most. It is left
 * 64 KiB in each 2 ms and another 64 KiB for each begin; while nobody else begins anything it never rests.
 */
export class BulkRests {
  readonly #now: () => number;
  /** The two of whom something began last, the later one first. */
  #last = "";
  #lastMs = Number.NEGATIVE_INFINITY;
  #beforeMs = Number.NEGATIVE_INFINITY;
  #resting: (() => void)[] = [];
  #timer: NodeJS.Timeout | undefined;
  #total = 0;
  /** They go on as soon as what goes on now is through. */
  #waking = false;

  /** @param options.now milliseconds. */
  constructor(options: { now?: () => number } = {}) {
    this.#now = options.now ?? (() => performance.now());
  }

  /** Rests there were, those that are not over included. */
  get total(): number {
    return this.#total;
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
   * @returns false for who goes on at once: nobody else has anything under way.
   */
  rest(who: string, goOn: () => void): boolean {
    const othersMs = this.#last === who ? this.#beforeMs : this.#lastMs;
    if (this.#now() - othersMs >= aboutMs) return false;
    this.#total++;
    this.#resting.push(goOn);
    this.#timer ??= setTimeout(() => this.#wake(), aboutMs);
    return true;
  }

  #wake(): void {
    this.#waking = false;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    for (const goOn of this.#resting.splice(0)) goOn();
  }
}
