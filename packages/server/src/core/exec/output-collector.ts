import type { OutputEncoding } from "@alcove/wire";
import { WrittenOutput } from "./written-output.ts";

const none = Buffer.alloc(0);

/** Keeps the first `maxBytes` of a stream in a buffer of its own and counts nothing more: memory stays bounded. */
export class OutputCollector {
  readonly #maxBytes: number;
  #buffer: Buffer = none;
  #length = 0;
  #truncated = false;

  constructor(options: { maxBytes: number }) {
    this.#maxBytes = options.maxBytes;
  }

  get truncated(): boolean {
    return this.#truncated;
  }

  /** What its buffer will take when `data` is added. */
  bytesWith(data: Buffer): number {
    const needed = Math.min(this.#maxBytes, this.#length + data.length);
    return needed <= this.#buffer.length ? this.#buffer.length : this.#sizeFor(needed);
  }

  add(data: Buffer): void {
    const room = this.#maxBytes - this.#length;
    const taken = Math.min(room, data.length);
    if (taken < data.length) this.#truncated = true;
    if (taken === 0) return;
    this.#grow(this.#length + taken);
    data.copy(this.#buffer, this.#length, 0, taken);
    this.#length += taken;
  }

  /** What is kept, as it is told; nothing may be added afterwards. */
  written(encoding: OutputEncoding): WrittenOutput {
    const kept = this.#buffer.subarray(0, this.#length);
    return new WrittenOutput(kept, { encoding, truncated: this.#truncated });
  }

  #grow(needed: number): void {
    if (needed <= this.#buffer.length) return;
    const grown = Buffer.allocUnsafe(this.#sizeFor(needed));
    this.#buffer.copy(grown, 0, 0, this.#length);
    this.#buffer = grown;
  }

  #sizeFor(needed: number): number {
    return Math.min(this.#maxBytes, Math.max(needed, this.#buffer.length * 2));
  }
}
