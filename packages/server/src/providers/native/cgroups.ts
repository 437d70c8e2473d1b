import { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Logger } from "../../platform/logger.ts";
import type { PoolSlot, RuntimeStats } from "../../ports/index.ts";
import { type CgroupSpec, closeGroupParents, groupSpec, openGroupParents } from "../launcher/index.ts";
import { chargedToNobody, countedInV1, countedInV2 } from "./counted-memory.ts";
import { sweepPreparedGroups } from "./prepared-groups.ts";
import { SlotGroups } from "./slot-groups.ts";

const mountPoint = "/sys/fs/cgroup";
/** With v1. */
const topOfMemory = join(mountPoint, "memory");

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
  /** As `seeNobodysMemory` has seen it; v2 needs no such thing. */
  #nobodys = 0;

  private constructor(version: 1 | 2, parents: ReadonlyMap<string, string>, logger: Logger) {
    this.version = version;
    this.#parents = parents;
    this.slots = new SlotGroups(version, parents, logger);
  }

  /** @returns what to say instead when no groups can be made here. */
  static async open(options: { instance: string; logger: Logger }): Promise<Cgroups | { missing: string }> {
    const found = await openGroupParents(options.instance);
    return "missing" in found ? found : Cgroups.of(found.version, found.parents, options.logger);
  }

  static of(version: 1 | 2, parents: ReadonlyMap<string, string>, logger: Logger): Cgroups {
    return new Cgroups(version, parents, logger);
  }

  /** @param slot the runtime's, when it is part of a VM of the pool. */
  spec(runtimeId: string, slot?: PoolSlot): CgroupSpec {
    const below = slot === undefined ? runtimeId : join(SlotGroups.path(slot), runtimeId);
    return groupSpec({ version: this.version, parents: this.#parents }, below);
  }

  /** What the kernel counted for a runtime with these groups. @throws Error with code ENOENT when it is gone. */
  async stats({ dirs }: CgroupSpec): Promise<RuntimeStats> {
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
    const unified = this.#parents.get("unified");
    if (unified !== undefined)
      return countedInV2(
        await number(join(unified, "memory.current")),
        await text(join(unified, "memory.stat")),
      );
    const group = this.#parents.get("memory") ?? "";
    const [allKernel, ownKernel, usage, stat, meminfo] = await Promise.all([
      kernelOf(topOfMemory),
      kernelOf(group),
      number(join(group, "memory.usage_in_bytes")),
      text(join(group, "memory.stat")),
      text("/proc/meminfo"),
    ]);
    return countedInV1({ usage, stat, kernel: ownKernel, allKernel, nobodys: this.#nobodys }, meminfo);
  }

  /** Bytes that the kernel has for itself and counts for the sandboxes; with v1 those are with it that it can give back. */
  async countedKernelMemory(): Promise<number> {
    const unified = this.#parents.get("unified");
    if (unified !== undefined) return keyed(join(unified, "memory.stat"), "slab_unreclaimable");
    return kernelOf(this.#parents.get("memory") ?? "");
  }

  /**
   * Sees what `countedMemory` needs to know of the rest of the machine, while sandboxes have hardly anything that nothing explains.
   * Reading two files of the kernel takes less than one turn of the file system's
   * threads, of which promises of them take ten.
   */
  seeNobodysMemory(): void {
    if (this.version === 2) return;
    try {
      const allKernel = Number.parseInt(readFileSync(kernelFile(topOfMemory), "utf8"), 10);
      this.#nobodys = chargedToNobody(allKernel, readFileSync("/proc/meminfo", "utf8"));
    } catch {
      // What was seen last is the best there is where a file cannot be read now.
    }
  }

  /** Removes groups of what was prepared once that no record names and nothing runs in. */
  sweepPrepared(named: readonly CgroupSpec[]): void {
    sweepPreparedGroups(this.#parents.values(), named);
  }

  /** Removes the parent groups when nothing is in them. */
  async close(): Promise<void> {
    this.slots.sweep();
    await closeGroupParents({ version: this.version, parents: this.#parents });
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

function text(path: string): Promise<string> {
  return readFile(path, "utf8");
}

/** With v1. */
function kernelFile(group: string): string {
  return join(group, "memory.kmem.usage_in_bytes");
}

function kernelOf(group: string): Promise<number> {
  return number(kernelFile(group));
}

async function number(path: string): Promise<number> {
  return Number.parseInt(await text(path), 10);
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
