import { ignoreOutcome } from "./abortable.ts";

/**
 * Work that many ask for, of each name one at a time. Everybody who asks while it is under way shares the next, which begins after
 * they came: however many ask at once, it is done twice.
 */
export class SharedNext<T> {
  readonly #current = new Map<unknown, Promise<T>>();
  readonly #next = new Map<unknown, Promise<T>>();

  /**
   * @param of what it is of: the same thing is told by its identity. @param work the one of those who share it who came first.
   * @throws what `work` throws.
   */
  run(of: unknown, work: () => Promise<T>): Promise<T> {
    return this.#next.get(of) ?? this.#queue(of, work);
  }

  #queue(of: unknown, work: () => Promise<T>): Promise<T> {
    const before = this.#current.get(of)?.catch(ignoreOutcome) ?? Promise.resolve();
    const next = before.then(() => {
      this.#next.delete(of);
      const current = work().finally(() => {
        if (this.#current.get(of) === current) this.#current.delete(of);
      });
      this.#current.set(of, current);
      return current;
    });
    this.#next.set(of, next);
    return next;
  }
}
