import type { WebSocket } from "@fastify/websocket";
import type { FastifyRequest } from "fastify";
import type { Logger } from "../../platform/logger.ts";
import { pathOf } from "../error-map.ts";

/**
 * Ends a WebSocket that failed. What its client sent against the protocol or beyond the bounds is nobody's fault here: anybody
 * with a key could fill the log with it. All else is, as a handler that throws.
 */
export function socketFailure(
  logger: Logger,
): (error: Error, socket: WebSocket, request: FastifyRequest) => void {
  return (error, socket, request) => {
    const fields = { request_id: request.id, path: pathOf(request) };
    const code = "code" in error ? String(error.code) : "";
    if (code.startsWith("WS_ERR_"))
      logger.debug({ ...fields, code, error: error.message }, "websocket failed");
    else logger.error({ ...fields, err: error }, "websocket failed");
    socket.terminate();
  };
}
