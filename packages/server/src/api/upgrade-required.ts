import type { FastifyReply, FastifyRequest } from "fastify";
import { DomainError } from "../ports/errors.ts";

/** What a path that speaks WebSocket answers to who asks it plainly. */
export function refusePlain(_request: FastifyRequest, reply: FastifyReply): never {
  // Node takes a Connection that is given for the last word about whether there are more requests of it.
  const connection = reply.raw.shouldKeepAlive ? "upgrade" : "close, upgrade";
  reply.header("connection", connection).header("upgrade", "websocket");
  throw new DomainError("upgrade_required", "this path speaks WebSocket; ask for an upgrade");
}
