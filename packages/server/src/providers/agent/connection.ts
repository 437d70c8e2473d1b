import { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { beyondBounds, type JsonBounds } from "../../platform/bounded-json.ts";
import type { FairTurns, Taker } from "../../platform/fair-turns.ts";
import { spend } from "../../platform/spent-bytes.ts";
import { ProviderError } from "../../ports/errors.ts";
import { connectionBroke, translateFailure } from "./failures.ts";
import {
  encodeAck,
  encodeHeader,
  encodeJsonFrame,
  FrameDecoder,
  type FrameSink,
  frameKinds,
  maxDataBytes,
} from "./frames.ts";
import type { Operation } from "./operation.ts";
import { numberOf, objectOf, textOf } from "./reading.ts";

/** Bytes of an upload that may wait in this process before its source is held. */
const uploadWindowBytes = 1024 * 1024;
/** The same of pieces that are smaller than what an object costs. */
const smallUploadWindowBytes = 16_384;
const smallPieceBytes = 1_024;
const supportedVersion = 1;

/**
 * What an agent can do beyond the first release of its protocol, by name: docs/agent-protocol.md, Growth. A field or an
 * operation that came later is sent only to an agent that names its feature.
 */
export type AgentFeatures = ReadonlySet<string>;

/** More names than this no agent has to tell. */
const mostFeatures = 256;
/** What was told last: thousands of agents of one release tell the same, and each of their clients keeps it. */
let toldLast: AgentFeatures = new Set();
/** A read of at least so many is one of an agent that sends as fast as it is read. */
const bulkBytes = 32_768;
/** Decoded and handed on at once, for some hundred microseconds; after it others of the process come. */
const framesAtOnce = 32;

/**
 * One stream to an agent. States: idle (no operation; may be reused), busy (one operation), closed. Raw frames sent by
 * the client make it single-use: the agent may have ended the operation before it saw them.
 *
 * What a read brings is dealt with at once while little is going on, else in the turns of all connections of the process. Until
 * then nothing more is read, and the other side's end is not looked at. After a read of much it may rest, so that commands of others go first.
 */
export class AgentConnection implements FrameSink {
  readonly #socket: Duplex;
  readonly #name: string;
  readonly #onWelcome: (features: AgentFeatures) => void;
  readonly #onIdle: (connection: AgentConnection) => void;
  readonly #onClosed: (connection: AgentConnection) => void;
  readonly #decoder = new FrameDecoder(this);
  readonly #turns: FairTurns;
  readonly #taker: Taker;
  readonly #rest: (goOn: () => void) => boolean;
  /** Nothing is read for a moment, in which others' commands go first. */
  #resting = false;
  /** What was read and is not all decoded; and where the first of it goes on. */
  readonly #held: Buffer[] = [];
  #heldFrom = 0;
  /** The operation takes no more at the moment. */
  #paused = false;
  /** The other side has ended it, and what came before is still held. */
  #ended = false;
  #welcomed = false;
  #operation: Operation | null = null;
  #replied = false;
  #eofs = false;
  #onStale: (() => void) | null = null;
  /** Makes the request that waits for the welcome. */
  #encode: ((features: AgentFeatures) => Buffer) | null = null;
  #sentRaw = false;
  #closed = false;
  #cause: unknown;
  #drainWaiters: (() => void)[] = [];

  constructor(options: {
    socket: Duplex;
    name: string;
    /** Those of all connections of the process. */
    turns: FairTurns;
    /** As whom this one takes part in them. */
    taker: Taker;
    /** Asked after each read of much. @returns whether nothing is read until it calls back. */
    rest: (goOn: () => void) => boolean;
    /** The agent has told what it can do. */
    onWelcome: (features: AgentFeatures) => void;
    onIdle: (connection: AgentConnection) => void;
    onClosed: (connection: AgentConnection) => void;
  }) {
    this.#socket = options.socket;
    this.#name = options.name;
    this.#turns = options.turns;
    this.#taker = options.taker;
    this.#rest = options.rest;
    this.#onWelcome = options.onWelcome;
    this.#onIdle = options.onIdle;
    this.#onClosed = options.onClosed;
    const listen = <T>(event: string, listener: (value: T) => void) =>
      this.#socket.on(event, (value: T) => this.#alone(() => listener(value)));
    listen("data", (chunk: Buffer) => this.#receive(chunk));
    listen("drain", () => this.#wakeWriters());
    listen("end", () => this.#onOver());
    listen("error", (error: Error) => {
      this.#cause ??= error;
      this.#onOver();
    });
    listen("close", () => this.#onOver());
  }

  get closed(): boolean {
    return this.#closed;
  }

  /**
   * Sends a request, in front of it whatever `bytes` starts with (a hello).
   * @param onStale called instead of failing the operation, which it has to do or to start elsewhere, when the connection ends before any frame arrived.
   */
  start(bytes: Buffer, operation: Operation, onStale: (() => void) | null): void {
    this.#begin(operation);
    this.#onStale = onStale;
    this.#socket.write(bytes);
    operation.onStarted();
  }

  /** As `start` on a fresh connection, for a request that depends on what the agent can do: it follows the welcome. */
  startAfterWelcome(hello: Buffer, operation: Operation, encode: (features: AgentFeatures) => Buffer): void {
    this.#begin(operation);
    this.#encode = encode;
    this.#socket.write(hello);
  }

  #begin(operation: Operation): void {
    this.#operation = operation;
    this.#replied = false;
    this.#eofs = false;
    operation.attach(this);
  }

  /**
   * Sends raw bytes as `data` frames.
   * @param options.spends nobody else has the bytes: their memory is given back once the last of them was written.
   * @returns false when the caller should wait for `drained`.
   */
  sendData(bytes: Uint8Array, options: { spends?: boolean } = {}): boolean {
    const windowBytes = bytes.length < smallPieceBytes ? smallUploadWindowBytes : uploadWindowBytes;
    const onLastWritten = options.spends ? this.#spending(bytes) : this.#onWritten;
    this.#sentRaw = true;
    this.#socket.cork();
    for (let from = 0; from < bytes.length; from += maxDataBytes) {
      const part =
        from === 0 && bytes.length <= maxDataBytes ? bytes : bytes.subarray(from, from + maxDataBytes);
      this.#socket.write(encodeHeader(frameKinds.data, part.length));
      const isLast = from + maxDataBytes >= bytes.length;
      this.#socket.write(part, isLast ? onLastWritten : this.#onWritten);
    }
    this.#socket.uncork();
    return this.#closed || this.#socket.writableLength < windowBytes;
  }

  /** Output before `offset` was handed on. One that comes late is dropped: the connection can be reused after it. */
  sendAck(offset: number): void {
    this.#socket.write(encodeAck(offset));
  }

  sendEof(): void {
    this.#sentRaw = true;
    this.#socket.write(encodeHeader(frameKinds.eof, 0));
  }

  /** Resolves when more may be sent, or when the connection has closed. */
  drained(): Promise<void> {
    if (this.#closed || this.#socket.writableLength < smallUploadWindowBytes) return Promise.resolve();
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#drainWaiters.push(resolve);
    return promise;
  }

  /** Stops reading, so that the kernel's buffers fill and the agent waits. What was read is still given. */
  pause(): void {
    this.#paused = true;
    this.#socket.pause();
  }

  resume(): void {
    this.#paused = false;
    this.#readOn();
  }

  /** For who takes what has come one by one. @returns undefined when the next may be taken at once, else what to wait for. */
  turn(): Promise<void> | undefined {
    return this.#turns.claim(this.#taker);
  }

  /** Calls back when what has arrived together was dealt with. What it throws ends this connection. */
  soon(callback: () => void): void {
    setImmediate(() => this.#alone(callback));
  }

  /** An idle connection does not keep the process alive. */
  setKeepsProcessAlive(alive: boolean): void {
    const socket: Duplex & { ref?: () => void; unref?: () => void } = this.#socket;
    if (alive) socket.ref?.();
    else socket.unref?.();
  }

  destroy(): void {
    this.#close();
  }

  onControl(kind: number, payload: Buffer): void {
    const operation = this.#operation;
    this.#onStale = null;
    switch (kind) {
      case frameKinds.welcome: {
        if (this.#welcomed) throw this.#unexpected(kind);
        this.#welcomed = true;
        const welcome = objectOf(parse(payload, plainBounds), "welcome");
        const version = numberOf(welcome, "version");
        if (version !== supportedVersion) {
          throw new ProviderError(
            `the agent of sandbox ${this.#name} answered in unknown version ${version}`,
          );
        }
        const names = Array.isArray(welcome.features) ? welcome.features.slice(0, mostFeatures) : [];
        const told = new Set(names.filter((name) => typeof name === "string"));
        const same = told.size === toldLast.size && told.isSubsetOf(toldLast);
        const features = same ? toldLast : told;
        toldLast = features;
        this.#onWelcome(features);
        this.#sendWaiting(features);
        return;
      }
      case frameKinds.reply:
        if (operation === null || this.#replied) throw this.#unexpected(kind);
        this.#replied = true;
        operation.onReply(parse(payload, replyBounds));
        return;
      case frameKinds.event:
        if (operation === null) throw this.#unexpected(kind);
        if (!operation.batches && payload.length > plainEventBytes)
          throw new ProviderError(`the agent sent an event of ${payload.length} bytes`);
        operation.onEvent(parse(payload, operation.batches ? batchBounds : plainBounds));
        return;
      case frameKinds.eof:
        if (operation === null || this.#eofs) throw this.#unexpected(kind);
        this.#eofs = true;
        operation.onEof();
        return;
      case frameKinds.error: {
        const failure = objectOf(parse(payload, plainBounds), "error");
        const code = textOf(failure, "code");
        const error = translateFailure(code, textOf(failure, "message"), {
          name: this.#name,
          op: operation?.asked,
        });
        if (operation === null) throw error;
        const fatal = error instanceof ProviderError && code !== "io" && code !== "unconfigured";
        if (fatal) this.#close(error);
        else this.#finish(() => operation.fail(error));
        return;
      }
      case frameKinds.end:
        if (operation === null) throw this.#unexpected(kind);
        this.#finish(() => operation.end());
        return;
      default:
        throw this.#unexpected(kind);
    }
  }

  onRaw(kind: number, bytes: Buffer, offset: number): void {
    if (this.#closed) return;
    if (this.#operation === null) throw this.#unexpected(kind);
    this.#operation.onRaw(kind, bytes, offset);
  }

  /** No agent of any release says that there is nothing. */
  onEmpty(kind: number): void {
    throw new ProviderError(`the agent of sandbox ${this.#name} sent a frame of kind ${kind} without bytes`);
  }

  #sendWaiting(features: AgentFeatures): void {
    const operation = this.#operation;
    const encode = this.#encode;
    this.#encode = null;
    if (encode === null || operation === null || operation.over) return;
    let request: Buffer;
    try {
      request = encode(features);
    } catch (error) {
      // What this agent cannot do was not sent; the connection is as good as any.
      this.#finish(() => operation.fail(error));
      return;
    }
    this.#socket.write(request);
    operation.onStarted();
  }

  #receive(chunk: Buffer): void {
    if (this.#closed) return;
    this.#held.push(chunk);
    // Whoever waits already takes it in its turn.
    if (this.#held.length > 1) return;
    if (this.#turns.mayGoOn()) this.#takeSome();
    if (this.#closed) return;
    if (this.#held.length === 0) {
      // The operation may have let go on while the last of it was given.
      if (this.#restsAfter(chunk)) this.#socket.pause();
      else if (this.#socket.isPaused()) this.#readOn();
      return;
    }
    this.#socket.pause();
    this.#awaitTurn();
  }

  #awaitTurn(): void {
    this.#turns.add(this.#taker, () => {
      this.#alone(() => this.#onTurn());
      return undefined;
    });
  }

  #onTurn(): void {
    const [chunk] = this.#held;
    this.#takeSome();
    if (this.#closed) return;
    // Behind the other connections of the same sandbox.
    if (this.#held.length > 0) this.#awaitTurn();
    else if (this.#ended) this.#close();
    else if (chunk === undefined || !this.#restsAfter(chunk)) this.#readOn();
  }

  #readOn(): void {
    if (this.#held.length === 0 && !this.#paused && !this.#resting) this.#socket.resume();
  }

  #restsAfter(chunk: Buffer): boolean {
    if (chunk.length < bulkBytes || this.#operation === null) return false;
    this.#resting = this.#rest(() => {
      this.#resting = false;
      if (!this.#closed) this.#readOn();
    });
    return this.#resting;
  }

  /** Decodes as many frames as are handed on at once. */
  #takeSome(): void {
    const [chunk] = this.#held;
    if (chunk === undefined) return;
    this.#heldFrom = this.#decoder.push(chunk, { from: this.#heldFrom, mostFrames: framesAtOnce });
    if (this.#closed || this.#heldFrom < chunk.length) return;
    this.#held.shift();
    this.#heldFrom = 0;
    if (this.#socket instanceof Socket) this.#operation?.onSocketRead(chunk);
  }

  #onOver(): void {
    if (this.#held.length === 0) this.#close();
    else this.#ended = true;
  }

  /** What a callback throws, because of what an agent says, ends this connection and nothing else of this process. */
  #alone(callback: () => void): void {
    try {
      callback();
    } catch (error) {
      this.#close(error);
    }
  }

  /** Becomes idle before telling the operation, so that what it starts next can already reuse this connection. */
  #finish(tell: () => void): void {
    this.#operation = null;
    if (this.#sentRaw) this.#close();
    else if (!this.#closed) {
      this.#resting = false;
      this.resume();
      this.#onIdle(this);
    }
    tell();
  }

  #close(error?: unknown): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#held.length = 0;
    const operation = this.#operation;
    const onStale = this.#onStale;
    this.#operation = null;
    this.#onStale = null;
    this.#socket.destroy();
    this.#wakeWriters();
    this.#onClosed(this);
    if (operation === null || operation.over) return;
    if (onStale !== null && error === undefined) onStale();
    else operation.fail(error ?? connectionBroke(this.#name, this.#cause));
  }

  /** Less may wait than what the socket itself calls full, of which alone it tells. */
  readonly #onWritten = () => {
    if (this.#socket.writableLength < smallUploadWindowBytes) this.#wakeWriters();
  };

  #spending(bytes: Uint8Array): (error?: Error | null) => void {
    return (error) => {
      if (!error) spend(bytes);
      this.#onWritten();
    };
  }

  #wakeWriters(): void {
    const waiters = this.#drainWaiters;
    if (waiters.length === 0) return;
    this.#drainWaiters = [];
    for (const wake of waiters) wake();
  }

  #unexpected(kind: number): ProviderError {
    return new ProviderError(`the agent of sandbox ${this.#name} sent a frame of kind ${kind} out of turn`);
  }
}

/**
 * More than is in any frame of an agent that is ours: what stands in one comes from a sandbox. A reply lists commands, a megabyte
 * of them and one more, or tells of one with 65,536 arguments; a batch has a thousand files; nothing else has lists at all.
 */
const replyBounds: JsonBounds = { maxDepth: 32, maxParts: 400_000, maxNames: 100_000 };
const batchBounds: JsonBounds = { maxDepth: 8, maxParts: 32_768, maxNames: 16_384 };
const plainBounds: JsonBounds = { maxDepth: 8, maxParts: 1_024, maxNames: 256 };
/** More than a path, or an error that names one, is ever told in. */
const plainEventBytes = 1_048_576;

function parse(payload: Buffer, bounds: JsonBounds): unknown {
  const excess = beyondBounds(payload, bounds);
  if (excess !== undefined) throw new ProviderError(`a frame of the agent cannot be read: ${excess}`);
  try {
    return JSON.parse(payload.toString("utf8"));
  } catch (error) {
    throw new ProviderError("the agent sent a frame that is not JSON", { cause: error });
  }
}

/** A request's frame, behind a hello when the connection is fresh. */
export function encodeRequest(
  request: { op: string } & Record<string, unknown>,
  hello: Buffer | null,
): Buffer {
  const frame = encodeJsonFrame(frameKinds.request, request);
  return hello === null ? frame : Buffer.concat([hello, frame]);
}

export function encodeHello(token: string): Buffer {
  return encodeJsonFrame(frameKinds.hello, { versions: [supportedVersion], token });
}
