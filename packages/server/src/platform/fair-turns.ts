import { AsyncLocalStorage } from "node:async_hooks";

/**
 * How long a turn of the loop is spent on what waits here, milliseconds, and how long what comes after it goes on at once. A short request
 * of somebody else waits for such a turn at each of its hops, four to eight of them, and a turn costs some 10 µs beside its work.
 */
const turnMs = 0.25;

/**
 * Of what everything else in the loop took since, where that is more: requests, commits and their like ask nobody for a turn, and whoever
 * keeps them coming, without a key even, would leave what waits here next to nothing.
 */
const shareOfOthers = 1 / 4;
const longestTurnMs = 4;

/** For how long whoever's turn it is goes on with more of it, milliseconds: waiting costs more than most of what is waited for. */
const goesOnMs = 0.25;

/** @returns what is left of it, which comes before what else the same owner asks for. */
export type Work = () => Work | undefined;

/** Who takes turns with others, and below that on whose behalf. */
export interface Taker {
  readonly principal: string;
  readonly owner: string;
}

/**
 * Work that may be long, a little of it in each turn of the loop, over all who take part: what many ask for at once holds up nobody
 * for the sum of it. Principals take turns, a principal's owners take turns among themselves, and what one owner asks for is done in
 * its order: much of somebody's leaves room for little of others.
 */
export class FairTurns {
  readonly #now: () => number;
  readonly #waiting = new Map<string, Map<string, Work[]>>();
  /** What waits is being dealt with, in this turn or the next. */
  #running = false;
  /** Something has gone on at once since the turn of the loop began. */
  #begun = false;
  #beganMs = 0;
  /** How long the turn is that began then. */
  #turnMs = turnMs;
  /** When what is done now was begun; undefined between works. */
  #workBeganMs: number | undefined;

  /** @param options.now milliseconds. */
  constructor(options: { now?: () => number } = {}) {
    this.#now = options.now ?? (() => performance.now());
  }

  /** @param work must not throw; what it goes on with in microtasks counts as its own. */
  add(taker: Taker, work: Work): void {
    this.#worksOf(taker).push(AsyncLocalStorage.bind(work));
    if (this.#running) return;
    this.#running = true;
    this.#begin();
  }

  /** Waits for a turn: what follows is done in it, up to where it waits next. */
  next(taker: Taker): Promise<void> {
    return new Promise((resolve) => this.add(taker, () => void resolve()));
  }

  /**
   * For a little work of which there may be much: while little is going on it waits for nothing, and what comes of somebody's turn
   * is within it for a while.
   * @returns whether it may be done at once: nobody waits, or not yet for long, and this turn has time left. Who may not adds it.
   */
  mayGoOn(): boolean {
    if (this.#workBeganMs === undefined && this.#waiting.size > 0) return false;
    const nowMs = this.#now();
    if (this.#workBeganMs !== undefined && this.#waiting.size > 0 && nowMs - this.#workBeganMs >= goesOnMs)
      return false;
    if (!this.#running && !this.#begun) {
      this.#begun = true;
      this.#beganMs = nowMs;
      this.#turnMs = turnMs;
      setImmediate(() => (this.#begun = false));
    }
    return nowMs - this.#beganMs < this.#turnMs;
  }

  /** @returns undefined for who may go on at once, else what to wait for. */
  claim(taker: Taker): Promise<void> | undefined {
    return this.mayGoOn() ? undefined : this.next(taker);
  }

  #begin(): void {
    const askedMs = this.#now();
    setImmediate(() => {
      this.#beganMs = this.#now();
      const othersMs = this.#beganMs - askedMs;
      this.#turnMs = Math.min(longestTurnMs, Math.max(turnMs, othersMs * shareOfOthers));
      this.#step();
    });
  }

  #step(): void {
    const taken = this.#take();
    if (taken === undefined) {
      this.#running = false;
      return;
    }
    // Who waits goes on in microtasks. All of those are through before the next tick.
    queueMicrotask(() => process.nextTick(() => this.#goOn()));
    this.#workBeganMs = this.#now();
    const left = taken.work();
    if (left !== undefined) this.#worksOf(taken.taker).unshift(AsyncLocalStorage.bind(left));
  }

  #goOn(): void {
    this.#workBeganMs = undefined;
    if (this.#now() - this.#beganMs < this.#turnMs) this.#step();
    else this.#begin();
  }

  #worksOf({ principal, owner }: Taker): Work[] {
    const owners = this.#waiting.get(principal) ?? new Map<string, Work[]>();
    const works = owners.get(owner) ?? [];
    owners.set(owner, works);
    this.#waiting.set(principal, owners);
    return works;
  }

  /** Whose work is taken comes after all others. */
  #take(): { taker: Taker; work: Work } | undefined {
    for (const [principal, owners] of this.#waiting) {
      this.#waiting.delete(principal);
      for (const [owner, works] of owners) {
        owners.delete(owner);
        const work = works.shift();
        if (works.length > 0) owners.set(owner, works);
        if (owners.size > 0) this.#waiting.set(principal, owners);
        if (work !== undefined) return { taker: { principal, owner }, work };
      }
    }
    return undefined;
  }
}
