import type { ConfigKey } from "./keys.ts";
import type { Given } from "./sources.ts";
import { type ConfigValue, readValue } from "./values.ts";

/** Every key with the value that counts: the one given, else the default. Asking for the wrong kind is our own fault. */
export class ResolvedKeys {
  readonly #values = new Map<string, { value: ConfigValue | undefined; source: string | undefined }>();

  constructor(keys: readonly ConfigKey[], given: ReadonlyMap<string, Given>) {
    for (const key of keys) {
      const own = given.get(key.key);
      this.#values.set(
        key.key,
        own === undefined
          ? { value: defaultOf(key), source: undefined }
          : { value: own.value, source: own.source },
      );
    }
  }

  /** Where the value was given: a file, a variable, an option; undefined: it is the default. */
  source(key: string): string | undefined {
    return this.#values.get(key)?.source;
  }

  text(key: string): string {
    const value = this.#value(key);
    return typeof value === "string" ? value : mismatch(key, "a text");
  }

  number(key: string): number {
    const value = this.#value(key);
    return typeof value === "number" ? value : mismatch(key, "a number");
  }

  flag(key: string): boolean {
    return this.optionalFlag(key) ?? mismatch(key, "true or false");
  }

  optionalFlag(key: string): boolean | undefined {
    const value = this.#value(key);
    return value === undefined || typeof value === "boolean" ? value : mismatch(key, "true or false");
  }

  choice<const V extends string>(key: string, values: readonly V[]): V {
    return this.optionalChoice(key, values) ?? mismatch(key, values.join(", "));
  }

  optionalChoice<const V extends string>(key: string, values: readonly V[]): V | undefined {
    const value = this.#value(key);
    if (value === undefined) return undefined;
    return values.find((candidate) => candidate === value) ?? mismatch(key, values.join(", "));
  }

  list(key: string): string[] {
    const value = this.#value(key);
    return Array.isArray(value) ? value : mismatch(key, "a list");
  }

  map(key: string): Record<string, string> {
    const value = this.#value(key);
    return typeof value === "object" && !Array.isArray(value) ? value : mismatch(key, "a map");
  }

  #value(key: string): ConfigValue | undefined {
    const entry = this.#values.get(key);
    if (entry === undefined) throw new Error(`the configuration schema has no key ${key}`);
    return entry.value;
  }
}

function defaultOf(key: ConfigKey): ConfigValue | undefined {
  if (key.default === undefined) return undefined;
  const result = readValue(key, key.default);
  if (!result.ok) throw new Error(`the default of ${key.key} is not ${result.expected}`);
  return result.value;
}

function mismatch(key: string, wanted: string): never {
  throw new Error(`the configuration key ${key} does not hold ${wanted}, as the loader expects`);
}
