import { createHash } from "node:crypto";
import {
  chmod,
  chown,
  link,
  mkdir,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  utimes,
  writeFile,
} from "node:fs/promises";
import { basename, join } from "node:path";
import { Type } from "typebox";
import { Value } from "typebox/value";
import { orMissing } from "../../platform/missing.ts";
import type { CallOptions, ImageSnapshot } from "../../ports/index.ts";
import { cloneImage } from "./layer.ts";
import { layerDrive, rootDrive } from "./machine-disks.ts";

/** Names of a snapshot's files, in its folder and in those of machines that are made of it. */
export const stateFile = "state";
export const memoryFile = "memory";
const infoFile = "info.json";
const draftMark = ".draft-";
/** Each takes as much disk as its machine has memory. */
const mostKept = 16;

const Info = Type.Object({
  version: Type.Literal(1),
  image: Type.String(),
  kernel: Type.String(),
  rootfs: Type.String(),
  createdAt: Type.String(),
});

/** What a snapshot is of: a machine that differs in any of it cannot be made from it. */
export interface SnapshotSubject {
  /** Image and agent, by the name of their file. */
  rootfs: string;
  memoryMb: number;
  vcpus: number;
  bootArguments: string;
  /** Kernel, initrd and Firecracker's program: any change of a file counts. */
  files: readonly string[];
  /** Bounds that are part of the state. */
  bounds: readonly number[];
}

/**
 * Snapshots of machines whose agent serves and that belong to nobody yet:
 *
 *     <folder>/<root file system>-<digest of all that matters>/    state, memory, both drives as they were, info.json; never written to again,
 *                                                                   but for the time of info.json, which is when it was lent last
 *     <folder>/<the same>.draft-<id>/                               under way; removed by open() when nobody finished it
 */
export class MachineSnapshots {
  readonly #folder: string;

  constructor(options: { folder: string }) {
    this.#folder = options.folder;
  }

  async keyOf(subject: SnapshotSubject): Promise<string> {
    const { rootfs, files, ...rest } = subject;
    const identities = await Promise.all(
      files.map(async (file) => {
        const { ino, size, mtimeMs } = await stat(file);
        return [file, ino, size, mtimeMs];
      }),
    );
    const digest = createHash("sha256")
      .update(JSON.stringify([rest, identities]))
      .digest("hex");
    return `${basename(rootfs, ".ext4")}-${digest.slice(0, 16)}`;
  }

  /** Removes what a process before this one left unfinished: the data directory has one at a time. */
  async open(): Promise<void> {
    for (const name of await this.#names())
      if (name.includes(draftMark)) await rm(join(this.#folder, name), { recursive: true, force: true });
  }

  async has(key: string): Promise<boolean> {
    return (await this.#info(key)) !== undefined;
  }

  /** Gives a machine's folder what it is restored from. @throws StorageFull; ProviderError; when there is no such snapshot. */
  async lend(
    key: string,
    folder: string,
    options: CallOptions & { owner: { uid: number; gid: number } | undefined },
  ): Promise<void> {
    const from = join(this.#folder, key);
    const now = new Date();
    await utimes(join(from, infoFile), now, now);
    for (const name of [stateFile, memoryFile]) await link(join(from, name), join(folder, name));
    const [root, layer] = [join(folder, rootDrive), join(folder, layerDrive)];
    for (const drive of [root, layer]) await rm(drive, { force: true });
    await link(join(from, rootDrive), root);
    await cloneImage(join(from, layerDrive), layer, options);
    await chmod(layer, 0o600);
    if (options.owner !== undefined) await chown(layer, options.owner.uid, options.owner.gid);
  }

  /** Takes over what a machine that stood still and has ended left in its folder. */
  async keep(
    key: string,
    folder: string,
    about: { image: string; kernel: string; rootfs: string },
  ): Promise<void> {
    const draft = join(this.#folder, `${key}${draftMark}${process.pid}`);
    await rm(draft, { recursive: true, force: true });
    await mkdir(draft, { recursive: true, mode: 0o700 });
    // The very file: one that was made again of the same image may have its blocks elsewhere than the memory knows.
    await link(join(folder, rootDrive), join(draft, rootDrive));
    for (const name of [stateFile, memoryFile, layerDrive]) {
      const path = join(draft, name);
      await rename(join(folder, name), path);
      // Every user of a jail reads it, none may write it.
      if (process.getuid?.() === 0) await chown(path, 0, 0);
      await chmod(path, 0o444);
    }
    const info = {
      version: 1,
      image: about.image,
      kernel: basename(about.kernel),
      rootfs: about.rootfs,
      createdAt: new Date().toISOString(),
    };
    await writeFile(join(draft, infoFile), JSON.stringify(info), { mode: 0o600 });
    await this.discard(key);
    await rename(draft, join(this.#folder, key));
    await this.#dropUnused();
  }

  /** Machines that were made of it go on: what they have has names of its own. */
  async discard(key: string): Promise<void> {
    await rm(join(this.#folder, key), { recursive: true, force: true });
  }

  /** Removes those of root file systems that are not wanted any more. */
  async prune(options: { keep: ReadonlySet<string> }): Promise<void> {
    for (const key of await this.#names()) {
      const info = await this.#info(key);
      if (info !== undefined && !options.keep.has(info.rootfs)) await this.discard(key);
    }
  }

  async list(): Promise<ImageSnapshot[]> {
    const found: ImageSnapshot[] = [];
    for (const key of await this.#names()) {
      const info = await this.#info(key);
      if (info === undefined) continue;
      let sizeBytes = 0;
      for (const name of [stateFile, memoryFile, layerDrive]) {
        const file = await orMissing(stat(join(this.#folder, key, name)), undefined);
        sizeBytes += (file?.blocks ?? 0) * 512;
      }
      found.push({ image: info.image, kernel: info.kernel, sizeBytes, createdAt: new Date(info.createdAt) });
    }
    return found;
  }

  /** Those that were lent longest ago go first: who asks for many sizes leaves others what they use. */
  async #dropUnused(): Promise<void> {
    const kept: { key: string; usedMs: number }[] = [];
    for (const key of await this.#names()) {
      const info = await orMissing(stat(join(this.#folder, key, infoFile)), undefined);
      if (info !== undefined && (await this.has(key))) kept.push({ key, usedMs: info.mtimeMs });
    }
    kept.sort((a, b) => a.usedMs - b.usedMs);
    for (const { key } of kept.slice(0, Math.max(0, kept.length - mostKept))) await this.discard(key);
  }

  async #info(key: string) {
    const text = await orMissing(readFile(join(this.#folder, key, infoFile), "utf8"), undefined);
    if (text === undefined) return undefined;
    try {
      const info: unknown = JSON.parse(text);
      return Value.Check(Info, info) ? info : undefined;
    } catch {
      // Damaged: it is made again in its place.
      return undefined;
    }
  }

  async #names(): Promise<string[]> {
    return orMissing(readdir(this.#folder), []);
  }
}
