import { ownerIdFault } from "@alcove/wire";
import { BadRequest } from "../ports/errors.ts";

/**
 * Reads an owner id as a client gave it, from the header or the body. docs/api/README.md.
 * @returns the trimmed id; the empty text when none was given.
 * @throws BadRequest naming what is wrong with it.
 */
export function parseOwnerId(text: string | undefined): string {
  const owner = (text ?? "").trim();
  const fault = ownerIdFault(owner);
  if (fault !== undefined) throw new BadRequest(`owner id ${JSON.stringify(owner.slice(0, 64))} ${fault}`);
  return owner;
}
