import type { Readable } from "node:stream";
import { copyOf } from "./own-bytes.ts";
import { spendRead } from "./spent-bytes.ts";

/** How many lines are parsed at once: each chunk of a body takes two, each request and interim answer two or more. */
const linesAtOnce = 512;
/** How long a turn of the loop deals with what was put behind, milliseconds. */
const putBehindMs = 4;
/** How long it parses in all before the rest is put behind. */
const turnMs = 10;
const lineFeed = 0x0a;
/** What a piece that waits costs beside its bytes, generously. */
const pieceBytes = 512;

/**
 * What a parser makes of bytes costs by the line and not by the byte: 64 KiB hold eleven thousand chunks of one byte, or hundreds of
 * requests, and every connection whose bytes are there is read in the same turn of the loop. Streams that are paced give their
 * parser some hundred lines at once, for a few milliseconds a turn over all of them; the rest waits for a later turn, one after
 * the other, while the stream is not read further. Bytes of few lines go through as they come.
 */
export class ReadTurns {
  readonly #now: () => number;
  readonly #paced = new WeakMap<Readable, PacedStream>();
  readonly #behind: PacedStream[] = [];
  #spentMs = 0;
  #turn: NodeJS.Immediate | undefined;

  /** @param options.now milliseconds. */
  constructor(options: { now?: () => number } = {}) {
    this.#now = options.now ?? (() => performance.now());
  }

  /**
   * From now on, until it is released. Its parser is to listen for "data".
   * @param options.copies whether the stream is a socket whose parser kept nothing of what it was just given: that memory is given
   * back then.
   */
  pace(stream: Readable, options: { copies?: () => boolean } = {}): void {
    if (this.#paced.has(stream)) return;
    const paced = new PacedStream(stream, options.copies ?? (() => false), {
      mayGoOn: (isLong) =>
        isLong ? this.#behind.length === 0 && this.#spentMs < putBehindMs : this.#spentMs < turnMs,
      run: (parse) => this.#run(parse),
      putBehind: () => {
        this.#behind.push(paced);
        this.#begin();
      },
    });
    this.#paced.set(stream, paced);
  }

  /** Whether something of the stream waits for its turn. */
  isHolding(stream: Readable): boolean {
    return this.#paced.get(stream)?.isHolding === true;
  }

  /**
   * Nothing more of a paced stream is parsed until `goOn`. It is read on meanwhile, so that its end is noticed, as long as little waits.
   * @param options.mostBytes may wait before it is no longer read. @param options.onFull called then.
   * @param options.onEnd called when the other side has ended it.
   */
  hold(stream: Readable, options: Hold): void {
    this.#paced.get(stream)?.hold(options);
  }

  /** What waits of a stream that was held is parsed in its turn. */
  goOn(stream: Readable): void {
    this.#paced.get(stream)?.endHold();
  }

  /** How much of the stream was read and not parsed. */
  heldBytes(stream: Readable): number {
    return this.#paced.get(stream)?.heldBytes ?? 0;
  }

  /** What its parser is at, while it parses. */
  parsing(stream: Readable): Buffer | undefined {
    return this.#paced.get(stream)?.parsing;
  }

  /** What comes of the stream is no longer parsed. @returns what it had waiting, which comes before anything else. */
  release(stream: Readable): Buffer {
    const paced = this.#paced.get(stream);
    this.#paced.delete(stream);
    return paced?.release() ?? Buffer.alloc(0);
  }

  #run(parse: () => void): void {
    const beganMs = this.#now();
    try {
      parse();
    } finally {
      this.#spentMs += this.#now() - beganMs;
      this.#begin();
    }
  }

  #begin(): void {
    this.#turn ??= setImmediate(() => this.#onTurn());
  }

  #onTurn(): void {
    this.#turn = undefined;
    this.#spentMs = 0;
    // Who is put behind again waits for those that are there already.
    while (this.#spentMs < putBehindMs) {
      const next = this.#behind.shift();
      if (next === undefined) return;
      next.goOn();
    }
    if (this.#behind.length > 0) this.#begin();
  }
}

/** How a stream is kept from its parser. */
export interface Hold {
  readonly mostBytes: number;
  readonly onEnd: () => void;
  readonly onFull?: () => void;
}

/** What a stream that is paced asks of all of them. */
interface Turns {
  /** Whether something may be parsed in this turn still. @param isLong for who had too many lines just before. */
  mayGoOn: (isLong: boolean) => boolean;
  run: (parse: () => void) => void;
  putBehind: () => void;
}

/**
 * Stands before the queue of a stream. `passing` until a piece has too many lines or comes when the turn is over; `holding` until
 * all of it was passed on, and meanwhile nothing more is read. `held` from outside, it passes nothing on and reads up to a bound.
 */
class PacedStream {
  readonly #stream: Readable;
  readonly #copies: () => boolean;
  readonly #turns: Turns;
  readonly #pass: (piece: Buffer | null) => boolean;
  readonly #read: (size: number) => void;
  readonly #own: { push: boolean; read: boolean };
  readonly #held: Buffer[] = [];
  #heldBytes = 0;
  /** Whether the last piece had too many lines: whoever sends those waits behind those who do not. */
  #isLong = false;
  #isBehind = false;
  #ended = false;
  /** The stream asked for more while something was held. */
  #wantsMore = false;
  #hold: Hold | undefined;
  #parsing: Buffer | undefined;

  constructor(stream: Readable, copies: () => boolean, turns: Turns) {
    this.#stream = stream;
    this.#copies = copies;
    this.#turns = turns;
    this.#own = { push: Object.hasOwn(stream, "push"), read: Object.hasOwn(stream, "_read") };
    this.#pass = stream.push;
    this.#read = stream._read;
    stream.push = (piece: Buffer | null) => this.#take(piece);
    stream._read = (size) => {
      if (this.isHolding && !this.#readsAhead) this.#wantsMore = true;
      else this.#read.call(stream, size);
    };
    stream.on("resume", this.#onResume);
  }

  get isHolding(): boolean {
    return this.#held.length > 0;
  }

  get heldBytes(): number {
    return this.#heldBytes;
  }

  get parsing(): Buffer | undefined {
    return this.#parsing;
  }

  get #readsAhead(): boolean {
    return (
      this.#hold !== undefined && this.#heldBytes + this.#held.length * pieceBytes < this.#hold.mostBytes
    );
  }

  hold(options: Hold): void {
    this.#hold = options;
    // Its own pacing may have ended the reading.
    if (this.#readsAhead) this.#read.call(this.#stream, this.#stream.readableHighWaterMark);
  }

  endHold(): void {
    this.#hold = undefined;
    if (this.isHolding) this.#putBehind();
    else this.#afterHolding();
  }

  goOn(): void {
    this.#isBehind = false;
    if (this.#stream.destroyed) this.#dropHeld();
    // Where nobody reads it, it goes on when they do.
    if (!this.isHolding || this.#hold !== undefined || this.#stream.readableFlowing !== true) return;
    this.#passSome();
  }

  release(): Buffer {
    const stream = this.#stream;
    stream.off("resume", this.#onResume);
    if (this.#own.push) stream.push = this.#pass;
    else Reflect.deleteProperty(stream, "push");
    if (this.#own.read) stream._read = this.#read;
    else Reflect.deleteProperty(stream, "_read");
    const rest = this.#held.length === 1 && this.#held[0] ? this.#held[0] : Buffer.concat(this.#held);
    this.#dropHeld();
    this.#afterHolding();
    return rest;
  }

  readonly #onResume = () => {
    if (this.isHolding) this.#putBehind();
  };

  #take(piece: Buffer | null): boolean {
    if (piece === null) {
      this.#ended = true;
      this.#hold?.onEnd();
      return this.isHolding || this.#hold !== undefined ? false : this.#pass.call(this.#stream, null);
    }
    if (this.#hold !== undefined) {
      this.#keep(piece);
      if (this.#readsAhead) return true;
      this.#hold.onFull?.();
      return false;
    }
    const isNext = !this.isHolding && this.#stream.readableFlowing === true;
    const mayPass = isNext && this.#turns.mayGoOn(this.#isLong);
    if (mayPass && endOfLines(piece) === piece.length) {
      this.#isLong = false;
      let more = false;
      this.#run(piece, () => {
        more = this.#pass.call(this.#stream, piece);
      });
      // Who has taken the stream over may have kept what the parser left.
      if (this.#stream.readableLength === 0 && this.#copies()) spendRead(piece);
      return more;
    }
    // Who gave it may use its memory again once nothing of it is in the stream.
    this.#keep(piece);
    if (mayPass) this.#passSome();
    else this.#putBehind();
    return this.#readsAhead;
  }

  #keep(piece: Buffer): void {
    this.#held.push(copyOf(piece));
    this.#heldBytes += piece.length;
  }

  #dropHeld(): void {
    this.#held.length = 0;
    this.#heldBytes = 0;
  }

  /** Passes on as many lines as are parsed at once. */
  #passSome(): void {
    const [first] = this.#held;
    if (first === undefined) return;
    const end = endOfLines(first);
    this.#isLong = end < first.length;
    // Before it is parsed: whoever releases the stream meanwhile takes what follows.
    if (this.#isLong) this.#held[0] = first.subarray(end);
    else this.#held.shift();
    const piece = this.#isLong ? first.subarray(0, end) : first;
    this.#heldBytes -= piece.length;
    this.#run(piece, () => this.#pass.call(this.#stream, piece));
    if (this.isHolding) this.#putBehind();
    else this.#afterHolding();
  }

  #run(piece: Buffer, parse: () => void): void {
    this.#parsing = piece;
    try {
      this.#turns.run(parse);
    } finally {
      this.#parsing = undefined;
    }
  }

  #putBehind(): void {
    if (this.#isBehind || this.#hold !== undefined || this.#stream.readableFlowing !== true) return;
    this.#isBehind = true;
    this.#turns.putBehind();
  }

  #afterHolding(): void {
    const stream = this.#stream;
    if (stream.destroyed) return;
    if (this.#ended) this.#pass.call(stream, null);
    else if (this.#wantsMore) {
      this.#wantsMore = false;
      this.#read.call(stream, stream.readableHighWaterMark);
    }
  }
}

/** @returns where what is parsed at once ends: behind so many lines, or at the end of the piece. */
function endOfLines(piece: Buffer): number {
  let end = 0;
  for (let lines = 0; lines < linesAtOnce; lines++) {
    const at = piece.indexOf(lineFeed, end);
    if (at === -1) return piece.length;
    end = at + 1;
  }
  return end;
}
