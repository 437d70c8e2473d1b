import { Readable } from "node:stream";
import { PieceJoiner } from "./piece-joiner.ts";

/** A stream that is given its bytes, and holds them in few pieces, however small those are in which they come. */
export class JoinedReadable extends Readable {
  readonly #joiner: PieceJoiner;

  /** @param options.goOn more may come. */
  constructor(options: {
    highWaterMark: number;
    goOn: () => void;
    destroy?: (error: Error | null, done: (error: Error | null) => void) => void;
  }) {
    const { goOn, highWaterMark, destroy } = options;
    super({ highWaterMark, read: goOn, ...(destroy === undefined ? {} : { destroy }) });
    this.#joiner = new PieceJoiner({
      pass: (piece) => this.push(piece),
      isEmpty: () => this.readableLength === 0,
      goOn: () => {
        if (!this.destroyed && this.readableLength < this.readableHighWaterMark) goOn();
      },
    });
  }

  /** @returns false when no more should come before `goOn` is called. */
  give(piece: Buffer): boolean {
    return this.#joiner.add(piece);
  }

  /** All was given. */
  finish(): void {
    this.#joiner.flush();
    this.push(null);
  }

  override read(size?: number): unknown {
    // Nothing is taken by looking whether there is something.
    if (size !== 0) this.#joiner.flush();
    return super.read(size);
  }
}
