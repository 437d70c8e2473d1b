/** What may be held of input that is not known to have arrived, beside the newest piece of it. */
const mostHeldBytes = 8 * 1_048_576;

/**
 * Standard input that was given and has perhaps not arrived: what is missing can be sent again. Offsets count the bytes of the
 * input. `whole` until so much was held that the oldest of it was let go.
 */
export class HeldInput {
  #pieces: Uint8Array[] = [];
  #heldBytes = 0;
  /** Offset of the first byte held, and of the next one given. */
  #from = 0;
  #given = 0;
  #anyGiven = false;
  #ended = false;

  /** Whether there was any input, or the end of it. */
  get anyGiven(): boolean {
    return this.#anyGiven;
  }
  get ended(): boolean {
    return this.#ended;
  }

  /** @param from offset of the first byte that will be given. */
  beginAt(from: number): void {
    this.#from = from;
    this.#given = from;
  }

  give(data: Uint8Array): void {
    this.#anyGiven = true;
    this.#pieces.push(data);
    this.#given += data.length;
    this.#heldBytes += data.length;
    while (this.#heldBytes > mostHeldBytes && this.#pieces.length > 1) this.#drop();
  }

  end(): void {
    this.#anyGiven = true;
    this.#ended = true;
  }

  /** So many bytes have arrived and need not be held. */
  arrived(taken: number): void {
    for (let piece = this.#pieces[0]; piece !== undefined; piece = this.#pieces[0]) {
      if (this.#from + piece.length > taken) return;
      this.#drop();
    }
  }

  /** What is missing when so many bytes have arrived; undefined: not all of that is held. */
  missing(taken: number): Uint8Array[] | undefined {
    if (taken > this.#given) return undefined;
    this.arrived(taken);
    if (taken < this.#from) return undefined;
    const [first, ...rest] = this.#pieces;
    return first === undefined ? [] : [first.subarray(taken - this.#from), ...rest];
  }

  #drop(): void {
    const length = this.#pieces.shift()?.length ?? 0;
    this.#from += length;
    this.#heldBytes -= length;
  }
}
