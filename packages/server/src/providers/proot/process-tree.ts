import { readdir, readFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { orMissing } from "./or-missing.ts";

/** A process of this boot, recognised by more than its number, which the kernel gives out again. */
export interface ProcessIdentity {
  pid: number;
  startTime: string;
  bootId: string;
}

const pauseMs = 5;

/** @returns undefined when there is no such process, or only its remains. */
export async function identify(pid: number): Promise<ProcessIdentity | undefined> {
  const stat = await orMissing(readFile(`/proc/${pid}/stat`, "utf8"), undefined);
  if (stat === undefined) return undefined;
  // Behind the name, which may hold blanks and brackets: the state is the first field, the start time the twentieth.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const startTime = fields[19];
  if (startTime === undefined || fields[0] === "Z" || fields[0] === "X") return undefined;
  return { pid, startTime, bootId: await bootId() };
}

export async function isAlive(identity: ProcessIdentity): Promise<boolean> {
  const found = await identify(identity.pid);
  return found?.startTime === identity.startTime && found.bootId === identity.bootId;
}

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

let knownBootId: Promise<string> | undefined;
function bootId(): Promise<string> {
  knownBootId ??= readFile("/proc/sys/kernel/random/boot_id", "utf8").then((text) => text.trim());
  return knownBootId;
}
