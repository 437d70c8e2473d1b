import { durationMeant, parseDuration } from "@alcove/wire";
import { BadRequest } from "../ports/errors.ts";

/** Empty text in an optional field means "not given". docs/api/README.md. */
export function given(text: string | undefined): string | undefined {
  return text === undefined || text === "" ? undefined : text;
}

/** @returns milliseconds, or undefined when the field was not given. @throws BadRequest naming the field. */
export function optionalDuration(field: string, text: string | undefined): number | undefined {
  return text === undefined || text === "" ? undefined : requiredDuration(field, text);
}

/** @returns milliseconds, above 0. @throws BadRequest naming the field. */
export function requiredDuration(field: string, text: string): number {
  const ms = parseDuration(text);
  if (ms === undefined)
    throw new BadRequest(
      `${field} ${JSON.stringify(text.slice(0, 64))} is not a duration such as 30s, 5m or 1h30m${durationMeant(text)}`,
    );
  if (ms <= 0) throw new BadRequest(`${field} must be longer than 0s`);
  return ms;
}

/** Bytes of a text field. @throws BadRequest for text that is not base64. */
export function decodeContent(field: string, text: string, encoding: "utf8" | "base64" | undefined): Buffer {
  if (encoding !== "base64") return Buffer.from(text, "utf8");
  const padded = /^[A-Za-z0-9+/\r\n]*((?:=[\r\n]*){0,2})$/.exec(text);
  if (padded === null) throw new BadRequest(`${field} is not base64`);
  const [, end = ""] = padded;
  const padding = end === "" ? 0 : end.lastIndexOf("=") === 0 ? 1 : 2;
  if ((text.length - lineBreaksIn(text) - padding) % 4 === 1) throw new BadRequest(`${field} is not base64`);
  // Which passes over line breaks.
  return Buffer.from(text, "base64");
}

/** To take them out of a text where every other character is one costs ten times as much. @param text ASCII. */
function lineBreaksIn(text: string): number {
  if (!text.includes("\n") && !text.includes("\r")) return 0;
  const bytes = Buffer.from(text, "latin1");
  let count = 0;
  for (let at = 0; at < bytes.length; at++) if (bytes[at] === 0x0a || bytes[at] === 0x0d) count += 1;
  return count;
}

type Defined<T> = { [K in keyof T as undefined extends T[K] ? never : K]: T[K] } & {
  [K in keyof T as undefined extends T[K] ? K : never]?: Exclude<T[K], undefined>;
};

/** Leaves out what is undefined, as exact optional properties ask for. */
export function defined<T extends object>(fields: T): Defined<T> {
  const kept: Record<string, unknown> = {};
  for (const name of Object.keys(fields)) {
    const value = fields[name as keyof T];
    if (value !== undefined) kept[name] = value;
  }
  return kept as Defined<T>;
}

/**
 * Every field of an input, so that none is left out of a mapping unseen; what was not given is undefined. On the other
 * side a mapping destructures its request and ends with `rest satisfies Record<string, never>`: a field that the schema
 * gains and the mapping does not read is then an error of the compiler.
 */
export type Total<T> = {
  [K in keyof Required<T>]: Record<never, never> extends Pick<T, K> ? T[K] | undefined : T[K];
};
