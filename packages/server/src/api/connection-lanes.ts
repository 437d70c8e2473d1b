import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { ReadTurns } from "../platform/read-turns.ts";
import { endConnection } from "./end-connection.ts";
import { bodyIsUnderWay } from "./refused-body.ts";
import { endWhenStalled } from "./stall-watch.ts";

/** Whoever has more of them waiting means no good: each is some kilobytes, for as long as the answer before it is not read. */
const mostWaiting = 128;
/** What those that wait were read with, their bodies too. Above it, and of a body that is not whole, nothing more of the connection is parsed until the last of them is begun. */
const highWaterBytes = 131_072;
/** What is read of such a connection all the same, so that its end is noticed. */
const mostUnparsedBytes = 262_144;
/**
 * What all of that may cost, over all connections: of the shortest headers a request costs nine times its bytes. Above it one request
 * waits on each connection, beside what one read brings, and a connection that has more in one piece ends.
 */
const mostCostOfAll = 67_108_864;
const oneReadBytes = 65_536;
/** What a request costs beside its headers and what has come of its body, and each name and value beside its characters. */
const requestCost = 1_536;
const textCost = 32;
const mostBodyCost = oneReadBytes;
/** How long the head of a request may take that was kept from being parsed, from when it no longer is. */
const headMs = 60_000;
/** What is read of a connection of which nothing more is wanted. */
const mostUnwantedBytes = 65_536;

type Handler = (request: IncomingMessage, response: ServerResponse) => void;
type Exchange = readonly [IncomingMessage, ServerResponse];

interface Lane {
  /** Under way, or just about to be. */
  current: Exchange;
  readonly waiting: { readonly exchange: Exchange; readonly cost: number }[];
  /** Of the connection, when the first that waits was parsed. */
  parsedBytes: number;
  held: boolean;
  /** For what may be read of it and not be parsed. */
  holdCost: number;
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
  readonly #mostCost: number;
  /** Of all that wait, and of what is read behind them. */
  #cost = 0;

  /** @param options.turns in which the connections are parsed. */
  constructor(options: { turns: ReadTurns; stalledMs?: number; headMs?: number; mostCost?: number }) {
    this.#turns = options.turns;
    this.#mostCost = options.mostCost ?? mostCostOfAll;
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
    const [request, response] = lane.waiting.at(-1)?.exchange ?? lane.current;
    // It is the body of this one then, which will never be whole.
    if (!request.complete && this.#noLonger(lane.waiting.pop()) === undefined) {
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

  /** Of all that wait, about, bytes. */
  get waitingCost(): number {
    return this.#cost;
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
    const isFull = this.#cost >= this.#mostCost;
    if (lane.waiting.length >= (isFull ? 1 : mostWaiting)) {
      socket.destroy();
      return;
    }
    const parsedBytes = socket.bytesRead - this.#turns.heldBytes(socket);
    if (lane.waiting.length === 0) lane.parsedBytes = parsedBytes;
    const cost = costOf(exchange[0]);
    lane.waiting.push({ exchange, cost });
    this.#cost += cost;
    lane.stall ??= endWhenStalled(socket, this.#stalledMs === undefined ? {} : { afterMs: this.#stalledMs });
    // One read more, whatever that brings.
    if (isFull) this.#hold(socket, lane, 1);
    else if (parsedBytes - lane.parsedBytes >= highWaterBytes) this.#hold(socket, lane, mostUnparsedBytes);
    else if (bodyIsUnderWay(exchange[0]))
      // What the same piece has of its body is parsed by then.
      queueMicrotask(() => {
        if (lane.waiting.at(-1)?.exchange === exchange && bodyIsUnderWay(exchange[0]))
          this.#hold(socket, lane, mostUnparsedBytes);
      });
  }

  #hold(socket: Socket, lane: Lane, mostBytes: number): void {
    if (lane.held || lane.ending !== undefined) return;
    lane.held = true;
    lane.holdCost = Math.max(mostBytes, oneReadBytes);
    this.#cost += lane.holdCost;
    this.#turns.hold(socket, { mostBytes, onEnd: () => void socket.destroy() });
  }

  #begin(handle: Handler, socket: Socket, lane: Lane): void {
    this.#lanes.set(socket, lane);
    const [request, response] = lane.current;
    response.once("close", () => this.#onAnswered(handle, socket, lane));
    handle(request, response);
  }

  #onAnswered(handle: Handler, socket: Socket, lane: Lane): void {
    if (socket.destroyed) this.#drop(lane);
    const next = this.#noLonger(lane.waiting.shift());
    if (lane.waiting.length === 0) {
      lane.stall?.[Symbol.dispose]();
      lane.stall = undefined;
    }
    if (next !== undefined) {
      lane.current = next;
      setImmediate(() => {
        if (socket.destroyed) return this.#drop(lane);
        this.#begin(handle, socket, lane);
        // The rest of its body may be what is held.
        if (lane.waiting.length === 0) this.#letGo(socket, lane);
      });
      return;
    }
    this.#lanes.delete(socket);
    this.#drop(lane);
    if (lane.ending !== undefined && socket.writable) this.#sayLast(socket, lane.ending);
  }

  #noLonger(waited: Lane["waiting"][number] | undefined): Exchange | undefined {
    this.#cost -= waited?.cost ?? 0;
    return waited?.exchange;
  }

  /** Nothing of it waits any more. */
  #drop(lane: Lane): void {
    for (const waited of lane.waiting.splice(0)) this.#noLonger(waited);
    this.#endHold(lane);
  }

  #endHold(lane: Lane): void {
    lane.held = false;
    this.#cost -= lane.holdCost;
    lane.holdCost = 0;
  }

  #letGo(socket: Socket, lane: Lane): void {
    if (!lane.held || lane.ending !== undefined) return;
    this.#endHold(lane);
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
    holdCost: 0,
    late: undefined,
    ending: undefined,
    stall: undefined,
  };
}

/** What the memory of a request takes while it waits, about. */
function costOf({ rawHeaders, url = "", headers }: IncomingMessage): number {
  let cost = requestCost + url.length;
  for (const text of rawHeaders) cost += textCost + text.length;
  const body =
    headers["transfer-encoding"] === undefined ? Number(headers["content-length"] ?? 0) : mostBodyCost;
  return cost + Math.min(body, mostBodyCost);
}
