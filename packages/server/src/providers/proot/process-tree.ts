import { readdir, readFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { isAlive, type ProcessIdentity } from "../../platform/process-identity.ts";
import type { RuntimeStats } from "../../ports/index.ts";

const pauseMs = 5;
/** What `/proc` counts processor time in; the same on every Linux. */
const msPerTick = 10;

/** Processes whose command line says `-r <rootfs>`: what a service that died before its note started. */
export async function findByRootfs(rootfs: string): Promise<number[]> {
  const found: number[] = [];
  for (const pid of await allPids()) {
    const words = (await orUnreadable(readFile(`/proc/${pid}/cmdline`, "utf8"))).split("\0");
    const index = words.indexOf("-r");
    if (index > 0 && words[index + 1] === rootfs) found.push(pid);
  }
  return found;
}

/**
 * Kills a tracer and everything it traces. The traced go first, again and again until none is left: one that outlived
 * its tracer would go on with its paths meaning the host's. @throws the signal's reason when they do not die in time.
 */
export async function killTraced(tracer: ProcessIdentity, options: { signal: AbortSignal }): Promise<void> {
  while (await isAlive(tracer)) {
    const traced = await tracedBy(tracer.pid);
    for (const pid of traced) kill(pid);
    if (traced.length === 0) kill(tracer.pid);
    await delay(pauseMs, undefined, { signal: options.signal }).catch(() => options.signal.throwIfAborted());
  }
}

/**
 * What a tracer and all it traces use. The agent inside sees the host's `/proc`, so its figures are the whole host's.
 * @returns nothing of what has ended.
 */
export async function statsOfTraced(tracer: ProcessIdentity): Promise<RuntimeStats> {
  if (!(await isAlive(tracer))) return {};
  const sum = { cpuUsageMs: 0, memoryBytes: 0, pids: 0 };
  for (const pid of [tracer.pid, ...(await tracedBy(tracer.pid))]) {
    const stat = await orUnreadable(readFile(`/proc/${pid}/stat`, "utf8"));
    const status = await orUnreadable(readFile(`/proc/${pid}/status`, "utf8"));
    // Behind the name: user and system time, and the same of children waited for, are the twelfth to the fifteenth.
    const ticks = stat
      .slice(stat.lastIndexOf(")") + 2)
      .split(" ")
      .slice(11, 15);
    for (const count of ticks) sum.cpuUsageMs += Number(count) * msPerTick;
    sum.memoryBytes += Number(/\nVmRSS:\s*(\d+) kB/.exec(status)?.[1] ?? 0) * 1024;
    sum.pids += Number(/\nThreads:\s*(\d+)/.exec(status)?.[1] ?? 0);
  }
  return sum;
}

async function tracedBy(tracerPid: number): Promise<number[]> {
  const traced: number[] = [];
  // A child that has just been forked is not traced yet.
  const lines = [`\nTracerPid:\t${tracerPid}\n`, `\nPPid:\t${tracerPid}\n`];
  for (const pid of await allPids()) {
    const status = await orUnreadable(readFile(`/proc/${pid}/status`, "utf8"));
    if (lines.some((line) => status.includes(line)) && !/\nState:\t[ZX]/.test(status)) traced.push(pid);
  }
  return traced;
}

async function allPids(): Promise<number[]> {
  return (await readdir("/proc")).filter((name) => /^\d+$/.test(name)).map(Number);
}

/** A process that ends while it is looked at, or is another user's, is not one of ours. */
async function orUnreadable(text: Promise<string>): Promise<string> {
  try {
    return await text;
  } catch (error) {
    if (error instanceof Error && "code" in error) return "";
    throw error;
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ESRCH")) throw error;
  }
}
