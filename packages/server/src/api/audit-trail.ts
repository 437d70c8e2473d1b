import type { FastifyReply, FastifyRequest } from "fastify";
import { type AuditLog, goneStatus } from "../core/audit/audit-log.ts";
import { anybody } from "../core/keys/principal.ts";
import { addressOf } from "./address.ts";
import { pathOf } from "./error-map.ts";
import type { RouteApp } from "./routes/route-app.ts";

declare module "fastify" {
  interface FastifyRequest {
    /** Of a call that the audit history tells of, until it was told. */
    audit: { readonly remoteAddr: string } | null;
  }
}

/**
 * Writes calls below `/admin`, and changes of what the table of access calls audited, to the audit history before they
 * are answered: what somebody was told has happened is there after a crash. docs/api/admin.md.
 */
export class AuditTrail {
  readonly #log: AuditLog;

  constructor(log: AuditLog) {
    this.#log = log;
  }

  /** Before the hooks that refuse. */
  attach(app: RouteApp): void {
    app.decorateRequest("audit", null);
    app.addHook("onRequest", (request, _reply, done) => {
      // The address is gone with the connection.
      if (isAudited(request)) request.audit = { remoteAddr: addressOf(request) };
      done();
    });
    app.addHook("onSend", (request, reply, payload, done) => {
      if (request.audit === null) return done(null, payload);
      const told = this.#tell(request, { status: reply.statusCode, durationMs: reply.elapsedTime });
      void told.then(() => done(null, payload));
    });
  }

  /** A call that failed because its caller left; nothing is sent. */
  unanswered(request: FastifyRequest, reply: FastifyReply): void {
    if (request.audit !== null)
      void this.#tell(request, { status: goneStatus, durationMs: reply.elapsedTime });
  }

  /** A request that no hook sees, because its path cannot be decoded. Nobody looked at its key. */
  async refusedUnread(request: FastifyRequest, status: number): Promise<void> {
    if (!isBelowAdmin(pathOf(request))) return;
    request.audit = { remoteAddr: addressOf(request) };
    await this.#tell(request, { status, durationMs: 0 });
  }

  async #tell(request: FastifyRequest, outcome: { status: number; durationMs: number }): Promise<void> {
    const remoteAddr = request.audit?.remoteAddr ?? "";
    request.audit = null;
    const principal = request.principal ?? anybody;
    await this.#log.record({
      actor: principal.name,
      mayAdminister: principal.scopes.has("admin"),
      method: request.method,
      path: pathOf(request),
      status: outcome.status,
      durationMs: Math.round(outcome.durationMs * 100) / 100,
      requestId: request.id,
      remoteAddr,
      userAgent: request.headers["user-agent"] ?? "",
    });
  }
}

/** By the route, because a path can be spelled in many ways; what no route takes, by its path. */
function isAudited(request: FastifyRequest): boolean {
  return (
    request.routeOptions.config.access?.audited === true || (request.is404 && isBelowAdmin(pathOf(request)))
  );
}

function isBelowAdmin(path: string): boolean {
  // Undecodable parts are nothing that could spell the prefix.
  const decoded = path.replaceAll(/%([2-7][0-9a-f])/gi, (_, hex: string) =>
    String.fromCharCode(Number.parseInt(hex, 16)),
  );
  return /^\/api\/v1\/admin(?![^/#?])/.test(decoded);
}
