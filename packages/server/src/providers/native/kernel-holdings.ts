import type { Stats } from "node:fs";
import { lstat, stat } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as after } from "node:timers/promises";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { shuffled } from "../../platform/shuffled.ts";
import type { RuntimeId } from "../../ports/index.ts";
import { ownersOf, type Seen, sharedOut } from "./holdings-share.ts";
import { deviceName, fileKey, type LockSample, sampleLocks } from "./lock-table.ts";
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

/** A connection without a byte, which nobody has accepted and whose client has closed: 4 KB were measured. */
const heldByConnection = 4 << 10;
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
/** How long a look takes on who has not been looked at yet: with hundreds that each have thousands of files it sees a part of them, each time another. */
const mostMsOfHolders = 10_000;
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

/** How long a look takes on who has not been looked at yet, milliseconds. Unset: the usual. */
export interface LookPatience {
  mostMs?: number;
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

/**
 * @param grownBytes how much more than usual the kernel has for all of them.
 * @param inVain how often in a row nobody was found to have it.
 * @param outOfSight what it knows of the look before is changed to what this one has seen.
 * @param patience after which holders, in an order by chance, are left to a later look: nothing is told of them.
 * @returns the most that the kernel holds for each and counts for nobody: lists of merged directories that are open, locks of
 * files, connections.
 */
export async function kernelHoldings(
  holders: readonly Holder[],
  grownBytes: number,
  inVain = 0,
  outOfSight = new OutOfSight(),
  { mostMs = mostMsOfHolders }: LookPatience = {},
): Promise<ReadonlyMap<RuntimeId, number>> {
  // Programs wait, too, without having anything; nobody answers for it while who has it is in sight.
  outOfSight.forgetOthers(new Set(inVain === 0 ? [] : holders.map(({ runtimeId }) => runtimeId)));
  const [processes, locks] = await Promise.all([processesByNamespace(), sampleLocks()]);
  const locked = new Set(locks.locks.map(fileKey));
  const all: Seen[] = [];
  const doubled = 2 ** Math.min(inVain - 1, mostDoublings);
  const [longLeft, stillLeft] = inVain > 0 ? [longLooks, stillLooks * doubled] : [0, 0];
  const look: Look = { grownBytes, inVain, locked, outOfSight, longLeft, stillLeft };
  const until = performance.now() + mostMs;
  let unseen = 0;
  await boundedParallel(shuffled(holders), parallelLooks, async (holder) => {
    if (performance.now() > until) {
      unseen++;
      return;
    }
    const pids = processes.get((await pidNamespace(holder.pid)) ?? "") ?? [];
    all.push(await lookAt(holder, pids, look));
  });
  await findMapped(all, locks);
  // Nobody answers for what may be out of sight while it may be with somebody who was not looked at.
  if (unseen > 0) for (const seen of all) seen.hidden = 0;
  return sharedOut(all, locks, grownBytes);
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
  const waits = sample.some(({ waiting }) => waiting > 0);
  return {
    runtimeId,
    pids,
    device: deviceName(root.dev),
    files: new Map(lockedOf(sample, locked).map((key) => [key, each])),
    others:
      connections * heldByConnection +
      held * each +
      (waits && hidesDescriptors(open, await unixSocketsIn(holder.pid)) ? grownBytes : 0),
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

/**
 * A socket that waits in another to be received has itself descriptors waiting, of which nothing tells.
 * @param sockets of its network; undefined: too many to be told.
 * @returns false also where somebody may not be looked at, who may have them open.
 */
export function hidesDescriptors(
  { sample, refused }: OpenFiles,
  sockets: readonly number[] | undefined,
): boolean {
  if (refused) return false;
  const open = new Set(sample.filter(({ kind }) => kind === "socket").map(({ inode }) => inode));
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
