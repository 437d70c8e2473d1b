/**
 * Items pushed from callbacks, iterated once. States: open, ended (what is queued is still handed out), failed
 * (likewise, then throws once). Leaving the loop calls `onReturn`.
 */
export class PushIterator<T> implements AsyncIterableIterator<T> {
  #items: T[] = [];
  #head = 0;
  #waiting: PromiseWithResolvers<IteratorResult<T>>[] = [];
  #over = false;
  #error: { reason: unknown } | null = null;
  readonly #onNext: () => void;
  readonly #turn: () => Promise<void> | undefined;
  readonly #onTake: (item: T) => void;
  readonly #onReturn: () => void;

  /**
   * @param options.onNext called when an item is asked for: whoever does has dealt with the one before.
   * @param options.turn what to wait for before an item is given that is there already; undefined: nothing.
   */
  constructor(
    options: {
      onNext?: () => void;
      onTake?: (item: T) => void;
      onReturn?: () => void;
      turn?: () => Promise<void> | undefined;
    } = {},
  ) {
    this.#onNext = options.onNext ?? (() => undefined);
    this.#turn = options.turn ?? (() => undefined);
    this.#onTake = options.onTake ?? (() => undefined);
    this.#onReturn = options.onReturn ?? (() => undefined);
  }

  get queued(): number {
    return this.#items.length - this.#head;
  }

  /** What waits, to be looked at. */
  get items(): readonly T[] {
    return this.#items.slice(this.#head);
  }

  push(item: T): void {
    if (this.#over) return;
    const waiter = this.#waiting.shift();
    if (waiter === undefined) {
      this.#items.push(item);
    } else {
      this.#onTake(item);
      waiter.resolve({ value: item, done: false });
    }
  }

  end(): void {
    if (this.#over) return;
    this.#over = true;
    for (const waiter of this.#waiting.splice(0)) waiter.resolve({ value: undefined, done: true });
  }

  fail(reason: unknown): void {
    if (this.#over) return;
    this.#over = true;
    const [first, ...others] = this.#waiting.splice(0);
    if (first === undefined) this.#error = { reason };
    else first.reject(reason);
    for (const waiter of others) waiter.resolve({ value: undefined, done: true });
  }

  /** Forgets the oldest item that waits. */
  dropOldest(): void {
    if (this.queued > 0) this.#shift();
  }

  next(): Promise<IteratorResult<T>> {
    this.#onNext();
    const turn = this.queued > 0 ? this.#turn() : undefined;
    return turn === undefined ? this.#give() : turn.then(() => this.#give());
  }

  #give(): Promise<IteratorResult<T>> {
    if (this.queued > 0) {
      const item = this.#shift();
      this.#onTake(item);
      return Promise.resolve({ value: item, done: false });
    }
    if (this.#error !== null) {
      const { reason } = this.#error;
      this.#error = null;
      return Promise.reject(reason);
    }
    if (this.#over) return Promise.resolve({ value: undefined, done: true });
    const waiter = Promise.withResolvers<IteratorResult<T>>();
    this.#waiting.push(waiter);
    return waiter.promise;
  }

  return(): Promise<IteratorResult<T>> {
    this.#items = [];
    this.#head = 0;
    this.#error = null;
    this.end();
    this.#onReturn();
    return Promise.resolve({ value: undefined, done: true });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #shift(): T {
    const item = this.#items[this.#head] as T;
    this.#head += 1;
    if (this.#head === this.#items.length) {
      this.#items = [];
      this.#head = 0;
    } else if (this.#head >= 1_024) {
      this.#items.splice(0, this.#head);
      this.#head = 0;
    }
    return item;
  }
}
