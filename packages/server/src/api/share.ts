import type { FastifyRequest } from "fastify";
import type { Share } from "../core/answers/shares.ts";
import { anybody, localUser } from "../core/keys/principal.ts";
import { addressBlock } from "../core/rate-limits/address-block.ts";
import { addressOf } from "./address.ts";

/**
 * Whose share of a memory, or of other places, a request takes from: its key's, or without keys its block of addresses',
 * and below it that of the owner whom X-User-ID names, because whoever may name owners may name many. A key that is an
 * owner's has the owner's own.
 */
export function shareOf(request: FastifyRequest): Share {
  const { principal } = request;
  if (principal.ownerId !== undefined)
    return { principal: `owner ${principal.ownerId}`, owner: principal.ownerId };
  const named = request.headers["x-user-id"];
  const owner = typeof named === "string" && principal !== anybody ? named.trim() : "";
  const keyless = principal === localUser || principal === anybody;
  return {
    principal: keyless ? `address ${addressBlock(addressOf(request))}` : `key ${principal.name}`,
    owner,
  };
}
