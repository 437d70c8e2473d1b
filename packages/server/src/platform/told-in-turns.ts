/** Each goes on with an answer of its own, some tenths of a millisecond. */
const toldPerTurn = 64;
/** Of those who waited for the same, before others are told. */
const toldTogether = 8;

/**
 * Tells those who waited that they may go on, so many in a turn of the event loop, whatever they waited for: of many who waited for
 * one thing, or for many things that come at the same time, all would go on in one turn, which is nobody else's meanwhile. Those
 * who waited for one thing are told in their order, and take turns with those who waited for others.
 */
export class ToldInTurns {
  readonly #waiting: (() => void)[][] = [];
  #running = false;

  /** @param calls must not throw. */
  tell(calls: (() => void)[]): void {
    // Taken from the end.
    if (calls.length > 0) this.#waiting.push(calls.toReversed());
    if (this.#running || calls.length === 0) return;
    this.#running = true;
    this.#tellSome();
  }

  #tellSome(): void {
    const now: (() => void)[] = [];
    while (now.length < toldPerTurn) {
      const calls = this.#waiting.shift();
      if (calls === undefined) break;
      const most = Math.min(toldTogether, toldPerTurn - now.length);
      now.push(...calls.splice(-most).reverse());
      if (calls.length > 0) this.#waiting.push(calls);
    }
    for (const call of now) call();
    setImmediate(() => {
      this.#running = this.#waiting.length > 0;
      if (this.#running) this.#tellSome();
    });
  }
}
