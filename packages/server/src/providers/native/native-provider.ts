import { availableParallelism } from "node:os";
import { basename } from "node:path";
import type { Duplex } from "node:stream";
import { type Capability, networkModes } from "@alcove/wire";
import { abortable } from "../../platform/abortable.ts";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { FairLanes } from "../../platform/fair-lanes.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import {
  BadRequest,
  type CallOptions,
  type GuardState,
  type ImageConfig,
  type ImageStore,
  type InventoryEntry,
  type MadeAhead,
  type NetworkChange,
  type NetworkMode,
  type ProviderCheck,
  ProviderError,
  RuntimeGone,
  type RuntimeId,
  type RuntimeProvider,
  type RuntimeSpec,
  type RuntimeStats,
  type SandboxId,
  type SandboxOperations,
  type SpawnedRuntime,
  type SpawnOptions,
} from "../../ports/index.ts";
import { AgentClient, agentCapabilities, unixDialer } from "../agent/index.ts";
import { DiskGuard, spaceOf } from "../guards/index.ts";
import { KeptNetwork, LauncherFailure, type LaunchSpec, outboundSettings } from "../launcher/index.ts";
import { fromNote, SpawnsUnderWay, UnreadableRecord } from "../runtime-records/index.ts";
import { adviceFor, lackedRoom, toldFailure } from "./advice.ts";
import { EarlyBinding, firstBy } from "./early-binding.ts";
import type { ExecGroups } from "./exec-groups.ts";
import type { LaunchGround } from "./launch-ground.ts";
import { type NativeProviderConfig, networkOf } from "./launch-plan.ts";
import { LaunchSite } from "./launch-site.ts";
import { type LaunchedRuntime, tellParts } from "./launched-runtime.ts";
import { layerSizes } from "./layer-sizes.ts";
import { MemoryGuards } from "./memory-guards.ts";
import { newProbeId, probeSpec } from "./probe.ts";
import { processorEnv } from "./processor-env.ts";
import { isOurs, probePrefix } from "./runtime-directories.ts";
import type { RuntimeRecord } from "./runtime-record.ts";
import { StandingStill } from "./standing-still.ts";
import type { MachineMemory } from "./uncounted-memory.ts";

/** A runtime this process is connected to. */
interface Connected {
  record: RuntimeRecord;
  client: AgentClient;
  operations: SandboxOperations;
  groups: ExecGroups | undefined;
  /** Only with a network of its own that leads out. */
  network: KeptNetwork | undefined;
  stopListening: () => void;
}

/** An agent that is a sandbox's. */
type Bound = Pick<Connected, "client" | "groups">;

/** The environment is the largest part of a record by far, and asked for only of the file, where a row was lost. */
function withoutEnv(record: RuntimeRecord): RuntimeRecord {
  const { sandbox } = record;
  return sandbox === undefined ? record : { ...record, sandbox: { ...sandbox, env: {} } };
}

const capabilities: readonly Capability[] = [...agentCapabilities, "container"];
/** The name of the machine's own root. */
const hostImage = "host";
/** Records that one inventory reads at once. */
const parallelLooks = 64;
/** How long undoing a failed spawn may take. */
const undoMs = 10_000;
/** Enough to keep every processor busy: with more of them each takes longer, and all of them no less. */
const launchesAtOnce = Math.max(8, 4 * availableParallelism());

/**
 * Isolation by the kernel alone: `alcove-launch` makes namespaces, an overlay, cgroups and a system call filter, and puts
 * the agent into them. A runtime is a directory below `<dataDir>/runtimes/native`; nothing else is needed to find, adopt
 * or undo it. States: launching (in #launching), connected (in #connected), destroying (in #destroying); otherwise it is
 * what its directory says.
 */
export class NativeProvider implements RuntimeProvider {
  readonly name = "native";
  readonly defaultImage: string;
  readonly #config: NativeProviderConfig;
  readonly #images: ImageStore;
  readonly #ringBytes: number | undefined;
  readonly #logger: Logger;
  readonly #site: LaunchSite;
  readonly #rooted = process.getuid?.() === 0;
  /** Of the machine, as this process found them. */
  readonly #processors = availableParallelism();
  /** Ends a look of the guard, which may count files for long. */
  readonly #closing = new AbortController();
  readonly #guard: DiskGuard;
  readonly #memoryGuards: MemoryGuards;
  readonly #spawns = new SpawnsUnderWay();
  /** By owner: however many one spawns at once, others come in between. What may take minutes is done before. */
  readonly #lanes = new FairLanes(launchesAtOnce);
  readonly #launching = new Map<RuntimeId, Promise<unknown>>();
  readonly #connected = new Map<RuntimeId, Connected>();
  readonly #destroying = new Map<RuntimeId, Promise<void>>();
  /** What the last check told in which a sandbox could be made; undefined until one could. */
  #worked: Pick<ProviderCheck, "notes"> | undefined;
  /** Spawns of which nothing was made because the directories were out of sight, until they are undone. */
  readonly #refused = new Set<RuntimeId>();
  readonly #networkListeners = new Set<(runtimeId: RuntimeId, change: NetworkChange) => void>();
  readonly #exitListeners = new Set<(runtimeId: RuntimeId, reason: string) => void>();

  constructor(options: {
    config: NativeProviderConfig;
    dataDir: string;
    /** Names this installation; part of the names of its cgroups. */
    instanceId: string;
    images: ImageStore;
    agentBinary: string;
    launcherBinary: string;
    /** Output kept for each command; unset: the agent's own default. */
    ringBytes?: number;
    logger: Logger;
    /** For tests. */
    machineMemory?: () => Promise<MachineMemory>;
  }) {
    this.#config = options.config;
    this.#images = options.images;
    this.#ringBytes = options.ringBytes;
    this.#logger = options.logger;
    this.defaultImage = options.config.defaultImage;
    this.#site = new LaunchSite({ ...options, refuseWhenShort: () => this.#guard.refuseWhenShort() });
    const guarded = {
      logger: options.logger,
      running: () => this.#connected.keys(),
      destroying: () => this.#destroying.keys(),
      sandboxOf: (runtimeId: RuntimeId) => this.#connected.get(runtimeId)?.record.sandboxId,
      ownerOf: (runtimeId: RuntimeId) => this.#connected.get(runtimeId)?.record.sandbox?.ownerId,
      stop: (runtimeId: RuntimeId, reason: string) => this.#stopGuarded(runtimeId, reason),
    };
    this.#guard = new DiskGuard({
      ...guarded,
      minFreeMb: options.config.minFreeMb,
      says: { where: "below data_dir", minFree: "providers.native.min_free_mb" },
      space: () => spaceOf(this.#site.directories.root),
      measure: (runtimes, { inodes }) =>
        layerSizes(runtimes, {
          path: (runtimeId) => this.#site.directories.path(runtimeId),
          inodes,
          signal: this.#closing.signal,
        }),
    });
    this.#memoryGuards = new MemoryGuards({
      ...guarded,
      maxPercent: options.config.maxUncountedPercent,
      directories: this.#site.directories,
      lowerOf: (runtimeId) => this.#connected.get(runtimeId)?.record.rootfs ?? "/",
      stillOf: (runtimeId) => commandsOf(this.#connected.get(runtimeId)?.record),
      cgroups: async () => (await this.#site.ground()).cgroups,
      ...(options.machineMemory && { machineMemory: options.machineMemory }),
    });
  }

  get capabilities(): ReadonlySet<Capability> {
    const own = new Set(capabilities);
    if (this.#site.hasUsers) own.add("users");
    if (this.#site.hasGroups) own.add("exec_limits");
    return own;
  }

  get madeAhead(): MadeAhead | undefined {
    return this.#site.madeAhead;
  }

  get guards(): GuardState[] {
    return [...this.#guard.states, ...this.#memoryGuards.states];
  }

  async check(options: CallOptions): Promise<ProviderCheck> {
    const runtimeId = newProbeId();
    try {
      const ground = await this.#site.readyToLaunch();
      await this.#site.directories.inSight();
      try {
        const network = await this.#probedNetwork();
        await this.#start(
          ground,
          probeSpec(runtimeId, network),
          { kind: "host", skeleton: ground.skeleton },
          options,
        );
        await abortable(this.#connected.get(runtimeId)?.network?.up ?? Promise.resolve(), options.signal);
      } finally {
        // Its connection is closed either way.
        if (!(await this.#undo(runtimeId))) await this.#site.discard(ground, runtimeId);
      }
      this.#worked = { notes: [...ground.notes] };
      const refusal = await this.#spawnRefusal();
      return { healthy: true, ...this.#worked, ...(refusal === undefined ? {} : { cannotSpawn: refusal }) };
    } catch (error) {
      if (lackedRoom(error)) return this.#withoutRoom(error);
      const unanswered = error instanceof LauncherFailure && error.unanswered;
      return { healthy: false, error: await adviceFor(error), notes: [], ...(unanswered && { unanswered }) };
    }
  }

  /** A full disk refuses spawns, and makes nothing ill that has worked. */
  async #withoutRoom(error: unknown): Promise<ProviderCheck> {
    const refusal = (await this.#spawnRefusal()) ?? (await adviceFor(error));
    if (this.#worked === undefined) return { healthy: false, untried: true, error: refusal, notes: [] };
    return { healthy: true, ...this.#worked, cannotSpawn: refusal };
  }

  /** Without its helper there are sandboxes all the same, which reach nothing. */
  async #probedNetwork(): Promise<NetworkMode> {
    if (this.#config.networkMode !== "outbound") return "none";
    return this.#site.slirp().then(
      () => "outbound",
      () => "none",
    );
  }

  async #spawnRefusal(): Promise<string | undefined> {
    try {
      if (this.#config.networkMode === "outbound") await this.#site.slirp();
      await this.#guard.refuseWhenShort();
      return undefined;
    } catch (error) {
      return messageOf(error);
    }
  }

  settings(): Record<string, unknown> {
    const { networkMode } = this.#config;
    return {
      network_mode: networkMode,
      ...(networkMode === "outbound" ? outboundSettings(this.#config) : {}),
      pids_limit: this.#config.pidsLimit,
      prepared: this.#config.prepared,
      disk_mb: this.#config.diskMb,
      min_free_mb: this.#config.minFreeMb,
      max_uncounted_percent: this.#config.maxUncountedPercent,
      added_caps: [...this.#config.addedCaps],
      rooted: this.#rooted,
    };
  }

  spawn(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
    return this.#spawns.run(spec.runtimeId, options, () => this.#spawnOnce(spec, options));
  }

  async #spawnOnce(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
    options.signal.throwIfAborted();
    const known = this.#connected.get(spec.runtimeId);
    if (known !== undefined) return { image: known.record.image };
    this.#refuseWiderNetwork(spec);
    const ground = await this.#site.readyToLaunch().catch(async (error: unknown) => {
      throw await toldFailure(error);
    });
    await this.#site.directories.inSight().catch((error: unknown) => {
      this.#refused.add(spec.runtimeId);
      throw error;
    });
    await this.#guard.refuseWhenShort();
    await this.#memoryGuards.begin();
    const { image, root, config } = await this.#resolve(ground, spec.image, {
      ...options,
      owner: spec.ownerId,
    });
    const filled = {
      ...spec,
      image,
      env: { ...processorEnv(spec.vcpus, this.#processors), ...config.env, ...spec.env },
      ...defaultsOf(config, spec),
    };
    let failure = await this.#startOrUndo(ground, filled, root, options);
    if (failure !== undefined && (await this.#site.mend(ground, root, image)))
      failure = await this.#startOrUndo(ground, filled, root, options);
    if (failure !== undefined) throw await toldFailure(failure.error);
    return { image };
  }

  /** @returns why it did not start, and nothing of it is left then; rejects only when it was aborted. */
  async #startOrUndo(
    ground: LaunchGround,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    options: SpawnOptions,
  ): Promise<{ error: unknown } | undefined> {
    try {
      await this.#start(ground, spec, root, options);
      return undefined;
    } catch (error) {
      await this.#undo(spec.runtimeId);
      options.signal.throwIfAborted();
      return { error };
    }
  }

  async inventory(_options: CallOptions): Promise<InventoryEntry[]> {
    const ids = (await this.#site.directories.list()).filter((id) => !isOurs(id));
    await this.#site.keepWhole();
    const entries: InventoryEntry[] = [];
    // Each look takes descriptors, and there may be thousands of runtimes.
    await boundedParallel(ids, parallelLooks, async (runtimeId) => {
      const entry = await this.#inventoryEntry(runtimeId);
      if (entry !== undefined) entries.push(entry);
    });
    // What went out of sight meanwhile was not found, and is there all the same.
    await this.#site.directories.inSight();
    return entries;
  }

  /** @returns undefined for what another installation made: this one touches nothing of it. */
  async #inventoryEntry(runtimeId: RuntimeId): Promise<InventoryEntry | undefined> {
    let alive: boolean | undefined;
    try {
      alive = await this.#site.directories.isAlive(runtimeId);
      const record = await this.#site.directories.record(runtimeId);
      if (record === undefined) return { runtimeId, state: alive === true ? "running" : "dead" };
      if (!this.#site.isOwn(record)) return undefined;
      const known = { runtimeId, sandboxId: record.sandboxId as SandboxId, ...fromNote(record) };
      // The process of a whole record was written down with it: nobody knows whether it lives.
      if (alive === undefined) return { ...known, state: "unreadable" };
      return { ...known, state: alive ? "running" : "dead" };
    } catch (error) {
      if (!(error instanceof UnreadableRecord)) throw error;
      return { runtimeId, state: alive === false ? "dead" : "unreadable" };
    }
  }

  async adopt(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    if (this.#connected.has(runtimeId)) return;
    const record = await this.#site.directories.record(runtimeId);
    if (
      record === undefined ||
      !this.#site.isOwn(record) ||
      (await this.#site.directories.isAlive(runtimeId)) === false
    ) {
      throw new RuntimeGone(`native runtime ${runtimeId} is not running`);
    }
    await this.#site.ground();
    const { client, groups } = this.#client(record);
    try {
      const { sandboxId } = await client.info(options);
      if (sandboxId !== record.sandboxId) {
        throw new RuntimeGone(`native runtime ${runtimeId} was never bound to its sandbox`);
      }
    } catch (error) {
      await client[Symbol.asyncDispose]();
      throw error;
    }
    if (this.#connected.has(runtimeId)) return client[Symbol.asyncDispose]();
    await groups?.adopt();
    // A service that was killed during a look has left its commands without a processor.
    await commandsOf(record)
      ?.goOn()
      .catch(() => undefined);
    const hasNetwork = await this.#site.directories.hasNetwork(runtimeId);
    this.#connect(record, { client, groups, hasNetwork });
  }

  destroy(runtimeId: RuntimeId, _options: CallOptions): Promise<void> {
    const running = this.#destroying.get(runtimeId);
    if (running !== undefined) return running;
    // Shared by all callers and bounded by the launcher's own deadlines: nobody's signal ends it half-way.
    const work = this.#destroy(runtimeId).finally(() => this.#destroying.delete(runtimeId));
    this.#destroying.set(runtimeId, work);
    return work;
  }

  sandbox(runtimeId: RuntimeId): SandboxOperations {
    const found = this.#connected.get(runtimeId);
    if (found === undefined) throw new RuntimeGone(`native runtime ${runtimeId} is not running`);
    return found.operations;
  }

  /** One that was made ahead keeps the groups of then. */
  controlGroup(runtimeId: RuntimeId): string | undefined {
    const name = basename(this.#connected.get(runtimeId)?.record.cgroup?.dirs[0]?.path ?? "");
    return name === "" || name === runtimeId ? undefined : name;
  }

  async logs(runtimeId: RuntimeId, options: CallOptions & { lines: number }): Promise<string[]> {
    const lines = await this.#site.directories.consoleLines(runtimeId, options.lines);
    if (lines === undefined) throw new RuntimeGone(`native runtime ${runtimeId} has no console`);
    return lines;
  }

  onExit(listener: (runtimeId: RuntimeId, reason: string) => void): () => void {
    this.#exitListeners.add(listener);
    return () => this.#exitListeners.delete(listener);
  }

  onNetwork(listener: (runtimeId: RuntimeId, change: NetworkChange) => void): () => void {
    this.#networkListeners.add(listener);
    return () => this.#networkListeners.delete(listener);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort();
    await this.#guard[Symbol.asyncDispose]();
    await this.#memoryGuards[Symbol.asyncDispose]();
    for (const { client, groups, network, stopListening } of this.#connected.values()) {
      stopListening();
      groups?.[Symbol.dispose]();
      await network?.close();
      await client[Symbol.asyncDispose]();
    }
    this.#connected.clear();
    await Promise.allSettled([...this.#launching.values(), ...this.#destroying.values()]);
    await this.#site[Symbol.asyncDispose]();
  }

  #refuseWiderNetwork(spec: RuntimeSpec): void {
    const wanted = spec.network ?? this.#config.networkMode;
    const configured = this.#config.networkMode;
    if (networkModes.indexOf(wanted) > networkModes.indexOf(configured))
      throw new BadRequest(
        `network "${wanted}" is not allowed here; providers.native.network_mode is "${configured}": whoever runs the service may widen it`,
      );
  }

  async #resolve(
    ground: LaunchGround,
    name: string,
    options: CallOptions & { owner: string | undefined },
  ): Promise<{ image: string; root: LaunchSpec["root"]; config: ImageConfig }> {
    const host = {
      image: hostImage,
      root: { kind: "host", skeleton: ground.skeleton } as const,
      config: { env: {} },
    };
    if (name === hostImage) return host;
    const found = await this.#images.resolve(name, options);
    if (found.name === hostImage) return host;
    return { image: found.name, root: { kind: "image", rootfs: found.rootfs }, config: found.config };
  }

  /** Launches, connects and binds. What it leaves behind when it fails is for #undo. */
  async #start(
    ground: LaunchGround,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    options: SpawnOptions,
  ): Promise<void> {
    const { runtimeId } = spec;
    await this.#destroying.get(runtimeId);
    const beganAt = performance.now();
    await abortable(this.#site.copyRoot(ground, root), options.signal);
    const lane = await this.#lanes.enter(spec.ownerId ?? "", options);
    const startedAt = performance.now();
    options.onStage?.("wait", startedAt - beganAt);
    const early = new EarlyBinding<Bound>();
    const launched = this.#site
      .launch(ground, spec, root, (record, connection) =>
        early.begin(record, this.#bind(record, spec, options, connection)),
      )
      .finally(() => lane.leave());
    this.#launching.set(runtimeId, launched);
    // While others work for the launch.
    this.#memoryGuards.seeOthersSoon();
    let made: LaunchedRuntime | undefined;
    try {
      made = await abortable(launched, options.signal);
    } finally {
      // An aborted caller leaves; destroy() waits for the launch to come to its end.
      const forget = () => this.#launching.delete(runtimeId);
      launched.then(forget, forget);
      if (made === undefined) early.take();
    }
    const { record, stages } = made;
    const launchedAt = performance.now();
    options.onStage?.("launch", launchedAt - startedAt);
    if (options.onStage !== undefined) tellParts(stages, options.onStage);
    const { client, groups } = await (early.take(record) ?? this.#bind(record, spec, options));
    options.onStage?.("configure", performance.now() - launchedAt);
    const hasNetwork = networkOf(spec, this.#config) === "outbound";
    this.#connect(record, { client, groups, hasNetwork });
  }

  /** Makes the agent a sandbox's. @param connection one to its socket, where there is one. */
  async #bind(
    record: RuntimeRecord,
    spec: RuntimeSpec,
    options: CallOptions,
    connection?: Duplex,
  ): Promise<Bound> {
    const { client, groups } = this.#client(record, connection);
    try {
      await client.configure(
        {
          sandboxId: spec.sandboxId,
          hostname: spec.sandboxId,
          env: { ...spec.env },
          expiresInMs: spec.expiresInMs,
          ...(spec.user === undefined ? {} : { user: spec.user }),
          ...(spec.workdir === undefined ? {} : { workdir: spec.workdir }),
          ...(this.#config.addedCaps.length === 0 ? {} : { execCaps: [...this.#config.addedCaps] }),
          ...(this.#ringBytes === undefined ? {} : { ringBytes: this.#ringBytes }),
        },
        options,
      );
    } catch (error) {
      await client[Symbol.asyncDispose]();
      throw error;
    }
    return { client, groups };
  }

  #client(record: RuntimeRecord, connection?: Duplex): Bound {
    const runtimeId = record.runtimeId as RuntimeId;
    const groups = this.#site.groupsFor(record);
    const client = new AgentClient({
      dial: firstBy(
        connection,
        unixDialer(() => this.#site.directories.socket(runtimeId)),
      ),
      token: record.token,
      name: record.sandboxId,
      owner: record.sandbox?.ownerId ?? "",
      logger: this.#logger,
      ...(groups === undefined ? {} : { groups }),
    });
    return { client, groups };
  }

  #connect(written: RuntimeRecord, { client, groups, hasNetwork }: Bound & { hasNetwork: boolean }): void {
    const record = withoutEnv(written);
    const runtimeId = record.runtimeId as RuntimeId;
    const network = hasNetwork ? this.#keepNetwork(record) : undefined;
    const stopListening = client.onGone(() => this.#ended(runtimeId, "the sandbox ended by itself"));
    const operations: SandboxOperations = {
      execs: client.execs,
      files: client.files,
      setExpiry: (expiresInMs, options) => client.setExpiry(expiresInMs, options),
      dialPort: (port, options) => client.dialPort(port, options),
      stats: async (options) => {
        const { cgroups, disks } = await this.#site.ground();
        const [counted, seen] = await Promise.all([
          record.cgroup === null ? undefined : cgroups?.stats(record.cgroup),
          cgroups === undefined || disks !== undefined ? client.stats(options) : ({} as RuntimeStats),
        ]);
        const { diskBytes, diskLimitBytes, ...inside } = seen;
        return {
          ...(counted === undefined ? inside : { ...counted, pidsLimit: this.#config.pidsLimit }),
          // Without a disk of its own a sandbox sees the host's, which is none of its figures.
          ...(disks === undefined || diskBytes === undefined ? {} : { diskBytes }),
          ...(disks === undefined || diskLimitBytes === undefined ? {} : { diskLimitBytes }),
        };
      },
    };
    this.#connected.set(runtimeId, { record, client, operations, groups, network, stopListening });
    this.#guard.start();
    this.#memoryGuards.start();
  }

  #keepNetwork(record: RuntimeRecord): KeptNetwork {
    const runtimeId = record.runtimeId as RuntimeId;
    return new KeptNetwork({
      path: () => this.#site.directories.networkSocket(runtimeId),
      attach: () => this.#site.attachNetwork(record),
      ended: async () => (await this.#site.directories.isAlive(runtimeId)) === false,
      onChange: (change) => {
        if (runtimeId.startsWith(probePrefix)) return;
        for (const listener of this.#networkListeners) listener(runtimeId, change);
      },
    });
  }

  async #stopGuarded(runtimeId: RuntimeId, reason: string): Promise<void> {
    await this.#undo(runtimeId);
    for (const listener of this.#exitListeners) listener(runtimeId, reason);
  }

  #ended(runtimeId: RuntimeId, reason: string): void {
    const found = this.#connected.get(runtimeId);
    if (found === undefined || this.#destroying.has(runtimeId)) return;
    this.#connected.delete(runtimeId);
    found.groups?.[Symbol.dispose]();
    void found.network?.close();
    void found.client[Symbol.asyncDispose]();
    if (runtimeId.startsWith(probePrefix)) return;
    for (const listener of this.#exitListeners) listener(runtimeId, reason);
  }

  /** @returns whether nothing is left. */
  async #undo(runtimeId: RuntimeId): Promise<boolean> {
    using deadline = deadlineAfter(undoMs);
    try {
      await this.destroy(runtimeId, { signal: deadline.signal });
      return true;
    } catch (error) {
      this.#logger.warn(
        { err: error, runtime_id: runtimeId },
        "a runtime could not be removed; its destroy will be repeated",
      );
      return false;
    }
  }

  async #destroy(runtimeId: RuntimeId): Promise<void> {
    if (this.#refused.delete(runtimeId)) return;
    const ground = await this.#site.ground();
    await this.#site.directories.inSight();
    await this.#launching.get(runtimeId)?.catch(() => undefined);
    const found = this.#connected.get(runtimeId);
    if (found !== undefined) {
      this.#connected.delete(runtimeId);
      found.stopListening();
      found.groups?.[Symbol.dispose]();
      await found.network?.close();
      await found.client[Symbol.asyncDispose]();
    }
    try {
      await this.#site.remove(ground, runtimeId);
    } catch (error) {
      const cause = error instanceof Error ? error.message : String(error);
      throw new ProviderError(`native runtime ${runtimeId} could not be removed: ${cause}`, { cause: error });
    }
  }
}

/** What can be made to stand still of it; nothing where it has no groups. */
function commandsOf(record: RuntimeRecord | undefined): StandingStill | undefined {
  if (!record?.cgroup || record.sandbox === undefined) return undefined;
  return new StandingStill(record.cgroup, record.sandbox.vcpus);
}

function defaultsOf(config: ImageConfig, spec: RuntimeSpec): { user?: string; workdir?: string } {
  const user = spec.user ?? config.user;
  const workdir = spec.workdir ?? config.workdir;
  return { ...(user ? { user } : {}), ...(workdir ? { workdir } : {}) };
}
