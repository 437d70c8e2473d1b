import { constants } from "node:fs";
import { access, mkdir, readdir, readFile, rmdir, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { isMomentary } from "../../platform/momentary.ts";
import type { CgroupSpec } from "./requests.ts";
import { vacateGroup } from "./vacate-group.ts";

/** The groups that those of an installation are made in: `alcove-<instance>` at the top of the tree, or below the service's
 *  own group when that was delegated to it (systemd's `Delegate=yes`). */
export interface GroupParents {
  version: 1 | 2;
  /** By controller; v2 has only `unified`. */
  parents: ReadonlyMap<string, string>;
}

const mountPoint = "/sys/fs/cgroup";
const cgroup2Magic = 0x63677270;
/** With v1 each controller has a tree of its own; `cpuacct` is often the same one as `cpu`. */
const v1Controllers = ["memory", "cpu", "cpuacct", "pids"] as const;
const v2Controllers = ["memory", "cpu", "pids"] as const;

/** An installation as its control groups name it: `alcove-<name>`. */
export function instanceName(instanceId: string): string {
  return instanceId.replace(/[^a-zA-Z0-9]/g, "").slice(0, 12);
}

/**
 * @param instance as `instanceName` makes it.
 * @returns what to say instead when no groups can be made here.
 * @throws Error of the file system where that cannot be told now, for want of a descriptor for one.
 */
export async function openGroupParents(instance: string): Promise<GroupParents | { missing: string }> {
  const name = `alcove-${instance}`;
  try {
    const { type } = await statfs(mountPoint);
    return type === cgroup2Magic ? await openV2(name) : await openV1(name);
  } catch (error) {
    if (isMomentary(error)) throw error;
    return { missing: `no cgroups can be made: ${error instanceof Error ? error.message : String(error)}` };
  }
}

/** Groups of that name in each tree. */
export function groupSpec({ version, parents }: GroupParents, below: string): CgroupSpec {
  const dirs = [...parents].map(([controller, parent]) => ({ controller, path: join(parent, below) }));
  return { version, dirs };
}

/** Removes them when nothing is in them: sandboxes that outlive the service keep theirs. */
export async function closeGroupParents({ parents }: GroupParents): Promise<void> {
  for (const parent of new Set(parents.values())) {
    try {
      await rmdir(parent);
    } catch (error) {
      if (!(error instanceof Error && "code" in error)) throw error;
    }
  }
}

/** A group that is there already may be another user's. */
async function makeWritable(dir: string): Promise<void> {
  await mkdir(dir, { recursive: true, mode: 0o755 });
  await access(dir, constants.W_OK);
}

async function openV1(name: string): Promise<GroupParents> {
  const parents = new Map<string, string>();
  for (const controller of v1Controllers) {
    const parent = join(mountPoint, controller, name);
    await makeWritable(parent);
    parents.set(controller, parent);
  }
  return { version: 1, parents };
}

async function openV2(name: string): Promise<GroupParents> {
  const rooted = process.getuid?.() === 0;
  const own = (await readFile("/proc/self/cgroup", "utf8"))
    .split("\n")
    .find((line) => line.startsWith("0::"));
  const ownPath = join(mountPoint, own?.slice(3).trim() ?? "/");
  const handDown = v2Controllers.map((controller) => `+${controller}`).join(" ");
  let above = mountPoint;
  if (!rooted || !(await offers(mountPoint))) {
    // A group with processes cannot hand controllers down: the service moves into one of its own first.
    await needControllers(ownPath);
    const leaf = join(ownPath, "service");
    if (!ownPath.endsWith("/service")) {
      await mkdir(leaf, { recursive: true });
      await vacateGroup(ownPath, { into: leaf, handDown });
      above = ownPath;
    } else above = join(ownPath, "..");
  }
  await writeFile(join(above, "cgroup.subtree_control"), handDown);
  const parent = join(above, name);
  await makeWritable(parent);
  await writeFile(join(parent, "cgroup.subtree_control"), handDown);
  return { version: 2, parents: new Map([["unified", parent]]) };
}

/** Whether the top of the tree is the machine's: in a container it may be somebody else's group. */
async function offers(dir: string): Promise<boolean> {
  if ((await readdir(dir)).includes("cgroup.type")) return false;
  await needControllers(dir);
  return true;
}

/** Before anything is moved. @throws Error naming what this group was not given. */
async function needControllers(dir: string): Promise<void> {
  const given = (await readFile(join(dir, "cgroup.controllers"), "utf8")).split(/\s/);
  const lacking = v2Controllers.filter((name) => !given.includes(name));
  if (lacking.length > 0) throw new Error(`${dir} has not been given ${lacking.join(", ")}`);
}
