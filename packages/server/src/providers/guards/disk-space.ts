import { spawn } from "node:child_process";
import { statfs } from "node:fs/promises";
import { createInterface } from "node:readline";
import { spawned } from "../../platform/spawned.ts";

/** All trees. */
const measureMs = 20_000;
/** One tree, as long as others wait for their turn. */
const measureEachMs = 5_000;

export interface DiskSpace {
  freeMb: number;
  /** undefined: this file system counts none. */
  freeInodes: number | undefined;
}

/** What is free on the file system of `root` for those who are not root. Not by a call of this thread: a file system that hangs would hold up everybody. */
export async function spaceOf(root: string): Promise<DiskSpace> {
  const { bavail, bsize, files, ffree } = await statfs(root);
  return { freeMb: (bavail * bsize) / 1024 ** 2, freeInodes: files > 0 ? ffree : undefined };
}

/**
 * What trees take on their file systems, MB of blocks, or how many inodes they have; without those that cannot be read or
 * counted in time: one that takes long is left for the end, where the first of these has the time that is left.
 */
export async function diskUsage(
  paths: readonly string[],
  {
    inodes,
    signal,
    allMs = measureMs,
    eachMs = measureEachMs,
  }: { inodes: boolean; signal?: AbortSignal; allMs?: number; eachMs?: number },
): Promise<Map<string, number>> {
  const usage = new Map<string, number>();
  const untilMs = performance.now() + allMs;
  const leftMs = () => untilMs - performance.now();
  const slow: string[] = [];
  let rest = paths;
  while (rest.length > 0 && leftMs() > 0) {
    const endedAt = await count(rest, usage, { inodes, signal, eachMs: Math.min(eachMs, leftMs()) });
    if (endedAt === undefined) break;
    slow.push(...rest.slice(endedAt, endedAt + 1));
    rest = rest.slice(endedAt + 1);
  }
  for (const path of slow) if (leftMs() > 0) await count([path], usage, { inodes, signal, eachMs: leftMs() });
  return usage;
}

/**
 * One `du`, which tells each tree as soon as it is counted. It names what it cannot read or what went away and exits with 1;
 * what it printed still counts.
 * @returns the index of the tree that it was ended at for taking longer than `eachMs`; undefined: it got to the end.
 * @throws when there is no `du`, or the signal's reason.
 */
async function count(
  paths: readonly string[],
  usage: Map<string, number>,
  { inodes, signal, eachMs }: { inodes: boolean; signal: AbortSignal | undefined; eachMs: number },
): Promise<number | undefined> {
  signal?.throwIfAborted();
  const du = await spawned(
    spawn("du", [inodes ? "--inodes" : "-k", "-sx", "--", ...paths], {
      stdio: ["ignore", "pipe", "ignore"],
      killSignal: "SIGKILL",
      ...(signal === undefined ? {} : { signal }),
    }),
    { signal },
  );
  const ended = Promise.withResolvers<void>();
  du.once("error", ended.reject).once("close", () => ended.resolve());
  let counted = 0;
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    du.kill("SIGKILL");
  }, eachMs);
  const lines = createInterface({ input: du.stdout });
  lines.on("line", (line) => {
    const [size = "", path = ""] = line.split("\t");
    usage.set(path, inodes ? Number(size) : Number(size) / 1024);
    counted = paths.indexOf(path, counted) + 1 || counted;
    timer.refresh();
  });
  try {
    await ended.promise;
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  } finally {
    clearTimeout(timer);
    lines.close();
  }
  return isLate && counted < paths.length ? counted : undefined;
}
