import { access, mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { exists } from "../../platform/missing.ts";
import { isMomentary } from "../../platform/momentary.ts";
import { makeEmptyImage } from "../ext4/index.ts";
import { lackedRoom } from "./advice.ts";

/** Sandboxes' layers kept ready by the launcher. */
export const readyDisks = 8;

/** Below `native`. Not `formerDir`: on a folder there a release that kept files alone rejects everything, removals too. */
const aheadDir = "ahead";
/** Where releases before that kept layers ready, each a file. */
const formerDir = "pool";

export interface DiskPool {
  /** An empty ext4 file system, sparse, copied for each sandbox. */
  template: string;
  /** Where layers made ahead wait. */
  dir: string;
}

/**
 * Makes the template of sandboxes' writable layers, once for each size.
 * @returns why there can be none, where the machine lacks something.
 * @throws Error where that cannot be told now, for want of a descriptor for one.
 */
export async function openDiskPool(options: {
  dataDir: string;
  diskMb: number;
  mkfs: string | undefined;
}): Promise<DiskPool | { missing: string }> {
  const made = await makeTemplate(options);
  if ("missing" in made) return made;
  await rm(join(options.dataDir, "native", formerDir), { recursive: true, force: true, maxRetries: 5 });
  // What a launcher before this one made and nobody took. What it was making when it ended may get one more file meanwhile.
  for (const name of await readdir(made.dir))
    await rm(join(made.dir, name), { recursive: true, force: true, maxRetries: 5 });
  return made;
}

/** The template and the folder of the pool, made when they are not there. On a full disk the template is still missing. */
export async function makeTemplate(options: {
  dataDir: string;
  diskMb: number;
  mkfs: string | undefined;
}): Promise<DiskPool | { missing: string }> {
  if (options.mkfs === undefined) return { missing: "mkfs.ext4 is not installed (package e2fsprogs)" };
  try {
    await access("/dev/loop-control");
  } catch (error) {
    return {
      missing: `there are no loop devices (${error instanceof Error ? error.message : String(error)})`,
    };
  }
  const folder = join(options.dataDir, "native");
  const template = join(folder, `disk-${options.diskMb}.img`);
  const dir = join(folder, aheadDir);
  await mkdir(dir, { recursive: true, mode: 0o700 });
  if (await exists(template)) return { template, dir };
  try {
    const { signal } = new AbortController();
    await makeEmptyImage(template, { sizeMb: options.diskMb, mkfs: options.mkfs, signal });
  } catch (error) {
    if (isMomentary(error)) throw error;
    if (!lackedRoom(error)) return { missing: error instanceof Error ? error.message : String(error) };
  }
  return { template, dir };
}
