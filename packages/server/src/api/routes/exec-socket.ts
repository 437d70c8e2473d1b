import type { IncomingMessage } from "node:http";
import type { FastifyRequest } from "fastify";
import { Type } from "typebox";
import type { BodyBudget } from "../../core/answers/body-budget.ts";
import type { ExecService } from "../../core/exec/exec-service.ts";
import type { KeyRing } from "../../core/keys/key-ring.ts";
import type { SandboxService } from "../../core/sandboxes/sandbox-service.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { joinPieces } from "../../platform/join-pieces.ts";
import type { Logger } from "../../platform/logger.ts";
import { DomainError } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { CallsUnderWay } from "../request-context.ts";
import { shareOf } from "../share.ts";
import { WebSocketExec } from "../streams/websocket.ts";
import { refusePlain } from "../upgrade-required.ts";
import { type RouteApp, SandboxParams } from "./route-app.ts";

const handshakeDeadlineMs = 30_000;

/** `GET /sandboxes/{id}/exec/ws`: one interactive command. docs/api/exec.md. */
export function execSocketRoute(
  app: RouteApp,
  options: {
    execs: ExecService;
    sandboxes: SandboxService;
    calls: CallsUnderWay;
    logger: Logger;
    keys: KeyRing;
    /** Memory of what clients send. */
    sockets: BodyBudget;
    config: { auth: { enabled: boolean } };
  },
): void {
  const { execs, sandboxes, calls, logger, keys, sockets, config } = options;
  /** A key may be taken back while its handshake waits, before there is a call to cut. */
  const isLetIn = (request: FastifyRequest) => !config.auth.enabled || keys.holds(request.principal, "write");
  /** Ids announced in handshakes, until the request is forgotten. */
  const announced = new WeakMap<IncomingMessage, ExecId>();
  app.websocketServer.on("headers", (headers: string[], request: IncomingMessage) => {
    const execId = announced.get(request);
    if (execId !== undefined) headers.push(`X-Exec-ID: ${execId}`);
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/exec/ws",
    exposeHeadRoute: false,
    config: { takesTicket: true },
    schema: {
      tags: ["exec"],
      operationId: "execWebSocket",
      summary: "Run a command interactively over a WebSocket",
      params: SandboxParams,
      querystring: Type.Object({
        ticket: Type.Optional(
          Type.String({
            description: "Of POST /tickets, in place of a key.",
            examples: ["DrGBJj-hyQKxFdVhSGUMrRCiPi6asGmQ"],
          }),
        ),
      }),
      openapi: {
        headers: { 101: ["X-Exec-ID"] },
        responses: {
          101: { description: "WebSocket; X-Exec-ID names the command." },
          426: {
            description: "Asked for without an upgrade.",
            content: { "application/json": { schema: { $ref: "#/components/schemas/Error" } } },
          },
        },
      },
    },
    preHandler: async (request) => {
      using deadline = deadlineAfter(handshakeDeadlineMs);
      await sandboxes.locate(request.params.id, deadline);
      if (!isLetIn(request)) throw new DomainError("unauthorized", "the key was taken back meanwhile");
      announced.set(request.raw, execs.makeId());
    },
    handler: refusePlain,
    wsHandler: (socket, request) => {
      const { id } = request.params as { id: string };
      if (!isLetIn(request)) return socket.close(1008, "the key was taken back");
      joinPieces(request.raw.socket);
      // Nothing may fail between the beginning of the call and `open`, which sees to its end.
      const share = shareOf(request);
      new WebSocketExec({
        socket,
        connection: request.raw.socket,
        sandboxId: id,
        execId: announced.get(request.raw) ?? execs.makeId(),
        execs,
        call: calls.begin(request.principal, "write"),
        logger: logger.child({ request_id: request.id, sandbox_id: id }),
        turns: app.turns,
        share,
        memory: sockets,
      }).open();
    },
  });
}
