import { readdirSync, readFileSync, rmdirSync } from "node:fs";
import { join } from "node:path";
import type { CgroupSpec } from "../launcher/index.ts";
import { preparedPrefix } from "../prepared/index.ts";

/**
 * A sandbox keeps the groups it was prepared with, and only its record names them: where that was lost they are left, empty.
 * Removes those that no record names and nothing runs in.
 * @param parents of the installation's groups.
 * @param named the groups that records name.
 */
export function sweepPreparedGroups(parents: Iterable<string>, named: Iterable<CgroupSpec>): void {
  const kept = new Set([...named].flatMap(({ dirs }) => dirs.map(({ path }) => path)));
  for (const parent of parents) {
    for (const dir of below(parent))
      if (dir.startsWith(join(parent, preparedPrefix)) && !kept.has(dir) && isIdle(dir)) removeTree(dir);
  }
}

function isIdle(dir: string): boolean {
  return (
    unlessGone(() => readFileSync(join(dir, "cgroup.procs"), "utf8"), "") === "" && below(dir).every(isIdle)
  );
}

function removeTree(dir: string): void {
  for (const child of below(dir)) removeTree(child);
  // Where somebody came in it is looked at again by the next start.
  unlessGone(() => rmdirSync(dir), undefined);
}

function below(dir: string): string[] {
  const entries = unlessGone(() => readdirSync(dir, { withFileTypes: true }), []);
  return entries.filter((entry) => entry.isDirectory()).map(({ name }) => join(dir, name));
}

/** Two controllers may share a tree: what is in it is gone with the other. */
function unlessGone<T>(read: () => T, fallback: T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof Error && "code" in error) return fallback;
    throw error;
  }
}
