import type { Static, TSchema } from "typebox";
import { Value } from "typebox/value";

/** Below these keys names are the backend's or ours, and stay as they are. */
const opaque = new Set(["labels"]);

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
export function readAnswer<T extends TSchema>(schema: T, text: string): Static<T> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw new Unreadable("it is no JSON");
  }
  const value = Value.Convert(schema, normalized(parsed));
  if (Value.Check(schema, value)) return value;
  const [first] = Value.Errors(schema, value);
  throw new Unreadable(
    `at ${first?.instancePath || "its top"} it ${first?.message ?? "is not what the contract says"}`,
  );
}

function normalized(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(normalized);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).flatMap(([key, each]) => {
      const name = snakeCase(key);
      if (each === null) return [];
      return [[name, opaque.has(name) ? each : normalized(each)]];
    }),
  );
}

const snakeCase = (key: string) =>
  key
    .replaceAll(/([a-z0-9])([A-Z])/g, "$1_$2")
    .replaceAll(/([A-Z])([A-Z][a-z])/g, "$1_$2")
    .toLowerCase();
