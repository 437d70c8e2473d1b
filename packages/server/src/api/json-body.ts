import { beyondBounds } from "../platform/bounded-json.ts";
import { BadRequest } from "../ports/errors.ts";

/** The deepest request has four levels, the longest list of arguments 65,536 of them. */
const bounds = { maxDepth: 32, maxParts: 150_000 };

/** No mistake of a person: who sends one may send more. */
export class Excessive extends BadRequest {}

/** @throws Excessive for a text that would cost far more to parse than any request is worth. */
export function refuseExcess(what: string, text: string): void {
  const excess = beyondBounds(text, bounds);
  if (excess !== undefined) throw new Excessive(`${what} is more than any request needs: ${excess}`);
}

/**
 * Reads a body. Whether a name poses as a prototype is looked for in what was parsed: there are few values, and their
 * texts may be long.
 * @throws BadRequest for what is no JSON, Excessive, and for such a name.
 */
export function parseBody(text: string): unknown {
  refuseExcess("the body", text);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new BadRequest("the body is not JSON", { cause });
  }
  refusePrototypes(value);
  return value;
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
