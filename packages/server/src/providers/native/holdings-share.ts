import { sumOf } from "../../platform/sum-of.ts";
import type { RuntimeId } from "../../ports/index.ts";
import { type FileLock, fileKey, type LockSample } from "./lock-table.ts";

/** 200 bytes, and what the kernel keeps beside it. */
const heldByLock = 256;

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

type Owner = { seen: Seen /** How many locks the one that was read stands for. */; locks: number };

/**
 * By the file system of a sandbox, which nobody else has; by process, which of locks that belong to an open file is none, and may
 * have ended while another shares its table of open files; or by what is open, such as a file in memory alone.
 */
export function ownersOf(all: readonly Seen[]): (lock: FileLock) => Owner | undefined {
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
