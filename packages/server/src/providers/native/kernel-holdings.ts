import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import type { RuntimeId } from "../../ports/index.ts";
import { deviceName, type FileLock, type LockSample, sampleLocks } from "./lock-table.ts";
import { type OpenFile, openFilesOf, pidNamespace, processesByNamespace } from "./open-files.ts";
import { connectionsOf } from "./socket-holdings.ts";
import type { MachineMemory } from "./uncounted-memory.ts";

/** A connection without a byte, which nobody has accepted and whose client has closed: 4 KB were measured. */
const heldByConnection = 4 << 10;
/** 200 bytes, and what the kernel keeps beside it. */
const heldByLock = 256;
/** The list of a merged directory has up to 343 bytes for a name, of which 512 are taken; its size has at least 12, or 20 where it is in memory. */
const heldByDirectoryByte = 26;
/** Where directories become smaller when names are removed: a list of 30,000 that is still there. */
const heldByShrunkDirectory = 16 << 20;
/** Of those that are not to be seen any more, a list of 120,000 names. */
const heldOutOfSight = 64 << 20;
const parallelLooks = 4;

/** A sandbox that may have it. */
export interface Holder {
  runtimeId: RuntimeId;
  /** Its first process, as the host sees it. */
  pid: number;
  /** Of its image, below what it has written. */
  lower: string;
  /** Its layer is a file system of its own, in which directories only grow. */
  hasDisk: boolean;
}

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
 * @param grownBytes how much more than usual the kernel has for all of them.
 * @returns the most that the kernel holds for each and counts for nobody: lists of merged directories that are open, locks of
 * files, connections.
 */
export async function kernelHoldings(
  holders: readonly Holder[],
  grownBytes: number,
): Promise<ReadonlyMap<RuntimeId, number>> {
  const [processes, locks] = await Promise.all([processesByNamespace(), sampleLocks()]);
  const found = new Map<RuntimeId, number>();
  await boundedParallel(holders, parallelLooks, async (holder) => {
    const pids = processes.get((await pidNamespace(holder.pid)) ?? "") ?? [];
    found.set(holder.runtimeId, await heldFor(holder, { pids, locks, grownBytes }));
  });
  return found;
}

async function heldFor(
  holder: Holder,
  seen: { pids: readonly number[]; locks: LockSample; grownBytes: number },
): Promise<number> {
  const root = await stat(`/proc/${holder.pid}/root`).catch(() => undefined);
  if (root === undefined) return 0;
  const files = await openFilesOf(seen.pids);
  const ofFiles = await Promise.all(
    files.sample.map((file) => heldByFile(file, { ...holder, device: root.dev })),
  );
  const connections = await connectionsOf(holder.pid);
  return (
    connections * heldByConnection +
    ofFiles.reduce((sum, bytes) => sum + bytes, 0) * files.each +
    heldByLocks(seen.locks, seen.grownBytes, ownLocks(seen.pids, root.dev, files.sample))
  );
}

/** Of more locks than are read, whose share of those that were is as large a share of what has grown. */
export function heldByLocks(
  sample: LockSample,
  grownBytes: number,
  owns: (lock: FileLock) => boolean,
): number {
  const own = sample.locks.filter(owns).length;
  return sample.whole ? own * heldByLock : (own / Math.max(sample.locks.length, 1)) * grownBytes;
}

/** A lock of an open file has no process, and a file in memory has no file system of its sandbox's. */
function ownLocks(
  pids: readonly number[],
  rootDevice: number,
  files: readonly OpenFile[],
): (lock: FileLock) => boolean {
  const own = new Set(pids);
  const ownRoot = deviceName(rootDevice);
  const open = new Set(files.map(({ device, inode }) => `${deviceName(device)} ${inode}`));
  return ({ pid, device, inode }) =>
    pid === undefined ? device === ownRoot || open.has(`${device} ${inode}`) : own.has(pid);
}

async function heldByFile(
  file: OpenFile,
  holder: { device: number; lower: string; hasDisk: boolean },
): Promise<number> {
  if (file.kind === "socket") return file.waiting * heldOutOfSight;
  if (file.kind !== "directory" || file.device !== holder.device) return 0;
  if (file.unlinked) return heldOutOfSight;
  const lower = await stat(join(holder.lower, file.path ?? "")).catch(() => undefined);
  const size = file.size + (lower?.size ?? 0);
  return size * heldByDirectoryByte + (holder.hasDisk ? 0 : heldByShrunkDirectory);
}
