import { beyondBounds, type JsonLook } from "../platform/bounded-json.ts";
import { BadRequest } from "../ports/errors.ts";

/** The deepest request has four levels, the longest list of arguments 65,536 of them. */
export const jsonBounds = { maxDepth: 32, maxParts: 150_000 };

/** No mistake of a person: who sends one may send more. */
export class Excessive extends BadRequest {}

/**
 * Parses what a caller sent.
 * @param what names it in refusals.
 * @throws Excessive for bytes that would cost far more to parse than any request is worth, BadRequest for what is no JSON.
 */
export function parseJson(what: string, bytes: Buffer): unknown {
  refuseExcess(what, beyondBounds(bytes, jsonBounds));
  return parsed(what, bytes.toString("utf8"));
}

/** @param excess what a look at it found. @throws Excessive */
export function refuseExcess(what: string, excess: ReturnType<JsonLook["add"]>): void {
  if (excess !== undefined) throw new Excessive(`${what} is more than any request needs: ${excess}`);
}

/**
 * Parses a body that was looked at. Whether a name poses as a prototype is looked for in what was parsed: there are few
 * values, and their texts may be long.
 * @throws BadRequest for what is no JSON and for such a name.
 */
export function parseBody(text: string): unknown {
  const value = parsed("the body", text);
  refusePrototypes(value);
  return value;
}

function parsed(what: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new BadRequest(`${what} is not JSON`, { cause });
  }
}

function refusePrototypes(value: unknown): void {
  if (typeof value !== "object" || value === null) return;
  for (const [name, inner] of Object.entries(value)) {
    const poses =
      name === "__proto__" ||
      (name === "constructor" &&
        typeof inner === "object" &&
        inner !== null &&
        Object.hasOwn(inner, "prototype"));
    if (poses) throw new BadRequest(`the body has a field named ${name}, which is never taken`);
    refusePrototypes(inner);
  }
}
