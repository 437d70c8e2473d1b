import { execFile } from "node:child_process";
import { access, mkdir, open, readdir, rename, rm, truncate } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { exists } from "../../platform/missing.ts";

/** Sandboxes' layers kept ready by the launcher. */
export const readyDisks = 8;

export interface DiskPool {
  /** An empty ext4 file system, sparse, copied for each sandbox. */
  template: string;
  /** Where layers made ahead wait. */
  dir: string;
}

const features = ["-O", "^has_journal,^resize_inode,sparse_super2", "-b", "4096", "-i", "16384", "-m", "0"];

/**
 * Makes the template of sandboxes' writable layers, once for each size.
 * @returns why there can be none, where the machine lacks something.
 */
export async function openDiskPool(options: {
  dataDir: string;
  diskMb: number;
  mkfs: string | undefined;
}): Promise<DiskPool | { missing: string }> {
  const made = await makeTemplate(options);
  if ("missing" in made) return made;
  // What a launcher before this one made and nobody took.
  for (const name of await readdir(made.dir)) await rm(join(made.dir, name));
  return made;
}

/** The template and the folder of the pool, made when they are not there. */
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
  const dir = join(folder, "pool");
  await mkdir(dir, { recursive: true, mode: 0o700 });
  if (await exists(template)) return { template, dir };
  const draft = `${template}.${process.pid}`;
  try {
    await (await open(draft, "w", 0o600)).close();
    await truncate(draft, options.diskMb * 1024 * 1024);
    // Unwritten inode tables keep the image small: a few hundred kilobytes are copied for each sandbox.
    await promisify(execFile)(options.mkfs, [
      "-q",
      "-F",
      ...features,
      "-E",
      "lazy_itable_init=1,nodiscard",
      draft,
    ]);
    await rename(draft, template);
  } catch (error) {
    await rm(draft, { force: true });
    return { missing: `mkfs.ext4 fails: ${error instanceof Error ? error.message : String(error)}` };
  }
  return { template, dir };
}
