import { access, mkdir, statfs } from "node:fs/promises";
import { Socket } from "node:net";
import { constants } from "node:os";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import {
  NotFound,
  ProviderError,
  type RuntimeId,
  type RuntimeSlot,
  type RuntimeSpec,
  StorageFull,
  Unavailable,
} from "../../ports/index.ts";
import { storeAgent, storedAgentPath, unixDialer } from "../agent/index.ts";
import { makeHostRoot } from "../host-root/host-root.ts";
import {
  type CgroupSpec,
  findProgram,
  findSlirp,
  type IdsSpec,
  instanceName,
  Launcher,
  LauncherFailure,
  type LaunchSpec,
  outboundSpec,
  slirpMissing,
} from "../launcher/index.ts";
import { adviceFor, lackedRoom } from "./advice.ts";
import { makeTemplate, readyDisks } from "./disk-template.ts";
import { ExecGroups } from "./exec-groups.ts";
import { type Ground, surveyGround } from "./ground.ts";
import { IdRanges, idsPerSandbox } from "./id-ranges.ts";
import { type NativeProviderConfig, networkOf, newLaunchSpec, newRecord } from "./launch-plan.ts";
import { fingerprintOf, newPreparedId, type PreparedShape, preparedSpec } from "./prepared-shape.ts";
import { PreparedStock, type Waiting } from "./prepared-stock.ts";
import { newProbeId, probeSpec } from "./probe.ts";
import { machineClaims, RangeClaims } from "./range-claims.ts";
import { isOurs, RuntimeDirectories } from "./runtime-directories.ts";
import type { RuntimeRecord } from "./runtime-record.ts";
import { ShiftedImages } from "./shifted-images.ts";
import { usualWays, type Ways, wayRound } from "./ways-round.ts";

/** What every launch needs, found out and made once. */
export interface Prepared extends Ground {
  agent: string;
  ranges: IdRanges;
  ways: Ways;
  /** Set when roots are copied. */
  shifted: ShiftedImages | undefined;
  /** Why it is not known yet what the machine refuses: the disk had no room for a sandbox that tries it. */
  untried?: unknown;
}

const errnoExists = 17;
const dialMs = 5_000;
const { EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC, EDQUOT } = constants.errno;
const scarce: ReadonlySet<number> = new Set([EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC, EDQUOT]);
const overlayMagic = 0x794c7630;
/** Holds the range that all sandboxes of copied images have; no runtime's name begins with a dot. */
const sharedRange = ".shared";

/** Makes and removes runtimes: their ids, groups, disks and directories. Who talks to them is not its business. */
export class LaunchSite implements AsyncDisposable {
  readonly directories: RuntimeDirectories;
  readonly #config: NativeProviderConfig;
  readonly #dataDir: string;
  readonly #instanceId: string;
  readonly #agentBinary: string;
  readonly #launcher: Launcher;
  readonly #logger: Logger;
  #prepared: Promise<Prepared> | undefined;
  #trial: Promise<Prepared> | undefined;
  #hasGroups = false;
  #hasUsers = process.getuid?.() === 0;
  /** The layers that the launcher keeps ready were removed under it: launches fail until it has none of them left. */
  #poolLost = false;
  /** Probes and deleted directories that are not gone yet: each is what takes it away. */
  readonly #left = new Set<() => Promise<void>>();
  #clearing: Promise<void> | undefined;
  readonly #stock: PreparedStock;
  readonly #refuseWhenShort: () => Promise<void>;
  /** Launches and removals. */
  #underWay = 0;

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
    this.#config = options.config;
    this.#dataDir = options.dataDir;
    this.#instanceId = options.instanceId;
    this.#agentBinary = options.agentBinary;
    this.#logger = options.logger;
    this.#launcher = new Launcher({
      binary: options.launcherBinary,
      logger: options.logger,
      onRestart: () => {
        this.#sweepTrash();
        this.#stock.lose();
      },
    });
    this.#refuseWhenShort = options.refuseWhenShort;
    this.#stock = new PreparedStock({
      count: options.config.prepared,
      site: {
        make: (shape) => this.#prepareOne(shape),
        discard: (waiting) => this.#discardPrepared(waiting),
        isBusy: () => this.#underWay > 0,
        onFailure: (err) => this.#logger.warn({ err }, "no sandbox could be prepared; it is tried again"),
      },
    });
    this.directories = new RuntimeDirectories({ dataDir: options.dataDir });
  }

  prepare(): Promise<Prepared> {
    this.#prepared ??= this.#survey().catch((error: unknown) => {
      this.#prepared = undefined;
      throw error;
    });
    return this.#prepared;
  }

  /**
   * What is needed to make a runtime; `prepare` is enough to find and remove those that are there.
   * @throws LauncherFailure, StorageFull: the disk has no room to find out what the machine refuses.
   */
  async prepareLaunch(): Promise<Prepared> {
    const prepared = await this.prepare();
    if (prepared.untried === undefined) return prepared;
    this.#trial ??= this.#tryAgain(prepared).finally(() => {
      this.#trial = undefined;
    });
    return this.#trial;
  }

  async #tryAgain(before: Prepared): Promise<Prepared> {
    await this.mend(before, { kind: "host", skeleton: before.skeleton }, "host");
    const prepared = await this.#settle({ ...before, untried: undefined });
    if (prepared.untried !== undefined) throw prepared.untried;
    this.#prepared = Promise.resolve(prepared);
    return prepared;
  }

  /** A copied or restored data directory names processes and groups of the installation it was taken from. */
  isOwn(record: RuntimeRecord): boolean {
    return record.instanceId === this.#instanceId;
  }

  /** Makes the copy that roots of an image are of, where they are copies; the first of an image takes up to minutes. */
  async copyRoot({ shifted }: Prepared, root: LaunchSpec["root"]): Promise<void> {
    if (root.kind === "image") await shifted?.of(root.rootfs);
  }

  /**
   * @param onSocket its agent can be spoken to, and answers once it runs; what is told then is of no account when this returns
   * another record.
   * @throws LauncherFailure; what was made until then is for `remove`.
   */
  async launch(
    prepared: Prepared,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    onSocket: (record: RuntimeRecord, connection: Duplex) => void = () => undefined,
  ): Promise<RuntimeRecord> {
    // What is not installed is no want of room that others could make.
    if (networkOf(spec, this.#config) === "outbound") await this.slirp();
    using _ = this.#busy();
    const claimed = await this.#claim(prepared, spec, root, onSocket);
    return claimed ?? (await this.#launchAnew(prepared, spec, root));
  }

  /** Until it is disposed of nothing is prepared. */
  #busy(): Disposable {
    this.#underWay += 1;
    return {
      [Symbol.dispose]: () => {
        this.#underWay -= 1;
        this.#stock.later();
      },
    };
  }

  /** @param groups whose control groups it has. */
  async #planned(
    prepared: Prepared,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    groups: string = spec.runtimeId,
  ): Promise<{ record: RuntimeRecord; launch: LaunchSpec }> {
    const { runtimeId, slot } = spec;
    const slirp = networkOf(spec, this.#config) === "outbound" ? await this.slirp() : undefined;
    const record = newRecord(spec, {
      instanceId: this.#instanceId,
      root,
      ids: await idsFor(prepared, runtimeId, root),
      cgroup: prepared.cgroups?.spec(groups, slot) ?? null,
    });
    const launch = newLaunchSpec(spec, {
      config: this.#config,
      dir: this.directories.path(runtimeId),
      record,
      agent: prepared.agent,
      root: await rootFor(prepared, root),
      disk: diskFor(prepared, root),
      procOutside: prepared.ways.procOutside,
      ...(slirp === undefined ? {} : { slirp }),
    });
    return { record, launch };
  }

  async #launchAnew(prepared: Prepared, spec: RuntimeSpec, root: LaunchSpec["root"]): Promise<RuntimeRecord> {
    const beganMs = performance.now();
    try {
      return await this.#launchOnce(prepared, spec, root);
    } catch (error) {
      if (!lacksRoom(error) || !(await this.#stock.giveWay(beganMs))) throw error;
      await this.#removeDir(prepared, this.directories.path(spec.runtimeId), { runtimeId: spec.runtimeId });
      return this.#launchOnce(prepared, spec, root);
    }
  }

  async #launchOnce(prepared: Prepared, spec: RuntimeSpec, root: LaunchSpec["root"]): Promise<RuntimeRecord> {
    using _groups = spec.slot && this.#holdGroups(prepared, spec.slot);
    const { record, launch } = await this.#planned(prepared, spec, root);
    try {
      await this.#launcher.launch(launch);
    } catch (error) {
      // A directory in the way is what a spawn before a crash left: spawns are repeated with the same id.
      const taken =
        error instanceof LauncherFailure && error.step === "directory" && error.errno === errnoExists;
      if (!taken && !this.#poolLost) throw error;
      await this.#relaunch(prepared, launch, taken ? 1 : readyDisks + 1);
    }
    this.#poolLost = false;
    return record;
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

  /**
   * Makes again what launches need and somebody took away. Looked for when a launch has failed, not before each one.
   * @returns whether anything had been.
   * @throws NotFound for an image whose files are gone.
   */
  async mend(prepared: Prepared, root: LaunchSpec["root"], image: string): Promise<boolean> {
    const { agent, disks } = prepared;
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
    if (lost.has(agent)) await storeAgent({ dataDir: this.#dataDir, binary: this.#agentBinary });
    if (root.kind === "host" && lost.has(root.skeleton)) await makeHostRoot(this.#dataDir);
    if (disks !== undefined && (lost.has(disks.template) || lost.has(disks.dir))) {
      const mkfs = await findProgram("mkfs.ext4");
      await makeTemplate({ dataDir: this.#dataDir, diskMb: this.#config.diskMb, mkfs });
      this.#poolLost = true;
    }
    return true;
  }

  /** What every launch needs is made again when it is gone; nothing when none was made yet. Does not fail. */
  async keepWhole(): Promise<void> {
    try {
      const prepared = await this.#prepared;
      if (prepared === undefined) return;
      await this.mend(prepared, { kind: "host", skeleton: prepared.skeleton }, "host");
      // Not waited for: what is slow to end takes seconds each time.
      this.#clearing ??= this.#clear().finally(() => {
        this.#clearing = undefined;
      });
    } catch (err) {
      this.#logger.warn({ err }, "what launches need cannot be made again yet");
    }
  }

  /** Whether sandboxes have control groups; false until that is known. */
  get hasGroups(): boolean {
    return this.#hasGroups;
  }

  /** Whether sandboxes have more than one user; without root false until that is known. */
  get hasUsers(): boolean {
    return this.#hasUsers;
  }

  /** Groups for single commands of a runtime; none where it has no group itself. */
  groupsFor(record: RuntimeRecord): ExecGroups | undefined {
    if (record.cgroup === null) return undefined;
    const dir = this.directories.path(record.runtimeId as RuntimeId);
    const { cgroup, token } = record;
    return new ExecGroups({ cgroup, lend: (spec) => this.#launcher.lend({ dir, token, ...spec }) });
  }

  /** Kills, and removes every trace. Idempotent. The runtime's id range is free afterwards. */
  async remove(prepared: Prepared, runtimeId: RuntimeId, options: { once?: boolean } = {}): Promise<void> {
    using _ = this.#busy();
    await this.#removeDir(prepared, this.directories.path(runtimeId), { runtimeId, ...options });
    await prepared.ranges.release(runtimeId);
  }

  /** Removes what has said all it can say; tried again with each `keepWhole` where that fails. Does not fail. */
  async discard(prepared: Prepared, runtimeId: RuntimeId): Promise<void> {
    await this.#removeOrLeave(runtimeId, () => this.remove(prepared, runtimeId, { once: true }));
  }

  async #removeOrLeave(what: string, remove: () => Promise<void>): Promise<void> {
    try {
      await remove();
    } catch (error) {
      this.#left.add(remove);
      this.#logger.warn(
        { err: error },
        `${what} is not gone yet, and is removed later: ${await adviceFor(error)}`,
      );
    }
  }

  async #clear(): Promise<void> {
    for (const remove of [...this.#left]) {
      await remove().then(
        () => this.#left.delete(remove),
        () => undefined,
      );
    }
  }

  async #relaunch(prepared: Prepared, launch: LaunchSpec, attempts: number): Promise<void> {
    for (let attempt = 1; ; attempt += 1) {
      await this.#removeDir(prepared, launch.dir, { runtimeId: launch.record.runtimeId as RuntimeId });
      try {
        await this.#launcher.launch(launch);
        return;
      } catch (error) {
        if (attempt >= attempts) throw error;
      }
    }
  }

  async #survey(): Promise<Prepared> {
    const instance = instanceName(this.#instanceId);
    await this.directories.inSight();
    await mkdir(this.directories.trash, { recursive: true, mode: 0o700 });
    await this.directories.inSight();
    // Both come to their end: who closes this must find nothing under way in the directory.
    const [surveyed, stored] = await Promise.allSettled([
      surveyGround({
        dataDir: this.#dataDir,
        instance,
        diskMb: this.#config.diskMb,
        minFreeMb: this.#config.minFreeMb,
        findProgram,
        logger: this.#logger,
      }),
      storeAgent({ dataDir: this.#dataDir, binary: this.#agentBinary }),
    ]);
    if (surveyed.status === "rejected") throw surveyed.reason;
    const ground = surveyed.value;
    try {
      if (stored.status === "fulfilled")
        return await this.#prepareOn(ground, { instance, agent: stored.value.path });
      if (!lackedRoom(stored.reason)) throw stored.reason;
      const agent = await storedAgentPath({ dataDir: this.#dataDir, binary: this.#agentBinary });
      return await this.#prepareOn(ground, { instance, agent });
    } catch (error) {
      await ground.cgroups?.close();
      throw error;
    }
  }

  async #prepareOn(
    ground: Ground,
    { instance, agent }: { instance: string; agent: string },
  ): Promise<Prepared> {
    this.#hasGroups = ground.cgroups !== undefined;
    ground.cgroups?.slots.sweep();
    this.#hasUsers = ground.rooted || ground.unprivilegedIds.kind !== "single";
    const ranges = new IdRanges({
      base: this.#config.uidBase,
      offset: Number.parseInt(instance, 36) || 0,
      claims: ground.rooted
        ? RangeClaims.open({ dir: machineClaims, runtimes: this.directories.root })
        : undefined,
    });
    const named: CgroupSpec[] = [];
    for (const runtimeId of await this.directories.list()) {
      const record = await this.directories.recordIfWhole(runtimeId);
      if (record?.ids.kind === "range") await ranges.restore(record.ids.base, runtimeId);
      if (record?.cgroup) named.push(record.cgroup);
    }
    ground.cgroups?.sweepPrepared(named);
    if (ground.disks !== undefined) this.#launcher.keepDisks({ ...ground.disks, count: readyDisks });
    const prepared: Prepared = { ...ground, agent, ranges, ways: usualWays, shifted: undefined };
    await this.#sweep(prepared);
    return this.#settle(prepared);
  }

  /**
   * What is there and refused is better known now than at every spawn: loop devices, a /proc or owners of a data_dir inside
   * containers. Each refusal that has a way round is tried again that way. A full disk refuses nothing for good: `untried`.
   */
  async #settle(first: Prepared): Promise<Prepared> {
    const needed = [
      first.agent,
      first.skeleton,
      ...(first.disks === undefined ? [] : [first.disks.template]),
    ];
    const [lacking] = await missingOf(needed);
    if (lacking !== undefined)
      return { ...first, untried: new StorageFull(`there is no room for ${lacking}`) };
    const onOverlay = await liesOnOverlay(this.#dataDir);
    let prepared = first;
    for (;;) {
      const runtimeId = newProbeId();
      try {
        await this.launch(prepared, probeSpec(runtimeId), { kind: "host", skeleton: prepared.skeleton });
        return prepared;
      } catch (error) {
        if (lackedRoom(error)) return { ...first, untried: error };
        const next = await this.#next(prepared, error, onOverlay);
        if (next === undefined) return prepared;
        prepared = next;
      } finally {
        await this.discard(prepared, runtimeId);
      }
    }
  }

  /** @returns undefined when a launch that failed so cannot be made otherwise; each change happens once. */
  async #next(prepared: Prepared, error: unknown, onOverlay: boolean): Promise<Prepared | undefined> {
    if (error instanceof LauncherFailure && error.step === "disk" && prepared.disks !== undefined) {
      const note = `a sandbox's disk has no limit of its own: ${await adviceFor(error)}`;
      return { ...prepared, disks: undefined, notes: [...prepared.notes, note] };
    }
    const found = wayRound(error, {
      ways: prepared.ways,
      rooted: prepared.rooted,
      limitedDisk: prepared.disks !== undefined,
      onOverlay,
      diskMb: this.#config.diskMb,
    });
    if (found === undefined) return undefined;
    const shifted = found.ways.rootCopied ? await this.#shiftedImages(prepared.ranges) : undefined;
    return { ...prepared, ways: found.ways, shifted, notes: [...prepared.notes, found.note] };
  }

  /** The range that sandboxes of copied images share stays the same from one service to the next. */
  async #shiftedImages(ranges: IdRanges): Promise<ShiftedImages> {
    const dir = join(this.#dataDir, "native", "shifted");
    await mkdir(join(this.directories.root, sharedRange), { recursive: true, mode: 0o700 });
    const former = await ShiftedImages.formerBase(dir);
    if (former !== undefined) await ranges.restore(former, sharedRange);
    return ShiftedImages.open({ dir, base: await ranges.take(sharedRange), launcher: this.#launcher });
  }

  /** What a service before this one was deleting, probing or preparing when it ended. */
  async #sweep(prepared: Prepared): Promise<void> {
    const left = (await this.directories.list()).filter(isOurs);
    for (const runtimeId of left) await this.discard(prepared, runtimeId);
    for (const path of await this.directories.listTrash())
      await this.#removeOrLeave(path, () => this.#removeDir(prepared, path, { once: true }));
  }

  #holdGroups({ cgroups }: Prepared, slot: RuntimeSlot): Disposable | undefined {
    try {
      return cgroups?.slots.hold(slot, { pidsLimit: this.#config.pidsLimit });
    } catch (error) {
      throw new ProviderError(`the control groups of VM ${slot.vmId} cannot be made: ${messageOf(error)}`, {
        cause: error,
      });
    }
  }

  /** What a launcher was deleting when it died. Looked at before the next one moves anything there. */
  #sweepTrash(): void {
    const left = this.directories.listTrashNow();
    void this.#prepared
      ?.then(async (prepared) => {
        for (const path of left) await this.#removeDir(prepared, path, { once: true });
      })
      .catch((err: unknown) => this.#logger.warn({ err }, "what a launcher left cannot be deleted yet"));
  }

  /** A sandbox of nobody, made as far as it can be. */
  async #prepareOne(shape: PreparedShape): Promise<Waiting | undefined> {
    const prepared = await this.prepareLaunch();
    if (!canPrepare(prepared)) return undefined;
    await this.directories.inSight();
    await this.#refuseWhenShort();
    const name = newPreparedId();
    const madeOf = fingerprintOf(shape.root, prepared.agent);
    // An image that was removed, say: who spawns of it again wants it prepared again.
    if (madeOf === undefined) return undefined;
    try {
      const { launch } = await this.#planned(prepared, preparedSpec(name, shape), shape.root);
      await this.#launcher.prepare({ ...launch, record: { ...launch.record, rootfs: null } });
    } catch (error) {
      await this.discard(prepared, name);
      throw error;
    }
    if (madeOf === fingerprintOf(shape.root, prepared.agent))
      return { name, madeOf, connection: await this.#dialAhead(prepared, name) };
    await this.discard(prepared, name);
    throw new Error("what sandboxes are made of changed meanwhile");
  }

  /** Its agent answers once it is somebody's; until then this tells whether it is there. */
  async #dialAhead(prepared: Prepared, name: RuntimeId): Promise<Duplex> {
    using deadline = deadlineAfter(dialMs);
    try {
      const connection = await unixDialer(() => this.directories.socket(name))(deadline);
      connection.on("error", () => undefined);
      // A sandbox of nobody keeps no process alive.
      if (connection instanceof Socket) connection.unref();
      return connection;
    } catch (error) {
      await this.discard(prepared, name);
      throw error;
    }
  }

  async #discardPrepared({ name, connection }: Waiting): Promise<void> {
    connection.destroy();
    const prepared = await this.#prepared?.catch(() => undefined);
    if (prepared === undefined) return;
    await this.#removeOrLeave(name, async () => {
      // What is out of sight is not gone, and nobody would look for it before the next start.
      await this.directories.inSight();
      await this.remove(prepared, name as RuntimeId, { once: true });
    });
  }

  /** @returns undefined when there is none that fits, or it came to nothing: nothing of it is left then. */
  async #claim(
    prepared: Prepared,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    onSocket: (record: RuntimeRecord, connection: Duplex) => void,
  ): Promise<RuntimeRecord | undefined> {
    const { runtimeId } = spec;
    // Groups of the pool are elsewhere, a probe tries all of a launch, and a runtime keeps the range it has.
    if (!canPrepare(prepared) || spec.slot !== undefined || isOurs(runtimeId)) return undefined;
    if (prepared.ranges.has(runtimeId)) return undefined;
    const { memoryMb, vcpus } = spec;
    const shape = { root, network: networkOf(spec, this.#config), memoryMb, vcpus };
    const found = this.#stock.take(shape, () => fingerprintOf(root, prepared.agent));
    if (found === undefined) return undefined;
    try {
      prepared.ranges.give(found.name, runtimeId);
      const planned = await this.#planned(prepared, spec, root, found.name);
      const { dir, record, hostname, limits } = planned.launch;
      const from = this.directories.path(found.name);
      const claim = this.#launcher.claim({ prepared: from, dir, record, owned: { hostname, limits } });
      found.connection.removeAllListeners();
      onSocket(planned.record, found.connection);
      await claim;
      return planned.record;
    } catch (error) {
      found.connection.destroy();
      this.#logger.info({ err: error, runtime_id: runtimeId }, "a prepared sandbox could not be claimed");
      await this.discard(prepared, found.name as RuntimeId);
      await this.remove(prepared, runtimeId);
      return undefined;
    }
  }

  async #removeDir(
    prepared: Prepared,
    dir: string,
    { runtimeId, once = false }: { runtimeId?: RuntimeId; once?: boolean },
  ): Promise<void> {
    const record = runtimeId === undefined ? undefined : await this.directories.recordIfWhole(runtimeId);
    if (record !== undefined && !this.isOwn(record)) return;
    const expected = runtimeId === undefined ? undefined : prepared.cgroups?.spec(runtimeId);
    const anybody: IdsSpec = prepared.rooted
      ? { kind: "range", base: this.#config.uidBase, count: idsPerSandbox }
      : prepared.unprivilegedIds;
    const spec = {
      dir,
      trash: this.directories.trash,
      cgroup: record?.cgroup ?? expected ?? null,
      ids: record?.ids ?? anybody,
    };
    await this.#launcher.destroy(spec, { once });
    if (record?.sandbox?.slot !== undefined) prepared.cgroups?.slots.tidy(record.sandbox.slot);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stock[Symbol.asyncDispose]();
    this.#left.clear();
    await this.#launcher[Symbol.asyncDispose]();
    await this.#clearing;
    const prepared = await this.#prepared?.catch(() => undefined);
    await prepared?.cgroups?.close();
    await this.directories[Symbol.asyncDispose]();
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

/** Where roots are copies sandboxes share their ids, and without root none is worth it. */
function canPrepare({ rooted, shifted, ways }: Prepared): boolean {
  return rooted && shifted === undefined && !ways.rootCopied;
}

/** Whether what failed wanted what the machine has only so much of. No image can make a launch fail so. */
function lacksRoom(error: unknown): boolean {
  if (error instanceof LauncherFailure) return error.step === "disk" || scarce.has(error.errno ?? 0);
  return error instanceof Unavailable;
}

async function idsFor(prepared: Prepared, runtimeId: RuntimeId, root: LaunchSpec["root"]): Promise<IdsSpec> {
  if (!prepared.rooted) return prepared.unprivilegedIds;
  const shared = root.kind === "image" ? prepared.shifted?.base : undefined;
  return { kind: "range", base: shared ?? (await prepared.ranges.take(runtimeId)), count: idsPerSandbox };
}

async function rootFor(prepared: Prepared, root: LaunchSpec["root"]): Promise<LaunchSpec["root"]> {
  if (prepared.shifted === undefined) return root;
  if (root.kind === "host") return { ...root, copy: true };
  return { ...root, rootfs: await prepared.shifted.of(root.rootfs), shifted: true };
}

function diskFor({ disks, ways, rooted }: Prepared, root: LaunchSpec["root"]): LaunchSpec["disk"] {
  if (disks !== undefined) return { template: disks.template };
  // A copied root of image `host` lies on any file system.
  const needed = ways.memoryMb !== undefined && !(rooted && root.kind === "host");
  return needed ? { tmpfs_mb: ways.memoryMb ?? 0 } : {};
}

async function liesOnOverlay(path: string): Promise<boolean> {
  return (await statfs(path)).type === overlayMagic;
}
