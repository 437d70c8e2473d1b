/**
 * Lets one reader at a time look at a part of the history, each in a turn of the event loop of its own, callers in
 * turn: however many replays one caller has under way, others wait for one part of them, and requests for one as well.
 */
export class ReplayLine {
  /** Readers that wait, by caller; the caller whose turn is next comes first. */
  readonly #waiting = new Map<string, (() => void)[]>();

  /** Resolves when `caller` may look at its next part. */
  async turn(caller: string): Promise<void> {
    await new Promise<void>((resolve) => {
      const readers = this.#waiting.get(caller);
      if (readers !== undefined) {
        readers.push(resolve);
        return;
      }
      if (this.#waiting.size === 0) this.#goOn();
      this.#waiting.set(caller, [resolve]);
    });
  }

  #goOn(): void {
    setImmediate(() => {
      for (const [caller, readers] of this.#waiting) {
        this.#waiting.delete(caller);
        readers.shift()?.();
        if (readers.length > 0) this.#waiting.set(caller, readers);
        break;
      }
      if (this.#waiting.size > 0) this.#goOn();
    });
  }
}
