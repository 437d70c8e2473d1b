import { constants } from "node:fs";
import { lstat, open, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { orMissing } from "../../platform/missing.ts";
import { identify } from "../../platform/process-identity.ts";

/** Where proot 5.1 keeps its temporary files; it cannot be told otherwise. */
const folder = "/tmp";

/** proot's temporary files of one process: `prooted-<pid>-…`, through which programs start, and `proot-<pid>-…`. */
async function scratchNames(pid: number): Promise<string[]> {
  const names = await readdir(folder);
  return names.filter((name) => name.startsWith(`prooted-${pid}-`) || name.startsWith(`proot-${pid}-`));
}

/**
 * proot starts every program through a small one that it writes down for its own user alone; other users' commands need
 * it too. Must follow the agent's first answer: by then it is there. Names in /tmp can be anybody's, so only a plain
 * file of our own user, without a second name, is touched.
 */
export async function shareLoader(pid: number): Promise<void> {
  for (const name of await scratchNames(pid)) {
    const path = join(folder, name);
    if (!name.startsWith("prooted-") || !(await isOurs(path))) continue;
    const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      const stats = await file.stat();
      if (stats.isFile() && stats.uid === process.getuid?.() && stats.nlink === 1) await file.chmod(0o555);
    } finally {
      await file.close();
    }
  }
}

/** What a proot that was killed could not remove itself. A process that has its number by now keeps its own. */
export async function removeScratch(pid: number): Promise<void> {
  if ((await identify(pid)) !== undefined) return;
  for (const name of await scratchNames(pid)) {
    const path = join(folder, name);
    if (await isOurs(path)) await rm(path, { recursive: true, force: true });
  }
}

async function isOurs(path: string): Promise<boolean> {
  const stats = await orMissing(lstat(path), undefined);
  return stats !== undefined && stats.uid === process.getuid?.() && (stats.isFile() || stats.isDirectory());
}
