/** What may be held of input that is not known to have arrived, beside the newest piece of it. */
const mostHeldBytes = 8 * 1_048_576;
/** Pieces below the smaller size are copied together into blocks of the larger: what is typed comes a few bytes at a time. */
const smallPieceBytes = 4_096;
const blockBytes = 16_384;

/** Bytes of the input that follow one another; `used` of them are given. */
interface Block {
  readonly bytes: Uint8Array;
  used: number;
  /** Made here for small pieces, so that more of them can follow. */
  readonly own: boolean;
}

/**
 * Standard input that was given and has perhaps not arrived: what is missing can be sent again. Offsets count the bytes of the
 * input. When too much is held the oldest of it is let go.
 */
export class HeldInput {
  /** Those before `#first` are let go of. */
  #blocks: Block[] = [];
  #first = 0;
  #heldBytes = 0;
  /** Offset of the first byte held, and of the next one given. */
  #from = 0;
  #given = 0;
  #anyGiven = false;
  #ended = false;

  /** Whether there was any input, or the end of it. */
  get anyGiven(): boolean {
    return this.#anyGiven;
  }
  get ended(): boolean {
    return this.#ended;
  }
  /** What the memory that is held takes. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  /** @param from offset of the first byte that will be given. */
  beginAt(from: number): void {
    this.#from = from;
    this.#given = from;
  }

  give(data: Uint8Array): void {
    this.#anyGiven = true;
    this.#given += data.length;
    if (data.length >= smallPieceBytes) this.#push({ bytes: data, used: data.length, own: false });
    else this.#append(data);
    while (this.#heldBytes > mostHeldBytes && this.#first < this.#blocks.length - 1) this.#drop();
  }

  end(): void {
    this.#anyGiven = true;
    this.#ended = true;
  }

  /** So many bytes have arrived and need not be held. */
  arrived(taken: number): void {
    for (let block = this.#blocks[this.#first]; block !== undefined; block = this.#blocks[this.#first]) {
      if (this.#from + block.used > taken) return;
      if (block.own && this.#first === this.#blocks.length - 1) {
        // The next that is typed goes where this was.
        this.#from += block.used;
        block.used = 0;
        return;
      }
      this.#drop();
    }
  }

  /** What is missing when so many bytes have arrived; undefined: not all of that is held. */
  missing(taken: number): Uint8Array[] | undefined {
    if (taken > this.#given) return undefined;
    this.arrived(taken);
    if (taken < this.#from) return undefined;
    const pieces: Uint8Array[] = [];
    let begin = taken - this.#from;
    for (const { bytes, used, own } of this.#blocks.slice(this.#first)) {
      // What is made here is written to again.
      if (begin < used) pieces.push(own ? bytes.slice(begin, used) : bytes.subarray(begin, used));
      begin = 0;
    }
    return pieces;
  }

  #append(data: Uint8Array): void {
    let last = this.#blocks.at(-1);
    if (last === undefined || !last.own || last.used + data.length > last.bytes.length) {
      last = { bytes: new Uint8Array(blockBytes), used: 0, own: true };
      this.#push(last);
    }
    last.bytes.set(data, last.used);
    last.used += data.length;
  }

  #push(block: Block): void {
    this.#blocks.push(block);
    this.#heldBytes += block.bytes.length;
  }

  #drop(): void {
    const block = this.#blocks[this.#first];
    this.#from += block?.used ?? 0;
    this.#heldBytes -= block?.bytes.length ?? 0;
    this.#first += 1;
    if (this.#first * 2 < this.#blocks.length) return;
    this.#blocks = this.#blocks.slice(this.#first);
    this.#first = 0;
  }
}
