import type { Socket } from "node:net";
import { Duplex } from "node:stream";

/** Offset of the length in a frame's header: one byte naming the stream, three of padding, a big-endian length. */
const lengthOffset = 4;
const headerBytes = 8;
export const stdoutStream = 1;
export const stderrStream = 2;

/** Takes the engine's framing of several streams in one apart, however its chunks are cut. */
export class Demultiplexer {
  readonly #onData: (stream: number, data: Buffer) => void;
  #header = Buffer.alloc(0);
  #stream = 0;
  #remaining = 0;

  constructor(onData: (stream: number, data: Buffer) => void) {
    this.#onData = onData;
  }

  push(chunk: Buffer): void {
    let rest = chunk;
    while (rest.length > 0) {
      if (this.#remaining > 0) {
        const part = rest.subarray(0, this.#remaining);
        this.#remaining -= part.length;
        rest = rest.subarray(part.length);
        this.#onData(this.#stream, part);
        continue;
      }
      const wanted = headerBytes - this.#header.length;
      this.#header = Buffer.concat([this.#header, rest.subarray(0, wanted)]);
      rest = rest.subarray(wanted);
      if (this.#header.length < headerBytes) return;
      this.#stream = this.#header.readUInt8(0);
      this.#remaining = this.#header.readUInt32BE(lengthOffset);
      this.#header = Buffer.alloc(0);
    }
  }
}

/** Longest text kept of what is no output of the program, bytes. */
const keptTextBytes = 2_000;
/** The agent's first frame is a short one: a longer length is the start of a sentence. */
const longestFirstFrame = 0xff_ffff;

/**
 * Standard input and output of an agent's bridge as one stream, over a connection the engine handed over. What the
 * bridge writes to standard error is passed to `onStderr`. Back-pressure works both ways; ending the writing side
 * closes the bridge's standard input. It fails with `onForeign`'s error when the engine's own words come in place of
 * output, and with `onEarlyEnd`'s when the bridge ends without a byte.
 */
export class ContainerStdio extends Duplex {
  readonly #socket: Socket;
  readonly #onForeign: (text: string) => Error;
  readonly #onEarlyEnd: () => Error;
  /** The first bytes of output, until there are enough to tell; undefined once they were told. */
  #first: Buffer | undefined = Buffer.alloc(0);
  #foreign: Buffer | undefined;

  constructor(options: {
    socket: Socket;
    head: Buffer;
    onStderr: (data: Buffer) => void;
    onForeign: (text: string) => Error;
    onEarlyEnd: () => Error;
  }) {
    super({ allowHalfOpen: true });
    this.#socket = options.socket;
    this.#onForeign = options.onForeign;
    this.#onEarlyEnd = options.onEarlyEnd;
    const demultiplexer = new Demultiplexer((stream, data) => {
      if (stream === stderrStream) options.onStderr(data);
      else this.#take(data);
    });
    this.#socket.setNoDelay(true);
    this.#socket.on("data", (chunk: Buffer) => demultiplexer.push(chunk));
    this.#socket.on("end", () => this.#ended());
    this.#socket.on("error", (error) => this.destroy(error));
    // After an orderly end what was read is still handed out; then the stream ends by itself.
    this.#socket.on("close", () => {
      if (!this.#socket.readableEnded) this.destroy();
    });
    if (options.head.length > 0) demultiplexer.push(options.head);
  }

  override _read(): void {
    this.#socket.resume();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: (error?: Error | null) => void): void {
    this.#socket.write(chunk, done);
  }

  override _final(done: (error?: Error | null) => void): void {
    this.#socket.end(done);
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#socket.destroy();
    done(error);
  }

  #take(data: Buffer): void {
    if (this.#foreign !== undefined) {
      if (this.#foreign.length < keptTextBytes) this.#foreign = Buffer.concat([this.#foreign, data]);
    } else if (this.#first === undefined) {
      this.#forward(data);
    } else {
      const first = Buffer.concat([this.#first, data]);
      if (first.length < 4) {
        this.#first = first;
      } else if (first.readUInt32BE(0) > longestFirstFrame) {
        this.#foreign = first;
      } else {
        this.#first = undefined;
        this.#forward(first);
      }
    }
  }

  #forward(data: Buffer): void {
    if (!this.push(data)) this.#socket.pause();
  }

  #ended(): void {
    if (this.#foreign !== undefined) this.destroy(this.#onForeign(this.#foreign.toString("utf8").trim()));
    else if (this.#first !== undefined) this.destroy(this.#onEarlyEnd());
    else this.push(null);
  }
}
