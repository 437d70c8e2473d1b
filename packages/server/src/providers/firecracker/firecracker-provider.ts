import { stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Capability } from "@alcove/wire";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { exists, orMissing } from "../../platform/missing.ts";
import { isAlive } from "../../platform/process-identity.ts";
import { stagesOf } from "../../platform/stages.ts";
import {
  type CallOptions,
  type GuardState,
  type ImageSnapshot,
  type ImageStore,
  type InventoryEntry,
  type ProviderCheck,
  RuntimeGone,
  type RuntimeId,
  type RuntimeProvider,
  type RuntimeSpec,
  type SandboxId,
  type SandboxOperations,
  type SpawnedRuntime,
  type SpawnOptions,
} from "../../ports/index.ts";
import { agentCapabilities, sharedWatchTable } from "../agent/index.ts";
import { DiskGuard, spaceOf } from "../guards/index.ts";
import { fromNote, SpawnsUnderWay, UnreadableRecord } from "../runtime-records/index.ts";
import type { ConnectedMachine } from "./connected-machine.ts";
import type { FirecrackerConfig } from "./firecracker-config.ts";
import { lookAtGround, oddKernel } from "./ground.ts";
import { Jails } from "./jails.ts";
import { MachineConsole } from "./machine-console.ts";
import { layerDrive, MachineDisks } from "./machine-disks.ts";
import { type BootPatience, MachineMaker, type Made, usualPatience } from "./machine-maker.ts";
import { MachineRemains } from "./machine-remains.ts";
import { refuseMachine } from "./machine-settings.ts";
import { MachineSnapshots } from "./machine-snapshots.ts";
import { RuntimeRecords } from "./runtime-records.ts";
import { endUnfinished, SnapshotMaker } from "./snapshot-maker.ts";
import { missingTaps, TapPool } from "./tap-pool.ts";

/** How long undoing may take, whatever became of the call that failed. */
const undoMs = 20_000;

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
  readonly #kvm: string;
  readonly #logger: Logger;
  readonly #records: RuntimeRecords;
  readonly #disks: MachineDisks;
  readonly #remains: MachineRemains;
  readonly #machines: MachineMaker;
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
  readonly #connected = new Map<RuntimeId, ConnectedMachine>();
  readonly #exitListeners = new Set<(runtimeId: RuntimeId, reason: string) => void>();
  #unfinished: Promise<void> | undefined;
  #pruned = false;
  #closed = false;

  constructor(options: FirecrackerProviderOptions) {
    const { config, dataDir, agentBinary } = options;
    this.#options = options;
    this.#config = config;
    const patience = { ...usualPatience, ...options.patience };
    this.#kvm = options.kvm ?? "/dev/kvm";
    this.#logger = options.logger;
    const { guests = "machines" } = options;
    const announced = new Set(firecrackerCapabilities);
    if (guests === "processes") announced.delete("exec_limits");
    if (config.snapshots) announced.add("snapshots");
    this.capabilities = announced;
    this.defaultImage = config.defaultImage;
    this.#folder = config.dataDir === "" ? `${dataDir}/firecracker` : config.dataDir;
    this.#records = new RuntimeRecords({ dataDir });
    const { interfaces } = options;
    this.#taps = new TapPool({
      entries: config.network,
      known: () => this.#records.lent(({ tap }) => tap),
      interfaces,
    });
    const { jailerPath, jailUidBase, firecrackerPath } = config;
    if (jailerPath !== "")
      this.#jails = new Jails({
        jailer: jailerPath,
        firecracker: firecrackerPath,
        uidBase: jailUidBase,
        known: () => this.#records.lent(({ jail }) => jail?.uid),
      });
    this.#disks = new MachineDisks({ dataDir, folder: this.#folder, agentBinary, layerMb: config.diskMb });
    this.#remains = new MachineRemains({ dataDir, records: this.#records, disks: this.#disks });
    if (config.snapshots) this.#makers = this.#openSnapshots(patience);
    this.#machines = new MachineMaker({
      config,
      instanceId: options.instanceId,
      patience,
      guests,
      ringBytes: options.ringBytes,
      records: this.#records,
      disks: this.#disks,
      remains: this.#remains,
      snapshots: this.#makers?.snapshots,
      watches: sharedWatchTable(),
      logger: this.#logger,
    });
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

  #openSnapshots({ openMs, bootMs }: BootPatience) {
    const snapshots = new MachineSnapshots({ folder: join(this.#folder, "snapshots") });
    const maker = new SnapshotMaker({
      snapshots,
      disks: this.#disks,
      jails: this.#jails,
      program: this.#config.firecrackerPath,
      openMs,
      bootMs,
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

  get guards(): GuardState[] {
    return this.#guard.states;
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

  spawn(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
    return this.#spawns.run(spec.runtimeId, options, () => this.#spawnOnce(spec, options));
  }

  async #spawnOnce(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
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
    const machine = await this.#machines.connect(record, console);
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

  async #spawn(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
    const { runtimeId } = spec;
    refuseMachine(spec, { hasTaps: this.#taps.size > 0 });
    const stage = stagesOf(options.onStage);
    const made: Made & { image?: string } = {};
    try {
      await this.#records.inSight();
      await this.#guard.refuseWhenShort();
      const image = await this.#options.images.resolve(spec.image, { ...options, owner: spec.ownerId });
      made.image = image.name;
      const tap =
        this.#taps.size > 0 && spec.network !== "none" ? await this.#taps.take(runtimeId) : undefined;
      const jail = await this.#jails?.take(runtimeId);
      await this.#makers?.opened;
      const order = { spec, image, tap, jail, stage };
      const { machine, snapshot } = await this.#machines.make(order, made, options);
      if (this.#closed) throw new RuntimeGone("the service is stopping");
      this.#keep(machine);
      this.#pruneOnce();
      if (snapshot !== undefined) this.#makers?.maker.begin(snapshot.key, image, snapshot.settings);
      return { image: image.name };
    } catch (error) {
      const { image = spec.image } = made;
      const failure = options.signal.aborted
        ? error
        : await this.#machines.explain(error, { ...made, runtimeId, image });
      await (made.machine ?? made.console)?.[Symbol.asyncDispose]();
      using deadline = deadlineAfter(undoMs);
      await this.#remove(runtimeId, { signal: deadline.signal }).catch((undoError: unknown) => {
        // The record stays, so that the inventory shows it and the next destroy tries again.
        this.#logger.warn({ err: undoError, runtime_id: runtimeId }, "a failed spawn could not be undone");
      });
      throw failure;
    }
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
      .then(() => this.#records.lastWords(runtimeId))
      .catch(() => "nothing that could be read");
    this.#logger.warn(
      { sandbox_id: sandboxId, runtime_id: runtimeId, console },
      "a machine ended by itself, and said last what its console has",
    );
    await this.#ended(machine, "the machine ended by itself");
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
      await this.#remains.remove(runtimeId, record, options);
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

  async #space() {
    const there = (await exists(this.#folder)) ? this.#folder : dirname(this.#folder);
    return orMissing(spaceOf(there), undefined);
  }

  /** MB of the blocks that their layers take. */
  async #layerSizes(runtimes: readonly RuntimeId[]): Promise<ReadonlyMap<RuntimeId, number>> {
    const sizes = new Map<RuntimeId, number>();
    for (const runtimeId of runtimes) {
      const record = await this.#records.readIfWhole(runtimeId);
      const layer = join(await this.#remains.insideOf(runtimeId, record), layerDrive);
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
      await this.#remains.remove(runtimeId, record, deadline);
      if (this.#connected.get(runtimeId) === machine) await this.#ended(machine, reason);
    } finally {
      this.#stopping.delete(runtimeId);
    }
  }
}

function gone(runtimeId: RuntimeId): RuntimeGone {
  return new RuntimeGone(`runtime ${runtimeId} is not running`);
}
