import type { FastifyRequest } from "fastify";
import { BadRequest } from "../ports/errors.ts";

/** `If-Modified-Since` is none of a write: who gets one is to take no notice of it (RFC 9110, 13.1.3). */
const preconditions = ["if-match", "if-none-match", "if-unmodified-since"] as const;

/**
 * Files are written whole and whatever was there: a part that is taken for one, as of an upload that goes on (`curl -C`), would replace what it
 * was to be added to, and a write that was to happen on a condition alone would replace what its sender wanted to keep.
 */
export function refuseConditions({ headers }: FastifyRequest): void {
  const range = headers["content-range"];
  if (range !== undefined)
    throw new BadRequest(
      `Content-Range ${JSON.stringify(range.slice(0, 64))}: a part of a file is not taken, files are written whole; send all of it without Content-Range`,
    );
  const condition = preconditions.find((name) => headers[name] !== undefined);
  if (condition !== undefined)
    throw new BadRequest(
      `${condition} ${JSON.stringify(headers[condition]?.slice(0, 64))}: a write on a condition is not taken, files have no versions here; look with GET …/files/stat and write without it`,
    );
}
