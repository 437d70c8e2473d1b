import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { exists } from "../../platform/missing.ts";
import { SharedWork } from "../../platform/shared-work.ts";
import type { CallOptions } from "../../ports/index.ts";
import { makeEmptyImage, runTool } from "../ext4/index.ts";

/** The writable layers of microVMs: each a copy of an empty ext4 file system that is made once for each size. */
export class Layers {
  readonly #folder: string;
  readonly #mkfs: string;
  readonly #templates = new SharedWork<string>();

  constructor(options: { folder: string; mkfs: string }) {
    this.#folder = options.folder;
    this.#mkfs = options.mkfs;
  }

  /** Makes the layer of one machine. @throws StorageFull; ProviderError; the signal's reason. */
  async make(path: string, options: CallOptions & { sizeMb: number }): Promise<void> {
    await cloneImage(await this.#template(options.sizeMb, options.signal), path, options);
  }

  async #template(sizeMb: number, signal: AbortSignal): Promise<string> {
    const path = join(this.#folder, `layer-${sizeMb}.img`);
    if (await exists(path)) return path;
    return this.#templates.run(path, signal, async (shared) => {
      if (await exists(path)) return path;
      await mkdir(this.#folder, { recursive: true, mode: 0o700 });
      await makeEmptyImage(path, { sizeMb, mkfs: this.#mkfs, signal: shared });
      return path;
    });
  }
}

/**
 * Copies an image of a disk: sharing its blocks where the file system can, else without its holes. What was copied of one that
 * fails is removed.
 */
export async function cloneImage(from: string, to: string, { signal }: CallOptions): Promise<void> {
  const about = "the writable layer of a microVM cannot be made";
  try {
    await runTool("cp", ["--reflink=auto", "--sparse=always", "--", from, to], { about, signal });
  } catch (error) {
    await rm(to, { force: true });
    throw error;
  }
}
