/** Standard input that came whole with its command; its bytes are let go of once the command has them all, or takes no more. */
export class WholeInput {
  readonly length: number;
  #bytes: Uint8Array | undefined;
  #begun = false;
  readonly #onDropped: () => void;

  /** @param onDropped called once, when its bytes are not held any more. */
  constructor(bytes: Uint8Array, onDropped: () => void = () => undefined) {
    this.length = bytes.length;
    this.#bytes = bytes;
    this.#onDropped = onDropped;
  }

  /** Those the command may not have yet. */
  get missing(): Uint8Array {
    return this.#bytes ?? new Uint8Array();
  }

  /** @param taken how much of it has arrived; undefined: nobody knows. */
  arrived(taken: number | undefined): void {
    if (taken === this.length) this.drop();
  }

  /** Somebody gives it from now on, and drops it. */
  begin(): void {
    this.#begun = true;
  }

  /** For who asked for the command, once that was started or refused: an input that nobody gives is dropped. */
  dropUnlessBegun(): void {
    if (!this.#begun) this.drop();
  }

  drop(): void {
    if (this.#bytes === undefined) return;
    this.#bytes = undefined;
    this.#onDropped();
  }
}
