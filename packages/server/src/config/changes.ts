import type { Config } from "./config.ts";

/** What a running service takes over. `auth.enabled` is none of it. */
const takenOver = ["auth.apiKey", "auth.adminApiKey", "logging.level"];

/** The settings, as the code names them, that differ and that only a restart takes over. */
export function needingRestart(before: Config, after: Config): string[] {
  const [old, now] = [leaves(before), leaves(after)];
  const names = new Set([...old.keys(), ...now.keys()]);
  return [...names].filter((name) => !takenOver.includes(name) && old.get(name) !== now.get(name)).sort();
}

function leaves(value: object, prefix = "", into = new Map<string, string>()): Map<string, string> {
  for (const [name, inner] of Object.entries(value)) {
    if (typeof inner === "object" && inner !== null && !Array.isArray(inner))
      leaves(inner, `${prefix}${name}.`, into);
    else into.set(prefix + name, JSON.stringify(inner) ?? "");
  }
  return into;
}
