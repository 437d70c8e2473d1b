import type { Config } from "./config.ts";

const shortestKey = 16;

/** Which keys are too short to be safe from guessing. */
export function shortKeys({ auth }: Pick<Config, "auth">): string | undefined {
  const known = [
    { name: "auth.api_key", length: auth.apiKey.length || undefined },
    { name: "auth.admin_api_key", length: auth.adminApiKey.length || undefined },
    ...auth.keys.map(({ name, length }) => ({ name: `auth.keys "${name}"`, length })),
  ];
  const short = known.filter(({ length }) => length !== undefined && length < shortestKey);
  return short.length > 0
    ? `fewer than ${shortestKey} characters: ${short.map(({ name }) => name).join(", ")}`
    : undefined;
}

export function equalKeys({ auth }: Pick<Config, "auth">): string | undefined {
  return auth.adminApiKey !== "" && auth.apiKey === auth.adminApiKey
    ? "auth.api_key and auth.admin_api_key are the same"
    : undefined;
}

/** What is wrong with the keys that are let in, with the way out: they apply all the same. */
export function warningsOfKeys(config: Pick<Config, "auth">): string[] {
  const short = shortKeys(config);
  const equal = equalKeys(config);
  return [
    ...(short === undefined
      ? []
      : [`keys that can be guessed apply, ${short}; make keys with: openssl rand -hex 32`]),
    ...(equal === undefined
      ? []
      : [`${equal}: every client administers; give administrators a key of their own`]),
  ];
}
