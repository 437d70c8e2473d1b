import { copyOf, ownBytes } from "./own-bytes.ts";

/** A smaller piece costs about as much as an object as it has bytes. */
export const smallBytes = 1_024;
const blockBytes = 16_384;

/**
 * Stands before the queue of a stream, which counts the bytes that wait in it and not the pieces: each of these is an object of
 * some hundred bytes, or a part of something larger, and whoever sends them chooses how many there are. Small pieces that come
 * in one turn, or while others wait, are joined, and the next turn is waited for before more is read: how long it takes to cut
 * them up does not depend on how much has come.
 */
export class PieceJoiner {
  readonly #pass: (piece: Buffer) => boolean;
  readonly #isEmpty: () => boolean;
  readonly #goOn: () => void;
  #block: Buffer | undefined;
  #used = 0;
  #turn: NodeJS.Immediate | undefined;

  /**
   * @param options.pass puts a piece into the queue; false: it is full.
   * @param options.isEmpty whether nothing waits in the queue.
   * @param options.goOn more may come, if the queue is not full.
   */
  constructor(options: { pass: (piece: Buffer) => boolean; isEmpty: () => boolean; goOn: () => void }) {
    this.#pass = options.pass;
    this.#isEmpty = options.isEmpty;
    this.#goOn = options.goOn;
  }

  /** @returns false when no more should come: before `goOn` is called, or something was taken from the full queue. */
  add(piece: Buffer): boolean {
    if (piece.length >= smallBytes) {
      this.flush();
      return this.#pass(ownBytes(piece)) && this.#turn === undefined;
    }
    if (this.#used + piece.length > blockBytes) this.flush();
    this.#block ??= Buffer.allocUnsafeSlow(blockBytes);
    this.#block.set(piece, this.#used);
    this.#used += piece.length;
    this.#turn ??= setImmediate(() => this.#onTurnEnd());
    return false;
  }

  /** To be called before something is taken from the queue, and before its end is put into it. */
  flush(): void {
    if (this.#used === 0 || this.#block === undefined) return;
    const joined = copyOf(this.#block.subarray(0, this.#used));
    this.#used = 0;
    this.#pass(joined);
  }

  /** Who waits at the queue is told of what has come; what comes while something is in it waits to be joined. */
  #onTurnEnd(): void {
    this.#turn = undefined;
    if (this.#isEmpty()) this.flush();
    this.#goOn();
  }
}
