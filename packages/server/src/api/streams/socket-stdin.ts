/** What a message that waits costs beside its data. */
const messageCostBytes = 256;
/** Small pieces that wait are given to the command together, up to so many bytes. */
const joinedBytes = 65_536;

interface Piece {
  readonly data: Buffer;
  readonly close: boolean;
  /** Settles when it may be written. */
  readonly after: Promise<void>;
}

/** Standard input that a client has sent and its command has yet to take, in order. */
export class SocketStdin {
  readonly #write: (data: Buffer) => Promise<void>;
  readonly #close: () => Promise<void>;
  readonly #onTaken: () => void;
  #waiting: Piece[] = [];
  #waitingBytes = 0;
  #writing = false;
  #dropped = false;

  /** `write` and `close` do not fail. @param options.onTaken called whenever less waits. */
  constructor(options: {
    write: (data: Buffer) => Promise<void>;
    close: () => Promise<void>;
    onTaken: () => void;
  }) {
    this.#write = options.write;
    this.#close = options.close;
    this.#onTaken = options.onTaken;
  }

  /** What the memory of it takes, about. */
  get waitingBytes(): number {
    return this.#waitingBytes;
  }

  /** @param piece.after what must have been done before it is written. */
  give(piece: Piece): void {
    this.#waiting.push(piece);
    this.#waitingBytes += piece.data.length + messageCostBytes;
    if (!this.#writing) void this.#writeAll();
  }

  /** Lets go of what waits. */
  drop(): void {
    this.#dropped = true;
    this.#waiting = [];
  }

  async #writeAll(): Promise<void> {
    this.#writing = true;
    while (this.#waiting.length > 0 && !this.#dropped) {
      const pieces = this.#waiting;
      this.#waiting = [];
      for (let index = 0; index < pieces.length && !this.#dropped; ) {
        const together = joinable(pieces, index);
        index += together.length;
        const [first] = together;
        await first?.after;
        const data = together.length > 1 ? Buffer.concat(together.map((piece) => piece.data)) : first?.data;
        if (data !== undefined && data.length > 0) await this.#write(data);
        if (together.at(-1)?.close === true) await this.#close();
        for (const piece of together) this.#waitingBytes -= piece.data.length + messageCostBytes;
        this.#onTaken();
      }
    }
    this.#writing = false;
  }
}

/** Those from `begin` on that can be written as one. */
function joinable(pieces: readonly Piece[], begin: number): Piece[] {
  const joined: Piece[] = [];
  let bytes = 0;
  for (let index = begin; index < pieces.length; index += 1) {
    const piece = pieces[index];
    const last = joined.at(-1);
    if (piece === undefined || (last !== undefined && (last.close || last.after !== piece.after))) break;
    if (last !== undefined && bytes + piece.data.length > joinedBytes) break;
    bytes += piece.data.length;
    joined.push(piece);
  }
  return joined;
}
