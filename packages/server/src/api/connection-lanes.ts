import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";

/** Whoever has more of them waiting means no good: each is some kilobytes, for as long as the answer before it is not read. */
const mostWaiting = 128;
/** An answer of which nothing was taken for so long, while requests wait behind it, ends the connection. */
const stalledMs = 30_000;
/** What those that wait were read with, their bodies too. Above it the connection is no longer read until all are answered. */
const highWaterBytes = 131_072;

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

interface Lane {
  readonly waiting: [IncomingMessage, ServerResponse][];
  /** Of the connection, when the first that waits was read. */
  bytesRead: number;
  held: boolean;
  /** Runs while requests wait. */
  stall: NodeJS.Timeout | undefined;
}

/**
 * Requests of one connection, one after the other: Node hands on all that were read before any is answered, thousands at once.
 * A lane is there while a request of its connection is answered; the next is taken up in a later turn than the one before has
 * ended in, so that other connections come in between. Answers go out in order anyway, and who wants more at once has more
 * connections, which are bounded.
 */
export class ConnectionLanes {
  readonly #handle: Handler;
  readonly #lanes = new WeakMap<Socket, Lane>();
  readonly #stalledMs: number;

  constructor(handle: Handler, options: { stalledMs?: number } = {}) {
    this.#handle = handle;
    this.#stalledMs = options.stalledMs ?? stalledMs;
  }

  /** For the server's `request` event. */
  readonly take: Handler = (request, response) => {
    const { socket } = request;
    const lane = this.#lanes.get(socket);
    if (lane === undefined) return this.#begin(socket, newLane(), [request, response]);
    if (lane.waiting.length >= mostWaiting) return void socket.destroy();
    if (lane.waiting.length === 0) lane.bytesRead = socket.bytesRead;
    lane.waiting.push([request, response]);
    lane.stall ??= this.#watchProgress(socket);
    if (lane.held || socket.bytesRead - lane.bytesRead < highWaterBytes) return;
    lane.held = true;
    // At the end of a request's head Node itself goes on reading.
    process.nextTick(() => {
      if (lane.held) socket.pause();
    });
  };

  #begin(socket: Socket, lane: Lane, [request, response]: Lane["waiting"][number]): void {
    this.#lanes.set(socket, lane);
    response.once("close", () => this.#onAnswered(socket, lane));
    this.#handle(request, response);
  }

  /** What is sent as it comes, events for one, may be silent: then nothing waits to be written. */
  #watchProgress(socket: Socket): NodeJS.Timeout {
    let written = socket.bytesWritten - socket.writableLength;
    const timer = setInterval(() => {
      if (socket.destroyed) return clearInterval(timer);
      const now = socket.bytesWritten - socket.writableLength;
      if (socket.writableLength > 0 && now === written) socket.destroy();
      written = now;
    }, this.#stalledMs).unref();
    return timer;
  }

  #onAnswered(socket: Socket, lane: Lane): void {
    const next = socket.destroyed ? undefined : lane.waiting.shift();
    if (socket.destroyed || lane.waiting.length === 0) {
      clearInterval(lane.stall);
      lane.stall = undefined;
    }
    if (next !== undefined) {
      setImmediate(() => {
        if (!socket.destroyed) this.#begin(socket, lane, next);
      });
      return;
    }
    this.#lanes.delete(socket);
    if (!lane.held) return;
    lane.held = false;
    socket.resume();
  }
}

function newLane(): Lane {
  return { waiting: [], bytesRead: 0, held: false, stall: undefined };
}
