/**
 * One at a time for each name, in the order they came. Whoever is done wakes the next alone: where all looked whether their turn
 * has come, many would cost the square of their number.
 */
export class TurnsByName {
  readonly #last = new Map<string, Promise<void>>();

  /** @throws what `work` throws; the signal's reason, for who has not begun. */
  async run<T>(name: string, work: () => Promise<T>, options: { signal?: AbortSignal } = {}): Promise<T> {
    const before = this.#last.get(name);
    const done = Promise.withResolvers<void>();
    // Who leaves while it waits is not overtaken by those behind it.
    const own = before === undefined ? done.promise : before.then(() => done.promise);
    this.#last.set(name, own);
    try {
      await unlessAborted(before, options.signal);
      return await work();
    } finally {
      done.resolve();
      // Not before those in front are done: whoever leaves the end of the line leaves them in it.
      void own.then(() => {
        if (this.#last.get(name) === own) this.#last.delete(name);
      });
    }
  }
}

/** @throws the signal's reason. */
async function unlessAborted(
  before: Promise<void> | undefined,
  signal: AbortSignal | undefined,
): Promise<void> {
  signal?.throwIfAborted();
  if (before === undefined) return;
  const aborted = Promise.withResolvers<never>();
  const onAbort = () => aborted.reject(signal?.reason);
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    await Promise.race([before, aborted.promise]);
  } finally {
    signal?.removeEventListener("abort", onAbort);
  }
}
