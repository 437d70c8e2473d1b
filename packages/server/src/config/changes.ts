import type { Config } from "./config.ts";
import { configKeys } from "./keys.ts";

/** Beside keys. docs/cli.md. */
export const takenOverAlways = ["defaults.*", "rate_limit.*", "logging.level"] as const;
const isTakenOverAlways = (name: string) =>
  takenOverAlways.some((key) =>
    key.endsWith("*") ? keyOf(name).startsWith(key.slice(0, -1)) : keyOf(name) === key,
  );
const keysOfAccess = ["auth.apiKey", "auth.adminApiKey", "auth.adminFallbackEnabled", "auth.keys"];

/**
 * The keys that differ, as a file spells them: those that a running service takes over, and those that need a restart.
 * A service that asks for keys takes over whatever became of them, also that there are none; one that asks for none
 * starts to ask at a restart.
 * @param started with what it was started: what needs a restart is compared with that. @param applied what it last read.
 */
export function changes(
  after: Config,
  { started, applied }: { started: Config; applied: Config },
): { takenOver: string[]; needRestart: string[] } {
  const isTakenOver = (name: string) =>
    isTakenOverAlways(name) || (started.auth.enabled && keysOfAccess.includes(name));
  return {
    takenOver: differing(applied, after).filter(isTakenOver).map(keyOf),
    needRestart: differing(started, after)
      .filter((name) => !isTakenOver(name))
      .map(keyOf),
  };
}

function differing(before: Config, after: Config): string[] {
  const [old, now] = [leaves(before), leaves(after)];
  const names = new Set([...old.keys(), ...now.keys()]);
  return [...names].filter((name) => old.get(name) !== now.get(name)).sort();
}

/** `defaults.maxTtlMs` is `defaults.max_ttl`. */
function keyOf(name: string): string {
  const found = configKeys.find(({ key }) => {
    const camel = key.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
    return [camel, `${camel}Ms`, `${camel}Bytes`].includes(name);
  });
  return found?.key ?? name;
}

function leaves(value: object, prefix = "", into = new Map<string, string>()): Map<string, string> {
  for (const [name, inner] of Object.entries(value)) {
    if (typeof inner === "object" && inner !== null && !Array.isArray(inner))
      leaves(inner, `${prefix}${name}.`, into);
    else into.set(prefix + name, JSON.stringify(inner) ?? "");
  }
  return into;
}
