import type { FastifyRequest } from "fastify";
import { anybody, localUser } from "../core/keys/principal.ts";

/**
 * Whose share of a memory a request takes from: its owner's, whom its key or X-User-ID tells; where there is none its
 * key's, and without keys its address's. What is no owner has a space, which no owner id has.
 */
export function shareOf(request: FastifyRequest): string {
  const { principal } = request;
  const named = request.headers["x-user-id"];
  const owner = principal.ownerId ?? (typeof named === "string" ? named.trim() : "");
  if (owner !== "" && principal !== anybody) return owner;
  return principal === localUser || principal === anybody ? `address ${request.ip}` : `key ${principal.name}`;
}
