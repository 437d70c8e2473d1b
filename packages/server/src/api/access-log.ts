import type { FastifyReply, FastifyRequest } from "fastify";
import { goneStatus } from "../core/audit/audit-log.ts";
import type { Logger } from "../platform/logger.ts";
import type { Clock } from "../ports/clock.ts";
import { namedOwner } from "./access.ts";
import { pathOf } from "./error-map.ts";
import type { RouteApp } from "./routes/route-app.ts";

declare module "fastify" {
  interface FastifyReply {
    /** Why the request was not done, for its line. */
    refusal: { code: string; message: string; remoteAddr: string } | null;
  }
  interface FastifyContextConfig {
    /** Asked for again and again by machines: answers that do not change get a line a minute. */
    probe?: boolean;
  }
}

/** Answers to those who guess keys, overdo it, or reach for what is not theirs. */
const addressed: ReadonlySet<number> = new Set([401, 403, 429]);
/** Longest path in a line, as in the audit history: whoever has no key chooses it, and a head has 16 KiB. */
const longestPath = 2_048;
/** How long the same answer to a probe gets no further line, milliseconds. */
const probeQuietMs = 60_000;

/** One line per request at its end. Answers of 5xx are told with their error by the error handler, beside this line. */
export class AccessLog {
  readonly #logger: Logger;
  readonly #clock: Clock;
  /** By route: a path can be spelled in many ways, and who has no key chooses how. */
  readonly #probes = new Map<string, { status: number; toldMs: number; suppressed: number }>();

  constructor(options: { logger: Logger; clock: Clock }) {
    this.#logger = options.logger;
    this.#clock = options.clock;
  }

  /** Before whatever answers in a hook: what comes after it does not see those requests. */
  attach(app: RouteApp): void {
    app.decorateReply("refusal", null);
    app.addHook("onRequest", (request, reply, done) => {
      this.watch(request, reply);
      done();
    });
  }

  /** Tells a request at its end; `attach` does it for all that hooks see. */
  watch(request: FastifyRequest, reply: FastifyReply): void {
    // Not onResponse, which a request whose caller left does not come to.
    if (this.#logger.isLevelEnabled("info")) reply.raw.once("close", () => this.#tell(request, reply));
  }

  #tell(request: FastifyRequest, reply: FastifyReply): void {
    const path = pathOf(request);
    const status = statusOf(request, reply);
    const { config, url: route = "" } = request.routeOptions;
    const suppressed = config?.probe === true ? this.#quieted(route, status) : 0;
    if (suppressed === undefined) return;
    const { id, execId } = (request.params ?? {}) as { id?: string; execId?: string };
    const refusal = reply.refusal ?? null;
    const ownerId = request.principal?.ownerId ?? namedOwner(request);
    this.#logger.info(
      {
        event: "request",
        outcome: outcomeOf(request, reply),
        request_id: request.id,
        ...(request.span !== undefined && { trace_id: request.span.traceId, span_id: request.span.spanId }),
        method: request.method,
        path: path.slice(0, longestPath),
        status,
        principal: request.principal?.name,
        ...(ownerId !== undefined && { owner_id: ownerId }),
        duration_ms: Math.round(reply.elapsedTime * 100) / 100,
        ...(id !== undefined && path.includes("/sandboxes/") && { sandbox_id: id }),
        ...(execId !== undefined && { exec_id: execId }),
        ...(refusal !== null && { code: refusal.code, error: refusal.message }),
        ...(refusal !== null && addressed.has(reply.statusCode) && { remote_addr: refusal.remoteAddr }),
        ...(suppressed > 0 && { suppressed }),
      },
      "request",
    );
  }

  /** @returns how many lines were left out before this one; undefined when this one is left out too. */
  #quieted(route: string, status: number): number | undefined {
    const nowMs = this.#clock.monotonicMs();
    const last = this.#probes.get(route);
    if (last !== undefined && last.status === status && nowMs - last.toldMs < probeQuietMs) {
      last.suppressed++;
      return undefined;
    }
    this.#probes.set(route, { status, toldMs: nowMs, suppressed: 0 });
    return last?.suppressed ?? 0;
  }
}

/** Whether another protocol has taken the connection over; then there is no answer. */
export function isUpgraded(request: FastifyRequest, reply: FastifyReply): boolean {
  return request.ws === true && reply.sent && !reply.raw.headersSent;
}

function statusOf(request: FastifyRequest, reply: FastifyReply): number {
  if (isUpgraded(request, reply)) return 101;
  return reply.raw.headersSent ? reply.statusCode : goneStatus;
}

/** Of a request whose answer, or connection, is over. */
export function outcomeOf(
  request: FastifyRequest,
  reply: FastifyReply,
): "ok" | "refused" | "failed" | "gone" {
  if (isUpgraded(request, reply)) return "ok";
  if (!reply.raw.writableFinished) return "gone";
  if (reply.statusCode >= 500) return "failed";
  return reply.statusCode >= 400 ? "refused" : "ok";
}
