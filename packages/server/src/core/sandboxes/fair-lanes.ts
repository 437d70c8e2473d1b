/** Somebody who is in. */
export interface Lane {
  leave(): void;
}

type Waiter = PromiseWithResolvers<Lane>;

/**
 * Lets so many in at once. When one leaves, that owner comes next, of those who wait, who has the fewest in; of equals
 * the one whose last turn is the longest ago. So owners who wait have equal shares, and one alone has all there is.
 */
export class FairLanes {
  readonly #limit: number;
  /** How many each owner has in. */
  readonly #inOf = new Map<string, number>();
  /** By owner, in the order of their next turn. */
  readonly #waiting = new Map<string, Set<Waiter>>();
  #in = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Whether whoever comes now has to wait. */
  get full(): boolean {
    return this.#in >= this.#limit;
  }

  enter(ownerId: string): Promise<Lane> {
    if (!this.full) return Promise.resolve(this.#letIn(ownerId));
    const waiter = Promise.withResolvers<Lane>();
    const line = this.#waiting.get(ownerId);
    if (line === undefined) this.#waiting.set(ownerId, new Set([waiter]));
    else line.add(waiter);
    return waiter.promise;
  }

  /** Refuses those who wait. */
  refuse(reason: Error): void {
    for (const line of this.#waiting.values()) for (const waiter of line) waiter.reject(reason);
    this.#waiting.clear();
  }

  #letIn(ownerId: string): Lane {
    this.#in++;
    this.#inOf.set(ownerId, (this.#inOf.get(ownerId) ?? 0) + 1);
    return { leave: () => this.#left(ownerId) };
  }

  #left(ownerId: string): void {
    this.#in--;
    const left = (this.#inOf.get(ownerId) ?? 0) - 1;
    if (left > 0) this.#inOf.set(ownerId, left);
    else this.#inOf.delete(ownerId);
    const next = this.#next();
    if (next === undefined) return;
    const line = this.#waiting.get(next) ?? new Set();
    this.#waiting.delete(next);
    for (const waiter of line) {
      line.delete(waiter);
      waiter.resolve(this.#letIn(next));
      break;
    }
    if (line.size > 0) this.#waiting.set(next, line);
  }

  /** Looks at no more owners than are in, and one. */
  #next(): string | undefined {
    let next: string | undefined;
    let fewest = Number.POSITIVE_INFINITY;
    for (const ownerId of this.#waiting.keys()) {
      const has = this.#inOf.get(ownerId) ?? 0;
      if (has >= fewest) continue;
      next = ownerId;
      fewest = has;
      if (has === 0) break;
    }
    return next;
  }
}
