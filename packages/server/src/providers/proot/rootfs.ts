import { lstat, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { orMissing } from "../../platform/missing.ts";
import { removeTree } from "../../platform/remove-tree.ts";
import { runProgram } from "../../platform/run-program.ts";
import type { CallOptions, ImageConfig, ImageStore } from "../../ports/index.ts";
import { makeHostRoot } from "../host-root/host-root.ts";
import { folderInRoot } from "./folder-in-root.ts";

/** A root file system made for one runtime. */
export interface PreparedRoot {
  /** The image as resolved. */
  image: string;
  config: ImageConfig;
  /** Folders of the machine shown in it: host path, or host path and guest path. */
  binds: string[];
}

export const hostImage = "host";

/** Folders that make a root usable and that images may lack. */
const neededFolders: readonly (readonly [string, number])[] = [
  ["proc", 0o755],
  ["dev", 0o755],
  ["sys", 0o755],
  ["dev/shm", 0o1777],
  ["tmp", 0o1777],
  ["run", 0o755],
];
/** The devices a sandbox sees; nothing else of the machine's /dev. */
const devices = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"];
/** Where programs are on machines that keep them apart from /usr. */
const programFolders = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/**
 * Makes a private, writable root. proot has no layers: the tree of an image is copied (sharing blocks where the file
 * system can), image `host` is a made-up root that shows the machine's program folders. docs/decisions/proot.md.
 * @throws NotFound for an image that is not stored.
 */
export async function prepareRoot(
  target: string,
  options: CallOptions & { image: string; owner: string | undefined; images: ImageStore; dataDir: string },
): Promise<PreparedRoot> {
  const found =
    options.image === hostImage ? undefined : await options.images.resolve(options.image, options);
  const source =
    found === undefined || found.name === hostImage
      ? { name: hostImage, rootfs: await makeHostRoot(options.dataDir), config: { env: {} } }
      : found;
  options.signal.throwIfAborted();
  await mkdir(target, { mode: 0o755 });
  await runProgram("cp", ["-a", "--reflink=auto", `${source.rootfs}/.`, target], options);
  for (const [folder, mode] of neededFolders) await folderInRoot(target, folder, mode);
  const binds = ["/proc", ...devices.map((name) => `/dev/${name}`)];
  if (source.name === hostImage) binds.push("/usr", ...(await separateProgramFolders(target)));
  return { image: source.name, config: source.config, binds };
}

/** Removes a root, also one in which the sandbox took its owner's rights away. Links in it are not followed. */
export async function removeFolder(path: string, options: CallOptions): Promise<void> {
  try {
    await removeTree(path, options);
  } catch (error) {
    options.signal.throwIfAborted();
    if ((await orMissing(lstat(path), undefined)) === undefined) throw error;
    await runProgram("chmod", ["-R", "u+rwX", path], options);
    await removeTree(path, options);
  }
}

async function separateProgramFolders(root: string): Promise<string[]> {
  const separate: string[] = [];
  for (const name of programFolders) {
    // Where the machine has links the made-up root has them too.
    const shown = await orMissing(lstat(`/${name}`), undefined);
    const inside = await orMissing(lstat(join(root, name)), undefined);
    if (shown?.isDirectory() && inside?.isDirectory()) separate.push(`/${name}`);
  }
  return separate;
}
