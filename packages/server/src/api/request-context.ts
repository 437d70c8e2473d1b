import { randomBytes } from "node:crypto";
import type { IncomingMessage } from "node:http";
import type { FastifyInstance, FastifyReply } from "fastify";
import { CallerGone, ShuttingDown } from "../platform/deadline.ts";

declare module "fastify" {
  interface FastifyReply {
    /** Aborts with CallerGone when the response closes unfinished, with ShuttingDown when the service stops. */
    readonly callerSignal: AbortSignal;
    /** The same signal, for a stream that would never end by itself: a stop of the service ends it at once. */
    readonly endlessSignal: AbortSignal;
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

/** One call whose caller may go away, until `end`. */
export interface CallUnderWay {
  readonly signal: AbortSignal;
  abort(reason: Error): void;
  /** From now on a stop of the service ends it at once, or lets it finish. */
  endless(yes: boolean): void;
  end(): void;
}

/**
 * Knows the calls under way. `drain` makes a stop of the service orderly: endless streams end at once, calls may finish
 * within the grace, what is left is aborted with ShuttingDown.
 */
export class CallsUnderWay {
  readonly #calls = new Set<CallUnderWay>();
  readonly #endless = new Set<CallUnderWay>();
  #draining = false;
  #onIdle: (() => void) | undefined;

  get size(): number {
    return this.#calls.size;
  }

  begin(): CallUnderWay {
    const controller = new AbortController();
    const call: CallUnderWay = {
      signal: controller.signal,
      abort: (reason) => controller.abort(reason),
      endless: (yes) => {
        if (!yes) this.#endless.delete(call);
        else if (this.#draining) call.abort(new ShuttingDown());
        else this.#endless.add(call);
      },
      end: () => {
        this.#calls.delete(call);
        this.#endless.delete(call);
        if (this.#calls.size === 0) this.#onIdle?.();
      },
    };
    this.#calls.add(call);
    return call;
  }

  async drain(graceMs: number): Promise<void> {
    this.#draining = true;
    for (const call of this.#endless) call.abort(new ShuttingDown());
    if (this.#calls.size === 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, graceMs);
      this.#onIdle = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    for (const call of this.#calls) call.abort(new ShuttingDown());
  }
}

/** Gives every reply its `callerSignal`, made when it is first asked for. Fastify's request.signal fires once a POST body was read. */
export function decorateCallerSignal(app: FastifyInstance, calls: CallsUnderWay): void {
  app.decorateReply("callUnderWay", null);
  const callOf = (reply: FastifyReply): CallUnderWay => {
    if (reply.callUnderWay !== null) return reply.callUnderWay;
    const call = calls.begin();
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
  app.decorateReply("endlessSignal", {
    getter(this: FastifyReply) {
      const call = callOf(this);
      call.endless(true);
      return call.signal;
    },
  });
}
