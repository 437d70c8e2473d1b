import { chown, link, mkdir, readdir, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { ignoreOutcome } from "../../platform/abortable.ts";
import { exists, orMissing } from "../../platform/missing.ts";
import { type CallOptions, ProviderError, type RuntimeId, type StoredImage } from "../../ports/index.ts";
import { storeAgent } from "../agent/index.ts";
import { findProgram } from "../launcher/index.ts";
import type { Jail } from "./jails.ts";
import { Layers } from "./layer.ts";
import { RootfsImages } from "./rootfs.ts";
import { SharedFiles } from "./shared-file.ts";

/** Names of a machine's drives in its folder, and, in a jail, of its kernel. */
export const rootDrive = "root.img";
export const layerDrive = "layer.img";
const jailedKernel = "vmlinux";
const jailedInitrd = "initrd";

/** What machines share, below the folder: what is called otherwise in there is somebody else's. */
const sharedFiles = {
  rootfs: /^[0-9a-f]+-[0-9a-f]{16}-v\d+\.ext4(\.|$)/,
  layers: /^layer-\d+\.img(\.|$)/,
  kernels: /-\d+-\d+-\d+(\.[^.]+\.\d+)?$/,
  snapshots: /-v\d+-[0-9a-f]{16}(\.draft-|$)/,
};

/** Removes what machines shared, unless some are left: another installation's, in the same folder. */
export async function removeSharedFiles(folder: string): Promise<void> {
  const machines = join(folder, "machines");
  if ((await orMissing(readdir(machines), [])).length > 0) return;
  const shared = Object.entries(sharedFiles).map(([name, ours]) => ({ within: join(folder, name), ours }));
  for (const { within, ours } of shared)
    for (const name of await orMissing(readdir(within), []))
      if (ours.test(name)) await rm(join(within, name), { recursive: true, force: true });
  // What somebody else keeps there stays, and with it the folder.
  for (const empty of [...shared.map(({ within }) => within), machines, folder])
    await rmdir(empty).catch(ignoreOutcome);
}

/**
 * The files of machines:
 *
 *     <folder>/rootfs/     read-only root file systems, one for each image and agent
 *     <folder>/layers/     empty writable layers to be copied, one for each size
 *     <folder>/kernels/    copies of kernels, for jails
 *     <folder>/machines/   a folder for each machine: its drives, its sockets; with a jail they are in that
 */
export class MachineDisks {
  readonly #dataDir: string;
  readonly #folder: string;
  readonly #agentBinary: string;
  readonly #layerMb: number;
  #opening: Promise<{ images: RootfsImages; layers: Layers }> | undefined;

  constructor(options: { dataDir: string; folder: string; agentBinary: string; layerMb: number }) {
    this.#dataDir = options.dataDir;
    this.#folder = options.folder;
    this.#agentBinary = options.agentBinary;
    this.#layerMb = options.layerMb;
  }

  machineFolder(runtimeId: RuntimeId): string {
    return join(this.#folder, "machines", runtimeId);
  }

  /** Where a machine's drives and sockets are. */
  insideOf(runtimeId: RuntimeId, jail: { inside: string } | undefined): string {
    return join(this.machineFolder(runtimeId), jail?.inside ?? "");
  }

  /** Makes a machine's folder with its drives. @returns what its root file system is called. */
  async make(
    runtimeId: RuntimeId,
    image: StoredImage,
    options: CallOptions & { jail: Jail | undefined },
  ): Promise<string> {
    const { images, layers } = await this.#open();
    const rootfs = await images.get(image, options);
    options.signal.throwIfAborted();
    const { jail } = options;
    const folder = this.insideOf(runtimeId, jail);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    // A name of its own: the shared one may go while the machine runs.
    await link(rootfs, join(folder, rootDrive));
    const layer = join(folder, layerDrive);
    await layers.make(layer, { sizeMb: this.#layerMb, ...options });
    if (jail !== undefined) await chown(layer, jail.uid, jail.gid);
    return images.nameOf(image);
  }

  /** What Firecracker is to boot, by the names it knows it under. */
  async bootFiles(
    runtimeId: RuntimeId,
    files: { kernel: string; initrd: string | undefined },
    options: CallOptions & { jail: Jail | undefined },
  ): Promise<{ kernel: string; initrd: string | undefined }> {
    const { jail } = options;
    if (jail === undefined) return files;
    const shared = new SharedFiles({ folder: join(this.#folder, "kernels") });
    const folder = this.insideOf(runtimeId, jail);
    await shared.link(files.kernel, join(folder, jailedKernel), options);
    if (files.initrd !== undefined) await shared.link(files.initrd, join(folder, jailedInitrd), options);
    return { kernel: jailedKernel, initrd: files.initrd && jailedInitrd };
  }

  /** Ids of every machine that has a folder. */
  async machines(): Promise<string[]> {
    return orMissing(readdir(join(this.#folder, "machines")), []);
  }

  /** What the file of an image's root is called now. */
  async rootfsOf(image: StoredImage): Promise<string> {
    return (await this.#open()).images.nameOf(image);
  }

  async remove(runtimeId: RuntimeId): Promise<void> {
    await rm(this.machineFolder(runtimeId), { recursive: true, force: true });
  }

  /** What is needed to make drives and is not installed. @returns undefined when nothing is. */
  static async missing(): Promise<string | undefined> {
    for (const name of ["mkfs.ext4", "debugfs"])
      if ((await findProgram(name)) === undefined) return `${name} (Debian package e2fsprogs)`;
    return undefined;
  }

  /** Removes root file systems of images and agents that nobody would use any more. @returns what is kept, and what was removed. */
  async prune(images: readonly StoredImage[]): Promise<{ keep: ReadonlySet<string>; removed: string[] }> {
    const opened = await this.#open();
    const keep = new Set(
      images.filter(({ digest }) => digest !== "").map((image) => opened.images.nameOf(image)),
    );
    return { keep, removed: await opened.images.prune({ keep }) };
  }

  #open(): Promise<{ images: RootfsImages; layers: Layers }> {
    this.#opening ??= this.#prepare().catch((error: unknown) => {
      this.#opening = undefined;
      throw error;
    });
    return this.#opening;
  }

  async #prepare(): Promise<{ images: RootfsImages; layers: Layers }> {
    const [mkfs, debugfs] = await Promise.all([findProgram("mkfs.ext4"), findProgram("debugfs")]);
    if (mkfs === undefined || debugfs === undefined)
      throw new ProviderError(`disks of microVMs need ${await MachineDisks.missing()}`);
    if (!(await exists(this.#folder))) await mkdir(this.#folder, { recursive: true, mode: 0o700 });
    const agent = await storeAgent({ dataDir: this.#dataDir, binary: this.#agentBinary });
    const images = new RootfsImages({
      folder: join(this.#folder, "rootfs"),
      agent,
      programs: { mkfs, debugfs },
    });
    await images.open();
    return { images, layers: new Layers({ folder: join(this.#folder, "layers"), mkfs }) };
  }
}
