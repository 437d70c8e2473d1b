import { lstat, opendir } from "node:fs/promises";
import path from "node:path";

/** Bytes of the regular files below a directory, hard links counted once. */
export async function treeSize(directory: string, options: { signal: AbortSignal }): Promise<number> {
  const seen = new Set<number>();
  let bytes = 0;
  for await (const entry of await opendir(directory, { recursive: true, bufferSize: 512 })) {
    if (!entry.isFile()) continue;
    options.signal.throwIfAborted();
    const { ino, nlink, size } = await lstat(path.join(entry.parentPath, entry.name));
    if (nlink > 1 && seen.has(ino)) continue;
    if (nlink > 1) seen.add(ino);
    bytes += size;
  }
  return bytes;
}
