import type { FastifyRequest } from "fastify";
import type { Share } from "../core/answers/shares.ts";
import { anybody, localUser } from "../core/keys/principal.ts";

/**
 * Whose share of a memory a request takes from: its key's, or its address's without keys, and below it that of the owner
 * whom X-User-ID names, because whoever may name owners may name many. A key that is an owner's has the owner's own.
 */
export function shareOf(request: FastifyRequest): Share {
  const { principal } = request;
  if (principal.ownerId !== undefined)
    return { principal: `owner ${principal.ownerId}`, owner: principal.ownerId };
  const named = request.headers["x-user-id"];
  const owner = typeof named === "string" && principal !== anybody ? named.trim() : "";
  const keyless = principal === localUser || principal === anybody;
  return { principal: keyless ? `address ${request.ip}` : `key ${principal.name}`, owner };
}

/** One name of it. */
export function shareName({ principal, owner }: Share): string {
  return owner === "" ? principal : `${principal}, owner ${owner}`;
}
