import { BadRequest } from "../ports/errors.ts";

const longestOwnerId = 128;

/**
 * Reads an owner id as a client gave it, from the header or the body. docs/api/README.md.
 * @returns the trimmed id; the empty text when none was given.
 * @throws BadRequest naming what is wrong with it.
 */
export function parseOwnerId(text: string | undefined): string {
  const owner = (text ?? "").trim();
  if (owner === "") return "";
  if ([...owner].length > longestOwnerId) {
    throw new BadRequest(`owner id is longer than ${longestOwnerId} characters`);
  }
  if (/[\p{White_Space}\p{Z}]/u.test(owner)) throw new BadRequest("owner id must not contain whitespace");
  if (/[\p{Cc}\p{Cs}\u2028\u2029]/u.test(owner)) {
    throw new BadRequest("owner id must not contain control characters");
  }
  if (/[/\\]/.test(owner)) throw new BadRequest("owner id must not contain path separators");
  return owner;
}
