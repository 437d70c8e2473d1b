/**
 * A queue read by one iteration. When its reader falls `limit` items behind, what follows is dropped and `overflow` stands
 * for it; without an `overflow` the stream ends, and its reader asks anew.
 */
export class BoundedStream<T> implements AsyncIterable<T> {
  readonly #limit: number;
  readonly #overflow: T | undefined;
  #items: T[] = [];
  #ended = false;
  #overflowed = false;
  #waiting: (() => void) | undefined;
  #onEnd: (() => void) | undefined;

  /** Ends when `signal` aborts. */
  constructor(options: { limit: number; signal: AbortSignal; overflow?: T }) {
    this.#limit = options.limit;
    this.#overflow = options.overflow;
    if (options.signal.aborted) this.#ended = true;
    else {
      const end = () => this.end();
      options.signal.addEventListener("abort", end, { once: true });
      this.#onEnd = () => options.signal.removeEventListener("abort", end);
    }
  }

  onEnd(listener: () => void): void {
    const earlier = this.#onEnd;
    if (this.#ended) listener();
    else
      this.#onEnd = () => {
        earlier?.();
        listener();
      };
  }

  push(item: T): void {
    if (this.#ended) return;
    if (this.#items.length < this.#limit) this.#items.push(item);
    else if (this.#overflow === undefined) this.end();
    else if (!this.#overflowed) {
      this.#overflowed = true;
      this.#items.push(this.#overflow);
    }
    this.#waiting?.();
  }

  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#onEnd?.();
    this.#waiting?.();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    try {
      for (;;) {
        const items = this.#items;
        this.#items = [];
        this.#overflowed = false;
        yield* items;
        if (this.#items.length > 0) continue;
        if (this.#ended) return;
        const { promise, resolve } = Promise.withResolvers<void>();
        this.#waiting = resolve;
        await promise;
        this.#waiting = undefined;
      }
    } finally {
      this.end();
    }
  }
}
