import { readFile } from "node:fs/promises";
import { sumOf } from "../../platform/sum-of.ts";
import type { MachineMemory } from "./uncounted-memory.ts";

/** What the kernel has for itself and cannot give back. */
export async function readKernelMemory(): Promise<MachineMemory> {
  return kernelMemoryOf(await readFile("/proc/meminfo", "utf8"));
}

export function kernelMemoryOf(meminfo: string): MachineMemory {
  const mb = (name: string) =>
    Number(new RegExp(`^${name}: +(\\d+) kB$`, "m").exec(meminfo)?.[1] ?? 0) / 1024;
  return { totalMb: mb("MemTotal"), uncountedMb: mb("SUnreclaim") };
}

/**
 * @returns the most of it that groups can be counted for, bytes, where the machine's root asks and the kernel has memory that it counts
 * for groups in caches of its own (`kmalloc-cg`, since Linux 5.14): locks and `kmalloc` are not among that.
 */
export async function mostInGroups(): Promise<number | undefined> {
  const read = (name: string) => readFile(name, "latin1");
  const [slabs, memory] = await Promise.all([read("/proc/slabinfo").catch(() => ""), readKernelMemory()]);
  const bytes = bytesOfNobody(slabs);
  return bytes === undefined ? undefined : Math.max(0, memory.uncountedMb * 2 ** 20 - bytes);
}

export function bytesOfNobody(slabinfo: string): number | undefined {
  if (!/^kmalloc-cg-/m.test(slabinfo)) return undefined;
  const caches = slabinfo.matchAll(/^(?:file_lock_cache|kmalloc-(?:rnd-\d+-)?\d+k?) +\d+ +(\d+) +(\d+) /gm);
  return sumOf([...caches].map(([, number, size]) => Number(number) * Number(size)));
}
