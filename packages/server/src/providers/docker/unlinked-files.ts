import { readdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { CallOptions, RuntimeId } from "../../ports/index.ts";

/** Of one sandbox. Looking at more would cost more than it tells. */
const mostDescriptors = 20_000;
/** For the descriptors of all sandboxes together. */
const allMs = 10_000;

/** Programs may have ended meanwhile. */
const gone = () => undefined;

/**
 * MB of files that processes hold open and that have no name any more, each once: they are on the disk, in no folder.
 * @param devices of file systems that count: others, such as those in memory, take no disk.
 * @param most descriptors that are looked at: of more the result is a lower bound, as it is when `signal` aborts.
 */
export async function unlinkedMb(
  pids: readonly number[],
  { devices, most = mostDescriptors, signal }: { devices: ReadonlySet<number>; most?: number } & CallOptions,
): Promise<number> {
  const counted = new Set<string>();
  let bytes = 0;
  let left = most;
  for (const pid of pids) {
    if (signal.aborted) break;
    const folder = `/proc/${pid}/fd`;
    const descriptors = (await readdir(folder).catch(gone)) ?? [];
    for (const descriptor of descriptors) {
      if (left-- <= 0 || signal.aborted) return bytes / 1024 ** 2;
      const file = await stat(join(folder, descriptor)).catch(gone);
      if (file === undefined || !file.isFile() || file.nlink > 0 || !devices.has(file.dev)) continue;
      const key = `${file.dev}:${file.ino}`;
      if (!counted.has(key)) bytes += file.blocks * 512;
      counted.add(key);
    }
  }
  return bytes / 1024 ** 2;
}

/**
 * `sizes` with what `unlinked` adds to each, MB. Each has an equal part of the time that is left, so that none with many
 * descriptors hides what another holds; whose turn comes too late keeps its size. Never fails for lateness.
 */
export async function withUnlinked(
  sizes: ReadonlyMap<RuntimeId, number>,
  unlinked: (runtimeId: RuntimeId, options: CallOptions) => Promise<number>,
  { signal, withinMs = allMs }: CallOptions & { withinMs?: number },
): Promise<Map<RuntimeId, number>> {
  const whole = new Map(sizes);
  using all = deadlineAfter(withinMs, signal);
  const untilMs = performance.now() + withinMs;
  let waiting = sizes.size;
  for (const [runtimeId, size] of sizes) {
    if (all.signal.aborted) break;
    using own = deadlineAfter((untilMs - performance.now()) / waiting--, all.signal);
    whole.set(runtimeId, size + (await unlinked(runtimeId, { signal: own.signal })));
  }
  return whole;
}

/** The processes in the cgroup of a container's first one; none where that is no process that is seen from here. */
export async function processesOf({ id, pid }: { id: string; pid: number }): Promise<number[]> {
  const cgroups = (await readFile(`/proc/${pid}/cgroup`, "utf8").catch(gone)) ?? "";
  const first = /^\d+:pids:(.*)$/m.exec(cgroups)?.[1];
  const path = first ?? /^0::(.*)$/m.exec(cgroups)?.[1];
  // Seen from another container the number is another process's, or nobody's.
  if (path === undefined || !path.includes(id)) return [];
  const folder = join("/sys/fs/cgroup", first === undefined ? "" : "pids", path);
  const processes = (await readFile(join(folder, "cgroup.procs"), "utf8").catch(gone)) ?? "";
  return processes
    .split("\n")
    .map(Number)
    .filter((number) => number > 0);
}
