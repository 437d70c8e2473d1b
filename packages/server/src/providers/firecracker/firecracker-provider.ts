import { randomBytes } from "node:crypto";
import { rm, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Capability, networkModes } from "@alcove/wire";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { exists, orMissing } from "../../platform/missing.ts";
import { isAlive, type ProcessIdentity } from "../../platform/process-identity.ts";
import {
  BadRequest,
  type CallOptions,
  type ImageConfig,
  type ImageSnapshot,
  type ImageStore,
  type InventoryEntry,
  type ProviderCheck,
  ProviderError,
  RuntimeGone,
  type RuntimeId,
  type RuntimeProvider,
  type RuntimeSpec,
  type SandboxId,
  type SandboxOperations,
  type SpawnedRuntime,
  StorageFull,
  type StoredImage,
  Unavailable,
} from "../../ports/index.ts";
import { agentCapabilities, sharedWatchTable } from "../agent/index.ts";
import { DiskGuard, spaceOf } from "../guards/index.ts";
import { fromNote, noteOf, SpawnsUnderWay, UnreadableRecord } from "../runtime-records/index.ts";
import type { ApiPatience } from "./api/index.ts";
import { bootArguments } from "./boot-arguments.ts";
import { ConnectedMachine } from "./connected-machine.ts";
import type { FirecrackerConfig } from "./firecracker-config.ts";
import { lookAtGround, oddKernel } from "./ground.ts";
import { type Jail, Jails, programFile } from "./jails.ts";
import {
  bootMachine,
  configureAgent,
  MachineEnded,
  type MachineSettings,
  restoreMachine,
  withApi,
} from "./machine.ts";
import { closeOutput, MachineConsole } from "./machine-console.ts";
import { layerDrive, MachineDisks } from "./machine-disks.ts";
import { findProcesses, killProcess, startProcess } from "./machine-process.ts";
import { MachineSnapshots } from "./machine-snapshots.ts";
import { type RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";
import { endUnfinished, SnapshotMaker } from "./snapshot-maker.ts";
import { missingTaps, type Tap, TapPool } from "./tap-pool.ts";

/** How long undoing may take, whatever became of the call that failed. */
const undoMs = 20_000;
/** Lines of a console that the error of a failed boot shows, and how long each may be. */
const shownLines = 5;
const shownLineLength = 200;
/** What a Linux of today needs to start anything at all. */
const leastMemoryMb = 64;
const mostVcpus = 32;

/** How long parts of a boot may take, milliseconds. */
export interface BootPatience {
  /** Until Firecracker listens. */
  openMs: number;
  /** From the start of the machine until its agent answers. */
  bootMs: number;
  /** Until a restored agent, which serves already, answers; then its machine boots. */
  restoreMs: number;
  /** Requests to Firecracker; unset: the usual. */
  api?: Partial<ApiPatience>;
}

const usualPatience: BootPatience = { openMs: 10_000, bootMs: 60_000, restoreMs: 10_000 };

export interface FirecrackerProviderOptions {
  config: FirecrackerConfig;
  dataDir: string;
  instanceId: string;
  /** The built agent. */
  agentBinary: string;
  images: ImageStore;
  /** Output kept for each command; unset: the agent's own default. */
  ringBytes?: number;
  logger: Logger;
  /** Unset: the usual. */
  patience?: Partial<BootPatience>;
  /** Unset: /dev/kvm. */
  kvm?: string;
  /** What interfaces of the host are there. Unset: /sys/class/net. */
  interfaces?: string;
  /** `processes`, for tests: guests have no kernel of their own, no control groups and nothing to renew. */
  guests?: "machines" | "processes";
}

export const firecrackerCapabilities: readonly Capability[] = [
  ...agentCapabilities,
  "users",
  "exec_limits",
  "microvm",
  "vsock_agent",
];

/** What a spawn has made so far, for the errors and the undoing of it. */
interface Made {
  image?: string;
  console?: MachineConsole;
  machine?: ConnectedMachine;
}

interface Making {
  spec: RuntimeSpec;
  image: StoredImage;
  record: RuntimeRecord;
  jail: Jail | undefined;
  settings: MachineSettings;
  stage: (name: string) => void;
}

interface SnapshotChoice {
  key: string;
  settings: MachineSettings;
}

type Stages = { onStage?: (stage: string, durationMs: number) => void };

/**
 * Sandboxes as microVMs of Firecracker, one process for each. A runtime is: being made (`#spawning`), connected
 * (`#connected`), ended by itself (told once to `onExit`), or known only from its folder.
 */
export class FirecrackerProvider implements RuntimeProvider {
  readonly name = "firecracker";
  readonly capabilities: ReadonlySet<Capability>;
  readonly defaultImage: string;
  readonly #options: FirecrackerProviderOptions;
  readonly #config: FirecrackerConfig;
  readonly #patience: BootPatience;
  readonly #kvm: string;
  readonly #guests: "machines" | "processes";
  readonly #logger: Logger;
  readonly #records: RuntimeRecords;
  readonly #disks: MachineDisks;
  readonly #taps: TapPool;
  readonly #jails: Jails | undefined;
  readonly #makers:
    | { snapshots: MachineSnapshots; maker: SnapshotMaker; readonly opened: Promise<void> }
    | undefined;
  readonly #guard: DiskGuard;
  readonly #folder: string;
  readonly #spawns = new SpawnsUnderWay();
  readonly #spawning = new Map<RuntimeId, { done: Promise<unknown>; stop: AbortController }>();
  readonly #destroying = new Map<RuntimeId, number>();
  /** Machines that the guard is stopping, and why: their end may be seen before all of them is gone. */
  readonly #stopping = new Map<RuntimeId, string>();
  readonly #watches = sharedWatchTable();
  readonly #connected = new Map<RuntimeId, ConnectedMachine>();
  readonly #exitListeners = new Set<(runtimeId: RuntimeId, reason: string) => void>();
  #unfinished: Promise<void> | undefined;
  #pruned = false;
  #closed = false;

  constructor(options: FirecrackerProviderOptions) {
    const { config, dataDir, agentBinary } = options;
    this.#options = options;
    this.#config = config;
    this.#patience = { ...usualPatience, ...options.patience };
    this.#kvm = options.kvm ?? "/dev/kvm";
    this.#logger = options.logger;
    this.#guests = options.guests ?? "machines";
    const announced = new Set(firecrackerCapabilities);
    if (this.#guests === "processes") announced.delete("exec_limits");
    if (config.snapshots) announced.add("snapshots");
    this.capabilities = announced;
    this.defaultImage = config.defaultImage;
    this.#folder = config.dataDir === "" ? `${dataDir}/firecracker` : config.dataDir;
    this.#records = new RuntimeRecords({ dataDir });
    const { interfaces } = options;
    this.#taps = new TapPool({ entries: config.network, known: () => this.#lentTaps(), interfaces });
    const { jailerPath, jailUidBase, firecrackerPath } = config;
    if (jailerPath !== "")
      this.#jails = new Jails({
        jailer: jailerPath,
        firecracker: firecrackerPath,
        uidBase: jailUidBase,
        known: () => this.#lentUsers(),
      });
    this.#disks = new MachineDisks({ dataDir, folder: this.#folder, agentBinary, layerMb: config.diskMb });
    if (config.snapshots) this.#makers = this.#openSnapshots();
    this.#guard = new DiskGuard({
      minFreeMb: config.minFreeMb,
      says: {
        where: "on the disk of the microVMs",
        minFree: "providers.firecracker.min_free_mb",
      },
      logger: this.#logger,
      running: () => this.#connected.keys(),
      destroying: () => this.#destroying.keys(),
      sandboxOf: (runtimeId) => this.#connected.get(runtimeId)?.sandboxId,
      ownerOf: (runtimeId) => this.#connected.get(runtimeId)?.ownerId,
      space: () => this.#space(),
      measure: (runtimes) => this.#layerSizes(runtimes),
      stop: (runtimeId, reason) => this.#stopGuarded(runtimeId, reason),
    });
  }

  #openSnapshots() {
    const snapshots = new MachineSnapshots({ folder: join(this.#folder, "snapshots") });
    const maker = new SnapshotMaker({
      snapshots,
      disks: this.#disks,
      jails: this.#jails,
      program: this.#config.firecrackerPath,
      openMs: this.#patience.openMs,
      bootMs: this.#patience.bootMs,
      minFreeMb: this.#config.minFreeMb,
      freeMb: async () => (await this.#space())?.freeMb,
      logger: this.#logger,
    });
    const logger = this.#logger;
    let opening: Promise<void> | undefined;
    return {
      snapshots,
      maker,
      /** Once, at the first use. */
      get opened() {
        opening ??= maker
          .open()
          .catch((err: unknown) => logger.warn({ err }, "what was left of snapshots could not be removed"));
        return opening;
      },
    };
  }

  async snapshots(_options: CallOptions): Promise<ImageSnapshot[]> {
    return (await this.#makers?.snapshots.list()) ?? [];
  }

  /** Resolves when no snapshot is under way. */
  async snapshotsSettled(): Promise<void> {
    await this.#makers?.maker.settled();
  }

  async check(options: CallOptions): Promise<ProviderCheck> {
    const { firecrackerPath, jailerPath, kernelPath, initrdPath } = this.#config;
    const { agentBinary } = this.#options;
    const needs = { firecrackerPath, jailerPath, kernelPath, initrdPath, agentBinary, kvm: this.#kvm };
    const found = await lookAtGround(needs, options);
    if ("missing" in found) return { healthy: false, error: found.missing, notes: [] };
    const networks =
      this.#taps.size > 0 ? `${this.#taps.size} machines at once have a network` : "machines have no network";
    const jailed = this.#jails === undefined ? "without the jailer" : "in jails";
    const notes = [`Firecracker ${found.version}, ${jailed}; ${networks}`];
    const kernel = await oddKernel(kernelPath);
    if (kernel !== undefined) notes.push(kernel);
    const missing = await this.#taps.missing();
    if (missing.length > 0) notes.push(missingTaps(missing));
    const noTap = missing.length > 0 && missing.length === this.#taps.size ? missingTaps(missing) : undefined;
    const cannotSpawn = await this.#guard.refuseWhenShort().then(() => noTap, messageOf);
    return { healthy: true, notes, ...(cannotSpawn === undefined ? {} : { cannotSpawn }) };
  }

  settings(): Record<string, unknown> {
    const { initrdPath, networkMbit, diskRateMb, diskMb, minFreeMb, pidsLimit } = this.#config;
    return {
      isolation: "microvm",
      jailed: this.#jails !== undefined,
      snapshots: this.#makers !== undefined,
      initrd: initrdPath !== "",
      network_mode: this.#taps.size > 0 ? "outbound" : "none",
      ...(this.#taps.size > 0 ? { networks: this.#taps.size, network_mbit: networkMbit } : {}),
      disk_rate_mb: diskRateMb,
      disk_mb: diskMb,
      min_free_mb: minFreeMb,
      pids_limit: pidsLimit,
    };
  }

  spawn(spec: RuntimeSpec, options: CallOptions & Stages): Promise<SpawnedRuntime> {
    return this.#spawns.run(spec.runtimeId, options, () => this.#spawnOnce(spec, options));
  }

  async #spawnOnce(spec: RuntimeSpec, options: CallOptions & Stages): Promise<SpawnedRuntime> {
    options.signal.throwIfAborted();
    if (this.#connected.has(spec.runtimeId)) {
      const record = await this.#records.readIfWhole(spec.runtimeId);
      return { image: record?.image ?? spec.image };
    }
    const stop = new AbortController();
    const signal = AbortSignal.any([options.signal, stop.signal]);
    const done = this.#spawn(spec, { ...options, signal }).finally(() =>
      this.#spawning.delete(spec.runtimeId),
    );
    this.#spawning.set(spec.runtimeId, { done, stop });
    return done;
  }

  async inventory(_options: CallOptions): Promise<InventoryEntry[]> {
    // Whoever asks what runs is to find nothing that no record names.
    await this.#unfinishedEnded();
    const entries: InventoryEntry[] = [];
    for (const runtimeId of await this.#records.list()) {
      const entry = await this.#inventoryEntry(runtimeId);
      if (entry !== undefined) entries.push(entry);
    }
    // What went out of sight meanwhile was not found, and is there all the same.
    await this.#records.inSight();
    return entries;
  }

  /** Once: machines of snapshots that were under way are ended whether or not snapshots are made now. */
  async #unfinishedEnded(): Promise<void> {
    if (this.#makers !== undefined) return this.#makers.opened;
    this.#unfinished ??= endUnfinished(this.#disks).catch((err: unknown) =>
      this.#logger.warn({ err }, "machines of unfinished snapshots could not be ended"),
    );
    return this.#unfinished;
  }

  /** @returns undefined for what another installation made. */
  async #inventoryEntry(runtimeId: RuntimeId): Promise<InventoryEntry | undefined> {
    try {
      const record = await this.#records.read(runtimeId);
      if (record === undefined) return { runtimeId, state: "dead" };
      if (record.instanceId !== this.#options.instanceId) return undefined;
      const running = record.process !== undefined && (await isAlive(record.process));
      const sandboxId = record.sandboxId as SandboxId;
      return { runtimeId, state: running ? "running" : "dead", sandboxId, ...fromNote(record) };
    } catch (error) {
      if (!(error instanceof UnreadableRecord)) throw error;
      return { runtimeId, state: "unreadable" };
    }
  }

  async adopt(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    options.signal.throwIfAborted();
    if (this.#connected.has(runtimeId)) return;
    const record = await this.#records.read(runtimeId);
    if (
      record?.process === undefined ||
      record.instanceId !== this.#options.instanceId ||
      !(await isAlive(record.process))
    )
      throw gone(runtimeId);
    const console = await MachineConsole.open(this.#records.folder(runtimeId), options);
    const machine = await this.#connect(record, console);
    try {
      await machine.client.info(options);
    } catch (error) {
      await machine[Symbol.asyncDispose]();
      throw error;
    }
    if (this.#connected.has(runtimeId)) await machine[Symbol.asyncDispose]();
    else this.#keep(machine);
  }

  async destroy(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    const spawning = this.#spawning.get(runtimeId);
    if (spawning !== undefined) {
      spawning.stop.abort(new RuntimeGone(`runtime ${runtimeId} was destroyed while it was made`));
      await abortable(spawning.done.then(ignoreOutcome, ignoreOutcome), options.signal);
    }
    await this.#remove(runtimeId, options);
  }

  sandbox(runtimeId: RuntimeId): SandboxOperations {
    const machine = this.#connected.get(runtimeId);
    if (machine === undefined) throw gone(runtimeId);
    return machine.operations;
  }

  async logs(runtimeId: RuntimeId, options: CallOptions & { lines: number }): Promise<string[]> {
    const lines = await this.#records.consoleLines(runtimeId, options.lines);
    if (lines === undefined) throw gone(runtimeId);
    return lines;
  }

  onExit(listener: (runtimeId: RuntimeId, reason: string) => void): () => void {
    const own = (runtimeId: RuntimeId, reason: string) => listener(runtimeId, reason);
    this.#exitListeners.add(own);
    return () => this.#exitListeners.delete(own);
  }

  /** Lets go of every machine without ending it. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.#exitListeners.clear();
    await this.#guard[Symbol.asyncDispose]();
    await this.#makers?.maker[Symbol.asyncDispose]();
    for (const { stop } of this.#spawning.values()) stop.abort(new RuntimeGone("the service is stopping"));
    await Promise.allSettled([...this.#spawning.values()].map(({ done }) => done));
    const machines = [...this.#connected.values()];
    this.#connected.clear();
    await Promise.all(machines.map((machine) => machine[Symbol.asyncDispose]()));
    await this.#records[Symbol.asyncDispose]();
  }

  async #spawn(spec: RuntimeSpec, options: CallOptions & Stages): Promise<SpawnedRuntime> {
    const { runtimeId } = spec;
    const vcpus = this.#refuse(spec);
    const stage = stages(options);
    const made: Made = {};
    try {
      await this.#records.inSight();
      await this.#guard.refuseWhenShort();
      const image = await this.#options.images.resolve(spec.image, { ...options, owner: spec.ownerId });
      made.image = image.name;
      const tap =
        this.#taps.size > 0 && spec.network !== "none" ? await this.#taps.take(runtimeId) : undefined;
      const jail = await this.#jails?.take(runtimeId);
      const record = this.#recordOf(spec, image.name, { tap, jail });
      await this.#records.save(record, runtimeId);
      const settings = this.#settingsOf(spec, { tap, vcpus });
      const making: Making = { spec, image, record, jail, settings, stage };
      await this.#makers?.opened;
      const snapshot = tap === undefined ? await this.#snapshotFor(image, settings) : undefined;
      const machine =
        (await this.#restored(making, made, snapshot, options)) ??
        (await this.#bring(making, made, undefined, options));
      if (this.#closed) throw new RuntimeGone("the service is stopping");
      this.#keep(machine);
      this.#pruneOnce();
      if (snapshot !== undefined) this.#makers?.maker.begin(snapshot.key, image, snapshot.settings);
      return { image: image.name };
    } catch (error) {
      const failure = options.signal.aborted ? error : await this.#explain(error, runtimeId, made);
      await (made.machine ?? made.console)?.[Symbol.asyncDispose]();
      using deadline = deadlineAfter(undoMs);
      await this.#remove(runtimeId, { signal: deadline.signal }).catch((undoError: unknown) => {
        // The record stays, so that the inventory shows it and the next destroy tries again.
        this.#logger.warn({ err: undoError, runtime_id: runtimeId }, "a failed spawn could not be undone");
      });
      throw failure;
    }
  }

  #settingsOf(
    spec: RuntimeSpec,
    { tap, vcpus }: { tap: Tap | undefined; vcpus: number },
  ): MachineSettings & { bootArguments: string } {
    const { kernelPath, initrdPath, pidsLimit: pids, networkMbit, diskRateMb } = this.#config;
    const network = tap === undefined ? {} : { network: tap.guest };
    return {
      kernel: kernelPath,
      initrd: initrdPath || undefined,
      bootArguments: bootArguments({ hostname: spec.sandboxId, pids, pci: false, ...network }),
      memoryMb: spec.memoryMb,
      vcpus,
      tap,
      networkMbit,
      diskRateMb,
    };
  }

  /** Which snapshot a machine may be made of, whether it is there or not, and what would be made for it. */
  async #snapshotFor(image: StoredImage, settings: MachineSettings): Promise<SnapshotChoice | undefined> {
    if (this.#makers === undefined) return undefined;
    const { pidsLimit: pids, diskMb, diskRateMb } = this.#config;
    // Its name is given to it when it is restored.
    const own = { ...settings, bootArguments: bootArguments({ hostname: "sandbox", pids, pci: false }) };
    const { memoryMb, vcpus, kernel, initrd, bootArguments: words } = own;
    try {
      const program = await programFile(this.#config.firecrackerPath);
      const key = await this.#makers.snapshots.keyOf({
        rootfs: await this.#disks.rootfsOf(image),
        memoryMb,
        vcpus,
        bootArguments: words,
        files: [kernel, ...(initrd === undefined ? [] : [initrd]), program],
        bounds: [diskMb, diskRateMb],
      });
      return { key, settings: own };
    } catch (err) {
      this.#logger.debug({ err }, "what a snapshot would be of cannot be read; the boot says more");
      return undefined;
    }
  }

  /**
   * @returns undefined when there is no such snapshot, or none that can be restored: it is removed then, and the machine boots.
   * @throws what says nothing of the snapshot: what was asked for is refused, or the disk is full.
   */
  async #restored(
    making: Making,
    made: Made,
    snapshot: SnapshotChoice | undefined,
    options: CallOptions,
  ): Promise<ConnectedMachine | undefined> {
    if (snapshot === undefined || !(await this.#makers?.snapshots.has(snapshot.key))) return undefined;
    const { runtimeId } = making.spec;
    try {
      return await this.#bring(making, made, snapshot.key, options);
    } catch (err) {
      options.signal.throwIfAborted();
      if (err instanceof BadRequest || err instanceof StorageFull) throw err;
      this.#logger.warn({ err, runtime_id: runtimeId }, "a snapshot cannot be restored and is removed");
      await (made.machine ?? made.console)?.[Symbol.asyncDispose]();
      delete made.machine;
      delete made.console;
      await this.#makers?.snapshots.discard(snapshot.key);
      await this.#kill(runtimeId, await this.#records.readIfWhole(runtimeId), options);
      await this.#disks.remove(runtimeId);
      // A service that dies before the next process is written down finds that one by its arguments.
      await this.#records.save(making.record, runtimeId);
      return undefined;
    }
  }

  /** Has a machine run and belong to its sandbox: booted, or restored from the snapshot of that key. */
  async #bring(
    making: Making,
    made: Made,
    snapshot: string | undefined,
    options: CallOptions,
  ): Promise<ConnectedMachine> {
    const { spec, image, record, jail, settings, stage } = making;
    const { runtimeId } = spec;
    const rootfs = await this.#disks.make(runtimeId, image, { ...options, jail });
    const folder = this.#disks.insideOf(runtimeId, jail);
    const files =
      snapshot === undefined
        ? await this.#disks.bootFiles(runtimeId, settings, { ...options, jail })
        : await this.#makers?.snapshots.lend(snapshot, folder, { ...options, owner: jail });
    stage("disks");
    made.console = await MachineConsole.open(this.#records.folder(runtimeId), options);
    options.signal.throwIfAborted();
    const process = await this.#start(runtimeId, jail);
    const complete: RuntimeRecord = { ...record, rootfs, process };
    await this.#records.save(complete, runtimeId);
    stage("launch");
    const { openMs, bootMs, restoreMs, api: patience = {} } = this.#patience;
    await withApi({ process, folder, openMs, patience }, options, (api) =>
      snapshot === undefined
        ? bootMachine(api, { ...settings, ...files }, options)
        : restoreMachine(api, options),
    );
    stage(snapshot === undefined ? "boot" : "restore");
    const machine = await this.#connect(complete, made.console);
    made.machine = machine;
    const answerMs = snapshot === undefined ? bootMs : restoreMs;
    await this.#configure(machine, spec, image.config, { ...options, process, bootMs: answerMs });
    if (snapshot !== undefined && this.#guests === "machines")
      await machine.client.renew(
        { realtime: new Date(), entropy: randomBytes(64), hostname: spec.sandboxId },
        options,
      );
    stage("agent");
    return machine;
  }

  /** @returns how many processors the machine gets: whole ones. */
  #refuse(spec: RuntimeSpec): number {
    const widest = this.#taps.size > 0 ? "outbound" : "none";
    const wanted = spec.network ?? widest;
    if (networkModes.indexOf(wanted) > networkModes.indexOf(widest))
      throw new BadRequest(
        `network "${wanted}" is not allowed here; ${widest === "none" ? "providers.firecracker.network is empty" : 'microVMs have "none" or "outbound"'}`,
      );
    if (spec.memoryMb < leastMemoryMb)
      throw new BadRequest(
        `memory_mb ${spec.memoryMb} is too little for a microVM, whose kernel needs some of it: ask for ${leastMemoryMb} or more`,
      );
    const vcpus = Math.max(1, Math.ceil(spec.vcpus));
    if (vcpus > mostVcpus)
      throw new BadRequest(
        `vcpus ${spec.vcpus} is too many: a microVM of Firecracker has ${mostVcpus} at most`,
      );
    return vcpus;
  }

  #recordOf(
    spec: RuntimeSpec,
    image: string,
    { tap, jail }: { tap: Tap | undefined; jail: Jail | undefined },
  ): RuntimeRecord {
    return {
      version: 1,
      instanceId: this.#options.instanceId,
      runtimeId: spec.runtimeId,
      sandboxId: spec.sandboxId,
      token: randomBytes(32).toString("hex"),
      image,
      folder: this.#disks.machineFolder(spec.runtimeId),
      createdAt: new Date().toISOString(),
      sandbox: noteOf(spec),
      ...(tap === undefined ? {} : { tap: tap.name }),
      ...(jail === undefined ? {} : { jail: { inside: jail.inside, uid: jail.uid } }),
    };
  }

  async #start(runtimeId: RuntimeId, jail: Jail | undefined): Promise<ProcessIdentity> {
    const output = MachineConsole.output(this.#records.folder(runtimeId));
    try {
      const folder = this.#disks.machineFolder(runtimeId);
      const program = this.#config.firecrackerPath;
      const process = await startProcess({ program, folder, jail, runtimeId, output });
      if (process === undefined) throw new MachineEnded("Firecracker ended at once");
      return process;
    } finally {
      closeOutput(output);
    }
  }

  #configure(
    machine: ConnectedMachine,
    spec: RuntimeSpec,
    config: ImageConfig,
    options: CallOptions & { process: ProcessIdentity; bootMs: number },
  ): Promise<void> {
    const user = spec.user ?? config.user;
    const workdir = spec.workdir ?? config.workdir;
    const { ringBytes } = this.#options;
    const request = {
      sandboxId: spec.sandboxId,
      env: { ...config.env, ...spec.env },
      expiresInMs: spec.expiresInMs,
      ...(user === undefined ? {} : { user }),
      ...(workdir === undefined ? {} : { workdir }),
      ...(ringBytes === undefined ? {} : { ringBytes }),
    };
    return configureAgent(machine.client, request, options);
  }

  /** Where a machine's folder may be: `providers.firecracker.data_dir` may have been another one when it was made. */
  #foldersOf(runtimeId: RuntimeId, record: RuntimeRecord | undefined): string[] {
    const usual = join(this.#options.dataDir, "firecracker/machines", runtimeId);
    const named = record?.folder === undefined ? [] : [record.folder];
    return [...new Set([this.#disks.machineFolder(runtimeId), ...named, usual])];
  }

  /** Where its drives and sockets are. */
  async #insideOf(runtimeId: RuntimeId, record: RuntimeRecord | undefined): Promise<string> {
    const folders = this.#foldersOf(runtimeId, record);
    for (const folder of folders) if (await exists(folder)) return join(folder, record?.jail?.inside ?? "");
    return this.#disks.insideOf(runtimeId, record?.jail);
  }

  async #connect(record: RuntimeRecord, console: MachineConsole): Promise<ConnectedMachine> {
    return ConnectedMachine.open({
      record,
      folder: await this.#insideOf(record.runtimeId as RuntimeId, record),
      console,
      ownGroups: this.#guests === "machines",
      watches: this.#watches,
      logger: this.#logger,
    });
  }

  #keep(machine: ConnectedMachine): void {
    const { runtimeId } = machine;
    this.#connected.set(runtimeId, machine);
    this.#guard.start();
    machine.client.onGone(() => {
      if (this.#connected.get(runtimeId) !== machine) return;
      const stopped = this.#stopping.get(runtimeId);
      void (stopped === undefined ? this.#endedByItself(machine) : this.#ended(machine, stopped));
    });
  }

  /** What it said last goes with its folder, which whoever is told of its end removes. */
  async #endedByItself(machine: ConnectedMachine): Promise<void> {
    const { runtimeId, sandboxId } = machine;
    this.#connected.delete(runtimeId);
    const console = await machine
      .drainConsole()
      .then(() => this.#lastWords(runtimeId))
      .catch(() => "nothing that could be read");
    this.#logger.warn(
      { sandbox_id: sandboxId, runtime_id: runtimeId, console },
      "a machine ended by itself, and said last what its console has",
    );
    await this.#ended(machine, "the machine ended by itself");
  }

  async #lastWords(runtimeId: RuntimeId): Promise<string> {
    const lines = (await this.#records.consoleLines(runtimeId, shownLines)) ?? [];
    return lines.map((line) => line.slice(0, shownLineLength)).join(" | ") || "nothing";
  }

  async #ended(machine: ConnectedMachine, reason: string): Promise<void> {
    this.#connected.delete(machine.runtimeId);
    await machine[Symbol.asyncDispose]();
    for (const listener of this.#exitListeners) listener(machine.runtimeId, reason);
  }

  async #remove(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    const record = await this.#records.readIfWhole(runtimeId);
    // Another installation's, as a copied data directory has them: its processes are that one's.
    if (record !== undefined && record.instanceId !== this.#options.instanceId) return;
    this.#destroying.set(runtimeId, (this.#destroying.get(runtimeId) ?? 0) + 1);
    try {
      const machine = this.#connected.get(runtimeId);
      this.#connected.delete(runtimeId);
      await machine?.[Symbol.asyncDispose]();
      await this.#kill(runtimeId, record, options);
      for (const folder of this.#foldersOf(runtimeId, record))
        await rm(folder, { recursive: true, force: true });
      // The record goes last: until then the inventory shows what is left.
      await this.#records.remove(runtimeId);
      this.#taps.giveBack(runtimeId);
      this.#jails?.giveBack(runtimeId);
    } finally {
      const left = (this.#destroying.get(runtimeId) ?? 1) - 1;
      if (left === 0) this.#destroying.delete(runtimeId);
      else this.#destroying.set(runtimeId, left);
    }
  }

  /** Its disks end with it: nothing of a machine is worth an orderly end. */
  async #kill(runtimeId: RuntimeId, record: RuntimeRecord | undefined, options: CallOptions): Promise<void> {
    if (record?.process !== undefined) return killProcess(record.process, options);
    if (!(await exists(this.#records.folder(runtimeId)))) return;
    for (const identity of await findProcesses(runtimeId)) await killProcess(identity, options);
  }

  /** What a client is told of a machine that did not come up: with the last that its console says. */
  async #explain(
    error: unknown,
    runtimeId: RuntimeId,
    made: { console?: MachineConsole; image?: string },
  ): Promise<unknown> {
    const { console, image } = made;
    // What was refused before there was a machine, or by its agent, speaks for itself.
    const isOfMachine = error instanceof MachineEnded || error instanceof ProviderError;
    if (console === undefined || !(isOfMachine || error instanceof Unavailable)) return error;
    await console.drain();
    const said = await this.#lastWords(runtimeId);
    return new ProviderError(
      `the microVM of image "${image}" did not come up: ${messageOf(error)}; the last of its console: ${said}`,
      { cause: error },
    );
  }

  /** Once, after a spawn: what earlier agents and removed images left. */
  #pruneOnce(): void {
    if (this.#pruned) return;
    this.#pruned = true;
    const prune = async () => {
      using deadline = deadlineAfter(undoMs);
      const images = await this.#options.images.list({ signal: deadline.signal });
      const { keep, removed } = await this.#disks.prune(images);
      await this.#makers?.snapshots.prune({ keep });
      if (removed.length > 0)
        this.#logger.info({ removed }, "root file systems that nothing uses were removed");
    };
    void prune().catch((err: unknown) =>
      this.#logger.warn({ err }, "root file systems that nothing uses could not be removed"),
    );
  }

  /** Of machines that are there, running or not. */
  async #lentTaps(): Promise<ReadonlyMap<RuntimeId, string>> {
    const lent = new Map<RuntimeId, string>();
    for (const runtimeId of await this.#records.list()) {
      const tap = (await this.#records.readIfWhole(runtimeId))?.tap;
      if (tap !== undefined) lent.set(runtimeId, tap);
    }
    return lent;
  }

  /** Of machines that are there, running or not. */
  async #lentUsers(): Promise<ReadonlyMap<RuntimeId, number>> {
    const lent = new Map<RuntimeId, number>();
    for (const runtimeId of await this.#records.list()) {
      const jail = (await this.#records.readIfWhole(runtimeId))?.jail;
      if (jail !== undefined) lent.set(runtimeId, jail.uid);
    }
    return lent;
  }

  async #space() {
    const there = (await exists(this.#folder)) ? this.#folder : dirname(this.#folder);
    return orMissing(spaceOf(there), undefined);
  }

  /** MB of the blocks that their layers take. */
  async #layerSizes(runtimes: readonly RuntimeId[]): Promise<ReadonlyMap<RuntimeId, number>> {
    const sizes = new Map<RuntimeId, number>();
    for (const runtimeId of runtimes) {
      const record = await this.#records.readIfWhole(runtimeId);
      const layer = join(await this.#insideOf(runtimeId, record), layerDrive);
      const found = await orMissing(stat(layer), undefined);
      if (found !== undefined) sizes.set(runtimeId, (found.blocks * 512) / 1024 ** 2);
    }
    return sizes;
  }

  async #stopGuarded(runtimeId: RuntimeId, reason: string): Promise<void> {
    const machine = this.#connected.get(runtimeId);
    const record = await this.#records.readIfWhole(runtimeId);
    if (machine === undefined || record === undefined) return;
    using deadline = deadlineAfter(undoMs);
    this.#stopping.set(runtimeId, reason);
    try {
      await this.#kill(runtimeId, record, { signal: deadline.signal });
      for (const folder of this.#foldersOf(runtimeId, record))
        await rm(folder, { recursive: true, force: true });
      if (this.#connected.get(runtimeId) === machine) await this.#ended(machine, reason);
    } finally {
      this.#stopping.delete(runtimeId);
    }
  }
}

/** Tells how long each part took since the one before. */
function stages({ onStage }: Stages): (name: string) => void {
  let startedAt = performance.now();
  return (name) => {
    const now = performance.now();
    onStage?.(name, now - startedAt);
    startedAt = now;
  };
}

function gone(runtimeId: RuntimeId): RuntimeGone {
  return new RuntimeGone(`runtime ${runtimeId} is not running`);
}
