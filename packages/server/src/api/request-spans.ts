import type { FastifyReply, FastifyRequest } from "fastify";
import type { Span, SpanAttributes, Tracer } from "../ports/tracer.ts";
import { isUpgraded, outcomeOf } from "./access-log.ts";
import { pathOf } from "./error-map.ts";
import type { RouteApp } from "./routes/route-app.ts";

declare module "fastify" {
  interface FastifyRequest {
    /** The whole of the request in a trace; undefined when it is not traced. */
    span: Span | undefined;
  }
}

const knownMethods: ReadonlySet<string> = new Set([
  "GET",
  "HEAD",
  "POST",
  "PUT",
  "DELETE",
  "OPTIONS",
  "PATCH",
  "TRACE",
  "CONNECT",
]);

/**
 * A span for each request, from its first hook to the end of its answer; not for probes, which machines send for ever. Without
 * a tracer there is no hook either. What a span tells: docs/operations/traces.md.
 */
export function traceRequests(app: RouteApp, { tracer }: { tracer?: Tracer | undefined }): void {
  app.decorateRequest("span", undefined);
  if (tracer === undefined) return;
  app.addHook("onRequest", (request, reply, done) => {
    if (request.routeOptions.config.probe !== true) {
      const span = begin(tracer, request);
      request.span = span;
      // Not onResponse, which an answer that its caller left does not come to.
      reply.raw.once("close", () => end(span, request, reply));
    }
    done();
  });
}

function begin(tracer: Tracer, request: FastifyRequest): Span {
  const { headers, socket, routeOptions } = request;
  const method = knownMethods.has(request.method) ? request.method : "_OTHER";
  const route = request.is404 ? undefined : routeOptions.url;
  const { operationId } = routeOptions.schema ?? {};
  return tracer.request({
    name: route === undefined ? method : `${method} ${route}`,
    attributes: {
      "http.request.method": method,
      ...(route !== undefined && { "http.route": route, "url.path": tellablePath(request, route) }),
      "url.scheme": "http",
      "server.address": socket.localAddress ?? "",
      "server.port": socket.localPort ?? 0,
      "network.protocol.version": request.raw.httpVersion,
      "alcove.request.id": request.id,
      ...(operationId !== undefined && { "alcove.operation": operationId }),
    },
    traceparent: oneOf(headers.traceparent),
    tracestate: oneOf(headers.tracestate),
    startedMs: performance.now(),
  });
}

function end(span: Span, request: FastifyRequest, reply: FastifyReply): void {
  const outcome = outcomeOf(request, reply);
  const { id, execId } = (request.params ?? {}) as { id?: string; execId?: string };
  const attributes: SpanAttributes = {
    ...(isUpgraded(request, reply) && { "http.response.status_code": 101 }),
    ...(reply.raw.headersSent && { "http.response.status_code": reply.raw.statusCode }),
    "alcove.outcome": outcome,
    ...(id !== undefined && request.routeOptions.url?.includes("/sandboxes/") && { "alcove.sandbox.id": id }),
    ...(execId !== undefined && { "alcove.exec.id": execId }),
    ...(reply.refusal !== null && outcome === "refused" && { "error.type": reply.refusal.code }),
  };
  // A caller's mistake is no error of the service's.
  if (outcome === "failed") span.end({ attributes, error: reply.refusal?.code ?? String(reply.statusCode) });
  else if (outcome === "gone") span.end({ attributes, error: "caller_gone" });
  else span.end({ attributes });
}

/**
 * The path without what a trace must not name: its owner, and what a program in a sandbox is asked for. What no route takes may
 * hold anything and is not told at all.
 */
function tellablePath(request: FastifyRequest, route: string): string {
  return route.includes(":ownerID") || route.includes("*") ? route : pathOf(request);
}

/** A header that was sent twice says nothing. */
function oneOf(header: string | string[] | undefined): string | undefined {
  return typeof header === "string" ? header : undefined;
}
