import { readdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";

/** Of one sandbox. Looking at more would cost more than it tells. */
const mostDescriptors = 20_000;

/** Programs may have ended meanwhile. */
const gone = () => undefined;

/**
 * MB of files that processes hold open and that have no name any more, each once: they are on the disk, in no folder.
 * @param devices of file systems that count: others, such as those in memory, take no disk.
 * @param most descriptors that are looked at: of more the result is a lower bound.
 */
export async function unlinkedMb(
  pids: readonly number[],
  { devices, most = mostDescriptors }: { devices: ReadonlySet<number>; most?: number },
): Promise<number> {
  const counted = new Set<string>();
  let bytes = 0;
  let left = most;
  for (const pid of pids) {
    const folder = `/proc/${pid}/fd`;
    const descriptors = (await readdir(folder).catch(gone)) ?? [];
    for (const descriptor of descriptors) {
      if (left-- <= 0) return bytes / 1024 ** 2;
      const file = await stat(join(folder, descriptor)).catch(gone);
      if (file === undefined || !file.isFile() || file.nlink > 0 || !devices.has(file.dev)) continue;
      const key = `${file.dev}:${file.ino}`;
      if (!counted.has(key)) bytes += file.blocks * 512;
      counted.add(key);
    }
  }
  return bytes / 1024 ** 2;
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
