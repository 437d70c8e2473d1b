import { readdir, readFile, readlink, stat } from "node:fs/promises";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { shuffled } from "../../platform/shuffled.ts";

/** Processes can have millions of open files together: of these many are looked at, and of so many times as many one knows that they are there. */
const mostLookedAt = 5_000;
const listedForEach = 25;
/** Who looked in vain looks at twice as many, so often. */
const mostDoublings = 4;
const parallelLooks = 16;
/** Of the service: it may not look, or has no descriptor left to look with. */
const refusals: ReadonlySet<unknown> = new Set(["EACCES", "EPERM", "EMFILE", "ENFILE"]);

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
  /**
   * Whether the service may not look at somebody's, as at those of another user where it is not root: more may be open then than
   * the sample stands for.
   */
  refused: boolean;
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

/**
 * @param pids of processes as the host sees them; who is gone has nothing open.
 * @param inVain how often it was looked at to no avail: among many that are nothing, few are found late.
 */
export async function openFilesOf(pids: readonly number[], inVain = 0): Promise<OpenFiles> {
  const most = mostLookedAt * 2 ** Math.min(inVain, mostDoublings);
  const chosen: string[] = [];
  let listed = 0;
  let read = 0;
  // A sandbox has a process: whose cannot be listed is not looked at either.
  let refused = pids.length === 0;
  const refuse = () => {
    refused = true;
  };
  for (const pid of shuffled(pids)) {
    if (listed >= most * listedForEach) break;
    read++;
    const { folder, names } = await descriptorsOf(pid, refuse);
    for (const name of names) {
      const place = listed < most ? listed : Math.floor(Math.random() * (listed + 1));
      listed++;
      if (place < most) chosen[place] = `${folder}/${name}`;
    }
  }
  const sample: OpenFile[] = [];
  await boundedParallel(chosen, parallelLooks, async (path) => {
    const file = await lookAt(path, refuse);
    if (file !== undefined) sample.push(file);
  });
  const each = chosen.length === 0 ? 1 : (listed / chosen.length) * (pids.length / read);
  return { sample, each, refused };
}

interface Descriptors {
  folder: string;
  names: readonly string[];
}

/**
 * A process whose first thread has ended shows what is open in the others alone, each of which has the same, but for those that have
 * ended as well and are traced: they stay in the list for as long as whoever traces them likes.
 */
async function descriptorsOf(pid: number, refuse: () => void): Promise<Descriptors> {
  const own = await descriptorsIn(`/proc/${pid}/fd`, refuse);
  if (own.names.length > 0) return own;
  for (const thread of (await orGone(readdir(`/proc/${pid}/task`))) ?? []) {
    if (thread === String(pid)) continue;
    const another = await descriptorsIn(`/proc/${pid}/task/${thread}/fd`, refuse);
    if (another.names.length > 0) return another;
  }
  return own;
}

async function descriptorsIn(folder: string, refuse: () => void): Promise<Descriptors> {
  return { folder, names: (await orGone(readdir(folder), refuse)) ?? [] };
}

async function lookAt(descriptor: string, refuse: () => void): Promise<OpenFile | undefined> {
  const found = await orGone(stat(descriptor), refuse);
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
async function orGone<T>(look: Promise<T>, refuse?: () => void): Promise<T | undefined> {
  try {
    return await look;
  } catch (error) {
    const code = error instanceof Error && "code" in error ? error.code : undefined;
    if (refusals.has(code)) refuse?.();
    return undefined;
  }
}
