/** Work that several callers wait for: begun by the first, ended when it is done or the last of them has left. */
export class SharedWork<T> {
  readonly #running = new Map<string, { result: Promise<T>; waiting: number; abort: AbortController }>();

  /** Whether work of that key is under way and would be joined. */
  has(key: string): boolean {
    return this.#running.has(key);
  }

  /** @throws the signal's reason when this caller's own signal aborts. */
  async run(key: string, signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    signal.throwIfAborted();
    let entry = this.#running.get(key);
    if (entry === undefined) {
      const abort = new AbortController();
      const begun = { result: work(abort.signal), waiting: 0, abort };
      begun.result
        .finally(() => {
          if (this.#running.get(key) === begun) this.#running.delete(key);
        })
        .catch(() => undefined);
      this.#running.set(key, begun);
      entry = begun;
    }
    const shared = entry;
    shared.waiting += 1;
    const left = Promise.withResolvers<never>();
    const leave = () => left.reject(signal.reason);
    signal.addEventListener("abort", leave, { once: true });
    try {
      return await Promise.race([shared.result, left.promise]);
    } finally {
      signal.removeEventListener("abort", leave);
      shared.waiting -= 1;
      if (shared.waiting === 0 && this.#running.get(key) === shared) {
        // A caller that comes now begins anew instead of joining what is being given up.
        this.#running.delete(key);
        shared.abort.abort(signal.reason);
      }
    }
  }
}
