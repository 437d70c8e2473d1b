import { stat } from "node:fs/promises";
import { join } from "node:path";
import type { RuntimeId } from "../../ports/index.ts";
import { diskUsage } from "../guards/index.ts";

/**
 * What runtimes have written, MB, or how many files they have made. A layer with a file system of its own is one file, whose
 * blocks say it all, and whose files are its own affair; others are added up. The console lies beside it: an agent holds it open,
 * and one that was taken over writes to it what it likes.
 */
export async function layerSizes(
  runtimes: readonly RuntimeId[],
  { path, ...what }: { path: (runtimeId: RuntimeId) => string; inodes: boolean; signal?: AbortSignal },
): Promise<Map<RuntimeId, number>> {
  const sizes = new Map<RuntimeId, number>();
  const others = new Map<string, RuntimeId>();
  for (const runtimeId of runtimes) {
    const image = await stat(join(path(runtimeId), "disk.img")).catch(() => undefined);
    if (image === undefined) others.set(path(runtimeId), runtimeId);
    else if (!what.inodes) {
      const console = await stat(join(path(runtimeId), "console.log")).catch(() => undefined);
      sizes.set(runtimeId, ((image.blocks + (console?.blocks ?? 0)) * 512) / 1024 ** 2);
    }
  }
  for (const [folder, size] of await diskUsage([...others.keys()], what)) {
    const runtimeId = others.get(folder);
    if (runtimeId !== undefined) sizes.set(runtimeId, size);
  }
  return sizes;
}
