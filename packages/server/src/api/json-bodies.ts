import type { ServerResponse } from "node:http";
import type { Readable } from "node:stream";
import type { FastifyRequest } from "fastify";
import type { BodyBudget } from "../core/answers/body-budget.ts";
import { freeBytes } from "../core/answers/holding.ts";
import { JsonLook } from "../platform/bounded-json.ts";
import { ByteBlocks } from "../platform/byte-blocks.ts";
import type { FairTurns, Work } from "../platform/fair-turns.ts";
import { BadRequest, TimedOut, Unavailable } from "../ports/errors.ts";
import { tooLarge, usualBodyBytes } from "./body-limits.ts";
import { BodyMemory } from "./body-memory.ts";
import { decodeJson, type JsonText, jsonBounds, parseBody, refuseExcess } from "./json-body.ts";
import { encodingRefusal } from "./raw-body.ts";
import type { RouteApp } from "./routes/route-app.ts";
import { shareOf } from "./share.ts";

declare module "fastify" {
  interface FastifyRequest {
    /** What answers it; the memory of its body is given back when that closes. */
    response: ServerResponse | null;
    /** What is held for its body, until then; it shrinks when less is used. */
    bodyMemory: BodyMemory | null;
  }
}

/** Each piece of so many bytes, and the last one, has so long to arrive. */
const pieceBytes = 1_048_576;
const piecePatienceMs = 30_000;
/** A body is there as it came and as what was read of it, then as that and as what is made of it. */
const bodyCopies = 2;
/** What may come before the memory for it was asked for. */
const aheadBytes = 65_536;
/** A smaller body is parsed and used as soon as it has come; others wait for their turn. */
const smallBytes = 4_096;
/** A larger body is decoded, parsed and used in turns of their own. */
const oneTurnBytes = 262_144;

const gaveWay =
  "the body came slowly while others waited for the memory there is for bodies, of which your share has the most; try again, or upload contents raw";

type Done = (error: Error | null, body?: unknown) => void;

/**
 * Reads JSON bodies within one budget of memory, in which callers have shares. A body takes its part as it comes, and
 * is not read while it waits for it, nor begun before its owner's share has room for all of it; it keeps its part until its
 * request is answered, or what it is for lets go of it. One that comes too slowly is refused, and also one that has been
 * coming for long while smaller shares wait: what somebody says will come keeps nothing from anybody.
 */
export class JsonBodies {
  readonly #budget: BodyBudget;
  readonly #inputs: BodyBudget;
  readonly #turns: FairTurns;

  /** @param options.inputs bounds what of it may be kept beyond that. @param options.turns those that bodies are used in. */
  constructor(options: { budget: BodyBudget; inputs: BodyBudget; turns: FairTurns }) {
    this.#budget = options.budget;
    this.#inputs = options.inputs;
    this.#turns = options.turns;
  }

  attach(app: RouteApp): void {
    app.decorateRequest("response", null);
    app.decorateRequest("bodyMemory", null);
    app.addHook("preParsing", (request, reply, payload, done) => {
      request.response = reply.raw;
      done(null, payload);
    });
    app.removeAllContentTypeParsers();
    app.addContentTypeParser("application/json", (request, payload, done) =>
      this.read(request, payload, done),
    );
  }

  /** @param done gets what was sent, undefined for an empty body, or why it is refused. */
  read(request: FastifyRequest, payload: Readable, done: Done): void {
    // What no route takes is refused as such, whatever its body is.
    if (request.is404) {
      done(null, undefined);
      return;
    }
    const limit = request.routeOptions.bodyLimit ?? usualBodyBytes;
    const length = Number(request.headers["content-length"]);
    const refused = length > limit ? tooLarge(request) : encodingRefusal(request);
    if (refused !== undefined) done(refused);
    else {
      const [budget, inputs, turns] = [this.#budget, this.#inputs, this.#turns];
      new Reading({ request, payload, done, limit, budget, inputs, turns }).begin(length);
    }
  }
}

/** One body on its way. */
class Reading {
  readonly #request: FastifyRequest;
  readonly #payload: Readable;
  readonly #done: Done;
  readonly #limit: number;
  readonly #look = new JsonLook(jsonBounds);
  readonly #memory: BodyMemory;
  readonly #turns: FairTurns;
  readonly #received = new ByteBlocks();
  /** Not a number when it is not told. */
  #length = Number.NaN;
  #due = pieceBytes;
  #timer: NodeJS.Timeout | undefined;
  /** While it waits for its part of the memory. */
  #waiting: AbortController | undefined;
  /** All of it has come. */
  #ended = false;
  #left = false;

  constructor(options: {
    request: FastifyRequest;
    payload: Readable;
    done: Done;
    limit: number;
    budget: BodyBudget;
    inputs: BodyBudget;
    turns: FairTurns;
  }) {
    this.#turns = options.turns;
    this.#request = options.request;
    this.#payload = options.payload;
    this.#done = options.done;
    this.#limit = options.limit;
    this.#memory = new BodyMemory(options);
    options.request.bodyMemory = this.#memory;
    this.#memory.endsBy(() => this.#refuse(new Unavailable(gaveWay, { retryAfterS: 1 })));
  }

  /** @param length not a number when it is not told. */
  begin(length: number): void {
    this.#length = length;
    this.#payload.on("data", this.#onData).on("end", this.#onEnd).on("error", this.#onError);
    this.#await();
    try {
      if (length > 0) this.#take();
    } catch (error) {
      this.#refuse(error as Error);
    }
  }

  readonly #onData = (piece: Buffer): void => {
    try {
      if (this.#received.bytes + piece.length > this.#limit) throw tooLarge(this.#request);
      refuseExcess("the body", this.#look.add(piece));
      this.#received.add(piece);
      this.#take();
    } catch (error) {
      this.#refuse(error as Error);
      return;
    }
    if (this.#received.bytes < this.#due || this.#waiting !== undefined) return;
    this.#due = this.#received.bytes + pieceBytes;
    this.#await();
  };

  readonly #onEnd = (): void => {
    this.#ended = true;
    // The last piece may end it while there is no room for that.
    if (this.#waiting !== undefined) return;
    this.#leave();
    const { bytes } = this.#received;
    if (bytes === 0) this.#done(null, undefined);
    else if (bytes <= smallBytes) this.#finish(this.#decode());
    else if (bytes <= oneTurnBytes) this.#inTurn(() => this.#finish(this.#decode()));
    else
      this.#inTurn(() => {
        const text = this.#decode();
        return () => this.#parse(text);
      });
  };

  /** Its caller left, or sent what is no HTTP. */
  readonly #onError = (cause: Error): void => {
    this.#refuse(new BadRequest(`the request cannot be read: ${cause.message}`, { cause }));
  };

  #decode(): JsonText {
    return decodeJson(this.#received.take());
  }

  #finish(text: JsonText): undefined {
    this.#parse(text)();
  }

  /** @returns what goes on with the body, or with why it is refused. */
  #parse(text: JsonText): () => undefined {
    let body: unknown;
    try {
      body = parseBody(text);
    } catch (error) {
      this.#memory.release();
      return () => void this.#done(error as Error);
    }
    return () => void this.#done(null, body);
  }

  /** Much may wait by then: for a caller that has left meanwhile nothing is done any more. */
  #inTurn(work: Work): void {
    const unlessLeft = (some: Work): Work => {
      return () => {
        if (this.#request.response?.closed === true) {
          this.#received.clear();
          this.#memory.release();
          this.#done(new BadRequest("the caller left before its body was read"));
          return undefined;
        }
        const left = some();
        return left && unlessLeft(left);
      };
    };
    this.#turns.add(shareOf(this.#request), unlessLeft(work));
  }

  /** Takes memory for what has come and the next of it; nothing more is read until there is room. */
  #take(): void {
    const received = this.#received.bytes;
    const told = this.#length > 0;
    const bytes = told ? Math.min(this.#length, received + aheadBytes) : received;
    const all = bytes * bodyCopies;
    const upTo = (told ? this.#length : received) * bodyCopies;
    if (this.#waiting !== undefined || upTo <= freeBytes || all <= this.#memory.bytes) return;
    const waiting = new AbortController();
    const room = this.#memory.grow(all, waiting.signal, upTo);
    if (room === undefined) return;
    this.#waiting = waiting;
    clearTimeout(this.#timer);
    this.#payload.pause();
    room.then(
      () => {
        if (this.#waiting === undefined) return;
        this.#waiting = undefined;
        if (this.#ended) {
          this.#onEnd();
          return;
        }
        this.#await();
        this.#payload.resume();
      },
      (error) => this.#refuse(error),
    );
  }

  #await(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#refuse(
        new TimedOut(
          `the body comes too slowly: ${pieceBytes / 1_048_576} MiB of JSON has ${piecePatienceMs / 1_000} seconds; what takes longer is for the raw upload`,
        ),
      );
    }, piecePatienceMs).unref();
  }

  #refuse(error: Error): void {
    if (this.#left) return;
    this.#leave();
    this.#received.clear();
    this.#memory.release();
    this.#done(error);
  }

  #leave(): void {
    this.#left = true;
    this.#memory.endsBy(undefined);
    clearTimeout(this.#timer);
    this.#waiting?.abort(new Error("the body is read no longer"));
    this.#waiting = undefined;
    this.#payload.off("data", this.#onData).off("end", this.#onEnd).off("error", this.#onError);
  }
}
