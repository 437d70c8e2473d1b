import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { ReadTurns } from "../platform/read-turns.ts";
import { endConnection } from "./end-connection.ts";
import { endWhenStalled } from "./stall-watch.ts";

/** Whoever has more of them waiting means no good: each is some kilobytes, for as long as the answer before it is not read. */
const mostWaiting = 128;
/** What those that wait were read with, their bodies too. Above it nothing more of the connection is parsed until the last of them is begun. */
const highWaterBytes = 131_072;
/** What is read of such a connection all the same, so that its end is noticed. */
const mostUnparsedBytes = 262_144;
/** How long the head of a request may take that was kept from being parsed, from when it no longer is. */
const headMs = 60_000;
/** What is read of a connection of which nothing more is wanted. */
const mostUnwantedBytes = 65_536;

type Handler = (request: IncomingMessage, response: ServerResponse) => void;
type Exchange = readonly [IncomingMessage, ServerResponse];

interface Lane {
  /** Under way, or just about to be. */
  current: Exchange;
  readonly waiting: Exchange[];
  /** Of the connection, when the first that waits was parsed. */
  parsedBytes: number;
  held: boolean;
  /** What is to be said of a head that ran out of its time while it was kept from being parsed. */
  late: string | undefined;
  /** What the connection ends with once all are answered. */
  ending: string | undefined;
  /** Runs while requests wait. */
  stall: Disposable | undefined;
}

/**
 * Requests of one connection, one after the other: Node hands on all that were read before any is answered, thousands at once.
 * A lane is there while a request of its connection is answered; the next is taken up in a later turn than the one before has
 * ended in, so that other connections come in between. Answers go out in order anyway, and who wants more at once has more
 * connections, which are bounded.
 */
export class ConnectionLanes {
  readonly #turns: ReadTurns;
  readonly #lanes = new WeakMap<Socket, Lane>();
  readonly #stalledMs: number | undefined;
  readonly #headMs: number;
  /** When a connection was last let go, until a request comes of it. */
  readonly #letGoMs = new WeakMap<Socket, number>();
  /** Ends a connection of which no request comes. */
  readonly #overdue = new WeakMap<Socket, NodeJS.Timeout>();
  readonly #saidLast = new WeakSet<Socket>();

  /** @param options.turns in which the connections are parsed. */
  constructor(options: { turns: ReadTurns; stalledMs?: number; headMs?: number }) {
    this.#turns = options.turns;
    this.#stalledMs = options.stalledMs;
    this.#headMs = options.headMs ?? headMs;
  }

  /** @returns what takes the server's `request` event and has `handle` deal with one at a time. */
  inTurn(handle: Handler): Handler {
    return (request, response) => this.#take(handle, [request, response]);
  }

  /**
   * What comes next on a connection is no request: it ends once all before it are answered, with `answer`, which would be taken
   * for a part of theirs before that.
   */
  end(socket: Socket, answer: string): void {
    const lane = this.#lanes.get(socket);
    if (lane === undefined) {
      this.#sayLast(socket, answer);
      return;
    }
    if (lane.ending !== undefined) return;
    const [request, response] = lane.waiting.at(-1) ?? lane.current;
    // It is the body of this one then, which will never be whole.
    if (!request.complete && lane.waiting.pop() === undefined) {
      if (response.headersSent) socket.destroy();
      else this.#sayLast(socket, answer);
      return;
    }
    lane.ending = answer;
    const destroy = () => void socket.destroy();
    this.#turns.hold(socket, { mostBytes: mostUnwantedBytes, onEnd: destroy, onFull: destroy });
  }

  /** As `end`, where a head did not come in its time; where it was kept from being parsed, it has that time again. */
  endLate(socket: Socket, answer: string): void {
    const lane = this.#lanes.get(socket);
    const sinceMs = performance.now() - (this.#letGoMs.get(socket) ?? Number.NEGATIVE_INFINITY);
    if (lane?.held) lane.late = answer;
    else if (sinceMs < this.#headMs) this.#expectHead(socket, { answer, ms: this.#headMs - sinceMs });
    else this.end(socket, answer);
  }

  /** Another protocol has taken the connection over: no head is waited for. */
  leave(socket: Socket): void {
    this.#letGoMs.delete(socket);
    clearTimeout(this.#overdue.get(socket));
  }

  /** Whether it was told its last word: nothing that still comes on it is looked at. */
  isEnding(socket: Socket): boolean {
    return this.#saidLast.has(socket);
  }

  #take(handle: Handler, exchange: Exchange): void {
    const [{ socket }] = exchange;
    this.leave(socket);
    const lane = this.#lanes.get(socket);
    if (lane === undefined) {
      this.#begin(handle, socket, newLane(exchange));
      return;
    }
    if (lane.waiting.length >= mostWaiting) {
      socket.destroy();
      return;
    }
    const parsedBytes = socket.bytesRead - this.#turns.heldBytes(socket);
    if (lane.waiting.length === 0) lane.parsedBytes = parsedBytes;
    lane.waiting.push(exchange);
    lane.stall ??= endWhenStalled(socket, this.#stalledMs === undefined ? {} : { afterMs: this.#stalledMs });
    if (lane.held || parsedBytes - lane.parsedBytes < highWaterBytes) return;
    lane.held = true;
    this.#turns.hold(socket, { mostBytes: mostUnparsedBytes, onEnd: () => void socket.destroy() });
  }

  #begin(handle: Handler, socket: Socket, lane: Lane): void {
    this.#lanes.set(socket, lane);
    const [request, response] = lane.current;
    response.once("close", () => this.#onAnswered(handle, socket, lane));
    handle(request, response);
  }

  #onAnswered(handle: Handler, socket: Socket, lane: Lane): void {
    const next = socket.destroyed ? undefined : lane.waiting.shift();
    if (socket.destroyed || lane.waiting.length === 0) {
      lane.stall?.[Symbol.dispose]();
      lane.stall = undefined;
    }
    if (next !== undefined) {
      lane.current = next;
      setImmediate(() => {
        if (socket.destroyed) return;
        this.#begin(handle, socket, lane);
        // The rest of its body may be what is held.
        if (lane.waiting.length === 0) this.#letGo(socket, lane);
      });
      return;
    }
    this.#lanes.delete(socket);
    if (lane.ending !== undefined && socket.writable) this.#sayLast(socket, lane.ending);
  }

  #letGo(socket: Socket, lane: Lane): void {
    if (!lane.held || lane.ending !== undefined) return;
    lane.held = false;
    if (lane.late === undefined) this.#letGoMs.set(socket, performance.now());
    else this.#expectHead(socket, { answer: lane.late, ms: this.#headMs });
    lane.late = undefined;
    this.#turns.goOn(socket);
  }

  /** Node looks at the time of a head once. */
  #expectHead(socket: Socket, { answer, ms }: { answer: string; ms: number }): void {
    const timer = setTimeout(() => this.end(socket, answer), ms).unref();
    this.#overdue.set(socket, timer);
    socket.once("close", () => clearTimeout(timer));
  }

  #sayLast(socket: Socket, answer: string): void {
    this.#saidLast.add(socket);
    socket.write(answer);
    endConnection(socket);
  }
}

function newLane(current: Exchange): Lane {
  return {
    current,
    waiting: [],
    parsedBytes: 0,
    held: false,
    late: undefined,
    ending: undefined,
    stall: undefined,
  };
}
