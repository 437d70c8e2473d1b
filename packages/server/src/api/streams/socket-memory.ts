import type { Readable } from "node:stream";
import type { WebSocket } from "@fastify/websocket";
import type { Body, BodyBudget } from "../../core/answers/body-budget.ts";
import { freeBytes } from "../../core/answers/holding.ts";
import type { Share } from "../../core/answers/shares.ts";
import { CallerGone } from "../../platform/deadline.ts";

/** The code that tells a client to connect again later. */
export const tryAgainLater = 1013;

/** How long one waits that found no room in vain, because its program takes what came too slowly. */
const againMs = 1_000;

/** What WebSockets hold of their clients' messages, all of them together, and whose part of it one takes. */
export interface SocketShare {
  readonly budget: BodyBudget;
  readonly share: Share;
}

/**
 * Memory that a WebSocket takes for what its client sends: of a message that is not complete, which the library keeps, and of what
 * is kept of those that were. Where there is none the client is not read, as long as a program has not taken what came before. Where
 * that is for want of the rest of a message the connection is to be ended in the end, and where a smaller share waits for memory.
 */
export class SocketMemory {
  readonly #socket: WebSocket;
  readonly #body: Body;
  readonly #onRoom: () => void;
  readonly #onEnd: (why: string) => void;
  #release: () => void = () => undefined;
  /** Bytes that came since the last message. */
  #comingBytes = 0;
  #keptBytes = 0;
  /** Ends a wait for room, while there is one. */
  #waiting: AbortController | undefined;
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
    this.#body = memory.budget.open((release) => (this.#release = release), memory.share);
    this.#body.endsBy(() => this.#end());
    const onData = (data: Buffer) => {
      this.#comingBytes += data.length;
      this.#hold();
    };
    connection.on("data", onData);
    socket.on("message", () => {
      this.#comingBytes = 0;
      // Whoever keeps it has said so by then: what it had is not given away first.
      queueMicrotask(() => this.#hold());
    });
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
    const room = this.#body.grow("", bytes, waiting.signal);
    if (room === undefined) return;
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
    if (this.#keptBytes === 0) this.#end();
    else setTimeout(() => this.#goOn(waiting), againMs).unref();
  }

  #end(): void {
    if (this.#over) return;
    this.#over = true;
    this.#onEnd("no memory for what was sent and not taken; connect again");
  }
}
