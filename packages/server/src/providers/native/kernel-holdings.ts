import type { Stats } from "node:fs";
import { lstat, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as after } from "node:timers/promises";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { shuffled } from "../../platform/shuffled.ts";
import type { RuntimeId } from "../../ports/index.ts";
import { deviceName, type FileLock, fileKey, type LockSample, sampleLocks } from "./lock-table.ts";
import { mappedFilesOf } from "./mapped-files.ts";
import {
  type OpenFile,
  type OpenFiles,
  openFilesOf,
  pidNamespace,
  processesByNamespace,
} from "./open-files.ts";
import { heldOutOfSight, OutOfSight } from "./out-of-sight.ts";
import { connectionsOf, unixSocketsIn } from "./socket-holdings.ts";
import type { StandingStill } from "./standing-still.ts";
import type { MachineMemory } from "./uncounted-memory.ts";

/** A connection without a byte, which nobody has accepted and whose client has closed: 4 KB were measured. */
const heldByConnection = 4 << 10;
/** 200 bytes, and what the kernel keeps beside it. */
const heldByLock = 256;
/** The list of a merged directory has up to 343 bytes for a name, of which 512 are taken; its size has at least 12, or 20 where it is in memory. */
const heldByDirectoryByte = 26;
/** Where directories become smaller when names are removed: a list of 30,000 that is still there. */
const heldByShrunkDirectory = 16 << 20;
/** So many locks that are nobody's are worth a look at what is mapped. */
const leastOrphans = 500;
const parallelLooks = 4;
/** Of what one sandbox has open, how long is looked at, and of what all have mapped. */
const mostMsOfFiles = 2_000;
const mostMsOfMappings = 5_000;
/** A path of more names is not looked up below: its directory counts as one out of sight. */
const mostNames = 64;
const parallelFiles = 16;
/** Of the sandboxes that have more open than a look sees, so many are given the time for very much, a second and more: by chance, so that each has its turn. */
const longLooks = 2;
/** Of those whose processes come and go, so many stand still for a look, twice as many each time it was in vain. */
const stillLooks = 4;
const mostDoublings = 4;
/** Until what had begun to run has used up what it has of a processor. */
const settleMs = 50;

/** A sandbox that may have it. */
export interface Holder {
  runtimeId: RuntimeId;
  /** Its first process, as the host sees it. */
  pid: number;
  /** Of its image, below what it has written. */
  lower: string;
  /** Its layer is a file system of its own, in which directories only grow. */
  hasDisk: boolean;
  /** Unless it has no groups of its own. */
  still?: StandingStill | undefined;
}

/** Of one look. */
interface Look {
  grownBytes: number;
  inVain: number;
  /** By `fileKey`. */
  locked: ReadonlySet<string>;
  outOfSight: OutOfSight;
  longLeft: number;
  stillLeft: number;
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

/** What was seen of a holder. */
export interface Seen {
  runtimeId: RuntimeId;
  /** Of its processes, as the host sees them. */
  pids: readonly number[];
  /** Of its root, as `deviceName` says it; undefined when it is gone. */
  device: string | undefined;
  /** What it has open or mapped, by `fileKey`; how many files each stands for. */
  files: Map<string, number>;
  /** What is held beside locks, bytes. */
  others: number;
  /** What files can hold of which no descriptor is left, bytes: locks as well. */
  hidden: number;
}

/**
 * @param grownBytes how much more than usual the kernel has for all of them.
 * @param inVain how often in a row nobody was found to have it.
 * @param outOfSight what it knows of the look before is changed to what this one has seen.
 * @returns the most that the kernel holds for each and counts for nobody: lists of merged directories that are open, locks of
 * files, connections.
 */
export async function kernelHoldings(
  holders: readonly Holder[],
  grownBytes: number,
  inVain = 0,
  outOfSight = new OutOfSight(),
): Promise<ReadonlyMap<RuntimeId, number>> {
  // Programs wait, too, without having anything; nobody answers for it while who has it is in sight.
  outOfSight.forgetOthers(new Set(inVain === 0 ? [] : holders.map(({ runtimeId }) => runtimeId)));
  const [processes, locks] = await Promise.all([processesByNamespace(), sampleLocks()]);
  const locked = new Set(locks.locks.map(fileKey));
  const all: Seen[] = [];
  const doubled = 2 ** Math.min(inVain - 1, mostDoublings);
  const [longLeft, stillLeft] = inVain > 0 ? [longLooks, stillLooks * doubled] : [0, 0];
  const look: Look = { grownBytes, inVain, locked, outOfSight, longLeft, stillLeft };
  await boundedParallel(shuffled(holders), parallelLooks, async (holder) => {
    const pids = processes.get((await pidNamespace(holder.pid)) ?? "") ?? [];
    all.push(await lookAt(holder, pids, look));
  });
  await findMapped(all, locks);
  return sharedOut(all, locks, grownBytes);
}

/**
 * Locks by what all of them take, where that is known; of the rest nobody holds more than has grown beside them: who has
 * directories open does not answer for locks of which nobody knows whose they are. Who may have files out of sight answers for what
 * is then left.
 */
export function sharedOut(
  all: readonly Seen[],
  sample: LockSample,
  grownBytes: number,
): ReadonlyMap<RuntimeId, number> {
  const whose = ownersOf(all);
  const own = new Map<Seen, number>();
  for (const lock of sample.locks) {
    const found = whose(lock);
    if (found !== undefined) own.set(found.seen, (own.get(found.seen) ?? 0) + found.locks);
  }
  const lockBytes = Math.min(sample.bytes ?? grownBytes, grownBytes);
  const otherBytes = grownBytes - (sample.bytes === undefined ? 0 : lockBytes);
  const others = sumOf(all.map((seen) => seen.others));
  const share = others > otherBytes ? otherBytes / others : 1;
  const seenOf = (seen: Seen) => {
    const locks = Math.min(own.get(seen) ?? 0, sample.locks.length);
    const held = sample.whole ? locks * heldByLock : (locks / Math.max(sample.locks.length, 1)) * lockBytes;
    return held + seen.others * share;
  };
  const found = new Map(all.map((seen) => [seen, seenOf(seen)]));
  const rest = Math.max(0, grownBytes - sumOf(found.values()));
  const hidden = sumOf(all.map((seen) => seen.hidden));
  const ofHidden = hidden > rest ? rest / hidden : 1;
  return new Map([...found].map(([seen, bytes]) => [seen.runtimeId, bytes + seen.hidden * ofHidden]));
}

function sumOf(numbers: Iterable<number>): number {
  return [...numbers].reduce((sum, number) => sum + number, 0);
}

type Owner = { seen: Seen /** How many locks the one that was read stands for. */; locks: number };

/**
 * By the file system of a sandbox, which nobody else has; by process, which of locks that belong to an open file is none, and may
 * have ended while another shares its table of open files; or by what is open, such as a file in memory alone.
 */
function ownersOf(all: readonly Seen[]): (lock: FileLock) => Owner | undefined {
  const byDevice = new Map(all.map((seen) => [seen.device, { seen, locks: 1 }]));
  const byProcess = new Map(all.flatMap((seen) => seen.pids.map((pid) => [pid, { seen, locks: 1 }])));
  const byFile = new Map(
    all.flatMap((seen) => [...seen.files].map(([key, locks]) => [key, { seen, locks }])),
  );
  return (lock) =>
    byDevice.get(lock.device) ??
    (lock.pid === undefined ? undefined : byProcess.get(lock.pid)) ??
    byFile.get(fileKey(lock));
}

/** Locks of an open file stay while it is mapped, whether it is open or not. */
async function findMapped(all: readonly Seen[], { locks }: LockSample): Promise<void> {
  const whose = ownersOf(all);
  const orphans = locks.filter((lock) => whose(lock) === undefined);
  if (orphans.length < leastOrphans) return;
  const wanted = new Set(orphans.map(fileKey));
  const until = performance.now() + mostMsOfMappings;
  for (const { pids, files } of shuffled(all)) {
    if (performance.now() > until) return;
    for (const [key, each] of await mappedFilesOf(pids, wanted)) files.set(key, each);
  }
}

async function lookAt(holder: Holder, listed: readonly number[], look: Look): Promise<Seen> {
  const { grownBytes, inVain, locked, outOfSight } = look;
  const root = await stat(`/proc/${holder.pid}/root`).catch(() => undefined);
  const { runtimeId } = holder;
  if (root === undefined)
    return { runtimeId, pids: listed, device: undefined, files: new Map(), others: 0, hidden: 0 };
  const { pids, open } = await openOf(holder, listed, look);
  const { sample, each } = open;
  // Before what takes longer: it is compared with what is open.
  const hidden = inVain > 0 ? await outOfSight.heldBy(holder, { pids, open, grownBytes }) : 0;
  const held = await heldByAll(sample, { ...holder, device: root.dev });
  const connections = await connectionsOf(holder.pid);
  return {
    runtimeId,
    pids,
    device: deviceName(root.dev),
    files: new Map(lockedOf(sample, locked).map((key) => [key, each])),
    others:
      connections * heldByConnection +
      held * each +
      ((await hidesDescriptors(holder.pid, sample)) ? grownBytes : 0),
    hidden,
  };
}

/** Once a look has found nobody, who could not be seen whole is given more time. */
async function openOf(
  { still }: Holder,
  listed: readonly number[],
  look: Look,
): Promise<{ pids: readonly number[]; open: OpenFiles }> {
  // Those of its groups are read just before: the list of the whole machine may be seconds old.
  const present = look.stillLeft > 0 && still !== undefined ? await processesOf(still) : [];
  let pids: readonly number[] = [...new Set([...listed, ...present])];
  let open = await openFilesOf(pids);
  if (look.stillLeft > 0 && still !== undefined && (await hasOthers(still, pids)) && look.stillLeft-- > 0) {
    // One that ends meanwhile has no groups any more.
    await using _ = await still.begin().catch(() => undefined);
    await after(settleMs);
    pids = [...new Set([...pids, ...(await processesOf(still))])];
    open = await openFilesOf(pids);
  }
  if (open.each > 1 && look.longLeft-- > 0) open = await openFilesOf(pids, look.inVain);
  return { pids, open };
}

/** Whether there are processes that were not there a moment ago. */
async function hasOthers(still: StandingStill, pids: readonly number[]): Promise<boolean> {
  const known = new Set(pids);
  return (await processesOf(still)).some((pid) => !known.has(pid));
}

/** @returns none of who is gone. */
function processesOf(still: StandingStill): Promise<readonly number[]> {
  return still.processes().catch(() => []);
}

/** Which of what is open has locks: all else is nobody's to look for, and there may be millions. */
function lockedOf(sample: readonly OpenFile[], locked: ReadonlySet<string>): string[] {
  const names = new Map<number, string>();
  const nameOf = (device: number) => {
    const name = names.get(device) ?? deviceName(device);
    names.set(device, name);
    return name;
  };
  return sample
    .map(({ device, inode }) => fileKey({ device: nameOf(device), inode }))
    .filter((key) => locked.has(key));
}

/** Of very many, or such as are slow to be looked at, some stand for all. */
async function heldByAll(
  sample: readonly OpenFile[],
  holder: { device: number; lower: string; hasDisk: boolean },
): Promise<number> {
  const until = performance.now() + mostMsOfFiles;
  let held = 0;
  let looked = 0;
  await boundedParallel(shuffled(sample), parallelFiles, async (file) => {
    if (performance.now() > until) return;
    const bytes = await heldByFile(file, holder);
    held += bytes;
    looked++;
  });
  return held * (sample.length / Math.max(looked, 1));
}

/** A socket that waits in another to be received has itself descriptors waiting, of which nothing tells. */
async function hidesDescriptors(pid: number, files: readonly OpenFile[]): Promise<boolean> {
  if (!files.some(({ waiting }) => waiting > 0)) return false;
  const open = new Set(files.filter(({ kind }) => kind === "socket").map(({ inode }) => inode));
  const sockets = await unixSocketsIn(pid);
  return sockets === undefined || sockets.some((inode) => !open.has(inode));
}

/** @returns the most that a list of it, or what waits in it, can hold. */
export async function heldByFile(
  file: OpenFile,
  holder: { device: number; lower: string; hasDisk: boolean },
): Promise<number> {
  if (file.kind === "socket") return file.waiting * heldOutOfSight;
  if (file.kind !== "directory") return 0;
  if (file.unlinked) return heldOutOfSight;
  // Of the machine's programs, for one: of a directory that is being read the names of a part of it are kept.
  if (file.device !== holder.device) return file.size * heldByDirectoryByte;
  const size = file.size + (await sizeBelow(holder.lower, file.path ?? ""));
  return size * heldByDirectoryByte + (holder.hasDisk ? 0 : heldByShrunkDirectory);
}

/** A link is an image's own, and would lead into the machine: to what it mounts when asked, or waits for. */
async function sizeBelow(folder: string, path: string): Promise<number> {
  const names = path.split("/").filter((name) => name !== "");
  if (names.length > mostNames) return heldOutOfSight / heldByDirectoryByte;
  let place = folder;
  for (const name of names) {
    if (!(await directoryAt(place))) return 0;
    place = join(place, name);
  }
  return (await directoryAt(place))?.size ?? 0;
}

async function directoryAt(path: string): Promise<Stats | undefined> {
  const found = await lstat(path).catch(() => undefined);
  return found?.isDirectory() === true ? found : undefined;
}
