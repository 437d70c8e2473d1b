import { constants } from "node:fs";
import { access, mkdir, readdir, readFile, rmdir, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Logger } from "../../platform/logger.ts";
import type { PoolSlot, RuntimeStats } from "../../ports/index.ts";
import { countedInV1, countedInV2 } from "./counted-memory.ts";
import type { CgroupSpec } from "./launch-spec.ts";
import { SlotGroups } from "./slot-groups.ts";
import { vacateGroup } from "./vacate-group.ts";

const mountPoint = "/sys/fs/cgroup";
const cgroup2Magic = 0x63677270;
/** With v1 each controller has a tree of its own; `cpuacct` is often the same one as `cpu`. */
const v1Controllers = ["memory", "cpu", "cpuacct", "pids"] as const;
const v2Controllers = ["memory", "cpu", "pids"] as const;

/**
 * The groups of this installation's sandboxes: `alcove-<instance>` at the top of the tree, or below the service's own
 * group when that was delegated to it (systemd's `Delegate=yes`).
 */
export class Cgroups {
  readonly version: 1 | 2;
  /** Those of the pool. */
  readonly slots: SlotGroups;
  /** By controller; v2 has only `unified`. */
  readonly #parents: ReadonlyMap<string, string>;

  private constructor(version: 1 | 2, parents: ReadonlyMap<string, string>, logger: Logger) {
    this.version = version;
    this.#parents = parents;
    this.slots = new SlotGroups(version, parents, logger);
  }

  /** @returns what to say instead when no groups can be made here. */
  static async open(options: { instance: string; logger: Logger }): Promise<Cgroups | { missing: string }> {
    const name = `alcove-${options.instance}`;
    try {
      const { type } = await statfs(mountPoint);
      return type === cgroup2Magic ? await openV2(name, options.logger) : await openV1(name, options.logger);
    } catch (error) {
      return { missing: `no cgroups can be made: ${error instanceof Error ? error.message : String(error)}` };
    }
  }

  static of(version: 1 | 2, parents: ReadonlyMap<string, string>, logger: Logger): Cgroups {
    return new Cgroups(version, parents, logger);
  }

  /** @param slot the runtime's, when it is part of a VM of the pool. */
  spec(runtimeId: string, slot?: PoolSlot): CgroupSpec {
    const below = slot === undefined ? runtimeId : join(SlotGroups.path(slot), runtimeId);
    const dirs = [...this.#parents].map(([controller, parent]) => ({
      controller,
      path: join(parent, below),
    }));
    return { version: this.version, dirs };
  }

  /** What the kernel counted for a runtime. @throws Error with code ENOENT when it is gone. */
  async stats(runtimeId: string, slot?: PoolSlot): Promise<RuntimeStats> {
    const { dirs } = this.spec(runtimeId, slot);
    const dir = (controller: string) => dirs.find((group) => group.controller === controller)?.path ?? "";
    if (this.version === 2) {
      const unified = dir("unified");
      const [cpu, memory, memoryStat, memoryMax, pids] = await Promise.all([
        keyed(join(unified, "cpu.stat"), "usage_usec"),
        number(join(unified, "memory.current")),
        keyed(join(unified, "memory.stat"), "inactive_file"),
        limit(unified, "memory.max"),
        number(join(unified, "pids.current")),
      ]);
      return stats(cpu / 1_000, memory - memoryStat, memoryMax, pids);
    }
    const [cpu, memory, memoryStat, memoryMax, pids] = await Promise.all([
      number(join(dir("cpuacct"), "cpuacct.usage")),
      number(join(dir("memory"), "memory.usage_in_bytes")),
      keyed(join(dir("memory"), "memory.stat"), "total_inactive_file"),
      limit(dir("memory"), "memory.limit_in_bytes"),
      number(join(dir("pids"), "pids.current")),
    ]);
    return stats(cpu / 1_000_000, memory - memoryStat, memoryMax, pids);
  }

  /** Bytes that the kernel counts for the sandboxes and that no field of `/proc/meminfo` explains. */
  async countedMemory(): Promise<number> {
    const text = (path: string) => readFile(path, "utf8");
    const unified = this.#parents.get("unified");
    if (unified !== undefined)
      return countedInV2(
        await number(join(unified, "memory.current")),
        await text(join(unified, "memory.stat")),
      );
    const [top, group] = [join(mountPoint, "memory"), this.#parents.get("memory") ?? ""];
    const kernel = (dir: string) => number(join(dir, "memory.kmem.usage_in_bytes"));
    const [allKernel, ownKernel, usage, stat, meminfo] = await Promise.all([
      kernel(top),
      kernel(group),
      number(join(group, "memory.usage_in_bytes")),
      text(join(group, "memory.stat")),
      text("/proc/meminfo"),
    ]);
    return countedInV1({ usage, stat, kernel: ownKernel, allKernel }, meminfo);
  }

  /** Removes the parent groups when nothing is in them. */
  async close(): Promise<void> {
    this.slots.sweep();
    for (const parent of new Set(this.#parents.values())) {
      try {
        await rmdir(parent);
      } catch (error) {
        // Sandboxes that outlive the service keep theirs.
        if (!(error instanceof Error && "code" in error)) throw error;
      }
    }
  }
}

function stats(cpuMs: number, memory: number, memoryMax: number, pids: number): RuntimeStats {
  return {
    cpuUsageMs: Math.round(cpuMs),
    memoryBytes: Math.max(memory, 0),
    memoryLimitBytes: memoryMax,
    pids,
  };
}

/** A group that is there already may be another user's. */
async function makeWritable(dir: string): Promise<void> {
  await mkdir(dir, { recursive: true, mode: 0o755 });
  await access(dir, constants.W_OK);
}

async function openV1(name: string, logger: Logger): Promise<Cgroups> {
  const parents = new Map<string, string>();
  for (const controller of v1Controllers) {
    const parent = join(mountPoint, controller, name);
    await makeWritable(parent);
    parents.set(controller, parent);
  }
  return Cgroups.of(1, parents, logger);
}

async function openV2(name: string, logger: Logger): Promise<Cgroups> {
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
  return Cgroups.of(2, new Map([["unified", parent]]), logger);
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

async function number(path: string): Promise<number> {
  return Number.parseInt(await readFile(path, "utf8"), 10);
}

/** What commands may have; the group around theirs has room for the agent as well. */
async function limit(dir: string, file: string): Promise<number> {
  try {
    return await number(join(dir, "execs", file));
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return number(join(dir, file));
    throw error;
  }
}

async function keyed(path: string, key: string): Promise<number> {
  const text = await readFile(path, "utf8");
  const line = text.split("\n").find((entry) => entry.startsWith(`${key} `));
  return line === undefined ? 0 : Number.parseInt(line.slice(key.length + 1), 10);
}
