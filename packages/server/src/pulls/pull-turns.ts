import { DeadlineExceeded, deadlineAfter } from "../platform/deadline.ts";
import { Unavailable } from "../ports/errors.ts";

export interface PullLimits {
  /** Images pulled at once. */
  most: number;
  /** For one pull from its start to its end, and for the wait before it, milliseconds. */
  timeoutMs: number;
}

/** What the configuration says when it says nothing. */
export const usualPulls: PullLimits = { most: 3, timeoutMs: 600_000 };

/** Too many were before it, or it took too long: nothing that a registry said. */
export class PullTookTooLong extends Unavailable {}

/**
 * Pulls of images, so many at once. Those that wait take turns by owner, first in first out within one; an owner who has a
 * pull under way does not get the last place, so that nobody waits for one owner's pulls alone.
 */
export class PullTurns {
  readonly #limits: PullLimits;
  /** Owners in the order of their next turn. */
  readonly #lines = new Map<string, (() => void)[]>();
  /** Pulls under way of each owner. */
  readonly #underWay = new Map<string, number>();
  #running = 0;

  constructor(limits: PullLimits) {
    this.#limits = limits;
  }

  /**
   * Waits for a turn; its place is free again once what this returns was disposed of.
   * @param owner empty: nobody's.
   * @throws PullTookTooLong; the signal's reason.
   */
  async take(image: string, { owner, signal }: { owner: string; signal: AbortSignal }): Promise<Disposable> {
    const { most, timeoutMs } = this.#limits;
    const late = `image "${image}" was not pulled, no turn came within ${timeoutMs / 1_000} s: at most ${most} images are pulled at once (images.max_pulls); try again later`;
    await inTime(timeoutMs, signal, late, (soon) => this.#turn(owner, soon));
    return {
      [Symbol.dispose]: () => {
        this.#count(owner, -1);
        this.#admit();
      },
    };
  }

  async #turn(owner: string, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const turn = Promise.withResolvers<void>();
    const line = this.#lines.get(owner) ?? [];
    this.#lines.set(owner, line);
    const leave = () => {
      line.splice(line.indexOf(begin), 1);
      if (line.length === 0) this.#lines.delete(owner);
      turn.reject(signal.reason);
    };
    const begin = () => {
      signal.removeEventListener("abort", leave);
      turn.resolve();
    };
    line.push(begin);
    signal.addEventListener("abort", leave, { once: true });
    this.#admit();
    await turn.promise;
  }

  #admit(): void {
    for (;;) {
      const next = [...this.#lines.keys()].find((owner) => this.#mayBegin(owner));
      const line = next === undefined ? undefined : this.#lines.get(next);
      const begin = line?.shift();
      if (next === undefined || line === undefined || begin === undefined) return;
      // Behind all others for its next turn.
      this.#lines.delete(next);
      if (line.length > 0) this.#lines.set(next, line);
      this.#count(next, 1);
      begin();
    }
  }

  #mayBegin(owner: string): boolean {
    const free = this.#limits.most - this.#running;
    return free > 1 || (free === 1 && !this.#underWay.has(owner));
  }

  #count(owner: string, change: 1 | -1): void {
    this.#running += change;
    const own = (this.#underWay.get(owner) ?? 0) + change;
    if (own === 0) this.#underWay.delete(owner);
    else this.#underWay.set(owner, own);
  }
}

/** @throws PullTookTooLong with `late` as its message after `ms`, once `work` has given up. */
export async function inTime<T>(
  ms: number,
  parent: AbortSignal,
  late: string,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  using deadline = deadlineAfter(ms, parent);
  try {
    return await work(deadline.signal);
  } catch (error) {
    parent.throwIfAborted();
    if (!(deadline.signal.aborted && deadline.signal.reason instanceof DeadlineExceeded)) throw error;
    throw new PullTookTooLong(late, { cause: error });
  }
}
