import type { FastifyReply, FastifyRequest } from "fastify";
import { DomainError } from "../ports/errors.ts";

/** What a path that speaks WebSocket answers to who asks it plainly. */
export function refusePlain(_request: FastifyRequest, reply: FastifyReply): never {
  reply.header("connection", "upgrade").header("upgrade", "websocket");
  throw new DomainError("upgrade_required", "this path speaks WebSocket; ask for an upgrade");
}
