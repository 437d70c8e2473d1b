import { parseDuration } from "@alcove/wire";
import { Value } from "typebox/value";
import { parse as parseYaml } from "yaml";
import type { ConfigKey } from "./keys.ts";

/** A value as the service uses it: durations in milliseconds, sizes in bytes. */
export type ConfigValue =
  | string
  | number
  | boolean
  | string[]
  | Record<string, string>
  | Record<string, unknown>[];

export type ReadResult = { ok: true; value: ConfigValue } | { ok: false; expected: string };

const byteUnits: Readonly<Record<string, number>> = {
  "": 1,
  B: 1,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
};

/** Reads a value as a YAML file holds it. */
export function readValue(key: ConfigKey, value: unknown): ReadResult {
  switch (key.kind) {
    case "text":
    case "secret":
      return typeof value === "string" ? ok(value) : wrong("a text; put it in quotes");
    case "flag":
      return typeof value === "boolean" ? ok(value) : wrong("true or false");
    case "integer":
      return readInteger(key, value);
    case "ratio":
      return typeof value === "number" && value >= 0 && value <= 1
        ? ok(value)
        : wrong("a number from 0 to 1");
    case "duration":
      return readDuration(value);
    case "bytes":
      return readBytes(value);
    case "choice":
      return typeof value === "string" && key.values.includes(value)
        ? ok(value)
        : wrong(`one of ${key.values.join(", ")}`);
    case "list":
      return readList(value);
    case "map":
      return readMap(value);
    case "entries":
      return readEntries(key, value);
    default: {
      const unreachable: never = key.kind;
      return unreachable;
    }
  }
}

/** Reads a value from the environment or the command line, where everything is text. */
export function readText(key: ConfigKey, text: string): ReadResult {
  switch (key.kind) {
    case "flag":
      if (text === "1" || text.toLowerCase() === "true") return ok(true);
      if (text === "0" || text.toLowerCase() === "false") return ok(false);
      return wrong("true or false");
    case "integer":
      return readInteger(key, /^-?\d{1,15}$/.test(text.trim()) ? Number(text) : text);
    case "ratio":
      return readValue(key, /^\d*\.?\d+$/.test(text.trim()) ? Number(text) : text);
    case "list":
      if (text.trimStart().startsWith("[")) return readValue(key, flow(text));
      return ok(
        text
          .split(",")
          .map((item) => item.trim())
          .filter((item) => item !== ""),
      );
    case "map":
    case "entries":
      return readValue(key, flow(text));
    default:
      return readValue(key, text);
  }
}

function readInteger(key: ConfigKey, value: unknown): ReadResult {
  const { minimum = 0, maximum } = key;
  const expected =
    maximum === undefined
      ? `a whole number from ${minimum} up`
      : `a whole number from ${minimum} to ${maximum}`;
  if (typeof value !== "number" || !Number.isSafeInteger(value)) return wrong(expected);
  if (value < minimum || (maximum !== undefined && value > maximum)) return wrong(expected);
  return ok(value);
}

function readDuration(value: unknown): ReadResult {
  const ms = typeof value === "string" ? parseDuration(value) : undefined;
  return ms === undefined ? wrong("a duration such as 30s, 5m, 1h30m or 500ms") : ok(ms);
}

function readBytes(value: unknown): ReadResult {
  const expected = "a size: a whole number of bytes, or a text such as 512KiB or 10MiB";
  if (typeof value === "number")
    return Number.isSafeInteger(value) && value >= 0 ? ok(value) : wrong(expected);
  const match = typeof value === "string" ? /^(\d+(?:\.\d+)?)\s*([A-Za-z]*)$/.exec(value.trim()) : null;
  const unit = match === null ? undefined : byteUnits[match[2] ?? ""];
  if (match === null || unit === undefined) return wrong(expected);
  const size = Math.round(Number(match[1]) * unit);
  return Number.isSafeInteger(size) ? ok(size) : wrong(expected);
}

function readList(value: unknown): ReadResult {
  if (!Array.isArray(value)) return wrong("a list of texts");
  const items = value.filter((item) => typeof item === "string");
  return items.length === value.length ? ok(items) : wrong("a list of texts; put each in quotes");
}

function readMap(value: unknown): ReadResult {
  if (!isMap(value)) return wrong("a map of texts, such as {name: value}");
  const entries: [string, string][] = [];
  for (const [name, item] of Object.entries(value)) {
    if (typeof item !== "string") return wrong("a map of texts; put each value in quotes");
    entries.push([name, item]);
  }
  return ok(Object.fromEntries(entries));
}

function readEntries(key: ConfigKey, value: unknown): ReadResult {
  const { items } = key;
  if (items === undefined) throw new Error(`${key.key} does not say what its entries look like`);
  if (!Array.isArray(value)) return wrong("a list of entries, each with a name");
  for (const [index, entry] of value.entries()) {
    const [error] = Value.Errors(items, entry);
    if (error === undefined) continue;
    const named = isMap(entry) && typeof entry.name === "string" ? `"${entry.name}"` : `${index + 1}`;
    const fields = "properties" in items && isMap(items.properties) ? Object.keys(items.properties) : [];
    // What has no place in an entry meets a schema that nothing matches.
    const fault = error.keyword === "boolean" ? "is none of them" : error.message;
    return wrong(
      `entries of ${fields.join(", ")}; entry ${named}${error.instancePath.replaceAll("/", " ")} ${fault}`,
    );
  }
  return ok(value);
}

export function isMap(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** YAML flow text such as `[a, b]`; what is not YAML stays the text, which then is of the wrong kind. */
function flow(text: string): unknown {
  try {
    return parseYaml(text);
  } catch {
    return text;
  }
}

function ok(value: ConfigValue): ReadResult {
  return { ok: true, value };
}

function wrong(expected: string): ReadResult {
  return { ok: false, expected };
}
