import { isUtf8 } from "node:buffer";
import { beyondBounds, type JsonLook } from "../platform/bounded-json.ts";
import { BadRequest } from "../ports/errors.ts";

/** The deepest request has four levels, the longest list of arguments 65,536 of them, environment and labels 4,352 names. */
export const jsonBounds = { maxDepth: 32, maxParts: 80_000, maxNames: 8_192 };

/** No mistake of a person: who sends one may send more. */
export class Excessive extends BadRequest {}

/** What was sent as text. Where it is no UTF-8, characters in it stand for bytes, and it is only good for saying where. */
export interface JsonText {
  text: string;
  utf8: boolean;
}

export function decodeJson(bytes: Buffer): JsonText {
  return { text: bytes.toString("utf8"), utf8: isUtf8(bytes) };
}

/**
 * Parses what a caller sent.
 * @param what names it in refusals.
 * @throws Excessive for bytes that would cost far more to parse than any request is worth, BadRequest for what is no JSON,
 * and for texts in it that are none.
 */
export function parseJson(what: string, bytes: Buffer): unknown {
  refuseExcess(what, beyondBounds(bytes, jsonBounds));
  return parsed(what, decodeJson(bytes));
}

/** @param excess what a look at it found. @throws Excessive */
export function refuseExcess(what: string, excess: ReturnType<JsonLook["add"]>): void {
  if (excess !== undefined) throw new Excessive(`${what} is more than any request needs: ${excess}`);
}

/**
 * Parses a body that was looked at. Whether a name poses as a prototype is looked for in what was parsed: there are few
 * values, and their texts may be long.
 * @throws BadRequest for what is no JSON, for texts in it that are none, and for such a name.
 */
export function parseBody(text: JsonText): unknown {
  const value = parsed("the body", text);
  refusePrototypes(value);
  return value;
}

function parsed(what: string, { text, utf8 }: JsonText): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new BadRequest(`${what} is not ${utf8 ? "JSON" : "UTF-8"}`, { cause });
  }
  const place = fieldThat(utf8 ? isNoText : standsForBytes, value);
  if (place === undefined && utf8) return value;
  const wrong = utf8
    ? "holds half of a surrogate pair, which is no character"
    : "holds bytes that are no UTF-8";
  throw new BadRequest(`${placeIn(what, place ?? [])} ${wrong}${waysOut.get(place?.at(-1) ?? "") ?? ""}`);
}

/**
 * An escape such as `\ud800` alone makes one. Programs in sandboxes cannot be given it, and parsers of other languages refuse
 * all of what it is in. To look for it takes next to nothing, whatever the text.
 */
const isNoText = (text: string): boolean => !text.isWellFormed();
const standsForBytes = (text: string): boolean => text.includes("\ufffd");

/** @returns the names that lead to the first text, or name, that is so, outermost first. */
function fieldThat(is: (text: string) => boolean, value: unknown): string[] | undefined {
  if (typeof value === "string") return is(value) ? [] : undefined;
  if (typeof value !== "object" || value === null) return undefined;
  if (Array.isArray(value)) {
    for (let at = 0; at < value.length; at++) {
      const within = fieldThat(is, value[at]);
      if (within !== undefined) return [String(at), ...within];
    }
    return undefined;
  }
  const fields = value as Readonly<Record<string, unknown>>;
  for (const name of Object.keys(fields)) {
    const within = is(name) ? [] : fieldThat(is, fields[name]);
    if (within !== undefined) return [name, ...within];
  }
  return undefined;
}

function placeIn(what: string, place: readonly string[]): string {
  const field = place.join(".").slice(0, 200).toWellFormed();
  return field === "" ? what : `${JSON.stringify(field).slice(1, -1)} in ${what}`;
}

/** How bytes are sent in a field, as the end of a sentence. */
const waysOut = new Map([
  ["content", '; bytes are sent as base64, with encoding: "base64"'],
  ["data", '; bytes are sent as base64, with encoding: "base64"'],
  ["stdin", '; bytes are sent as base64, with stdin_encoding: "base64"'],
]);

function refusePrototypes(value: unknown): void {
  if (typeof value !== "object" || value === null) return;
  if (Array.isArray(value)) {
    for (const inner of value) if (typeof inner === "object") refusePrototypes(inner);
    return;
  }
  const fields = value as Readonly<Record<string, unknown>>;
  for (const name of Object.keys(fields)) {
    const inner = fields[name];
    const poses =
      name === "__proto__" ||
      (name === "constructor" &&
        typeof inner === "object" &&
        inner !== null &&
        Object.hasOwn(inner, "prototype"));
    if (poses) throw new BadRequest(`the body has a field named ${name}, which is never taken`);
    if (typeof inner === "object") refusePrototypes(inner);
  }
}
