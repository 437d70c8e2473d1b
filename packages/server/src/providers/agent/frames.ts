import { textLength } from "../../platform/text-length.ts";
import { ProviderError, TooLarge } from "../../ports/errors.ts";

/** See docs/agent-protocol.md, Frames. */
export const frameKinds = {
  hello: 0x01,
  welcome: 0x02,
  request: 0x03,
  reply: 0x04,
  error: 0x05,
  event: 0x06,
  end: 0x07,
  data: 0x10,
  eof: 0x11,
  stdout: 0x12,
  stderr: 0x13,
  ack: 0x14,
} as const;

const headerBytes = 5;
const offsetBytes = 8;
export const maxControlBytes = 4 * 1024 * 1024;
export const maxDataBytes = 1024 * 1024;
/** Output at this offset still ends at one that a number holds exactly. */
const maxOffset = Number.MAX_SAFE_INTEGER - maxDataBytes;
const noBytes = Buffer.alloc(0);
/** So many bytes of JSON cost about what a frame without any does. */
const frameBytes = 1_024;
const wholeChunk = { from: 0, mostFrames: Number.POSITIVE_INFINITY };

/** Takes decoded frames. Raw frames arrive in the parts the transport cut them into, so that nothing is copied. */
export interface FrameSink {
  /** A whole frame that is not raw. `payload` is only valid during the call. */
  onControl(kind: number, payload: Buffer): void;
  /** The next bytes of a `data`, `stdout` or `stderr` frame. @param offset that of the first byte; 0 for `data`. */
  onRaw(kind: number, bytes: Buffer, offset: number): void;
  /** A raw frame without bytes. */
  onEmpty?(kind: number): void;
}

/**
 * Splits a byte stream into frames. States: header (collecting 5 bytes, for output 8 more), control (collecting a
 * bounded payload), raw (passing bytes on). A frame that breaks the bounds throws and the stream is unusable after it.
 */
export class FrameDecoder {
  readonly #sink: FrameSink;
  /** Not of the pool: each connection that stays would keep a piece of that for a few bytes. */
  readonly #head = Buffer.allocUnsafeSlow(headerBytes + offsetBytes);
  #headFilled = 0;
  #headNeeded = headerBytes;
  #inPayload = false;
  #kind = 0;
  #remaining = 0;
  #offset = 0;
  #control: Buffer | null = null;
  #controlFilled = 0;
  #framesLeft = 0;

  constructor(sink: FrameSink) {
    this.#sink = sink;
  }

  /**
   * @param options.from where to go on in the chunk. @param options.mostFrames after which the rest is left for the next call; one
   * that is not raw counts as more, the longer it is.
   * @returns where the chunk was left; its end when all of it was taken.
   * @throws ProviderError for a frame the protocol does not allow.
   */
  push(chunk: Buffer, options: { from: number; mostFrames: number } = wholeChunk): number {
    let position = options.from;
    const end = chunk.length;
    this.#framesLeft = options.mostFrames;
    while (position < end && this.#framesLeft > 0) {
      if (!this.#inPayload) {
        position = this.#takeHeader(chunk, position);
        continue;
      }
      const available = Math.min(this.#remaining, end - position);
      const part = chunk.subarray(position, position + available);
      position += available;
      this.#remaining -= available;
      if (isRaw(this.#kind)) {
        if (this.#remaining === 0) this.#nextFrame();
        const offset = this.#offset;
        if (this.#kind !== frameKinds.data) this.#offset += available;
        this.#framesLeft -= 1;
        this.#sink.onRaw(this.#kind, part, offset);
      } else {
        this.#takeControl(part);
      }
    }
    return position;
  }

  #takeHeader(chunk: Buffer, position: number): number {
    const wanted = Math.min(this.#headNeeded - this.#headFilled, chunk.length - position);
    for (let index = 0; index < wanted; index += 1) {
      this.#head[this.#headFilled + index] = chunk[position + index] ?? 0;
    }
    this.#headFilled += wanted;
    if (this.#headFilled < this.#headNeeded) return position + wanted;
    if (this.#headNeeded === headerBytes) {
      this.#kind = this.#head[4] ?? 0;
      this.#remaining = this.#head.readUInt32BE(0);
      checkLength(this.#kind, this.#remaining);
      this.#offset = 0;
      if (this.#kind === frameKinds.stdout || this.#kind === frameKinds.stderr) {
        this.#headNeeded = headerBytes + offsetBytes;
        return position + wanted;
      }
    } else {
      this.#remaining -= offsetBytes;
      this.#offset =
        this.#head.readUInt32BE(headerBytes) * 2 ** 32 + this.#head.readUInt32BE(headerBytes + 4);
      if (this.#offset > maxOffset)
        throw new ProviderError(`the agent sent output at ${this.#offset}, further than any command writes`);
    }
    if (this.#remaining > 0) {
      this.#inPayload = true;
    } else {
      this.#nextFrame();
      if (isRaw(this.#kind)) {
        this.#framesLeft -= 1;
        this.#sink.onEmpty?.(this.#kind);
      } else this.#give(noBytes);
    }
    return position + wanted;
  }

  #takeControl(part: Buffer): void {
    if (this.#control === null) {
      if (this.#remaining === 0) {
        this.#nextFrame();
        this.#give(part);
        return;
      }
      this.#control = Buffer.allocUnsafe(part.length + this.#remaining);
      this.#controlFilled = 0;
    }
    part.copy(this.#control, this.#controlFilled);
    this.#controlFilled += part.length;
    if (this.#remaining > 0) return;
    const payload = this.#control;
    this.#control = null;
    this.#nextFrame();
    this.#give(payload);
  }

  #give(payload: Buffer): void {
    this.#framesLeft -= 1 + Math.floor(payload.length / frameBytes);
    this.#sink.onControl(this.#kind, payload);
  }

  #nextFrame(): void {
    this.#inPayload = false;
    this.#headFilled = 0;
    this.#headNeeded = headerBytes;
  }
}

function isRaw(kind: number): boolean {
  return kind === frameKinds.data || kind === frameKinds.stdout || kind === frameKinds.stderr;
}

function checkLength(kind: number, length: number): void {
  switch (kind) {
    case frameKinds.welcome:
    case frameKinds.reply:
    case frameKinds.error:
    case frameKinds.event:
      if (length <= maxControlBytes) return;
      break;
    case frameKinds.end:
    case frameKinds.eof:
      if (length === 0) return;
      break;
    case frameKinds.data:
      if (length <= maxDataBytes) return;
      break;
    case frameKinds.stdout:
    case frameKinds.stderr:
      if (length >= offsetBytes && length <= maxDataBytes + offsetBytes) return;
      break;
    default:
      throw new ProviderError(`the agent sent a frame of unknown kind 0x${kind.toString(16)}`);
  }
  throw new ProviderError(
    `the agent sent a frame of kind 0x${kind.toString(16)} and ${length} bytes, outside its bounds`,
  );
}

/** @returns a whole frame whose payload is `value` as JSON. @throws ProviderError above 4 MiB. */
export function encodeJsonFrame(kind: number, value: unknown): Buffer {
  // Spelling out many megabytes, to refuse them, would take longer than all that is taken.
  const least = textLength(value);
  if (least > maxControlBytes) throw tooLong(`at least ${least}`);
  const text = JSON.stringify(value);
  const length = Buffer.byteLength(text);
  if (length > maxControlBytes) throw tooLong(String(length));
  const frame = Buffer.allocUnsafe(headerBytes + length);
  frame.writeUInt32BE(length, 0);
  frame[4] = kind;
  frame.write(text, headerBytes);
  return frame;
}

function tooLong(bytes: string): TooLarge {
  return new TooLarge(
    `what is asked for takes ${bytes} bytes to say, and a sandbox takes ${maxControlBytes} at once; put large texts into files or standard input`,
  );
}

/** @returns the header in front of `length` payload bytes. */
export function encodeHeader(kind: number, length: number): Buffer {
  const header = Buffer.allocUnsafe(headerBytes);
  header.writeUInt32BE(length, 0);
  header[4] = kind;
  return header;
}

/** @returns the frame that says that output before `offset` was handed on. */
export function encodeAck(offset: number): Buffer {
  const frame = Buffer.allocUnsafe(headerBytes + offsetBytes);
  frame.writeUInt32BE(offsetBytes, 0);
  frame[4] = frameKinds.ack;
  frame.writeBigUInt64BE(BigInt(offset), headerBytes);
  return frame;
}
