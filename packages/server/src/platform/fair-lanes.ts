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

  /** @throws the signal's reason when that aborts before its turn has come. */
  async enter(ownerId: string, { signal }: { signal?: AbortSignal } = {}): Promise<Lane> {
    signal?.throwIfAborted();
    if (!this.full) return this.#letIn(ownerId);
    const waiter = Promise.withResolvers<Lane>();
    const line = this.#waiting.get(ownerId) ?? new Set();
    this.#waiting.set(ownerId, line.add(waiter));
    const onAbort = () => {
      // Whose turn has come is in.
      if (!line.delete(waiter)) return;
      if (line.size === 0 && this.#waiting.get(ownerId) === line) this.#waiting.delete(ownerId);
      waiter.reject(signal?.reason);
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      return await waiter.promise;
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
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
