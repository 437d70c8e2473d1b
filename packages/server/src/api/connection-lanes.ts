import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";

/** Whoever has more of them waiting means no good. */
const mostWaiting = 1_000;
/** What those that wait were read with, their bodies too. Above it the connection is no longer read until all are answered. */
const highWaterBytes = 131_072;

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

interface Lane {
  readonly waiting: [IncomingMessage, ServerResponse][];
  /** Of the connection, when the first that waits was read. */
  bytesRead: number;
  held: boolean;
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

  constructor(handle: Handler) {
    this.#handle = handle;
  }

  /** For the server's `request` event. */
  readonly take: Handler = (request, response) => {
    const { socket } = request;
    const lane = this.#lanes.get(socket);
    if (lane === undefined) return this.#begin(socket, newLane(), [request, response]);
    if (lane.waiting.length >= mostWaiting) return void socket.destroy();
    if (lane.waiting.length === 0) lane.bytesRead = socket.bytesRead;
    lane.waiting.push([request, response]);
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

  #onAnswered(socket: Socket, lane: Lane): void {
    const next = socket.destroyed ? undefined : lane.waiting.shift();
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
  return { waiting: [], bytesRead: 0, held: false };
}
