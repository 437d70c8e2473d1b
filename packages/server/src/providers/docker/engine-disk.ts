import { access, constants, stat } from "node:fs/promises";
import { dirname, isAbsolute } from "node:path";
import type { DockerConfig } from "../../config/config.ts";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import type { CallOptions, RuntimeId } from "../../ports/index.ts";
import { type DiskSpace, diskUsage, spaceOf } from "../guards/index.ts";
import type { Containers } from "./containers.ts";
import type { EngineAddress } from "./engine-address.ts";
import { isRefusal } from "./engine-errors.ts";
import { sharesMachine } from "./engine-facts.ts";
import type { ContainerInspection, EngineInfo } from "./engine-shapes.ts";
import { runtimeOf } from "./labels.ts";
import { processesOf, unlinkedMb, withUnlinked } from "./unlinked-files.ts";

const parallelLooks = 16;

interface EngineDiskOptions {
  config: Pick<DockerConfig, "diskMb" | "minFreeMb" | "agentTransport">;
  instanceId: string;
  address: EngineAddress;
  containers: Pick<Containers, "inspect" | "sizes">;
  containerOf: (runtimeId: RuntimeId) => string;
  logger: Logger;
}

/**
 * The disk an engine keeps sandboxes on, as far as it is seen from here: what is free on it, what each sandbox has written,
 * and whether the engine bounds that itself. Knows nothing until `learn()`.
 */
export class EngineDisk {
  readonly #options: EngineDiskOptions;
  #driver = "";
  /** The engine's data, where it is on this machine. */
  #root: string | undefined;
  /** Whether the engine bounds writable layers when asked; `untried` where only asking tells. */
  #quota: "no" | "untried" | "yes" = "no";
  /** What of each runtime lies where: looked up once. */
  readonly #folders = new Map<RuntimeId, readonly string[]>();
  /** The first process of each runtime whose layer is read here. */
  readonly #first = new Map<RuntimeId, { id: string; pid: number }>();

  constructor(options: EngineDiskOptions) {
    this.#options = options;
  }

  /** Takes over what an engine says of itself; what it was found out to refuse stays refused until it changes its driver. */
  async learn(info: EngineInfo): Promise<void> {
    const { config, address } = this.#options;
    const backing = info.DriverStatus?.find(([name]) => name === "Backing Filesystem")?.[1] ?? "";
    const driver = `${info.Driver ?? ""}${info.Driver === "overlay2" ? ` on ${backing}` : ""}`;
    const root = info.DockerRootDir;
    const local = root && config.agentTransport !== "stdio" && sharesMachine(address, info);
    const isSeen = local && (await spaceOf(root).catch(() => undefined)) !== undefined;
    this.#root = isSeen ? root : undefined;
    if (driver === this.#driver) return;
    this.#driver = driver;
    this.#quota = ["btrfs", "zfs", "overlay2 on xfs"].includes(driver) ? "untried" : "no";
  }

  /** What to ask of the engine for a container, when it may bound its layer. */
  storageOptions(): Record<string, string> | undefined {
    const { diskMb } = this.#options.config;
    return this.#quota === "no" || diskMb === 0 ? undefined : { size: `${diskMb}M` };
  }

  /** The engine made a container with `storageOptions()`. */
  taken(): void {
    this.#quota = "yes";
  }

  /** @returns whether an error says that this engine bounds no layers, which is not asked of it any more then. */
  refused(error: unknown): boolean {
    if (this.#quota === "no" || !isRefusal(error) || !/storage-opt|quota/i.test(error.said)) return false;
    this.#quota = "no";
    this.#options.logger.warn(
      { err: error },
      `the engine bounds no disk here (${this.#driver}): what sandboxes write is watched instead`,
    );
    return true;
  }

  /** What an operator should know of it. */
  notes(): string[] {
    const { diskMb, minFreeMb } = this.#options.config;
    const notes: string[] = [];
    if (diskMb === 0) notes.push("a sandbox may fill the engine's disk: providers.docker.disk_mb is 0");
    else if (this.#quota === "no")
      notes.push(
        `the engine (${this.#driver}) bounds no disk: a sandbox with more than ${diskMb} MB is stopped once that is seen`,
      );
    else notes.push(`the engine (${this.#driver}) bounds each sandbox's disk to ${diskMb} MB`);
    if (minFreeMb > 0 && this.#root === undefined)
      notes.push(
        "what is free on the engine's disk is not seen from here: watch it, providers.docker.min_free_mb has no effect",
      );
    return notes;
  }

  /** Of the engine's disk; undefined: it is not seen from here. */
  async space(): Promise<DiskSpace | undefined> {
    // Of an engine whose disk went away, what is asked of it next tells better.
    return this.#root === undefined ? undefined : await spaceOf(this.#root).catch(() => undefined);
  }

  /**
   * What runtimes have written, MB, or how many files they have made: layers and the volumes of their images as the disk has
   * them, with files that are held open without a name, where this service may read them; elsewhere layers as the engine counts them, by what files contain, and no files.
   * @param options.short whether somebody has to be found who fills the disk; else only the limit is kept.
   */
  async measure(
    runtimes: readonly RuntimeId[],
    { inodes, short, signal }: { inodes: boolean; short: boolean } & CallOptions,
  ): Promise<Map<RuntimeId, number>> {
    const folders = await this.#foldersOf(runtimes, { signal });
    const sizes = new Map<RuntimeId, number>();
    for (const [runtimeId, size] of await this.#onDisk(folders, { inodes, signal }))
      sizes.set(runtimeId, size);
    const others = new Set(runtimes.filter((runtimeId) => !folders.has(runtimeId)));
    // The engine may compare whole trees for it.
    if (others.size === 0 || inodes || (this.#quota !== "no" && !short)) return sizes;
    const { containers, instanceId } = this.#options;
    for (const { Name, Labels, SizeRw } of await containers.sizes(instanceId, { signal })) {
      const runtimeId = runtimeOf(instanceId, { name: Name, labels: Labels });
      if (runtimeId !== undefined && others.has(runtimeId)) sizes.set(runtimeId, (SizeRw ?? 0) / 1024 ** 2);
    }
    return sizes;
  }

  async #onDisk(
    folders: ReadonlyMap<RuntimeId, readonly string[]>,
    what: { inodes: boolean } & CallOptions,
  ): Promise<Map<RuntimeId, number>> {
    const usage = await diskUsage([...folders.values()].flat(), what);
    const sizes = new Map<RuntimeId, number>();
    for (const [runtimeId, own] of folders) {
      const found = own.map((folder) => usage.get(folder)).filter((size) => size !== undefined);
      // A part of it would pass for the whole.
      if (found.length === own.length)
        sizes.set(
          runtimeId,
          found.reduce((all, size) => all + size, 0),
        );
    }
    if (what.inodes) return sizes;
    return await withUnlinked(sizes, (runtimeId, call) => this.#unlinkedMb(runtimeId, call), what);
  }

  async #unlinkedMb(runtimeId: RuntimeId, { signal }: CallOptions): Promise<number> {
    const first = this.#first.get(runtimeId);
    if (first === undefined || this.#root === undefined) return 0;
    const pids = await processesOf(first);
    if (pids.length === 0) return 0;
    // The layer's files have the device of the container's root, those of volumes the engine's.
    const roots = await Promise.all(
      [`/proc/${first.pid}/root/`, this.#root].map((root) => stat(root).catch(() => undefined)),
    );
    return await unlinkedMb(pids, { devices: new Set(roots.flatMap((root) => root?.dev ?? [])), signal });
  }

  /** Without those whose layer cannot be read from here. */
  async #foldersOf(
    runtimes: readonly RuntimeId[],
    { signal }: CallOptions,
  ): Promise<Map<RuntimeId, readonly string[]>> {
    const wanted = new Set(runtimes);
    for (const kept of [this.#folders, this.#first])
      for (const known of kept.keys()) if (!wanted.has(known)) kept.delete(known);
    const found = new Map<RuntimeId, readonly string[]>();
    // Others cannot read all of what users inside own, and a part of it would pass for the whole.
    if (this.#root === undefined || process.geteuid?.() !== 0) return found;
    await boundedParallel(runtimes, parallelLooks, async (runtimeId) => {
      const folders = this.#folders.get(runtimeId) ?? (await this.#readable(runtimeId, { signal }));
      this.#folders.set(runtimeId, folders);
      if (folders.length > 0) found.set(runtimeId, folders);
    });
    return found;
  }

  async #readable(runtimeId: RuntimeId, { signal }: CallOptions): Promise<readonly string[]> {
    const { containers, containerOf, logger } = this.#options;
    const inspection = await containers.inspect(containerOf(runtimeId), { signal });
    const folders = inspection === undefined ? [] : writtenFolders(inspection);
    try {
      for (const folder of folders) await access(folder, constants.R_OK | constants.X_OK);
      if (folders.length > 0 && inspection?.State.Pid)
        this.#first.set(runtimeId, { id: inspection.Id, pid: inspection.State.Pid });
      return folders;
    } catch (error) {
      logger.debug({ runtime_id: runtimeId }, `a layer's size is left to the engine: ${messageOf(error)}`);
      return [];
    }
  }
}

/**
 * The layer, the volumes that its image declares, and the engine's own folder of the container: `/etc/hosts`,
 * `/etc/hostname` and `/etc/resolv.conf` inside are files there that root inside may fill. Empty when the engine does not
 * tell where the layer is.
 */
function writtenFolders({ GraphDriver, Mounts, HostsPath }: ContainerInspection): string[] {
  const layer = GraphDriver?.Data?.UpperDir;
  if (layer === undefined) return [];
  const volumes = (Mounts ?? []).filter(({ Type, RW }) => Type === "volume" && RW !== false);
  const own = HostsPath && isAbsolute(HostsPath) ? [dirname(HostsPath)] : [];
  return [layer, ...own, ...volumes.map(({ Source }) => Source).filter((source) => source !== undefined)];
}
