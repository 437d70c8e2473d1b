import { hash } from "node:crypto";
import path from "node:path";
import { defaultKeyScopes, type KeyScope, keyScopes, ownerIdFault, reservedKeyNames } from "@alcove/wire";
import type { ConfiguredKey, SchemaConfig } from "./config.ts";
import type { ConfigProblem } from "./errors.ts";
import { readBounded } from "./sources.ts";

const maxKeyBytes = 65_536;

/** @returns the keys of `auth.keys`, hashed; what is wrong with them goes to `problems`. */
export function configuredKeys(
  given: SchemaConfig["auth"]["keys"],
  context: { cwd: string; problems: ConfigProblem[] },
): ConfiguredKey[] {
  const { cwd, problems } = context;
  const names = new Set<string>();
  const hashes = new Map<string, string>();
  return given.flatMap((entry) => {
    const { name, key_file: file, owner = "", expires } = entry;
    const before = problems.length;
    const wrong = (message: string) =>
      problems.push({ key: "auth.keys", message: `auth.keys "${name}": ${message}` });
    if (names.has(name)) wrong("there are two of this name");
    names.add(name);
    if (reservedKeyNames.includes(name)) wrong("this name stands for something else in logs; choose another");
    const scopes: readonly KeyScope[] = entry.scopes ?? defaultKeyScopes;
    if (entry.owner?.trim() === "") wrong("owner is empty: leave it out for a key that is bound to nobody");
    const fault = ownerIdFault(owner);
    if (fault !== undefined) wrong(`owner ${fault}`);
    if (owner !== "" && scopes.includes("admin"))
      wrong("a key bound to an owner cannot administer: leave out owner, or the scope admin");
    const expiresAt = expires === undefined ? null : new Date(expires);
    if (expires !== undefined && !isTime(expires))
      wrong(`expires is ${JSON.stringify(expires)}: expected a time such as "2030-01-31T00:00:00Z"`);
    let length: number | undefined;
    let digest = entry.hash?.toLowerCase() ?? "";
    if ((digest === "") === (file === undefined)) wrong("give hash or key_file, one of them");
    else if (file !== undefined) {
      const read = readBounded(path.resolve(cwd, file), maxKeyBytes);
      const key = read.content?.trim();
      if (key) {
        digest = hash("sha256", key, "hex");
        length = key.length;
      } else wrong(`key_file is ${JSON.stringify(file)}: ${read.error ?? "the file is empty"}`);
    }
    const other = hashes.get(digest);
    if (other !== undefined) wrong(`it is the key of "${other}": give each its own`);
    hashes.set(digest, name);
    if (problems.length > before) return [];
    return [
      {
        name,
        hash: digest,
        ownerId: owner,
        scopes: keyScopes.filter((scope) => scopes.includes(scope)),
        expiresAt,
        ...(length === undefined ? {} : { length }),
      },
    ];
  });
}

/** With a zone, and of a day that there is. */
function isTime(text: string): boolean {
  const day = /^(\d{4}-\d\d-\d\d)T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)$/.exec(text)?.[1];
  if (day === undefined || Number.isNaN(Date.parse(text))) return false;
  return new Date(`${day}T00:00:00Z`).toISOString().startsWith(day);
}
