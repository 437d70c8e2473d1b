import { StringDecoder } from "node:string_decoder";
import type { OutputEncoding } from "@alcove/wire";

/** A multiple of three, so that pieces of base64 join. */
const pieceBytes = 48 * 1024;

/**
 * What a command has written to one stream. It stays bytes until it is sent: megabytes of text are spelled out piece by
 * piece, because nobody else is served while one of them is made.
 */
export class WrittenOutput {
  readonly #bytes: Buffer;
  readonly #encoding: OutputEncoding;
  readonly #truncated: boolean;

  /** @param options.truncated whether more was written: then a character may be cut in two at the end. */
  constructor(bytes: Buffer, options: { encoding: OutputEncoding; truncated: boolean }) {
    this.#bytes = bytes;
    this.#encoding = options.encoding;
    this.#truncated = options.truncated;
  }

  get byteLength(): number {
    return this.#bytes.length;
  }

  /** Invalid UTF-8 is replaced; a sequence that the limit cut in two is left out. */
  *pieces(): Generator<string> {
    const decoder = new StringDecoder("utf8");
    for (let from = 0; from < this.#bytes.length; from += pieceBytes) {
      const piece = this.#bytes.subarray(from, from + pieceBytes);
      yield this.#encoding === "base64" ? piece.toString("base64") : decoder.write(piece);
    }
    if (!this.#truncated && this.#encoding !== "base64") yield decoder.end();
  }

  toString(): string {
    return [...this.pieces()].join("");
  }

  toJSON(): string {
    return this.toString();
  }
}
