import type { FastifyRequest } from "fastify";
import { shareOf } from "./share.ts";

/** Waits for its caller's turn: what takes milliseconds, asked for many times at once, would hold everybody up for the sum of it. */
export function turnFor(request: FastifyRequest): Promise<void> {
  return request.server.turns.next(shareOf(request));
}
