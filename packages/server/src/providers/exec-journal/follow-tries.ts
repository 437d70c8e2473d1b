const pausesMs = [0, 100, 250, 500, 1_000, 2_000, 4_000, 8_000];
/** A stream that held for so long was no failure: what is between may cut each after its time. */
const heldMs = 10_000;
/** Who cuts each stream sooner than that is not followed as fast as it cuts, whatever it brought. */
const soonMs = 1_000;

/** When the stream of a command is followed again that broke: at once, then ever later, and at last no more. */
export class FollowTries {
  readonly #now: () => number;
  #tries = 0;
  /** Streams in a row that brought something and broke at once. */
  #cuts = 0;
  #isProgress = false;
  #beganMs: number;

  /** The first stream has begun. @param now for tests: milliseconds of a clock that only goes forward. */
  constructor(now = () => performance.now()) {
    this.#now = now;
    this.#beganMs = now();
  }

  /** The stream that is followed now begins. */
  begin(): void {
    this.#beganMs = this.#now();
    this.#isProgress = false;
  }

  /** It brought something: whatever failed before is over. */
  progress(): void {
    this.#isProgress = true;
  }

  /** It broke. @returns how long to wait before the next, milliseconds; undefined: there were enough. */
  broke(): number | undefined {
    const ranMs = this.#now() - this.#beganMs;
    if (this.#isProgress || ranMs >= heldMs) this.#tries = 0;
    if (ranMs >= soonMs) this.#cuts = 0;
    else if (this.#isProgress) this.#cuts += 1;
    const pauseMs = pausesMs[this.#tries];
    this.#tries += 1;
    const ofCutsMs = pausesMs[Math.min(this.#cuts, pausesMs.length) - 1] ?? 0;
    return pauseMs === undefined ? undefined : Math.max(pauseMs, ofCutsMs);
  }
}
