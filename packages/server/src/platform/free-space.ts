import { statfsSync } from "node:fs";

/** What the user of this process may still write to the file system of a folder that is there, bytes. */
export function freeBytes(folder: string): number {
  const { bavail, bsize } = statfsSync(folder);
  return bavail * bsize;
}
