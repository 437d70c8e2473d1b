import { mkdirSync, readdirSync, rmdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { PoolSlot, RuntimeSlot } from "../../ports/index.ts";

/** What the agents of a user's sandboxes take beside commands; the launcher reserves as much for each. */
const reservedMb = 16;
const reservedPids = 256;
const periodUs = 100_000;
const reservedQuotaUs = 25_000;
const vmPrefix = "vm-";

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

  constructor(version: 1 | 2, parents: ReadonlyMap<string, string>) {
    this.#version = version;
    this.#parents = parents;
  }

  /** Where the groups of a slot's runtimes are, below the parents. */
  static path(slot: PoolSlot): string {
    return join(slot.vmId, `user-${slot.uid}`);
  }

  /** Makes the groups of a slot and keeps them. @returns how they are let go. */
  hold(slot: RuntimeSlot, options: { pidsLimit: number }): Disposable {
    const path = SlotGroups.path(slot);
    this.#held.set(path, (this.#held.get(path) ?? 0) + 1);
    const release = () => {
      const left = (this.#held.get(path) ?? 1) - 1;
      if (left > 0) this.#held.set(path, left);
      else this.#held.delete(path);
    };
    try {
      for (const [controller, parent] of this.#parents) {
        this.#make(join(parent, slot.vmId), this.#vmLimits(controller, slot));
        this.#make(join(parent, path), this.#userLimits(controller, slot, options));
      }
    } catch (error) {
      release();
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
      if (![...this.#held.keys()].some((held) => held.startsWith(`${slot.vmId}/`)))
        removeEmpty(join(parent, slot.vmId));
    }
  }

  /** Removes what a process that died left empty. */
  sweep(): void {
    for (const parent of this.#parents.values()) {
      for (const vm of namesIn(parent).filter((name) => name.startsWith(vmPrefix))) {
        for (const user of namesIn(join(parent, vm)).filter((name) => name.startsWith("user-")))
          removeEmpty(join(parent, vm, user));
        removeEmpty(join(parent, vm));
      }
    }
  }

  #make(dir: string, limits: readonly [file: string, value: string, optional?: true][]): void {
    const made = mkdirIfMissing(dir);
    const handDown: typeof limits =
      this.#version === 2 ? [["cgroup.subtree_control", "+memory +cpu +pids"]] : [];
    for (const [file, value, optional] of [...handDown, ...limits]) {
      try {
        writeFileSync(join(dir, file), value, { flag: "r+" });
      } catch (error) {
        // One that is in use may have more by now than it is to have from now on.
        if (made && optional !== true) throw error;
      }
    }
  }

  #vmLimits(controller: string, { vm }: RuntimeSlot): [string, string, true?][] {
    const quota = vm.vcpus * periodUs + reservedQuotaUs;
    switch (controller) {
      case "unified":
        return [...memoryLimits(2, vm.memoryMb + reservedMb), ["cpu.max", `${quota} ${periodUs}`]];
      case "memory":
        return memoryLimits(1, vm.memoryMb + reservedMb);
      case "cpu":
        return [["cpu.cfs_quota_us", String(quota)]];
      default:
        return [];
    }
  }

  /** Of the processors each user of a VM has the same weight, as the kernel gives it. */
  #userLimits(
    controller: string,
    { shareMb }: RuntimeSlot,
    { pidsLimit }: { pidsLimit: number },
  ): [string, string, true?][] {
    const pids: [string, string] = ["pids.max", String(pidsLimit + reservedPids)];
    switch (controller) {
      case "unified":
        return [...memoryLimits(2, shareMb + reservedMb), pids];
      case "memory":
        return memoryLimits(1, shareMb + reservedMb);
      case "pids":
        return [pids];
      default:
        return [];
    }
  }
}

function memoryLimits(version: 1 | 2, megabytes: number): [string, string, true?][] {
  const bytes = String(megabytes * 1024 * 1024);
  if (version === 2)
    return [
      ["memory.max", bytes],
      ["memory.swap.max", "0", true],
    ];
  return [
    // What is above decides, where it has decided.
    ["memory.use_hierarchy", "1", true],
    ["memory.limit_in_bytes", bytes],
    // Absent where the kernel does not account swap.
    ["memory.memsw.limit_in_bytes", bytes, true],
  ];
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
