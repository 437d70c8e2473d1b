import { randomBytes } from "node:crypto";
import type { IncomingMessage } from "node:http";
import type { KeyScope } from "@alcove/wire";
import type { FastifyInstance, FastifyReply } from "fastify";
import { anybody, type Principal } from "../core/keys/principal.ts";
import { CallerGone, CallerRevoked, ShuttingDown } from "../platform/deadline.ts";

declare module "fastify" {
  interface FastifyReply {
    /** Aborts with CallerGone when the response closes unfinished, with ShuttingDown when the service stops. */
    readonly callerSignal: AbortSignal;
    /** The same signal, for a stream that has no end or can be picked up again: a stop of the service cuts it at once. */
    readonly endlessSignal: AbortSignal;
    /** The same signal, for bytes that come or go for as long as the caller likes: it aborts when its key is taken back. */
    readonly transferSignal: AbortSignal;
    /** The same signal, for a call whose outcome can be asked for afterwards: a stop of the service waits for it briefly. */
    readonly briefSignal: AbortSignal;
    callUnderWay: CallUnderWay | null;
  }
}

const sane = /^[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,127}$/;

/**
 * Gives request ids: what the caller sent when it is fit for logs and headers, else a new one. New ones count up behind
 * random text of this process: system randomness for each request would cost more than the rest of its head.
 */
export function requestIds(): (request: IncomingMessage) => string {
  const prefix = `req-${randomBytes(6).toString("hex")}`;
  let count = 0;
  return (request) => {
    const sent = request.headers["x-request-id"];
    if (typeof sent === "string" && sane.test(sent)) return sent;
    count += 1;
    return `${prefix}-${count.toString(36)}`;
  };
}

/** How long a stop of the service lets a call go on: not at all, for `briefMs`, or for the whole grace. */
export type Patience = "none" | "brief" | "grace";

/** How long a stop waits for a call whose outcome the next process can tell as well. */
const briefMs = 1_000;
/** How long what is answered at the end is given to go out: output is written in pieces, as its reader takes them. */
const answersMs = 5_000;

interface Caller {
  /** Null: no key let it in, so that none can be taken back. */
  readonly principal: Principal | null;
  readonly scope: KeyScope | undefined;
}

/** What a call has to do with all of them. */
interface Calls {
  isDraining(): boolean;
  onEnd(call: UnderWay): void;
}

/** One call whose caller may go away, until `end`. */
export interface CallUnderWay {
  readonly signal: AbortSignal;
  abort(reason: Error): void;
  /** `grace` until it is told otherwise. */
  setPatience(patience: Patience): void;
  /** Whom a key let in that did not come with the call: as `begin`. */
  setCaller(principal: Principal, scope: KeyScope): void;
  /** From now on it ends when the key it came with is taken back. A stream, which has no patience, does anyway. */
  endWithKey(hasBegun?: () => boolean): void;
  end(): void;
}

/**
 * Knows the calls under way. `drain` makes a stop of the service orderly and short: streams are cut at once, because
 * their readers pick them up at the next process, the calls that are soon over may finish, and so may, within the grace,
 * those that could not be repeated. What is left is aborted with ShuttingDown.
 */
export class CallsUnderWay {
  readonly #calls = new Set<UnderWay>();
  /** What each call is given of all of them. */
  readonly #shared: Calls = {
    isDraining: () => this.#draining,
    onEnd: (ended) => {
      this.#calls.delete(ended);
      this.#onEnd?.();
    },
  };
  #draining = false;
  #onEnd: (() => void) | undefined;

  get size(): number {
    return this.#calls.size;
  }

  /** The service stops: nothing new is begun. */
  get draining(): boolean {
    return this.#draining;
  }

  /** @param principal null: whoever it is came without a key. @param scope undefined: nothing that a key would have to allow. */
  begin(principal: Principal | null = anybody, scope?: KeyScope): CallUnderWay {
    const call = new UnderWay({ principal, scope }, this.#shared);
    this.#calls.add(call);
    return call;
  }

  /** Cuts the streams and transfers of callers who would be refused now. What was asked once and has an end is answered. */
  revoke(isAccepted: (principal: Principal, scope: KeyScope | undefined) => boolean): void {
    for (const call of this.#calls) {
      if (call.patience !== "none" && call.hasBegun === undefined) continue;
      const { principal, scope } = call.caller;
      if (principal !== null && !isAccepted(principal, scope)) call.abort(new CallerRevoked());
    }
  }

  async drain(graceMs: number): Promise<void> {
    this.#draining = true;
    this.#abort("none");
    await this.#over(Math.min(briefMs, graceMs), () => this.#calls.size === 0);
    this.#abort("none", "brief");
    await this.#over(graceMs - briefMs, () => ![...this.#calls].some(({ patience }) => patience === "grace"));
    this.#abort("none", "brief", "grace");
    // What is cut within its answer has no more to say.
    await this.#over(Math.min(answersMs, graceMs), () =>
      [...this.#calls].every(({ hasBegun }) => hasBegun?.() === true),
    );
  }

  #abort(...patience: Patience[]): void {
    for (const call of this.#calls) if (patience.includes(call.patience)) call.abort(new ShuttingDown());
  }

  /** Resolves when `isOver`, and after `ms` at the latest. */
  async #over(ms: number, isOver: () => boolean): Promise<void> {
    if (isOver() || ms <= 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#onEnd = () => {
        if (!isOver()) return;
        clearTimeout(timer);
        resolve();
      };
    });
    this.#onEnd = undefined;
  }
}

class UnderWay implements CallUnderWay {
  readonly #controller = new AbortController();
  readonly #calls: Calls;
  #ended = false;
  patience: Patience = "grace";
  /** Whose call it is, and what their key must be good for. */
  caller: Caller;
  /** Of one that ends with its key: whether its answer has begun. */
  hasBegun: (() => boolean) | undefined;

  constructor(caller: Caller, calls: Calls) {
    this.caller = caller;
    this.#calls = calls;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  abort(reason: Error): void {
    this.#controller.abort(reason);
  }

  setPatience(patience: Patience): void {
    if (this.#ended) return;
    this.patience = patience;
    if (patience === "none" && this.#calls.isDraining()) this.abort(new ShuttingDown());
  }

  setCaller(principal: Principal, scope: KeyScope): void {
    this.caller = { principal, scope };
  }

  endWithKey(hasBegun: () => boolean = () => false): void {
    this.hasBegun = hasBegun;
  }

  end(): void {
    this.#ended = true;
    this.#calls.onEnd(this);
  }
}

/** Gives every reply its `callerSignal`, made when it is first asked for. Fastify's request.signal fires once a POST body was read. */
export function decorateCallerSignal(app: FastifyInstance, calls: CallsUnderWay): void {
  app.decorateReply("callUnderWay", null);
  const callOf = (reply: FastifyReply): CallUnderWay => {
    if (reply.callUnderWay !== null) return reply.callUnderWay;
    const call = calls.begin(reply.request.principal, reply.request.routeOptions.config.access?.scope);
    reply.callUnderWay = call;
    const gone = () => {
      call.end();
      if (!reply.raw.writableFinished) call.abort(new CallerGone());
    };
    if (reply.raw.destroyed) gone();
    else reply.raw.once("close", gone);
    return call;
  };
  app.decorateReply("callerSignal", {
    getter(this: FastifyReply) {
      return callOf(this).signal;
    },
  });
  const signalWith = (patience: Patience) => ({
    getter(this: FastifyReply) {
      const call = callOf(this);
      call.setPatience(patience);
      return call.signal;
    },
  });
  app.decorateReply("endlessSignal", signalWith("none"));
  app.decorateReply("briefSignal", signalWith("brief"));
  app.decorateReply("transferSignal", {
    getter(this: FastifyReply) {
      const call = callOf(this);
      call.endWithKey(() => this.raw.headersSent);
      return call.signal;
    },
  });
}
