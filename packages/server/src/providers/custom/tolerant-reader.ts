import type { Static, TSchema } from "typebox";
import { Compile, type Validator } from "typebox/compile";
import { Value } from "typebox/value";
import { beyondBounds } from "../../platform/bounded-json.ts";

/** Below these keys names are the backend's or ours, and stay as they are. */
const opaque = new Set(["labels"]);
/** Of one answer, or one line: what a backend that was taken over has us walk through in one go. */
const bounds = { maxDepth: 32, maxParts: 10_000 };
const validators = new WeakMap<TSchema, Validator>();
/** What names were turned into: backends use the same few again and again. */
const names = new Map<string, string>();
const namesKept = 1_000;
const longestKept = 64;

/** An answer that is not what the contract says. */
export class Unreadable extends Error {
  constructor(message: string) {
    super(message);
    this.name = "Unreadable";
  }
}

/**
 * Reads an answer of a backend: keys in any of exit_code, exitCode and ExitCode, numbers as strings, unknown keys ignored,
 * null for what may be left out.
 * @throws Unreadable, which says where but not what stands there.
 */
export function readAnswer<T extends TSchema>(schema: T, text: string | Uint8Array): Static<T> {
  return checked(schema, parsed(text));
}

/** An answer whose names are ours, for `checked`. @throws Unreadable for what is no JSON, or too much of it. */
export function parsed(text: string | Uint8Array): unknown {
  const bytes = typeof text === "string" ? Buffer.from(text) : text;
  const tooMuch = beyondBounds(bytes, bounds);
  if (tooMuch !== undefined) throw new Unreadable(tooMuch);
  let value: unknown;
  try {
    value = JSON.parse(typeof text === "string" ? text : Buffer.from(text).toString());
  } catch {
    throw new Unreadable("it is no JSON");
  }
  return normalized(value);
}

/** @throws Unreadable for what `schema` does not say, numbers as strings apart. */
export function checked<T extends TSchema>(schema: T, value: unknown): Static<T> {
  const validator = validators.get(schema) ?? Compile(schema);
  validators.set(schema, validator);
  if (validator.Check(value)) return value as Static<T>;
  // Costs a hundred times what a look does, so only what is not as it should be is converted.
  const converted = Value.Convert(schema, value);
  if (validator.Check(converted)) return converted as Static<T>;
  const [first] = Value.Errors(schema, converted);
  throw new Unreadable(
    `at ${wayTo(first?.instancePath ?? "")} it ${first?.message ?? "is not what the contract says"}`,
  );
}

/** By names of the contract alone: what is called otherwise may have a megabyte of anything for its name. */
function wayTo(instancePath: string): string {
  const steps = instancePath.split("/");
  const last = steps.findIndex((step) => opaque.has(step));
  return steps.slice(0, last < 0 ? undefined : last + 1).join("/") || "its top";
}

function normalized(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(normalized);
  // Backends may spell a name that is no UTF-8 with halves of surrogate pairs, which strict readers of ours refuse.
  if (typeof value === "string") return value.toWellFormed();
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).flatMap(([key, each]) => {
      const name = snakeCase(key);
      if (each === null) return [];
      return [[name, opaque.has(name) ? each : normalized(each)]];
    }),
  );
}

/** exit_code of exitCode and ExitCode. */
export function snakeCase(key: string): string {
  const known = names.get(key);
  if (known !== undefined) return known;
  const name = key
    .replaceAll(/([a-z0-9])([A-Z])/g, "$1_$2")
    .replaceAll(/([A-Z])([A-Z][a-z])/g, "$1_$2")
    .toLowerCase();
  if (names.size < namesKept && key.length <= longestKept) names.set(key, name);
  return name;
}
