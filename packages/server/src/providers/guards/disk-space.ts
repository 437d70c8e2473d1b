import { execFile } from "node:child_process";
import { statfs } from "node:fs/promises";
import { promisify } from "node:util";

const measureMs = 20_000;

export interface DiskSpace {
  freeMb: number;
  /** undefined: this file system counts none. */
  freeInodes: number | undefined;
}

/** What is free on the file system of `root` for those who are not root. */
export async function spaceOf(root: string): Promise<DiskSpace> {
  const { bavail, bsize, files, ffree } = await statfs(root);
  return { freeMb: (bavail * bsize) / 1024 ** 2, freeInodes: files > 0 ? ffree : undefined };
}

/**
 * What trees take on their file systems, MB of blocks, or how many inodes they have; without those that cannot be read.
 * `du` names what it cannot read or what went away and exits with 1; what it printed still counts.
 */
export async function diskUsage(
  paths: readonly string[],
  { inodes, signal }: { inodes: boolean; signal?: AbortSignal },
): Promise<Map<string, number>> {
  const usage = new Map<string, number>();
  if (paths.length === 0) return usage;
  const work = promisify(execFile)("du", [inodes ? "--inodes" : "-k", "-sx", "--", ...paths], {
    timeout: measureMs,
    ...(signal === undefined ? {} : { signal }),
    maxBuffer: 16 << 20,
  });
  const { stdout } = await work.catch((error: unknown) => {
    signal?.throwIfAborted();
    if (error instanceof Error && "stdout" in error) return { stdout: String(error.stdout) };
    throw error;
  });
  for (const line of stdout.split("\n")) {
    const [count = "", path = ""] = line.split("\t");
    if (path !== "") usage.set(path, inodes ? Number(count) : Number(count) / 1024);
  }
  return usage;
}
