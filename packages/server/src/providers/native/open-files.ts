import { readdir, readFile, readlink, stat } from "node:fs/promises";
import { boundedParallel } from "../../platform/bounded-parallel.ts";

/** Processes can have millions of open files together: these many are listed, and of them these many looked at. */
const mostListed = 20_000;
const mostLookedAt = 2_000;
const parallelLooks = 16;

export interface OpenFile {
  kind: "directory" | "socket" | "other";
  device: number;
  inode: number;
  size: number;
  /** Removed while it was open. */
  unlinked: boolean;
  /** Of directories: where it is, as its sandbox sees it. */
  path: string | undefined;
  /** Of sockets: how many descriptors wait in it to be received. */
  waiting: number;
}

export interface OpenFiles {
  /** By chance, where there are too many for all. */
  sample: readonly OpenFile[];
  /** How many open files each of the sample stands for. */
  each: number;
}

/** By pid namespace, which each sandbox has of its own. */
export async function processesByNamespace(): Promise<ReadonlyMap<string, readonly number[]>> {
  const found = new Map<string, number[]>();
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name)).map(Number);
  await boundedParallel(pids, parallelLooks, async (pid) => {
    const namespace = await pidNamespace(pid);
    if (namespace === undefined) return;
    const members = found.get(namespace);
    if (members === undefined) found.set(namespace, [pid]);
    else members.push(pid);
  });
  return found;
}

/** @returns undefined when the process is gone. */
export function pidNamespace(pid: number): Promise<string | undefined> {
  return orGone(readlink(`/proc/${pid}/ns/pid`));
}

/** @param pids of processes as the host sees them; who is gone has nothing open. */
export async function openFilesOf(pids: readonly number[]): Promise<OpenFiles> {
  const listed: string[] = [];
  let read = 0;
  for (const pid of shuffled(pids)) {
    if (listed.length >= mostListed) break;
    read++;
    for (const path of await descriptorsOf(pid)) listed.push(path);
  }
  const chosen = shuffled(listed).slice(0, mostLookedAt);
  const sample: OpenFile[] = [];
  await boundedParallel(chosen, parallelLooks, async (path) => {
    const file = await lookAt(path);
    if (file !== undefined) sample.push(file);
  });
  const each = chosen.length === 0 ? 1 : (listed.length / chosen.length) * (pids.length / read);
  return { sample, each };
}

/** A process whose first thread has ended shows what is open in the others alone, each of which has the same. */
async function descriptorsOf(pid: number): Promise<string[]> {
  const own = await descriptorsIn(`/proc/${pid}`);
  if (own.length > 0) return own;
  const threads = (await orGone(readdir(`/proc/${pid}/task`))) ?? [];
  const another = threads.findLast((thread) => thread !== String(pid));
  return another === undefined ? own : descriptorsIn(`/proc/${pid}/task/${another}`);
}

async function descriptorsIn(process: string): Promise<string[]> {
  const names = (await orGone(readdir(`${process}/fd`))) ?? [];
  return names.map((name) => `${process}/fd/${name}`);
}

async function lookAt(descriptor: string): Promise<OpenFile | undefined> {
  const found = await orGone(stat(descriptor));
  if (found === undefined) return undefined;
  const kind = found.isDirectory() ? "directory" : found.isSocket() ? "socket" : "other";
  return {
    kind,
    device: found.dev,
    inode: found.ino,
    size: found.size,
    unlinked: found.nlink === 0,
    path: kind === "directory" ? await orGone(readlink(descriptor)) : undefined,
    waiting: kind === "socket" ? await waitingIn(descriptor) : 0,
  };
}

async function waitingIn(descriptor: string): Promise<number> {
  const info = (await orGone(readFile(descriptor.replace("/fd/", "/fdinfo/"), "latin1"))) ?? "";
  return Number(/^scm_fds:\s*(\d+)/m.exec(info)?.[1] ?? 0);
}

/** Who was seen a moment ago may be gone, or be somebody who may not be looked at. */
async function orGone<T>(look: Promise<T>): Promise<T | undefined> {
  try {
    return await look;
  } catch {
    return undefined;
  }
}

function shuffled<T>(items: readonly T[]): T[] {
  const all = [...items];
  for (let last = all.length - 1; last > 0; last--) {
    const other = Math.floor(Math.random() * (last + 1));
    [all[last], all[other]] = [all[other] as T, all[last] as T];
  }
  return all;
}
