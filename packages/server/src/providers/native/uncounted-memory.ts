import { readFile } from "node:fs/promises";

/** Fields of `/proc/meminfo` that say what memory is used for, or that it is free. Hardly a page is in two of them. */
const explained = [
  "MemFree",
  "Buffers",
  "Cached",
  "SwapCached",
  "AnonPages",
  "Slab",
  "KernelStack",
  "PageTables",
  "SecPageTables",
  "VmallocUsed",
  "Percpu",
  "Bounce",
  "NFS_Unstable",
  "Zswap",
  "Balloon",
  "Hugetlb",
] as const;

export interface MachineMemory {
  totalMb: number;
  /** In use, and no field says for what: what drivers took, and what sockets hold. */
  uncountedMb: number;
}

export async function readMachineMemory(): Promise<MachineMemory> {
  const memory = machineMemoryOf(await readFile("/proc/meminfo", "utf8"));
  // Up to gigabytes where much was in use a moment ago; some machines tell it to nobody.
  const zones = await readFile("/proc/zoneinfo", "utf8").catch(() => "");
  const keptMb = (pagesKept(zones) * (await pageBytes())) / 2 ** 20;
  return { ...memory, uncountedMb: Math.max(0, memory.uncountedMb - keptMb) };
}

/** Where stacks of the kernel are part of what it maps for itself, both fields have them. */
export function stacksCountedTwice(fields: ReadonlyMap<string, number>): number {
  const stacks = fields.get("KernelStack") ?? 0;
  return (fields.get("VmallocUsed") ?? 0) >= stacks ? stacks : 0;
}

/** Free pages that processors keep for themselves, which MemFree leaves out. */
export function pagesKept(zoneinfo: string): number {
  return [...zoneinfo.matchAll(/^ +count: +(\d+)$/gm)].reduce((sum, [, count]) => sum + Number(count), 0);
}

export function machineMemoryOf(meminfo: string): MachineMemory {
  const kb = new Map<string, number>();
  for (const [, name = "", value] of meminfo.matchAll(/^(\w+): +(\d+) kB$/gm)) kb.set(name, Number(value));
  const total = kb.get("MemTotal") ?? 0;
  const known = explained.reduce((sum, name) => sum + (kb.get(name) ?? 0), 0) - stacksCountedTwice(kb);
  return { totalMb: total / 1024, uncountedMb: Math.max(0, total - known) / 1024 };
}

let pageSize: number | undefined;

/** As the kernel tells every process: words of a kind and a value, in the order of this machine. */
async function pageBytes(): Promise<number> {
  pageSize ??= pageSizeIn(await readFile("/proc/self/auxv"));
  return pageSize;
}

function pageSizeIn(auxv: Buffer): number {
  for (let at = 0; at + 16 <= auxv.length; at += 16)
    if (auxv.readBigUInt64LE(at) === 6n) return Number(auxv.readBigUInt64LE(at + 8));
  return 4_096;
}
