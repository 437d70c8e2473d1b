import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import type { Capability } from "@alcove/wire";
import type { DockerConfig } from "../../config/config.ts";
import { abortable } from "../../platform/abortable.ts";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { deadlineAfter, ShuttingDown } from "../../platform/deadline.ts";
import { FairLanes } from "../../platform/fair-lanes.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { SharedWork } from "../../platform/shared-work.ts";
import {
  type CallOptions,
  type Clock,
  DomainError,
  type GuardState,
  type InventoryEntry,
  type MadeAhead,
  type NetworkChange,
  type OnStage,
  type ProviderCheck,
  ProviderError,
  RuntimeElsewhere,
  RuntimeGone,
  type RuntimeId,
  type RuntimeProvider,
  type RuntimeSpec,
  type SandboxId,
  type SandboxOperations,
  type SpawnedRuntime,
  type SpawnOptions,
} from "../../ports/index.ts";
import { type PullLimits, usualPulls } from "../../pulls/pull-turns.ts";
import { agentCapabilities, sharedWatchTable } from "../agent/index.ts";
import { DiskGuard } from "../guards/index.ts";
import { Launcher, outboundSettings } from "../launcher/index.ts";
import { isPrepared } from "../prepared/index.ts";
import { fromNote, SpawnsUnderWay, UnreadableRecord } from "../runtime-records/index.ts";
import { AgentBinding } from "./agent-binding.ts";
import { type AgentDelivery, AgentVolume, BoundAgent } from "./agent-delivery.ts";
import { answeredSoon } from "./answered-soon.ts";
import { ConnectedRuntime } from "./connected-runtime.ts";
import { ConnectedRuntimes } from "./connected-runtimes.ts";
import { ContainerMaker } from "./container-maker.ts";
import { Containers } from "./containers.ts";
import { EngineClient } from "./engine-client.ts";
import { EngineDisk } from "./engine-disk.ts";
import { lacksRoom } from "./engine-errors.ts";
import {
  chooseTransport,
  engineNotes,
  isPodman,
  mapsIds,
  runsOnGvisor,
  runtimeName,
  unfitBecause,
  unpreparedBecause,
  watchNotes,
} from "./engine-facts.ts";
import { EngineInfo } from "./engine-shapes.ts";
import type { EnginePatience } from "./engine-waits.ts";
import { EngineImages } from "./images.ts";
import { containerName, labelNames, runtimeOf } from "./labels.ts";
import { OutboundNetworks } from "./outbound-networks.ts";
import { type ContainerTools, PreparedContainers } from "./prepared-containers.ts";
import { type RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";
import { Spawner } from "./spawner.ts";

export interface DockerProviderOptions {
  config: DockerConfig;
  dataDir: string;
  /** Put on everything made, so that two services on one engine never touch each other's. */
  instanceId: string;
  /** The built agent. */
  agentBinary: string;
  /** The built launcher, for networks that lead out. */
  launcherBinary: string;
  pullPolicy: "missing" | "never";
  /** Registries images are pulled from; unset: any. */
  allowedRegistries?: readonly string[];
  /** Unset: as the configuration is when it says nothing. */
  pulls?: PullLimits;
  aliases?: Readonly<Record<string, string>>;
  /** Output kept for each command; unset: the agent's own default. */
  ringBytes?: number;
  logger: Logger;
  clock: Clock;
  /** How long the engine may take; unset: the usual. */
  patience?: EnginePatience;
}

export const dockerCapabilities: readonly Capability[] = [...agentCapabilities, "container", "users"];

/** What gVisor's kernel lacks: subreapers, by which a command's processes are found, and the end of input at terminals. */
const lackedByGvisor: ReadonlySet<Capability> = new Set(["process_tree", "pty_eof", "pty_interrupt"]);
const runcCapabilities: ReadonlySet<Capability> = new Set(dockerCapabilities);
const gvisorCapabilities = runcCapabilities.difference(lackedByGvisor);

/** Records that one inventory reads at once. */
const parallelLooks = 64;
/** Containers that the engine makes or starts for this service at once: it takes them one after the other for the most part. */
const startsAtOnce = 8;
/** How long undoing a spawn may take. */
const cleanupTimeoutMs = 60_000;
/** How long a stop waits for spawns under way, which it has ended. */
const closeTimeoutMs = 5_000;
/** How long one look at what sandboxes have written may take. */
const measureTimeoutMs = 60_000;
/**
 * Sandboxes as containers of a Docker Engine. A runtime is, in turn: spawning, connected, and ended or destroyed. What
 * is written down of it in its folder outlives this object; connections do not.
 */
export class DockerProvider implements RuntimeProvider {
  readonly name = "docker";
  readonly defaultImage: string;
  readonly #config: DockerConfig;
  readonly #instanceId: string;
  readonly #options: DockerProviderOptions;
  readonly #logger: Logger;
  readonly #engine: EngineClient;
  readonly #containers: Containers;
  readonly #images: EngineImages;
  readonly #records: RuntimeRecords;
  readonly #connected: ConnectedRuntimes;
  readonly #disk: EngineDisk;
  readonly #guard: DiskGuard;
  readonly #closing = new AbortController();
  readonly #launcher: Launcher;
  readonly #networks: OutboundNetworks;
  readonly #prepared: PreparedContainers;
  /** Spawns and removals. */
  #underWay = 0;
  readonly #watches = sharedWatchTable();
  readonly #spawning = new Map<RuntimeId, { abort: AbortController; settled: Promise<void> }>();
  readonly #spawns = new SpawnsUnderWay();
  /** By owner: however many one spawns at once, others come in between. */
  readonly #lanes = new FairLanes(startsAtOnce);
  /** Engines of which the log says that sandboxes were made there, and that another one is asked now. */
  readonly #toldEngines = new Set<string>();
  /** Spawns that failed before the engine was asked for anything: `destroy`, which follows, need not ask it either. */
  readonly #neverMade = new Set<RuntimeId>();
  readonly #adopting = new Map<RuntimeId, Promise<void>>();
  #delivery: AgentDelivery | undefined;
  /** Known with the delivery. */
  #unprepared: string | undefined;
  /** Of the engine's machine; known with the delivery. */
  #processors = 0;
  /** What is had of an engine's default runtime is known once the engine has answered. */
  #onGvisor: boolean;
  readonly #choosing = new SharedWork<AgentDelivery>();

  /** Reaches for nothing yet. @throws BadRequest for an engine address that is none. */
  constructor(options: DockerProviderOptions) {
    this.#options = options;
    this.#config = options.config;
    this.#onGvisor = runsOnGvisor(options.config, undefined);
    this.#instanceId = options.instanceId;
    this.#logger = options.logger;
    this.defaultImage = options.config.defaultImage;
    const { patience } = options;
    const { socket, tlsDir } = options.config;
    const engine = new EngineClient({ socket, tlsDir, ...(patience && { patience }) });
    this.#engine = engine;
    this.#containers = new Containers({ engine });
    this.#images = new EngineImages({
      engine,
      pullPolicy: options.pullPolicy,
      allowedRegistries: options.allowedRegistries ?? ["*"],
      pulls: options.pulls ?? usualPulls,
      logger: this.#logger,
    });
    this.#records = new RuntimeRecords({ dataDir: options.dataDir });
    this.#connected = new ConnectedRuntimes({
      engine,
      containers: this.#containers,
      instanceId: options.instanceId,
      logger: this.#logger,
      reconnect: (runtimeId, signal) => this.adopt(runtimeId, { signal }),
      onEngineBack: () => this.#prepared.lose(),
    });
    this.#disk = new EngineDisk({
      config: options.config,
      instanceId: options.instanceId,
      address: engine.address,
      containers: this.#containers,
      containerOf: (runtimeId) => this.#containerOf(runtimeId),
      logger: this.#logger,
    });
    this.#guard = new DiskGuard({
      minFreeMb: options.config.minFreeMb,
      limitMb: options.config.diskMb,
      says: {
        where: "on the Docker Engine's disk",
        minFree: "providers.docker.min_free_mb",
        limit: "providers.docker.disk_mb",
      },
      logger: this.#logger,
      running: () => this.#connected.keys(),
      destroying: () => this.#connected.leaving(),
      sandboxOf: (runtimeId) => this.#connected.get(runtimeId)?.sandboxId,
      ownerOf: (runtimeId) => this.#connected.get(runtimeId)?.ownerId,
      space: () => this.#disk.space(),
      measure: async (runtimes, what) => {
        using deadline = deadlineAfter(measureTimeoutMs, this.#closing.signal);
        return await this.#disk.measure(runtimes, { ...what, signal: deadline.signal });
      },
      stop: (runtimeId, reason) => this.#stopGuarded(runtimeId, reason),
    });
    this.#launcher = new Launcher({ binary: options.launcherBinary, logger: this.#logger });
    this.#networks = new OutboundNetworks({
      config: options.config,
      address: engine.address,
      info: (call) => this.#info(call),
      containerOf: (runtimeId) => this.#containerOf(runtimeId),
      containers: this.#containers,
      records: this.#records,
      instanceId: options.instanceId,
      launcher: this.#launcher,
      logger: this.#logger,
    });
    this.#prepared = new PreparedContainers({
      count: this.#config.prepared,
      instanceId: options.instanceId,
      containers: this.#containers,
      images: this.#images,
      records: this.#records,
      disk: this.#disk,
      launcher: this.#launcher,
      tools: (call) => this.#tools(call, call.closing),
      refuseWhenShort: () => this.#guard.refuseWhenShort(),
      isBusy: () => this.#underWay > 0,
      logger: this.#logger,
      closing: this.#closing.signal,
    });
    this.#connected.onExit((runtimeId) => void this.#networks.release(runtimeId));
  }

  get capabilities(): ReadonlySet<Capability> {
    return this.#onGvisor ? gvisorCapabilities : runcCapabilities;
  }

  async check({ signal }: CallOptions): Promise<ProviderCheck> {
    try {
      await readFile(this.#options.agentBinary, { signal });
      await this.#seccomp();
      const info = await this.#info({ signal });
      const unfit = unfitBecause(this.#config, info);
      if (unfit !== undefined) {
        return { healthy: false, error: `the Docker Engine cannot run sandboxes: ${unfit}`, notes: [] };
      }
      const { transport, why } = chooseTransport(this.#config, this.#engine.address, info);
      const summary = `${isPodman(info) ? "Podman" : "Docker Engine"} ${info.ServerVersion}, runtime ${runtimeName(this.#config, info)}, agent over ${transport} (${why})`;
      await this.#disk.learn(info);
      this.#onGvisor = runsOnGvisor(this.#config, info);
      const short = await this.#guard.refuseWhenShort().then(() => undefined, messageOf);
      const missing =
        this.#config.networkMode === "outbound" ? await this.#networks.missing(info) : undefined;
      const cannotSpawn =
        short ?? (missing === undefined ? undefined : `network "outbound" on docker needs ${missing}`);
      return {
        healthy: true,
        notes: [
          summary,
          ...(await this.#ending()),
          ...engineNotes(this.#config, info),
          ...(await watchNotes(this.#config, info, this.#engine.address)),
          ...this.#disk.notes(),
          ...this.#preparedNotes(info),
        ],
        ...(cannotSpawn === undefined ? {} : { cannotSpawn }),
      };
    } catch (error) {
      return { healthy: false, error: explain(error), notes: await this.#ending() };
    }
  }

  get madeAhead(): MadeAhead | undefined {
    return this.#unprepared === undefined ? this.#prepared.figures : undefined;
  }

  get guards(): GuardState[] {
    return this.#guard.states;
  }

  #preparedNotes(info: EngineInfo): string[] {
    if (this.#config.prepared === 0) return [];
    const why = unpreparedBecause(this.#config, this.#engine.address, info);
    return why === undefined ? [] : [`no sandboxes are prepared (providers.docker.prepared): ${why}`];
  }

  async #ending(): Promise<string[]> {
    const note = await this.#engine.certificateEnding(this.#options.clock.now());
    return note === undefined ? [] : [note];
  }

  settings(): Record<string, unknown> {
    const config = this.#config;
    return {
      engine: this.#engine.isSecure ? "tls" : this.#engine.address.kind,
      runtime: config.runtime === "" ? "default" : config.runtime,
      network_mode: config.networkMode,
      ...(config.networkMode === "outbound" ? outboundSettings(config) : {}),
      seccomp:
        config.seccompProfile === ""
          ? "default"
          : config.seccompProfile === "unconfined"
            ? "unconfined"
            : "custom",
      read_only_rootfs: config.readOnlyRootfs,
      pids_limit: config.pidsLimit,
      disk_mb: config.diskMb,
      min_free_mb: config.minFreeMb,
      dropped_caps: config.droppedCaps,
      added_caps: config.addedCaps,
      agent_transport: config.agentTransport,
      prepared: config.prepared,
      pull_policy: this.#options.pullPolicy,
    };
  }

  spawn(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
    return this.#spawns.run(spec.runtimeId, options, () => this.#spawnOnce(spec, options));
  }

  async #spawnOnce(spec: RuntimeSpec, { signal, onStage }: SpawnOptions): Promise<SpawnedRuntime> {
    signal.throwIfAborted();
    const { runtimeId } = spec;
    if (this.#connected.get(runtimeId) !== undefined) {
      const record = await this.#records.readIfWhole(runtimeId);
      return { image: record?.image ?? spec.image };
    }
    using _ = this.#busy();
    const abort = new AbortController();
    const settled = Promise.withResolvers<void>();
    this.#spawning.set(runtimeId, { abort, settled: settled.promise });
    try {
      const both = AbortSignal.any([signal, abort.signal]);
      await this.#engineAwake(runtimeId, { signal: both });
      const { runtime, image } = await this.#spawn(spec, {
        signal: both,
        onStage: onStage ?? (() => undefined),
      });
      await this.#connect(runtime);
      return { image };
    } catch (error) {
      signal.throwIfAborted();
      throw error;
    } finally {
      this.#spawning.delete(runtimeId);
      settled.resolve();
    }
  }

  /** Until it is disposed of nothing is prepared. */
  #busy(): Disposable {
    this.#underWay += 1;
    return {
      [Symbol.dispose]: () => {
        this.#underWay -= 1;
        this.#prepared.later();
      },
    };
  }

  async inventory(options: CallOptions): Promise<InventoryEntry[]> {
    // Folders first: a runtime's folder is there before its container and longer.
    const listed = await this.#records.list();
    const folders = listed.filter((name) => !isPrepared(name));
    await this.#engine.waits.awake(options);
    const containers = await this.#containers.list(this.#instanceId, options);
    const entries = new Map<RuntimeId, InventoryEntry>();
    const nobodys = listed.filter(isPrepared);
    for (const { Name, ...container } of containers) {
      const runtimeId = runtimeOf(this.#instanceId, { name: Name, labels: container.Labels });
      if (runtimeId === undefined) continue;
      if (isPrepared(runtimeId)) {
        nobodys.push(runtimeId);
        continue;
      }
      const isMadeFor = container.Labels[labelNames.runtime] === runtimeId;
      const sandboxId = isMadeFor ? (container.Labels[labelNames.sandbox] as SandboxId) : undefined;
      const runs = container.State === "running" || container.State === "paused";
      entries.set(runtimeId, {
        runtimeId,
        ...(sandboxId === undefined ? {} : { sandboxId }),
        // Without its record nobody has the key to its agent.
        state: runs && folders.includes(runtimeId) ? "running" : "dead",
      });
    }
    // Each look takes descriptors, and there may be thousands of runtimes.
    await boundedParallel(folders, parallelLooks, async (runtimeId) => {
      entries.set(runtimeId, await this.#inventoryEntry(runtimeId, entries.get(runtimeId)));
    });
    // What went out of sight meanwhile was not found, and is there all the same.
    await this.#records.inSight();
    this.#prepared.sweep(nobodys);
    return [...entries.values()];
  }

  /** @param container what the engine has of it, when it has anything. */
  async #inventoryEntry(
    runtimeId: RuntimeId,
    container: InventoryEntry | undefined,
  ): Promise<InventoryEntry> {
    try {
      const record = await this.#records.read(runtimeId);
      if (record === undefined) return { ...container, runtimeId, state: "dead" };
      const state = container?.state ?? (this.#madeElsewhere(record) ? "elsewhere" : "dead");
      if (state === "elsewhere") this.#tellElsewhere(record);
      return { runtimeId, sandboxId: record.sandboxId as SandboxId, state, ...fromNote(record) };
    } catch (error) {
      if (!(error instanceof UnreadableRecord)) throw error;
      return container === undefined
        ? { runtimeId, state: "dead" }
        : { ...container, state: container.state === "running" ? "unreadable" : container.state };
    }
  }

  async adopt(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    if (this.#connected.get(runtimeId) !== undefined) return;
    const known = this.#adopting.get(runtimeId);
    if (known !== undefined) return known;
    const adopting = this.#adopt(runtimeId, options).finally(() => this.#adopting.delete(runtimeId));
    this.#adopting.set(runtimeId, adopting);
    return adopting;
  }

  async destroy(runtimeId: RuntimeId, { signal }: CallOptions): Promise<void> {
    using _ = this.#busy();
    const spawning = this.#spawning.get(runtimeId);
    spawning?.abort.abort(new RuntimeGone(`runtime ${runtimeId} was destroyed while it was made`));
    // A create under way cannot be taken back, only waited for and undone.
    if (spawning !== undefined) await abortable(spawning.settled, signal);
    if (this.#neverMade.delete(runtimeId)) return;
    await this.#remove(runtimeId, { signal });
  }

  /** A spawn that meets an engine which stands still leaves nothing behind, and nothing that would have to be looked for. */
  async #engineAwake(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    this.#neverMade.delete(runtimeId);
    try {
      await this.#engine.waits.awake(options);
    } catch (error) {
      // One that an earlier process began is another matter.
      const isKnown = (record: unknown) => record !== undefined;
      const known = await this.#records.read(runtimeId).then(isKnown, () => true);
      if (!known) this.#neverMade.add(runtimeId);
      throw error;
    }
  }

  sandbox(runtimeId: RuntimeId): SandboxOperations {
    const runtime = this.#connected.get(runtimeId);
    if (runtime === undefined) throw new RuntimeGone(`runtime ${runtimeId} is not connected or has ended`);
    return runtime.operations;
  }

  logs(runtimeId: RuntimeId, options: CallOptions & { lines: number }): Promise<string[]> {
    const container = this.#containerOf(runtimeId);
    return answeredSoon("read a container's log", options, ({ signal }) =>
      this.#containers.logs(container, { ...options, signal }),
    );
  }

  onExit(listener: (runtimeId: RuntimeId, reason: string) => void): () => void {
    return this.#connected.onExit(listener);
  }

  onNetwork(listener: (runtimeId: RuntimeId, change: NetworkChange) => void): () => void {
    return this.#networks.onChange(listener);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const reason = new ShuttingDown();
    this.#closing.abort(reason);
    await this.#guard[Symbol.asyncDispose]();
    this.#images.close(reason);
    for (const spawning of this.#spawning.values()) spawning.abort.abort(reason);
    await this.#spawnsSettled();
    await this.#prepared[Symbol.asyncDispose]();
    await this.#connected[Symbol.asyncDispose]();
    await this.#networks[Symbol.asyncDispose]();
    await this.#launcher[Symbol.asyncDispose]();
    await this.#records[Symbol.asyncDispose]();
    this.#engine[Symbol.dispose]();
  }

  async #spawnsSettled(): Promise<void> {
    using deadline = deadlineAfter(closeTimeoutMs);
    const settled = Promise.all([...this.#spawning.values()].map((spawning) => spawning.settled));
    await abortable(settled, deadline.signal).catch((err: unknown) =>
      this.#logger.warn({ err }, "spawns under way are left to the next start"),
    );
  }

  async #spawn(
    spec: RuntimeSpec,
    options: CallOptions & { onStage: OnStage },
  ): Promise<{ runtime: ConnectedRuntime; image: string }> {
    await this.#records.inSight();
    const tools = await this.#tools(options);
    await this.#guard.refuseWhenShort();
    const spawner = new Spawner({
      networkMode: this.#config.networkMode,
      instanceId: this.#instanceId,
      aliases: this.#options.aliases ?? {},
      engine: this.#engine.address.text,
      transport: tools.delivery.transport,
      ...tools,
      prepared: tools.unprepared === undefined ? this.#prepared : undefined,
      records: this.#records,
      networks: this.#networks,
      clock: this.#options.clock,
      newToken: () => randomBytes(32).toString("hex"),
    });
    const beganMs = performance.now();
    const spawn = async () => {
      try {
        return await spawner.spawn(spec, options);
      } catch (error) {
        await this.#undo(spec.runtimeId);
        throw error;
      }
    };
    try {
      return await spawn();
    } catch (error) {
      options.signal.throwIfAborted();
      if (!lacksRoom(error)) throw error;
      // Whoever gives up waits for no container that is being made meanwhile.
      const hasMore = await abortable(this.#prepared.giveWay(beganMs, error), options.signal);
      if (!hasMore) throw error;
      return await spawn();
    }
  }

  async #tools(options: CallOptions, closing: AbortSignal = this.#closing.signal): Promise<ContainerTools> {
    const delivery = await this.#agentDelivery(options);
    const parts = {
      config: this.#config,
      engine: this.#engine,
      containers: this.#containers,
      logger: this.#logger,
    };
    const maker = new ContainerMaker({
      ...parts,
      instanceId: this.#instanceId,
      seccomp: await this.#seccomp(),
      processors: this.#processors,
      onGvisor: this.#onGvisor,
      images: this.#images,
      delivery,
      disk: this.#disk,
      lanes: this.#lanes,
      closing,
    });
    const binding = new AgentBinding({
      ...parts,
      ringBytes: this.#options.ringBytes,
      records: this.#records,
      watches: this.#watches,
    });
    return { maker, binding, delivery, unprepared: this.#unprepared };
  }

  /**
   * Under a deadline of its own: the caller's signal may be why there is something to undo. A stop leaves it to the next
   * start, which finds it in the inventory.
   */
  async #undo(runtimeId: RuntimeId): Promise<void> {
    if (this.#closing.signal.aborted) return;
    using deadline = deadlineAfter(cleanupTimeoutMs, this.#closing.signal);
    try {
      await this.#remove(runtimeId, { signal: deadline.signal });
    } catch (error) {
      // It stays in the inventory, and whoever reads that destroys it.
      this.#logger.warn({ err: error, runtime_id: runtimeId }, "a failed spawn could not be undone yet");
    }
  }

  async #remove(runtimeId: RuntimeId, { signal }: CallOptions): Promise<void> {
    const container = this.#containerOf(runtimeId);
    await this.#engine.waits.awake({ signal });
    await this.#refuseElsewhere(await this.#records.readIfWhole(runtimeId), { signal });
    await this.#connected.during(runtimeId, async () => {
      await this.#networks.release(runtimeId);
      try {
        await this.#containers.remove(container, { signal });
      } catch (error) {
        if (await this.#networks.has(runtimeId)) this.#watch(runtimeId);
        throw error;
      }
    });
    await this.#networks.detach(runtimeId);
    await this.#records.remove(runtimeId);
  }

  async #connect(runtime: ConnectedRuntime): Promise<void> {
    const leadsOut = await this.#networks.has(runtime.runtimeId);
    this.#connected.add(runtime);
    this.#guard.start();
    if (leadsOut) this.#watch(runtime.runtimeId);
  }

  #watch(runtimeId: RuntimeId): void {
    if (this.#connected.get(runtimeId) !== undefined) this.#networks.watch(runtimeId);
  }

  #madeElsewhere({ engine }: RuntimeRecord): boolean {
    return engine !== undefined && engine !== this.#engine.address.text;
  }

  /** Owners are told that the log has it. Once of each engine. */
  #tellElsewhere({ engine = "" }: RuntimeRecord): void {
    if (this.#toldEngines.has(engine)) return;
    this.#toldEngines.add(engine);
    const asked = this.#engine.address.text;
    this.#logger.warn(
      { made_at: engine, asked_at: asked },
      `sandboxes were made at ${engine}, and ${asked}, which is asked now, does not have them: they are unhealthy until the former is named again`,
    );
  }

  /** @throws RuntimeElsewhere for a runtime of another engine; one that this engine has is its own, under another address. */
  async #refuseElsewhere(record: RuntimeRecord | undefined, options: CallOptions): Promise<void> {
    if (record === undefined || !this.#madeElsewhere(record)) return;
    const container = this.#containerOf(record.runtimeId as RuntimeId);
    if ((await this.#containers.inspect(container, options)) !== undefined) return;
    throw new RuntimeElsewhere(
      "it was made at another Docker Engine than the one that is asked now, which does not have it; it goes on once the operator names " +
        "that engine in providers.docker.socket again (the service's log names both), or until it has ended itself",
      { cause: new Error(`it was made at ${record.engine}, and ${this.#engine.address.text} was asked`) },
    );
  }

  async #adopt(runtimeId: RuntimeId, { signal }: CallOptions): Promise<void> {
    const record = await this.#records.read(runtimeId);
    if (record === undefined || record.instanceId !== this.#instanceId) {
      throw new RuntimeGone(`runtime ${runtimeId} is not known here`);
    }
    await this.#refuseElsewhere(record, { signal });
    const runtime = await ConnectedRuntime.open({
      record,
      records: this.#records,
      container: this.#containerOf(runtimeId),
      engine: this.#engine,
      watches: this.#watches,
      logger: this.#logger,
    });
    try {
      await runtime.client.info({ signal });
    } catch (error) {
      await runtime[Symbol.asyncDispose]();
      throw error;
    }
    await this.#connect(runtime);
    if (!this.#madeElsewhere(record)) return;
    // The same engine under another address: where it is looked for when it is gone.
    await this.#records
      .save({ ...record, engine: this.#engine.address.text }, runtimeId)
      .catch((err: unknown) => this.#logger.warn({ err, runtime_id: runtimeId }, "a record was not renewed"));
  }

  /** Under a deadline of its own: the container's files go with it. */
  async #stopGuarded(runtimeId: RuntimeId, reason: string): Promise<void> {
    using deadline = deadlineAfter(cleanupTimeoutMs, this.#closing.signal);
    await this.#connected.end(runtimeId, reason, () =>
      this.#containers.remove(this.#containerOf(runtimeId), { signal: deadline.signal }),
    );
  }

  #containerOf(runtimeId: RuntimeId): string {
    // Refuses what cannot name a container.
    this.#records.folder(runtimeId);
    return containerName(this.#instanceId, runtimeId);
  }

  async #info({ signal }: CallOptions): Promise<EngineInfo> {
    return this.#engine.call({ method: "GET", path: "/info", signal }, EngineInfo);
  }

  /** How the agent gets into containers; found out once the engine answers. */
  /** Chosen once; who leaves before it is takes it from nobody. */
  async #agentDelivery(options: CallOptions): Promise<AgentDelivery> {
    this.#delivery ??= await this.#choosing.run("", options.signal, (signal) =>
      this.#chooseDelivery({ signal }),
    );
    return this.#delivery;
  }

  async #chooseDelivery(options: CallOptions): Promise<AgentDelivery> {
    const info = await this.#info(options);
    await this.#disk.learn(info);
    this.#processors = info.NCPU ?? 0;
    this.#onGvisor = runsOnGvisor(this.#config, info);
    this.#unprepared = unpreparedBecause(this.#config, this.#engine.address, info);
    const { transport, why } = chooseTransport(this.#config, this.#engine.address, info);
    this.#logger.info({ transport, why }, `agents are reached over ${transport}: ${why}`);
    const { dataDir, agentBinary: binary } = this.#options;
    return transport === "socket"
      ? // Podman writes no resolvers into containers without a network of its own.
        new BoundAgent({ dataDir, binary, records: this.#records, namesResolver: isPodman(info) })
      : new AgentVolume({
          dataDir,
          binary,
          engine: this.#engine,
          instanceId: this.#instanceId,
          idsMapped: mapsIds(info),
        });
  }

  /** The seccomp profile's text; undefined: the engine's default. */
  async #seccomp(): Promise<string | undefined> {
    const { seccompProfile } = this.#config;
    if (seccompProfile === "" || seccompProfile === "unconfined") return seccompProfile || undefined;
    try {
      return JSON.stringify(JSON.parse(await readFile(seccompProfile, "utf8")));
    } catch (error) {
      throw new ProviderError(
        `providers.docker.seccomp_profile ${seccompProfile} cannot be read as a JSON profile: ${explain(error)}`,
        { cause: error },
      );
    }
  }
}

function explain(error: unknown): string {
  if (error instanceof DomainError) return error.message;
  return error instanceof Error ? error.message : String(error);
}
