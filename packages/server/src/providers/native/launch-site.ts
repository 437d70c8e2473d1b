import { constants } from "node:os";
import type { Duplex } from "node:stream";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import {
  type MadeAhead,
  ProviderError,
  type RuntimeId,
  type RuntimeSlot,
  type RuntimeSpec,
  Unavailable,
} from "../../ports/index.ts";
import {
  findSlirp,
  Launcher,
  LauncherFailure,
  type LaunchReply,
  type LaunchSpec,
  outboundSpec,
  slirpMissing,
} from "../launcher/index.ts";
import { readyDisks } from "./disk-template.ts";
import { ExecGroups } from "./exec-groups.ts";
import { diskFor, idsFor, type LaunchGround, rootFor } from "./launch-ground.ts";
import { type NativeProviderConfig, networkOf, newLaunchSpec, newRecord } from "./launch-plan.ts";
import type { LaunchedRuntime } from "./launched-runtime.ts";
import { PreparedSandboxes } from "./prepared-sandboxes.ts";
import { probeSpec } from "./probe.ts";
import { Removals } from "./removals.ts";
import { RuntimeDirectories } from "./runtime-directories.ts";
import type { RuntimeRecord } from "./runtime-record.ts";
import { SiteSurvey } from "./site-survey.ts";

const errnoExists = 17;
const { EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC, EDQUOT } = constants.errno;
const scarce: ReadonlySet<number> = new Set([EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC, EDQUOT]);

/** Makes and removes runtimes: their ids, groups, disks and directories. Who talks to them is not its business. */
export class LaunchSite implements AsyncDisposable {
  readonly directories: RuntimeDirectories;
  readonly #config: NativeProviderConfig;
  readonly #instanceId: string;
  readonly #launcher: Launcher;
  readonly #logger: Logger;
  readonly #survey: SiteSurvey;
  readonly #removals: Removals;
  readonly #preparing: PreparedSandboxes;
  /** The layers that the launcher keeps ready were removed under it: launches fail until it has none of them left. */
  #layersLost = false;

  constructor(options: {
    config: NativeProviderConfig;
    dataDir: string;
    instanceId: string;
    agentBinary: string;
    launcherBinary: string;
    logger: Logger;
    /** Rejects while the disk has no room for another sandbox. */
    refuseWhenShort: () => Promise<void>;
  }) {
    const { config, dataDir, instanceId, agentBinary, logger } = options;
    this.#config = config;
    this.#instanceId = instanceId;
    this.#logger = logger;
    const directories = new RuntimeDirectories({ dataDir });
    this.directories = directories;
    const launcher = new Launcher({
      binary: options.launcherBinary,
      logger,
      onRestart: () => {
        this.#removals.sweepTrash(this.#survey.found);
        this.#preparing.lose();
      },
    });
    this.#launcher = launcher;
    this.#removals = new Removals({
      directories,
      launcher,
      uidBase: config.uidBase,
      isOwn: (record) => this.isOwn(record),
      busy: () => this.#preparing.busy(),
      logger,
    });
    this.#survey = new SiteSurvey({
      config,
      dataDir,
      instanceId,
      agentBinary,
      launcher,
      directories,
      probe: async (ground, runtimeId) => {
        await this.launch(ground, probeSpec(runtimeId), { kind: "host", skeleton: ground.skeleton });
      },
      discard: (ground, runtimeId) => this.discard(ground, runtimeId),
      sweep: (ground) => this.#removals.sweep(ground),
      onLayersLost: () => {
        this.#layersLost = true;
      },
      logger,
    });
    this.#preparing = new PreparedSandboxes({
      config,
      launcher,
      directories,
      removals: this.#removals,
      plan: (ground, spec, root, groups) => this.#planned(ground, spec, root, groups),
      readyToLaunch: () => this.readyToLaunch(),
      foundGround: () => this.#survey.found,
      refuseWhenShort: options.refuseWhenShort,
      logger,
    });
  }

  /** What is enough to find and remove runtimes that are there. */
  ground(): Promise<LaunchGround> {
    return this.#survey.ground();
  }

  /**
   * What is needed to make a runtime.
   * @throws LauncherFailure, StorageFull: the disk has no room to find out what the machine refuses.
   */
  readyToLaunch(): Promise<LaunchGround> {
    return this.#survey.readyToLaunch();
  }

  /** A copied or restored data directory names processes and groups of the installation it was taken from. */
  isOwn(record: RuntimeRecord): boolean {
    return record.instanceId === this.#instanceId;
  }

  /** Makes the copy that roots of an image are of, where they are copies; the first of an image takes up to minutes. */
  async copyRoot({ shifted }: LaunchGround, root: LaunchSpec["root"]): Promise<void> {
    if (root.kind === "image") await shifted?.of(root.rootfs);
  }

  /**
   * @param onSocket its agent can be spoken to, and answers once it serves; what is told then is of no account when this returns
   * another record, and when it comes again. There may be a connection to it.
   * @throws LauncherFailure; what was made until then is for `remove`.
   */
  async launch(
    ground: LaunchGround,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    onSocket: (record: RuntimeRecord, connection?: Duplex) => void = () => undefined,
  ): Promise<LaunchedRuntime> {
    // What is not installed is no want of room that others could make.
    if (networkOf(spec, this.#config) === "outbound") await this.slirp();
    using _ = this.#preparing.busy();
    const claimed = await this.#preparing.claim(ground, spec, root, onSocket);
    return claimed ?? (await this.#launchAnew(ground, spec, root, onSocket));
  }

  /** @param groups whose control groups it has. */
  async #planned(
    ground: LaunchGround,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    groups: string = spec.runtimeId,
  ): Promise<{ record: RuntimeRecord; launch: LaunchSpec }> {
    const { runtimeId, slot } = spec;
    const slirp = networkOf(spec, this.#config) === "outbound" ? await this.slirp() : undefined;
    const record = newRecord(spec, {
      instanceId: this.#instanceId,
      root,
      ids: await idsFor(ground, runtimeId, root),
      cgroup: ground.cgroups?.spec(groups, slot) ?? null,
    });
    const launch = newLaunchSpec(spec, {
      config: this.#config,
      dir: this.directories.path(runtimeId),
      record,
      agent: ground.agent,
      root: await rootFor(ground, root),
      disk: diskFor(ground, root),
      procOutside: ground.ways.procOutside,
      ...(slirp === undefined ? {} : { slirp }),
    });
    return { record, launch };
  }

  async #launchAnew(
    ground: LaunchGround,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    onSocket: (record: RuntimeRecord) => void,
  ): Promise<LaunchedRuntime> {
    const beganMs = performance.now();
    const { runtimeId } = spec;
    try {
      return await this.#launchOnce(ground, spec, root, onSocket);
    } catch (error) {
      if (!lacksRoom(error) || !(await this.#preparing.giveWay(beganMs, error))) throw error;
      await this.#removals.removeDir(ground, this.directories.path(runtimeId), { runtimeId });
      return this.#launchOnce(ground, spec, root, onSocket);
    }
  }

  async #launchOnce(
    ground: LaunchGround,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    onSocket: (record: RuntimeRecord) => void,
  ): Promise<LaunchedRuntime> {
    using _groups = spec.slot && this.#holdGroups(ground, spec.slot);
    const { record, launch } = await this.#planned(ground, spec, root);
    const onListening = () => onSocket(record);
    let launched: LaunchReply;
    try {
      launched = await this.#launcher.launch(launch, onListening);
    } catch (error) {
      // A directory in the way is what a spawn before a crash left: spawns are repeated with the same id.
      const taken =
        error instanceof LauncherFailure && error.step === "directory" && error.errno === errnoExists;
      if (!taken && !this.#layersLost) throw error;
      launched = await this.#relaunch(ground, launch, { attempts: taken ? 1 : readyDisks + 1, onListening });
    }
    this.#layersLost = false;
    return { record, stages: launched.stages };
  }

  async #relaunch(
    ground: LaunchGround,
    launch: LaunchSpec,
    { attempts, onListening }: { attempts: number; onListening: () => void },
  ): Promise<LaunchReply> {
    const runtimeId = launch.record.runtimeId as RuntimeId;
    for (let attempt = 1; ; attempt += 1) {
      await this.#removals.removeDir(ground, launch.dir, { runtimeId });
      try {
        return await this.#launcher.launch(launch, onListening);
      } catch (error) {
        if (attempt >= attempts) throw error;
      }
    }
  }

  #holdGroups({ cgroups }: LaunchGround, slot: RuntimeSlot): Disposable | undefined {
    try {
      return cgroups?.slots.hold(slot, { pidsLimit: this.#config.pidsLimit });
    } catch (error) {
      throw new ProviderError(`the control groups of VM ${slot.vmId} cannot be made: ${messageOf(error)}`, {
        cause: error,
      });
    }
  }

  /** @throws Unavailable where it is not installed. */
  async slirp(): Promise<string> {
    const found = await findSlirp();
    if (found === undefined) throw new Unavailable(`network "outbound" needs ${slirpMissing}`);
    return found;
  }

  /** Gives a runtime its network again; what is left of the one before ends. */
  async attachNetwork(record: RuntimeRecord): Promise<void> {
    const { ids, cgroup, runtimeId } = record;
    await this.#launcher.attach({
      dir: this.directories.path(runtimeId as RuntimeId),
      ids,
      cgroup,
      outbound: outboundSpec(this.#config, await this.slirp()),
    });
  }

  /** As `SiteSurvey.mend`. */
  mend(ground: LaunchGround, root: LaunchSpec["root"], image: string): Promise<boolean> {
    return this.#survey.mend(ground, root, image);
  }

  /** What every launch needs is made again when it is gone; nothing when none was made yet. Does not fail. */
  async keepWhole(): Promise<void> {
    try {
      const ground = await this.#survey.found;
      if (ground === undefined) return;
      await this.mend(ground, { kind: "host", skeleton: ground.skeleton }, "host");
      this.#removals.clear(ground);
    } catch (err) {
      this.#logger.warn({ err }, "what launches need cannot be made again yet");
    }
  }

  get madeAhead(): MadeAhead | undefined {
    return this.#preparing.figures;
  }

  /** Whether sandboxes have control groups; false until that is known. */
  get hasGroups(): boolean {
    return this.#survey.hasGroups;
  }

  /** Whether sandboxes have more than one user; without root false until that is known. */
  get hasUsers(): boolean {
    return this.#survey.hasUsers;
  }

  /** Groups for single commands of a runtime; none where it has no group itself. */
  groupsFor(record: RuntimeRecord): ExecGroups | undefined {
    if (record.cgroup === null) return undefined;
    const dir = this.directories.path(record.runtimeId as RuntimeId);
    const { cgroup, token } = record;
    return new ExecGroups({ cgroup, lend: (spec) => this.#launcher.lend({ dir, token, ...spec }) });
  }

  /** Kills, and removes every trace. Idempotent. The runtime's id range is free afterwards. */
  remove(ground: LaunchGround, runtimeId: RuntimeId): Promise<void> {
    return this.#removals.remove(ground, runtimeId);
  }

  /** Removes what has said all it can say; tried again with each `keepWhole` where that fails. Does not fail. */
  discard(ground: LaunchGround, runtimeId: RuntimeId): Promise<void> {
    return this.#removals.discard(ground, runtimeId);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#preparing[Symbol.asyncDispose]();
    this.#removals.giveUp();
    await this.#launcher[Symbol.asyncDispose]();
    await this.#removals.settled();
    await this.#survey[Symbol.asyncDispose]();
    await this.directories[Symbol.asyncDispose]();
  }
}

/** Whether what failed wanted what the machine has only so much of. No image can make a launch fail so. */
function lacksRoom(error: unknown): boolean {
  if (error instanceof LauncherFailure) return error.step === "disk" || scarce.has(error.errno ?? 0);
  return error instanceof Unavailable;
}
