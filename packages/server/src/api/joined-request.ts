import { IncomingMessage } from "node:http";
import { PieceJoiner } from "../platform/piece-joiner.ts";

const tinyBytes = 64;

/**
 * A request whose body waits in few pieces, however small the chunks are in which it is sent: each of them comes from the parser
 * as a buffer of its own, and is read or not, as what the request is for likes.
 */
export class JoinedRequest extends IncomingMessage {
  /** How many pieces of a few bytes it was sent in. */
  tinyPieces = 0;
  #began = false;
  #joiner: PieceJoiner | undefined;

  override push(piece: Buffer | null): boolean {
    if (piece === null) {
      this.#joiner?.flush();
      return super.push(null);
    }
    if (piece.length < tinyBytes) this.tinyPieces += 1;
    // Mostly there is no other.
    if (!this.#began) {
      this.#began = true;
      return super.push(piece);
    }
    this.#joiner ??= new PieceJoiner({
      pass: (joined) => super.push(joined),
      isEmpty: () => this.readableLength === 0,
      goOn: () => this.#goOn(),
    });
    return this.#joiner.add(piece);
  }

  override read(size?: number): unknown {
    // Nothing is taken by looking whether there is something.
    if (size !== 0) this.#joiner?.flush();
    return super.read(size);
  }

  /** What follows a complete body is read on by itself, and a full queue once something was taken from it. */
  #goOn(): void {
    if (this.complete || this.destroyed || this.readableLength >= this.readableHighWaterMark) return;
    // Makes the connection be read.
    this._read(0);
  }
}
