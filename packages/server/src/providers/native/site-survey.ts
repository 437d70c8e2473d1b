import { access, mkdir, statfs } from "node:fs/promises";
import { join } from "node:path";
import type { Logger } from "../../platform/logger.ts";
import { isMomentary } from "../../platform/momentary.ts";
import { NotFound, type RuntimeId, StorageFull } from "../../ports/index.ts";
import { storeAgent, storedAgentPath } from "../agent/index.ts";
import { makeHostRoot } from "../host-root/host-root.ts";
import {
  type CgroupSpec,
  findProgram,
  instanceName,
  type Launcher,
  LauncherFailure,
  type LaunchSpec,
} from "../launcher/index.ts";
import { adviceFor, lackedRoom } from "./advice.ts";
import { makeTemplate, readyDisks } from "./disk-template.ts";
import { type Ground, surveyGround } from "./ground.ts";
import { IdRanges } from "./id-ranges.ts";
import type { LaunchGround } from "./launch-ground.ts";
import type { NativeProviderConfig } from "./launch-plan.ts";
import { newProbeId } from "./probe.ts";
import { machineClaims, RangeClaims } from "./range-claims.ts";
import type { RuntimeDirectories } from "./runtime-directories.ts";
import { ShiftedImages } from "./shifted-images.ts";
import { usualWays, wayRound } from "./ways-round.ts";

const overlayMagic = 0x794c7630;
/** Holds the range that all sandboxes of copied images have; no runtime's name begins with a dot. */
const sharedRange = ".shared";

interface SiteSurveyOptions {
  config: NativeProviderConfig;
  dataDir: string;
  instanceId: string;
  agentBinary: string;
  launcher: Launcher;
  directories: RuntimeDirectories;
  /** Makes a sandbox that is thrown away, which shows what the machine refuses. */
  probe: (ground: LaunchGround, runtimeId: RuntimeId) => Promise<void>;
  /** Takes it away. Does not fail. */
  discard: (ground: LaunchGround, runtimeId: RuntimeId) => Promise<void>;
  /** Removes what a service before this one left half-made. */
  sweep: (ground: LaunchGround) => Promise<void>;
  /** The layers that the launcher keeps ready were removed under it. */
  onLayersLost: () => void;
  logger: Logger;
}

/** Finds out, once, what launches need and how they are made here, and makes again what somebody took away of it. */
export class SiteSurvey implements AsyncDisposable {
  readonly #options: SiteSurveyOptions;
  #found: Promise<LaunchGround> | undefined;
  #trial: Promise<LaunchGround> | undefined;
  #hasGroups = false;
  #hasUsers = process.getuid?.() === 0;

  constructor(options: SiteSurveyOptions) {
    this.#options = options;
  }

  /** What was found out, or is being; undefined while nobody has asked, and after a failure. */
  get found(): Promise<LaunchGround> | undefined {
    return this.#found;
  }

  /** Whether sandboxes have control groups; false until that is known. */
  get hasGroups(): boolean {
    return this.#hasGroups;
  }

  /** Whether sandboxes have more than one user; without root false until that is known. */
  get hasUsers(): boolean {
    return this.#hasUsers;
  }

  /** Enough to find and remove runtimes that are there. */
  ground(): Promise<LaunchGround> {
    this.#found ??= this.#survey().catch((error: unknown) => {
      this.#found = undefined;
      throw error;
    });
    return this.#found;
  }

  /**
   * What is needed to make a runtime.
   * @throws LauncherFailure, StorageFull: the disk has no room to find out what the machine refuses.
   */
  async readyToLaunch(): Promise<LaunchGround> {
    const ground = await this.ground();
    if (ground.untried === undefined) return ground;
    this.#trial ??= this.#tryAgain(ground).finally(() => {
      this.#trial = undefined;
    });
    return this.#trial;
  }

  async #tryAgain(before: LaunchGround): Promise<LaunchGround> {
    await this.mend(before, { kind: "host", skeleton: before.skeleton }, "host");
    const ground = await this.#settle({ ...before, untried: undefined });
    if (ground.untried !== undefined) throw ground.untried;
    this.#found = Promise.resolve(ground);
    return ground;
  }

  /**
   * Makes again what launches need and somebody took away. Looked for when a launch has failed, not before each one.
   * @returns whether anything had been.
   * @throws NotFound for an image whose files are gone.
   */
  async mend(ground: LaunchGround, root: LaunchSpec["root"], image: string): Promise<boolean> {
    const { dataDir, agentBinary, config, onLayersLost } = this.#options;
    const { agent, disks } = ground;
    const needed = [agent, root.kind === "host" ? root.skeleton : root.rootfs];
    if (disks !== undefined) needed.push(disks.template, disks.dir);
    const lost = new Set(await missingOf(needed));
    if (lost.size === 0) return false;
    if (root.kind === "image" && lost.has(root.rootfs)) {
      throw new NotFound(
        `the files of image "${image}" are gone from the store; get it again: alcove image pull ${image}, or alcove image import SOURCE ${image}`,
        { what: "image" },
      );
    }
    if (lost.has(agent)) await storeAgent({ dataDir, binary: agentBinary });
    if (root.kind === "host" && lost.has(root.skeleton)) await makeHostRoot(dataDir);
    if (disks !== undefined && (lost.has(disks.template) || lost.has(disks.dir))) {
      const mkfs = await findProgram("mkfs.ext4");
      await makeTemplate({ dataDir, diskMb: config.diskMb, mkfs });
      onLayersLost();
    }
    return true;
  }

  async #survey(): Promise<LaunchGround> {
    const { config, dataDir, agentBinary, directories, logger } = this.#options;
    const instance = instanceName(this.#options.instanceId);
    await directories.inSight();
    await mkdir(directories.trash, { recursive: true, mode: 0o700 });
    await directories.inSight();
    // Both come to their end: who closes this must find nothing under way in the directory.
    const [surveyed, stored] = await Promise.allSettled([
      surveyGround({
        dataDir,
        instance,
        diskMb: config.diskMb,
        minFreeMb: config.minFreeMb,
        findProgram,
        logger,
      }),
      storeAgent({ dataDir, binary: agentBinary }),
    ]);
    if (surveyed.status === "rejected") throw surveyed.reason;
    const machine = surveyed.value;
    try {
      if (stored.status === "fulfilled")
        return await this.#groundOn(machine, { instance, agent: stored.value.path });
      if (!lackedRoom(stored.reason)) throw stored.reason;
      const agent = await storedAgentPath({ dataDir, binary: agentBinary });
      return await this.#groundOn(machine, { instance, agent });
    } catch (error) {
      await machine.cgroups?.close();
      throw error;
    }
  }

  async #groundOn(
    machine: Ground,
    { instance, agent }: { instance: string; agent: string },
  ): Promise<LaunchGround> {
    const { config, directories, launcher, sweep } = this.#options;
    this.#hasGroups = machine.cgroups !== undefined;
    machine.cgroups?.slots.sweep();
    this.#hasUsers = machine.rooted || machine.unprivilegedIds.kind !== "single";
    const ranges = new IdRanges({
      base: config.uidBase,
      offset: Number.parseInt(instance, 36) || 0,
      claims: machine.rooted
        ? RangeClaims.open({ dir: machineClaims, runtimes: directories.root })
        : undefined,
    });
    const named: CgroupSpec[] = [];
    for (const runtimeId of await directories.list()) {
      const record = await directories.recordIfWhole(runtimeId);
      if (record?.ids.kind === "range") await ranges.restore(record.ids.base, runtimeId);
      if (record?.cgroup) named.push(record.cgroup);
    }
    machine.cgroups?.sweepPrepared(named);
    if (machine.disks !== undefined) launcher.keepDisks({ ...machine.disks, count: readyDisks });
    const ground: LaunchGround = { ...machine, agent, ranges, ways: usualWays, shifted: undefined };
    await sweep(ground);
    return this.#settle(ground);
  }

  /**
   * What is there and refused is better known now than at every spawn: loop devices, a /proc or owners of a data_dir inside
   * containers. Each refusal that has a way round is tried again that way. A full disk refuses nothing for good: `untried`.
   */
  async #settle(first: LaunchGround): Promise<LaunchGround> {
    const { dataDir, probe, discard } = this.#options;
    const needed = [
      first.agent,
      first.skeleton,
      ...(first.disks === undefined ? [] : [first.disks.template]),
    ];
    const [lacking] = await missingOf(needed);
    if (lacking !== undefined)
      return { ...first, untried: new StorageFull(`there is no room for ${lacking}`) };
    const onOverlay = await liesOnOverlay(dataDir);
    let ground = first;
    for (;;) {
      const runtimeId = newProbeId();
      try {
        await probe(ground, runtimeId);
        return ground;
      } catch (error) {
        if (lackedRoom(error)) return { ...first, untried: error };
        // Nothing was tried: the next who asks tries again.
        if (isMomentary(error)) throw error;
        const next = await this.#next(ground, error, onOverlay);
        if (next === undefined) return ground;
        ground = next;
      } finally {
        await discard(ground, runtimeId);
      }
    }
  }

  /** @returns undefined when a launch that failed so cannot be made otherwise; each change happens once. */
  async #next(ground: LaunchGround, error: unknown, onOverlay: boolean): Promise<LaunchGround | undefined> {
    if (error instanceof LauncherFailure && error.step === "disk" && ground.disks !== undefined) {
      const note = `a sandbox's disk has no limit of its own: ${await adviceFor(error)}`;
      return { ...ground, disks: undefined, notes: [...ground.notes, note] };
    }
    const found = wayRound(error, {
      ways: ground.ways,
      rooted: ground.rooted,
      limitedDisk: ground.disks !== undefined,
      onOverlay,
      diskMb: this.#options.config.diskMb,
    });
    if (found === undefined) return undefined;
    const shifted = found.ways.rootCopied ? await this.#shiftedImages(ground.ranges) : undefined;
    return { ...ground, ways: found.ways, shifted, notes: [...ground.notes, found.note] };
  }

  /** The range that sandboxes of copied images share stays the same from one service to the next. */
  async #shiftedImages(ranges: IdRanges): Promise<ShiftedImages> {
    const { dataDir, directories, launcher } = this.#options;
    const dir = join(dataDir, "native", "shifted");
    await mkdir(join(directories.root, sharedRange), { recursive: true, mode: 0o700 });
    const former = await ShiftedImages.formerBase(dir);
    if (former !== undefined) await ranges.restore(former, sharedRange);
    return ShiftedImages.open({ dir, base: await ranges.take(sharedRange), launcher });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ground = await this.#found?.catch(() => undefined);
    await ground?.cgroups?.close();
  }
}

async function missingOf(paths: readonly string[]): Promise<string[]> {
  const there = await Promise.all(
    paths.map((path) =>
      access(path).then(
        () => true,
        () => false,
      ),
    ),
  );
  return paths.filter((_, index) => there[index] === false);
}

async function liesOnOverlay(path: string): Promise<boolean> {
  return (await statfs(path)).type === overlayMagic;
}
