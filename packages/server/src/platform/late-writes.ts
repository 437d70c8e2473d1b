/**
 * Writes that a start can do without, such as on a full disk: each is tried at once, and waits to be tried again where
 * it fails. One of the same name takes the place of the one that waits.
 */
export class LateWrites {
  readonly #waiting = new Map<string, () => Promise<void>>();
  readonly #onFailure: (what: string, error: unknown) => void;

  /** @param onFailure called with each write that fails at first; what fails again says nothing anew. */
  constructor(onFailure: (what: string, error: unknown) => void) {
    this.#onFailure = onFailure;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Does not fail. */
  async write(what: string, write: () => Promise<void>): Promise<void> {
    try {
      await write();
      this.#waiting.delete(what);
    } catch (error) {
      this.#waiting.set(what, write);
      this.#onFailure(what, error);
    }
  }

  /**
   * Everything that waits is written when this resolves. One call at a time.
   * @throws what the first failed with; it and those behind it wait on.
   */
  async again(): Promise<void> {
    for (const [what, write] of this.#waiting) {
      await write();
      this.#waiting.delete(what);
    }
  }
}
