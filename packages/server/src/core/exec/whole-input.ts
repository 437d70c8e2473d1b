/** Standard input that came whole with its command; its bytes are let go of once the command has them all. */
export class WholeInput {
  readonly length: number;
  #bytes: Uint8Array | undefined;
  readonly #onTaken: () => void;

  constructor(bytes: Uint8Array, onTaken: () => void = () => undefined) {
    this.length = bytes.length;
    this.#bytes = bytes;
    this.#onTaken = onTaken;
  }

  /** Those the command may not have yet. */
  get missing(): Uint8Array {
    return this.#bytes ?? new Uint8Array();
  }

  /** @param taken how much of it has arrived; undefined: nobody knows. */
  arrived(taken: number | undefined): void {
    if (taken !== this.length || this.#bytes === undefined) return;
    this.#bytes = undefined;
    this.#onTaken();
  }
}
