/** Of blocks but the first, which is the first piece: as much as there is so far, within these. */
const leastBlockBytes = 1_024;
const mostBlockBytes = 65_536;

/**
 * Bytes that come in pieces and are used together. They are copied into blocks: a piece is an object of some hundred bytes,
 * or a part of something larger, and there may be as many as there are bytes.
 */
export class ByteBlocks {
  #full: Uint8Array[] = [];
  #last: Uint8Array | undefined;
  #used = 0;
  #bytes = 0;

  get bytes(): number {
    return this.#bytes;
  }

  /** @param piece is not written to any more by whoever gives it. */
  add(piece: Uint8Array): void {
    if (piece.length === 0) return;
    const before = this.#bytes;
    this.#bytes += piece.length;
    // Most are all there is.
    if (this.#last === undefined) {
      this.#last = piece;
      this.#used = piece.length;
      return;
    }
    for (let from = 0; from < piece.length; ) {
      if (this.#used === this.#last.length) {
        this.#full.push(this.#last);
        this.#last = new Uint8Array(Math.min(Math.max(before + from, leastBlockBytes), mostBlockBytes));
        this.#used = 0;
      }
      const part = piece.subarray(from, from + this.#last.length - this.#used);
      this.#last.set(part, this.#used);
      this.#used += part.length;
      from += part.length;
    }
  }

  /** @returns all of them in one, and holds nothing any more. */
  take(): Buffer {
    const last = this.#last?.subarray(0, this.#used) ?? new Uint8Array();
    const { buffer, byteOffset, length } =
      this.#full.length === 0 ? last : Buffer.concat([...this.#full, last], this.#bytes);
    this.clear();
    return Buffer.from(buffer, byteOffset, length);
  }

  clear(): void {
    this.#full = [];
    this.#last = undefined;
    this.#used = 0;
    this.#bytes = 0;
  }
}
