import type { Readable } from "node:stream";
import type { WebSocket } from "@fastify/websocket";
import type { Body, BodyBudget } from "../../core/answers/body-budget.ts";
import { freeBytes } from "../../core/answers/holding.ts";
import type { Share } from "../../core/answers/shares.ts";
import { CallerGone } from "../../platform/deadline.ts";
import { socketBounds } from "./socket-bounds.ts";

/** The code that tells a client to connect again later. */
export const tryAgainLater = 1013;

/** How long one waits that found no room in vain, because its program takes what came too slowly, or not even a place to wait in. */
const againMs = 1_000;

/** So many parts of a message, or pieces of one, are kept as they came when they have fewer bytes than that on average. */
const mostSmallParts = 64;
const smallPartBytes = 256;

/** What the library knows of a message that it has the beginning of, and tells nobody. */
interface Receiver {
  /** What has come of the message, and of the part of it that is not complete. */
  _fragments: readonly Buffer[];
  _buffers: readonly Buffer[];
  /** Of the parts that have begun, all that they are to have. */
  readonly _totalPayloadLength: number;
  /** Not 0: more parts may follow. */
  readonly _fragmented: number;
}

/** What WebSockets hold of their clients' messages, all of them together, and whose part of it one takes. */
export interface SocketShare {
  readonly budget: BodyBudget;
  readonly share: Share;
}

/**
 * Memory that a WebSocket takes for what its client sends: of a message that is not complete, which the library keeps, and of what
 * is kept of those that were. Where there is none the client is not read, as long as a program has not taken what came before. Where
 * that is for want of the rest of a message the connection is to be ended in the end, and where a smaller share waits for memory.
 * A message that takes memory has it for all that it may come to, against its owner alone: of many at once some end before others go on.
 * What it counts is bytes, so that parts of a few of them are joined: each is an object of some hundred.
 */
export class SocketMemory {
  readonly #socket: WebSocket;
  readonly #budget: BodyBudget;
  readonly #body: Body;
  readonly #onRoom: () => void;
  readonly #onEnd: (why: string) => void;
  #release: () => void = () => undefined;
  /** Bytes that came since the last message. */
  #comingBytes = 0;
  #keptBytes = 0;
  /** Ends a wait for room, while there is one. */
  #waiting: AbortController | undefined;
  #waitsSinceMs: number | undefined;
  #over = false;

  /**
   * @param options.connection what the WebSocket reads from, which is read already.
   * @param options.onRoom it may be read again. @param options.onEnd it is to be closed with `tryAgainLater`; called once.
   */
  constructor(options: {
    socket: WebSocket;
    connection: Readable;
    memory: SocketShare;
    onRoom: () => void;
    onEnd: (why: string) => void;
  }) {
    const { socket, connection, memory } = options;
    this.#socket = socket;
    this.#onRoom = options.onRoom;
    this.#onEnd = options.onEnd;
    this.#budget = memory.budget;
    this.#body = memory.budget.open((release) => (this.#release = release), memory.share);
    const onData = (data: Buffer) => {
      joinSmallParts(socket);
      this.#comingBytes += data.length;
      this.#hold();
    };
    connection.on("data", onData);
    // What comes behind a message that is refused is kept by nobody.
    socket.once("error", () => connection.off("data", onData));
    socket.on("message", () => {
      this.#comingBytes = 0;
      // Whoever keeps it has said so by then: what it had is not given away first.
      queueMicrotask(() => this.#hold());
    });
    // The library stops at each message, ping and pong, and reads on behind those who are told of it.
    const onStop = () => queueMicrotask(() => joinSmallParts(socket));
    socket.on("message", onStop).on("ping", onStop).on("pong", onStop);
    socket.once("close", () => {
      connection.off("data", onData);
      this.#over = true;
      this.#waiting?.abort(new CallerGone());
      this.#release();
    });
  }

  /** Whether nothing should be read before `onRoom` is called. */
  get waits(): boolean {
    return this.#waiting !== undefined;
  }

  /** @param bytes what is kept of messages that were complete. */
  keep(bytes: number): void {
    this.#keptBytes = bytes;
    this.#hold();
  }

  #hold(): void {
    if (this.#over) return;
    const bytes = this.#comingBytes + this.#keptBytes;
    if (bytes < this.#body.bytes) this.#body.shrink(bytes);
    if (this.#waiting !== undefined) {
      // It was taken meanwhile.
      if (bytes <= Math.max(this.#body.bytes, freeBytes)) this.#goOn(this.#waiting);
      return;
    }
    const waiting = new AbortController();
    const upTo = this.#keptBytes + Math.max(this.#comingBytes, largestOf(this.#socket));
    // It has from now on the time that others have for the whole of it.
    if (!this.#body.begun) this.#body.endsBy(() => this.#end());
    const room = this.#body.grow("", bytes, waiting.signal, Math.min(upTo, this.#budget.ownerBytes));
    if (room === undefined) {
      this.#waitsSinceMs = undefined;
      return;
    }
    this.#waitsSinceMs ??= performance.now();
    this.#waiting = waiting;
    this.#socket.pause();
    room.then(
      () => this.#goOn(waiting),
      () => this.#foundNone(waiting),
    );
  }

  #goOn(waiting: AbortController): void {
    if (this.#waiting !== waiting || this.#over) return;
    this.#waiting = undefined;
    waiting.abort(new CallerGone());
    // More may have come.
    this.#hold();
    if (!this.waits && !this.#over) this.#onRoom();
  }

  #foundNone(waiting: AbortController): void {
    if (this.#waiting !== waiting) return;
    const waitedMs = performance.now() - (this.#waitsSinceMs ?? 0);
    if (this.#keptBytes === 0 && waitedMs > 0.9 * this.#budget.waitMs) this.#end();
    else setTimeout(() => this.#goOn(waiting), againMs).unref();
  }

  #end(): void {
    if (this.#over) return;
    this.#over = true;
    this.#onEnd("no memory for what was sent and not taken; connect again");
  }
}

/** What the message that comes may have at most, as far as it is known. */
function largestOf(socket: WebSocket): number {
  const { _receiver: receiver } = socket as WebSocket & { _receiver?: Receiver };
  if (receiver === undefined) return 0;
  const most = socketBounds.maxPayload;
  return receiver._fragmented === 0 ? Math.min(receiver._totalPayloadLength, most) : most;
}

/** A client decides how many parts there are; the library joins them when the message is whole. */
function joinSmallParts(socket: WebSocket): void {
  const { _receiver: receiver } = socket as WebSocket & { _receiver?: Receiver };
  if (receiver === undefined) return;
  receiver._fragments = joinedIfSmall(receiver._fragments);
  receiver._buffers = joinedIfSmall(receiver._buffers);
}

function joinedIfSmall(parts: readonly Buffer[]): readonly Buffer[] {
  if (parts.length <= mostSmallParts) return parts;
  const bytes = parts.reduce((sum, { length }) => sum + length, 0);
  return bytes < parts.length * smallPartBytes ? [Buffer.concat(parts)] : parts;
}
