import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Logger } from "../../platform/logger.ts";
import type { PoolSlot, RuntimeSlot } from "../../ports/index.ts";

/**
 * What the agents of a user's sandboxes take beside commands, together; the launcher reserves as much memory and as many
 * processes for each. A VM has it for every user, so that what users may have adds up to no more than the VM does.
 */
const reservedMb = 16;
/** What the kernel has for a user's group itself, which the VM's is charged for. */
const groupMb = 1;
const reservedPids = 256;
const periodUs = 100_000;
const reservedQuotaUs = 25_000;
const vmPrefix = "vm-";
const userPrefix = "user-";
const bytesPerMb = 1024 * 1024;
const memoryFiles = { 1: "memory.limit_in_bytes", 2: "memory.max" } as const;

interface Limit {
  file: string;
  value: string;
  /** Some kernels do not have it. */
  ifThere?: true;
  /** Refusals are of no account. */
  ifTaken?: true;
}

/**
 * Control groups of the pool, between the installation's and those of runtimes: one for a VM, and in it one for each user,
 * which holds all of the user's sandboxes there to one part of the VM. They are made with the first runtime and removed
 * with the last. Nothing here waits, so that no group goes while a launch counts on it.
 */
export class SlotGroups {
  readonly #version: 1 | 2;
  /** By controller; v2 has only `unified`. */
  readonly #parents: ReadonlyMap<string, string>;
  /** Launches that count on a group, by its path below the parents. */
  readonly #held = new Map<string, number>();
  /** Values that were refused and told, by the file. */
  readonly #told = new Map<string, string>();
  readonly #logger: Logger;

  constructor(version: 1 | 2, parents: ReadonlyMap<string, string>, logger: Logger) {
    this.#version = version;
    this.#parents = parents;
    this.#logger = logger;
  }

  /** Where the groups of a slot's runtimes are, below the parents. */
  static path(slot: PoolSlot): string {
    return join(slot.vmId, `${userPrefix}${slot.uid}`);
  }

  /**
   * Makes the groups of a slot and keeps them.
   * @returns how they are let go.
   * @throws Error when one would have no limit; none is left that was made for it.
   */
  hold(slot: RuntimeSlot, options: { pidsLimit: number }): Disposable {
    const path = SlotGroups.path(slot);
    this.#held.set(path, (this.#held.get(path) ?? 0) + 1);
    const release = () => {
      const left = (this.#held.get(path) ?? 1) - 1;
      if (left > 0) this.#held.set(path, left);
      else this.#held.delete(path);
    };
    const made: string[] = [];
    try {
      for (const [controller, parent] of this.#parents) {
        this.#make(join(parent, slot.vmId), this.#vmLimits(controller, parent, slot), made);
        this.#make(join(parent, path), this.#userLimits(controller, parent, slot, options), made);
      }
    } catch (error) {
      release();
      for (const dir of made.reverse()) removeEmpty(dir);
      throw error;
    }
    return { [Symbol.dispose]: release };
  }

  /** Removes those of a slot that are empty. */
  tidy(slot: PoolSlot): void {
    const path = SlotGroups.path(slot);
    if (this.#held.has(path)) return;
    for (const parent of this.#parents.values()) {
      removeEmpty(join(parent, path));
      for (const file of this.#told.keys())
        if (file.startsWith(join(parent, slot.vmId))) this.#told.delete(file);
      if (![...this.#held.keys()].some((held) => held.startsWith(`${slot.vmId}/`)))
        removeEmpty(join(parent, slot.vmId));
    }
  }

  /** Removes what a process that died left empty. */
  sweep(): void {
    for (const parent of this.#parents.values()) {
      for (const vm of namesIn(parent).filter((name) => name.startsWith(vmPrefix))) {
        for (const user of namesIn(join(parent, vm)).filter((name) => name.startsWith(userPrefix)))
          removeEmpty(join(parent, vm, user));
        removeEmpty(join(parent, vm));
      }
    }
  }

  /** @param made where a group that was missing is added. */
  #make(dir: string, limits: readonly Limit[], made: string[]): void {
    const fresh = mkdirIfMissing(dir);
    if (fresh) made.push(dir);
    const handDown: Limit[] =
      this.#version === 2
        ? [{ file: "cgroup.subtree_control", value: "+memory +cpu +pids", ifTaken: true }]
        : [];
    for (const limit of [...handDown, ...limits]) this.#set(dir, limit, fresh);
  }

  #set(dir: string, { file, value, ifThere, ifTaken }: Limit, fresh: boolean): void {
    const path = join(dir, file);
    const present = textIn(path);
    if (present === value || (ifThere && present === undefined)) return;
    try {
      writeFileSync(path, value, { flag: "r+" });
      this.#told.delete(path);
    } catch (err) {
      if (ifTaken) return;
      if (fresh || present === undefined || isUnlimited(present)) throw err;
      if (this.#told.get(path) === value) return;
      this.#told.set(path, value);
      const group = this.#nameOf(dir);
      this.#logger.warn(
        { err, group, file, value, present },
        "a limit of the pool was not taken; the former one stays",
      );
    }
  }

  /** Which VM, and which user of it. */
  #nameOf(dir: string): string {
    const parent = [...this.#parents.values()].find((each) => dir.startsWith(`${each}/`)) ?? "";
    return dir.slice(parent.length + 1);
  }

  #vmLimits(controller: string, parent: string, slot: RuntimeSlot): Limit[] {
    const { vm, vmId } = slot;
    const quota = vm.vcpus * periodUs + reservedQuotaUs;
    const dir = join(parent, vmId);
    const memory = () => {
      const own = `${userPrefix}${slot.uid}`;
      const others = namesIn(dir).filter((name) => name.startsWith(userPrefix) && name !== own);
      const parts = others.map((name) => this.#memoryOf(join(dir, name)) ?? 0);
      parts.push(this.#partOf(join(dir, own), slot));
      const used = parts.reduce((sum, part) => sum + part + groupMb * bytesPerMb, 0);
      const whole = (vm.memoryMb + vm.users * (reservedMb + groupMb)) * bytesPerMb;
      return this.#memoryLimits(dir, Math.max(whole, used));
    };
    switch (controller) {
      case "unified":
        return [...memory(), { file: "cpu.max", value: `${quota} ${periodUs}` }];
      case "memory":
        return memory();
      case "cpu":
        return [{ file: "cpu.cfs_quota_us", value: String(quota) }];
      default:
        return [];
    }
  }

  /** Of the processors each user of a VM has the same weight, as the kernel gives it. */
  #userLimits(
    controller: string,
    parent: string,
    slot: RuntimeSlot,
    { pidsLimit }: { pidsLimit: number },
  ): Limit[] {
    const pids: Limit = { file: "pids.max", value: String(pidsLimit + reservedPids) };
    const dir = join(parent, SlotGroups.path(slot));
    const memory = () => this.#memoryLimits(dir, this.#partOf(dir, slot));
    switch (controller) {
      case "unified":
        return [...memory(), pids];
      case "memory":
        return memory();
      case "pids":
        return [pids];
      default:
        return [];
    }
  }

  /** Bytes of a user's part. What sandboxes were given stays theirs: it becomes smaller with none of them left. */
  #partOf(dir: string, { shareMb }: RuntimeSlot): number {
    return Math.max((shareMb + reservedMb) * bytesPerMb, this.#memoryOf(dir) ?? 0);
  }

  /** @returns undefined where there is no group or no limit. */
  #memoryOf(dir: string): number | undefined {
    const text = textIn(join(dir, memoryFiles[this.#version]));
    return text === undefined || isUnlimited(text) ? undefined : Number(text);
  }

  #memoryLimits(dir: string, bytes: number): Limit[] {
    const memory: Limit = { file: memoryFiles[this.#version], value: String(bytes) };
    if (this.#version === 2) return [memory, { file: "memory.swap.max", value: "0", ifThere: true }];
    // Absent where the kernel does not account swap. It is never below the other: it goes up first, and down last.
    const withSwap: Limit = { file: "memory.memsw.limit_in_bytes", value: String(bytes), ifThere: true };
    const isRaise = bytes > (this.#memoryOf(dir) ?? Number.POSITIVE_INFINITY);
    return [
      // What is above decides, where it has decided.
      { file: "memory.use_hierarchy", value: "1", ifTaken: true },
      ...(isRaise ? [withSwap, memory] : [memory, withSwap]),
    ];
  }
}

/** @returns undefined where it cannot be read. */
function textIn(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8").trim();
  } catch {
    // A write tells why.
    return undefined;
  }
}

/** As the kernel writes the absence of a limit: v1 has the largest number of pages for it, in bytes. */
function isUnlimited(text: string): boolean {
  return text === "-1" || text.startsWith("max") || Number(text) >= 2 ** 62;
}

/** @returns whether it was missing. */
function mkdirIfMissing(dir: string): boolean {
  try {
    mkdirSync(dir);
    return true;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "EEXIST") return false;
    throw error;
  }
}

function namesIn(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map(({ name }) => name);
  } catch {
    // Two controllers may share a tree: it is gone with the other.
    return [];
  }
}

/** A group that is in use, or has others in it, stays. */
function removeEmpty(dir: string): void {
  try {
    rmdirSync(dir);
  } catch (error) {
    if (!(error instanceof Error && "code" in error)) throw error;
  }
}
