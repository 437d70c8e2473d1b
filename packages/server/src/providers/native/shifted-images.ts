import { createHash } from "node:crypto";
import { mkdir, readdir, readlink, rm, symlink } from "node:fs/promises";
import { join } from "node:path";
import { exists } from "../../platform/missing.ts";
import type { Launcher } from "../launcher/index.ts";
import { idsPerSandbox } from "./id-ranges.ts";

/**
 * Copies of images whose files belong to one range of ids, for data directories that cannot be mounted with other owners.
 * `<dir>/<first id>/<name>` is a copy, `<name>.source` beside it a link to what it was made from.
 */
export class ShiftedImages {
  readonly #dir: string;
  readonly #base: number;
  readonly #launcher: Launcher;
  readonly #making = new Map<string, Promise<string>>();

  private constructor(options: { dir: string; base: number; launcher: Launcher }) {
    this.#dir = join(options.dir, String(options.base));
    this.#base = options.base;
    this.#launcher = options.launcher;
  }

  /** @returns the first id that copies made by a service before this one belong to. */
  static async formerBase(dir: string): Promise<number | undefined> {
    const names = (await exists(dir)) ? await readdir(dir) : [];
    return names.map(Number).find((base) => Number.isInteger(base) && base > 0);
  }

  /** Removes copies of images that are gone. */
  static async open(options: { dir: string; base: number; launcher: Launcher }): Promise<ShiftedImages> {
    const images = new ShiftedImages(options);
    await mkdir(images.#dir, { recursive: true, mode: 0o700 });
    for (const name of await readdir(images.#dir)) {
      const path = join(images.#dir, name);
      const wanted = name.endsWith(".source")
        ? await exists(await readlink(path))
        : await exists(`${path}.source`);
      if (wanted) continue;
      await rm(path, { recursive: true, force: true });
      if (name.endsWith(".source"))
        await rm(path.slice(0, -".source".length), { recursive: true, force: true });
    }
    return images;
  }

  get base(): number {
    return this.#base;
  }

  /** @returns the path of the copy; the first call for an image makes it. */
  of(rootfs: string): Promise<string> {
    const running = this.#making.get(rootfs);
    if (running !== undefined) return running;
    const work = this.#copy(rootfs).catch((error: unknown) => {
      this.#making.delete(rootfs);
      throw error;
    });
    this.#making.set(rootfs, work);
    return work;
  }

  async #copy(rootfs: string): Promise<string> {
    const path = join(this.#dir, createHash("sha256").update(rootfs).digest("hex").slice(0, 32));
    if (await exists(path)) return path;
    await rm(`${path}.source`, { force: true });
    await symlink(rootfs, `${path}.source`);
    await this.#launcher.shift({ from: rootfs, to: path, base: this.#base, count: idsPerSandbox });
    return path;
  }
}
