import type { ConfigKey } from "./keys.ts";
import type { Given } from "./sources.ts";
import { type ConfigValue, readValue } from "./values.ts";

/** Every key with the value that counts: the one given, else the default. */
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

  /** Durations in milliseconds, sizes in bytes; undefined for a key that may stay unset and did. */
  value(key: string): ConfigValue | undefined {
    const entry = this.#values.get(key);
    if (entry === undefined) throw new Error(`the configuration schema has no key ${key}`);
    return entry.value;
  }

  text(key: string): string {
    const value = this.value(key);
    if (typeof value !== "string") throw new Error(`the configuration key ${key} holds no text`);
    return value;
  }
}

function defaultOf(key: ConfigKey): ConfigValue | undefined {
  if (key.default === undefined) return undefined;
  const result = readValue(key, key.default);
  if (!result.ok) throw new Error(`the default of ${key.key} is not ${result.expected}`);
  return result.value;
}
