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
