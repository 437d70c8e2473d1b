import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import type { FastifyReply, FastifyRequest } from "fastify";
import { Type } from "typebox";
import type { BodyBudget } from "../../core/answers/body-budget.ts";
import type { KeyRing } from "../../core/keys/key-ring.ts";
import type { OpenPort, Previews } from "../../core/previews/previews.ts";
import { CallerGone, deadlineAfter } from "../../platform/deadline.ts";
import { joinPieces } from "../../platform/join-pieces.ts";
import { BadRequest, DomainError, Forbidden } from "../../ports/errors.ts";
import { hostname } from "../host-name.ts";
import { headersForProgram, headersFromPort, type KeyCheck } from "../previews/carried-headers.ts";
import type { Clients } from "../previews/clients.ts";
import { endOnEarlyLeave } from "../previews/early-leave.ts";
import { loopGuard } from "../previews/loop-guard.ts";
import type { Passage, PortProxy } from "../previews/port-proxy.ts";
import type { CallsUnderWay } from "../request-context.ts";
import { shareOf } from "../share.ts";
import { PortTunnel } from "../streams/port-tunnel.ts";
import { refusePlain } from "../upgrade-required.ts";
import { PortParams } from "./previews.ts";
import type { RouteApp } from "./route-app.ts";

const handshakeDeadlineMs = 30_000;
/** Also those that a service without keys takes from anybody on this machine, pages apart. */
const clientHeader = "x-alcove-client";

/** What a browser makes of an answer below the API's own paths: nothing that runs, and nothing for other pages. */
const confined = {
  "content-security-policy": "sandbox",
  "x-content-type-options": "nosniff",
  "cross-origin-resource-policy": "same-origin",
  // Whoever asks can tell an answer of the program from a refusal of the service.
  "x-alcove-source": "program",
} as const;

interface PortOptions {
  previews: Previews;
  proxy: PortProxy;
  clients: Clients;
  calls: CallsUnderWay;
  keys: KeyRing;
  /** Memory of what clients of tunnels send. */
  sockets: BodyBudget;
  isKey: KeyCheck;
  /** The connection of a request that is to be upgraded. */
  upgradeOf: (request: IncomingMessage) => { socket: Duplex; head: Buffer } | undefined;
  config: { auth: { enabled: boolean } };
}

/** Ports of sandboxes for programs that have a key: by path, and as a connection. docs/api/previews.md, By path. */
export function portRoutes(app: RouteApp, options: PortOptions): void {
  portsByPath(app, options);
  tunnels(app, options);
}

function portsByPath(app: RouteApp, options: PortOptions): void {
  const { previews, proxy, clients, calls, keys, isKey, upgradeOf, config } = options;
  // Bodies are left to the proxy, whatever their type says.
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request, _payload, done) => done(null, undefined));

  /** A page can make a browser ask for much, but not with a header of its own: a preflight would be refused. */
  const noPage = (request: FastifyRequest) => {
    if (config.auth.enabled || request.headers[clientHeader] !== undefined) return;
    throw new Forbidden(
      `without keys, ports are reached by path with the header X-Alcove-Client, whatever it says; a browser goes to the address that GET /api/v1/sandboxes/{id}/preview/{port} tells`,
    );
  };
  const passage = (request: FastifyRequest, port: OpenPort, signal: AbortSignal): Passage => {
    const { host = "" } = request.headers;
    loopGuard.check(request.raw);
    const prefix = `/api/v1/sandboxes/${encodeURIComponent(port.target.sandboxId)}/ports/${port.target.port}`;
    const path = restOf(request.raw.url ?? "");
    const url = `http://localhost:${port.target.port}${path}`;
    const client = clients.of(request.raw, hostname(host));
    return {
      request: request.raw,
      port,
      path,
      headers: headersForProgram(request.raw, {
        host: `localhost:${port.target.port}`,
        client,
        isKey,
        cookies: false,
        via: loopGuard.name,
      }),
      signal,
      answerHeaders: (answer) => headersFromPort(answer, { prefix, url }),
    };
  };

  app.route({
    method: ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
    url: "/sandboxes/:id/ports/:port/*",
    config: { readsBody: true, upgrades: true },
    schema: { hide: true, operationId: "requestPort", params: PortParams },
    preValidation: async (request) => noPage(request),
    preHandler: async (request, reply) => {
      const upgrade = upgradeOf(request.raw);
      if (upgrade === undefined) return;
      const { socket, head } = upgrade;
      const call = calls.begin(request.principal, "write");
      call.setPatience("none");
      const onClose = () => call.abort(new CallerGone());
      if (socket.destroyed) onClose();
      else socket.once("close", onClose);
      using early = endOnEarlyLeave(socket);
      try {
        const { id: sandboxId, port } = request.params;
        const found = await previews.find({ sandboxId, port }, call);
        if (config.auth.enabled && !keys.holds(request.principal, "write")) throw keyTakenBack();
        previews.counts.sockets += 1;
        const outcome = await proxy.upgrade(passage(request, found, call.signal), {
          socket,
          head,
          onSwitch: () => {
            early[Symbol.dispose]();
            socket.off("close", onClose);
            reply.hijack();
            reply.raw.detachSocket(socket as Parameters<typeof reply.raw.detachSocket>[0]);
            // Nothing else closes it then: the request's span and its line in the log end with the connection.
            socket.once("close", () => reply.raw.emit("close"));
          },
          response: () => takeOver(reply),
        });
        previews.counts.count(outcome);
      } finally {
        socket.off("close", onClose);
        call.end();
      }
    },
    handler: async (request, reply) => {
      // It ends with its key, and a stop of the service waits for it briefly.
      const signal = reply.briefSignal;
      void reply.transferSignal;
      const { id: sandboxId, port } = request.params;
      const found = await previews.find({ sandboxId, port }, { signal });
      const outcome = await proxy.forward(passage(request, found, signal), () => takeOver(reply));
      previews.counts.count(outcome);
    },
  });
}

function tunnels(app: RouteApp, options: PortOptions): void {
  const { previews, calls, keys, sockets, config } = options;
  /** Connections that were dialled before their handshake was answered, until the request is forgotten. */
  const dialled = new WeakMap<IncomingMessage, { port: Duplex; place: Disposable }>();
  const isLetIn = (request: FastifyRequest) => !config.auth.enabled || keys.holds(request.principal, "write");

  app.route({
    method: "GET",
    url: "/sandboxes/:id/tunnels/:port",
    exposeHeadRoute: false,
    config: { takesTicket: true },
    schema: {
      tags: ["sandboxes"],
      operationId: "openTunnel",
      summary: "A TCP connection to a port, over a WebSocket",
      params: PortParams,
      querystring: Type.Object({
        ticket: Type.Optional(
          Type.String({
            description: "Of POST /tickets, in place of a key.",
            examples: ["DrGBJj-hyQKxFdVhSGUMrRCiPi6asGmQ"],
          }),
        ),
      }),
      openapi: {
        responses: {
          101: { description: "WebSocket; binary messages are bytes, the text `end` ends a direction." },
          426: {
            description: "Asked for without an upgrade.",
            content: { "application/json": { schema: { $ref: "#/components/schemas/Error" } } },
          },
        },
      },
    },
    preHandler: async (request) => {
      if (!request.ws) return;
      using deadline = deadlineAfter(handshakeDeadlineMs);
      const { id: sandboxId, port } = request.params;
      const found = await previews.find({ sandboxId, port }, deadline);
      const place = previews.places.take({ sandboxId, ownerId: found.sandbox.row.ownerId });
      try {
        const stream = await previews.dial(found, deadline);
        dialled.set(request.raw, { port: stream, place });
        const over = () => {
          stream.destroy();
          place[Symbol.dispose]();
        };
        // Also where the handshake comes to nothing.
        if (request.raw.socket.destroyed) over();
        else request.raw.socket.once("close", over);
      } catch (error) {
        place[Symbol.dispose]();
        throw error;
      }
      if (!isLetIn(request)) throw keyTakenBack();
    },
    handler: refusePlain,
    wsHandler: (socket, request) => {
      const port = dialled.get(request.raw)?.port;
      if (port === undefined || !isLetIn(request)) return socket.close(1008, "the key was taken back");
      previews.counts.sockets += 1;
      joinPieces(request.raw.socket);
      const call = calls.begin(request.principal, "write");
      call.setPatience("none");
      const memory = { budget: sockets, share: shareOf(request) };
      const connection = request.raw.socket;
      new PortTunnel({ socket, connection, port, call, memory }).open((outcome) =>
        previews.counts.count(outcome),
      );
    },
  });
}

/** The program's answer follows: from here on it is nobody else's to write. */
function takeOver(reply: FastifyReply): FastifyReply["raw"] {
  for (const [name, value] of Object.entries({ ...reply.getHeaders(), ...confined }))
    if (value !== undefined) reply.raw.setHeader(name, value);
  reply.isProgram = true;
  reply.hijack();
  return reply.raw;
}

/** What follows the port: a path with its query, to the letter. */
function restOf(url: string): string {
  const rest = /^\/api\/v1\/sandboxes\/[^/?]+\/ports\/[^/?]+(\/.*)$/.exec(url)?.[1];
  if (rest === undefined)
    throw new BadRequest(
      "the request's target must be /api/v1/sandboxes/{id}/ports/{port}/… as it is written here, without an address before it",
    );
  return rest;
}

function keyTakenBack(): DomainError {
  return new DomainError("unauthorized", "the key was taken back meanwhile");
}
