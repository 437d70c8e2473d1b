import path from "node:path";
import { configKeys } from "./keys.ts";
import { type Gathered, readBounded } from "./sources.ts";

const maxSecretBytes = 65_536;

/**
 * Takes each secret from its key or from the file its `_file` key names, never from both. Problems go to `gathered`.
 * @returns the secrets given, by key.
 */
export function resolveSecrets(gathered: Gathered, cwd: string): Map<string, string> {
  const secrets = new Map<string, string>();
  for (const { key, kind } of configKeys) {
    if (kind !== "secret") continue;
    const fileKey = `${key}_file`;
    const inline = given(gathered, key);
    const file = given(gathered, fileKey);
    if (inline !== undefined && file !== undefined) {
      gathered.problems.push({
        key,
        message: `${key} (${inline.source}) and ${fileKey} (${file.source}) are both given: keep one of them`,
      });
    } else if (inline !== undefined) {
      secrets.set(key, inline.value);
    } else if (file !== undefined) {
      const read = readBounded(path.resolve(cwd, file.value), maxSecretBytes);
      const secret = read.content?.trim();
      if (secret) secrets.set(key, secret);
      else {
        gathered.problems.push({
          key: fileKey,
          message: `${fileKey} is ${JSON.stringify(file.value)} (${file.source}): ${read.error ?? "the file is empty"}`,
        });
      }
    }
  }
  return secrets;
}

/** A secret that was given as an empty text was not given. */
function given(gathered: Gathered, key: string): { value: string; source: string } | undefined {
  const entry = gathered.given.get(key);
  if (entry === undefined || typeof entry.value !== "string" || entry.value === "") return undefined;
  return { value: entry.value, source: entry.source };
}
