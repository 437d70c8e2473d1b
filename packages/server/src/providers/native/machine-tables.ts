import { readFile } from "node:fs/promises";

/** What an open file takes of the memory of its sandbox, in bytes. */
const openFileBytes = 232;
/** Of the memory for compiled filters: far more than the filters of ten thousand sandboxes take. */
const amplyFiltered = 128 * 1024 * 1024;

/** Settings of the kernel that decide what sandboxes can take from each other and from the machine. */
export interface MachineTables {
  /** `fs.file-max` */
  openFiles: bigint | undefined;
  /** `net.core.bpf_jit_limit` */
  filterBytes: bigint | undefined;
  /** `net.core.tstamp_allow_data` */
  timestampsWithData: bigint | undefined;
  /** `net.core.high_order_alloc_disable` */
  smallFragments: bigint | undefined;
  memoryBytes: number;
}

export async function readMachineTables(): Promise<MachineTables> {
  return {
    openFiles: await setting("fs/file-max"),
    filterBytes: await setting("net/core/bpf_jit_limit"),
    timestampsWithData: await setting("net/core/tstamp_allow_data"),
    smallFragments: await setting("net/core/high_order_alloc_disable"),
    memoryBytes: Number(/^MemTotal: +(\d+) kB$/m.exec(await readFile("/proc/meminfo", "utf8"))?.[1]) * 1024,
  };
}

/** Remarks for check(). */
export function notesOnTables(tables: MachineTables): string[] {
  const notes: string[] = [];
  const most = BigInt(Math.floor(tables.memoryBytes / openFileBytes));
  if (tables.openFiles !== undefined && tables.openFiles < most)
    notes.push(
      `sandboxes can use up the open files of the machine before their memory is full: sysctl fs.file-max=${most}`,
    );
  if (tables.filterBytes !== undefined && tables.filterBytes < amplyFiltered)
    notes.push(
      "the kernel's memory for compiled filters is small, and without it no sandbox starts: " +
        `sysctl net.core.bpf_jit_limit=${amplyFiltered}`,
    );
  if (tables.timestampsWithData !== undefined && tables.timestampsWithData !== 0n)
    notes.push(
      "what sandboxes send can wait in sockets without being counted as their memory: " +
        "sysctl net.core.tstamp_allow_data=0",
    );
  if (tables.smallFragments === 0n)
    notes.push(
      "each byte that waits in a socket can hold 32 KB of the machine's memory, counted for no sandbox, and 4 KB with " +
        "sysctl net.core.high_order_alloc_disable=1",
    );
  return notes;
}

/** @returns undefined where the kernel has none, or does not say it to this user. */
async function setting(name: string): Promise<bigint | undefined> {
  try {
    const text = (await readFile(`/proc/sys/${name}`, "utf8")).trim();
    return /^\d+$/.test(text) ? BigInt(text) : undefined;
  } catch (error) {
    if (error instanceof Error && "code" in error) return undefined;
    throw error;
  }
}
