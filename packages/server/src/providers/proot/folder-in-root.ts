import { constants } from "node:fs";
import { type FileHandle, lstat, mkdir, open, unlink } from "node:fs/promises";
import { orMissing } from "../../platform/missing.ts";

const asFolder = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;

/**
 * Makes a folder below a root file system that somebody else filled, unless it is there. What is no folder gives way, as with
 * `native`: an image may have anything at these names. No link is followed, and each part is looked up in the folder that was
 * opened before it, so that whoever changes names meanwhile leads nowhere else.
 * @param path below `root`: names with `/` between them.
 * @param mode of a folder that is made here; one that is there keeps its own.
 * @throws Error ELOOP or ENOTDIR when a name was replaced in between.
 */
export async function folderInRoot(root: string, path: string, mode: number): Promise<void> {
  let at = await open(root, asFolder);
  try {
    for (const name of path.split("/")) {
      const next = await folderIn(at, name, mode);
      await at.close();
      at = next;
    }
  } finally {
    await at.close();
  }
}

async function folderIn(parent: FileHandle, name: string, mode: number): Promise<FileHandle> {
  const path = `/proc/self/fd/${parent.fd}/${name}`;
  const found = await orMissing(lstat(path), undefined);
  if (found?.isDirectory()) return open(path, asFolder);
  if (found !== undefined) await unlink(path);
  await mkdir(path, { mode: 0o700 });
  const made = await open(path, asFolder);
  try {
    // mkdir obeys the umask.
    await made.chmod(mode);
    return made;
  } catch (error) {
    await made.close();
    throw error;
  }
}
