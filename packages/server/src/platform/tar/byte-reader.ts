import { BadRequest } from "../../ports/errors.ts";

/** Reads exact numbers of bytes from a stream of chunks. */
export class ByteReader {
  readonly #source: AsyncIterator<Uint8Array>;
  #current: Buffer = Buffer.alloc(0);
  #read = 0;

  constructor(source: AsyncIterable<Uint8Array>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** Bytes handed out so far. */
  get position(): number {
    return this.#read;
  }

  /** @returns fewer bytes only at the end. */
  async read(length: number): Promise<Buffer> {
    const parts: Buffer[] = [];
    let missing = length;
    while (missing > 0) {
      const part = await this.some(missing);
      if (part === undefined) break;
      parts.push(part);
      missing -= part.length;
    }
    return parts.length === 1 && parts[0] !== undefined ? parts[0] : Buffer.concat(parts);
  }

  /** @throws BadRequest when the stream ends before. */
  async exactly(length: number): Promise<Buffer> {
    const data = await this.read(length);
    if (data.length < length) throw new BadRequest("the archive is cut short");
    return data;
  }

  /** @returns between 1 and `atMost` bytes, undefined at the end. */
  async some(atMost: number): Promise<Buffer | undefined> {
    while (this.#current.length === 0) {
      const next = await this.#source.next();
      if (next.done === true) return undefined;
      this.#current = Buffer.from(next.value.buffer, next.value.byteOffset, next.value.byteLength);
    }
    const part = this.#current.subarray(0, atMost);
    this.#current = this.#current.subarray(part.length);
    this.#read += part.length;
    return part;
  }

  async skip(length: number): Promise<void> {
    for (let missing = length; missing > 0; ) {
      const part = await this.some(missing);
      if (part === undefined) throw new BadRequest("the archive is cut short");
      missing -= part.length;
    }
  }

  /** Reads and drops all that is left, so that what hashes the stream sees its end. */
  async drain(): Promise<void> {
    while ((await this.some(Number.MAX_SAFE_INTEGER)) !== undefined);
  }
}
