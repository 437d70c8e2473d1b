import { randomBytes } from "node:crypto";
import type { IncomingMessage } from "node:http";
import type { FastifyInstance, FastifyReply } from "fastify";
import { CallerGone, ShuttingDown } from "../platform/deadline.ts";

declare module "fastify" {
  interface FastifyReply {
    /** Aborts with CallerGone when the response closes unfinished, with ShuttingDown when the service stops. */
    readonly callerSignal: AbortSignal;
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

  begin(options: { endless: boolean }): CallUnderWay {
    const controller = new AbortController();
    const call: CallUnderWay = {
      signal: controller.signal,
      abort: (reason) => controller.abort(reason),
      end: () => {
        this.#calls.delete(call);
        this.#endless.delete(call);
        if (this.#calls.size === 0) this.#onIdle?.();
      },
    };
    this.#calls.add(call);
    if (options.endless) this.#markEndless(call);
    return call;
  }

  /** Ends the call of a stream that would never end by itself as soon as the service stops. */
  endless(reply: FastifyReply): AbortSignal {
    const signal = reply.callerSignal;
    if (reply.callUnderWay !== null) this.#markEndless(reply.callUnderWay);
    return signal;
  }

  #markEndless(call: CallUnderWay): void {
    this.#endless.add(call);
    if (this.#draining) call.abort(new ShuttingDown());
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
  app.decorateReply("callerSignal", {
    getter(this: FastifyReply) {
      if (this.callUnderWay !== null) return this.callUnderWay.signal;
      const call = calls.begin({ endless: false });
      this.callUnderWay = call;
      const gone = () => {
        call.end();
        if (!this.raw.writableFinished) call.abort(new CallerGone());
      };
      if (this.raw.destroyed) gone();
      else this.raw.once("close", gone);
      return call.signal;
    },
  });
}
