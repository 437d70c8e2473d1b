import { randomUUID } from "node:crypto";
import { open, rename, rm, truncate } from "node:fs/promises";
import { runTool } from "./run-tool.ts";

const features = ["-O", "^has_journal,^resize_inode,sparse_super2", "-b", "4096", "-i", "16384", "-m", "0"];

/**
 * Makes an empty ext4 file system in a sparse file, to be copied for each sandbox. It appears whole or not at all.
 * @throws StorageFull; ProviderError when mkfs.ext4 fails; the signal's reason.
 */
export async function makeEmptyImage(
  path: string,
  options: { sizeMb: number; mkfs: string; signal: AbortSignal },
): Promise<void> {
  // Two may be at it at a time.
  const draft = `${path}.${randomUUID()}`;
  try {
    await (await open(draft, "w", 0o600)).close();
    await truncate(draft, options.sizeMb * 1024 * 1024);
    // Unwritten inode tables keep the image small: a few hundred kilobytes are copied for each sandbox.
    const args = ["-q", "-F", ...features, "-E", "lazy_itable_init=1,nodiscard", draft];
    await runTool(options.mkfs, args, { about: "an empty disk cannot be made", signal: options.signal });
    await rename(draft, path);
  } catch (error) {
    await rm(draft, { force: true });
    throw error;
  }
}
