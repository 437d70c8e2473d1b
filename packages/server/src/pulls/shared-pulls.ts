import { SharedWork } from "../platform/shared-work.ts";
import { inTime, type PullLimits, PullTurns } from "./pull-turns.ts";

/**
 * Pulls of images, each made once for all who want it. One that waits stands in the line of every owner who wants it, and
 * begins with the first turn any of them gets: joining another owner's pull never takes longer than asking alone.
 */
export class SharedPulls<T> {
  readonly #limits: PullLimits;
  readonly #turns: PullTurns;
  readonly #underWay = new SharedWork<T>();
  /** Who stands in a line, by what they want; aborted once somebody has begun it. */
  readonly #waiting = new Map<string, Set<AbortController>>();

  constructor(limits: PullLimits) {
    this.#limits = limits;
    this.#turns = new PullTurns(limits);
  }

  /**
   * @param options.key what makes pulls of one image different; those of one key are one.
   * @param options.owner empty: nobody's.
   * @param pull ends with its signal: when it takes too long, or the last who wanted it has left.
   * @throws PullTookTooLong; the signal's reason; what `pull` throws.
   */
  async run(
    image: string,
    options: { key?: string; owner: string; signal: AbortSignal },
    pull: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const { key = image, signal } = options;
    let place: Disposable | undefined;
    while (place === undefined && !this.#underWay.has(key)) place = await this.#placeFor(image, key, options);
    if (this.#underWay.has(key)) {
      place?.[Symbol.dispose]();
      place = undefined;
    }
    let isPulling = false;
    try {
      return await this.#underWay.run(key, signal, async (shared) => {
        isPulling = true;
        using _held = place;
        for (const waiting of this.#waiting.get(key) ?? []) waiting.abort(begun);
        const time = this.#limits.timeoutMs;
        const late = `image "${image}" was not pulled within ${time / 1_000} s (images.pull_timeout)`;
        return await inTime(time, shared, late, pull);
      });
    } finally {
      // The caller left in between.
      if (!isPulling) place?.[Symbol.dispose]();
    }
  }

  /** @returns undefined when somebody has begun it meanwhile. */
  async #placeFor(
    image: string,
    key: string,
    { owner, signal }: { owner: string; signal: AbortSignal },
  ): Promise<Disposable | undefined> {
    const joining = new AbortController();
    const waiting = this.#waiting.get(key) ?? new Set();
    this.#waiting.set(key, waiting.add(joining));
    try {
      return await this.#turns.take(image, { owner, signal: AbortSignal.any([signal, joining.signal]) });
    } catch (error) {
      if (error !== begun) throw error;
      return undefined;
    } finally {
      waiting.delete(joining);
      if (waiting.size === 0) this.#waiting.delete(key);
    }
  }
}

const begun = new Error("somebody else's turn for this pull came first");
