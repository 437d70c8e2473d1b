import { stacksCountedTwice } from "./uncounted-memory.ts";

/** What is in `memory.stat` of cgroup v2 and in fields of `/proc/meminfo` as well; `sock` is a number alone, without pages. */
const explainedByGroup = [
  "anon",
  "file",
  "slab",
  "kernel_stack",
  "pagetables",
  "sec_pagetables",
  "percpu",
  "vmalloc",
  "sock",
] as const;

/** What is the kernel's own in `/proc/meminfo`. */
const explainedByMachine = [
  "Slab",
  "KernelStack",
  "PageTables",
  "SecPageTables",
  "Percpu",
  "VmallocUsed",
] as const;

/**
 * @param stat `memory.stat` of a group.
 * @returns bytes that a group of cgroup v2 has and no field of `/proc/meminfo` explains: queues of Unix sockets and pipes,
 * pages that only a pipe refers to.
 */
export function countedInV2(current: number, stat: string): number {
  return Math.max(0, current - sumOf(stat, explainedByGroup, " "));
}

/** As the files of v1 say it, in bytes. */
export interface V1Group {
  usage: number;
  stat: string;
  kernel: number;
  /** Of all groups of the machine. */
  allKernel: number;
  /** What `chargedToNobody` said last while hardly anything was in use that nothing explains. */
  nobodys: number;
}

/**
 * The same with cgroup v1, which does not say what the kernel's part of a group is for. The machine's, less what others and
 * nobody have, is more.
 */
export function countedInV1(group: V1Group, meminfo: string): number {
  const ofOthers = Math.max(0, group.allKernel - group.kernel);
  const explainedKernel = Math.max(0, explainedKernelOf(meminfo) - ofOthers - group.nobodys);
  return Math.max(0, group.usage - sumOf(group.stat, ["total_cache", "total_rss"], " ") - explainedKernel);
}

/**
 * @param allKernel of all groups of the machine.
 * @returns the least that the kernel has for itself and the machine, counts for no group, and explains: what it knows of files
 * that were looked at takes gigabytes there. What groups have beside that makes it less.
 */
export function chargedToNobody(allKernel: number, meminfo: string): number {
  return Math.max(0, explainedKernelOf(meminfo) - allKernel);
}

function explainedKernelOf(meminfo: string): number {
  const fields = new Map(["KernelStack", "VmallocUsed"].map((name) => [name, sumOf(meminfo, [name], ":")]));
  return (sumOf(meminfo, explainedByMachine, ":") - stacksCountedTwice(fields)) * 1024;
}

function sumOf(text: string, names: readonly string[], separator: string): number {
  return names.reduce((sum, name) => {
    const value = new RegExp(`^${name}${separator} *(\\d+)`, "m").exec(text)?.[1];
    return sum + Number(value ?? 0);
  }, 0);
}
