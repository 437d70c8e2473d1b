import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Capability } from "@alcove/wire";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import {
  BadRequest,
  type CallOptions,
  type ImageConfig,
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
} from "../../ports/index.ts";
import { AgentClient, storeAgent, unixDialer } from "../agent/index.ts";
import { adviceFor } from "./advice.ts";
import { DiskGuard } from "./disk-guard.ts";
import { readyDisks } from "./disk-template.ts";
import { findProgram } from "./find-program.ts";
import { type Ground, surveyGround } from "./ground.ts";
import { IdRanges, idsPerSandbox } from "./id-ranges.ts";
import { type NativeProviderConfig, newLaunchSpec, newRecord } from "./launch-plan.ts";
import type { IdsSpec, LaunchSpec, RuntimeRecord } from "./launch-spec.ts";
import { Launcher, LauncherFailure } from "./launcher.ts";
import { orAborted } from "./or-aborted.ts";
import { newProbeId, probeSpec } from "./probe.ts";
import { probePrefix, RuntimeDirectories } from "./runtime-directories.ts";

/** A runtime this process is connected to. */
interface Connected {
  record: RuntimeRecord;
  client: AgentClient;
  operations: SandboxOperations;
  stopListening: () => void;
}

/** What every launch needs, found out and made once. */
interface Prepared extends Ground {
  agent: string;
  ranges: IdRanges;
}

/** The name of the machine's own root. */
const hostImage = "host";
/** How long undoing a failed spawn may take. */
const undoMs = 10_000;

/**
 * Isolation by the kernel alone: `alcove-launch` makes namespaces, an overlay, cgroups and a system call filter, and puts
 * the agent into them. A runtime is a directory below `<dataDir>/runtimes/native`; nothing else is needed to find, adopt
 * or undo it. States: launching (in #launching), connected (in #connected), destroying (in #destroying); otherwise it is
 * what its directory says.
 */
export class NativeProvider implements RuntimeProvider {
  readonly name = "native";
  readonly capabilities: ReadonlySet<Capability> = new Set<Capability>([
    "spawn",
    "exec",
    "exec_stream",
    "files",
    "console",
    "health",
    "runtime_inventory",
    "container",
    "pty",
    "signals",
    "reattach",
    "watch",
    "ports",
    "stats",
  ]);
  readonly defaultImage: string;
  readonly #config: NativeProviderConfig;
  readonly #dataDir: string;
  readonly #instanceId: string;
  readonly #images: ImageStore;
  readonly #agentBinary: string;
  readonly #ringBytes: number | undefined;
  readonly #logger: Logger;
  readonly #launcher: Launcher;
  readonly #directories: RuntimeDirectories;
  readonly #guard: DiskGuard;
  #prepared: Promise<Prepared> | undefined;
  readonly #launching = new Map<RuntimeId, Promise<unknown>>();
  readonly #connected = new Map<RuntimeId, Connected>();
  readonly #destroying = new Map<RuntimeId, Promise<void>>();
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
  }) {
    this.#config = options.config;
    this.#dataDir = options.dataDir;
    this.#instanceId = options.instanceId;
    this.#images = options.images;
    this.#agentBinary = options.agentBinary;
    this.#ringBytes = options.ringBytes;
    this.#logger = options.logger;
    this.defaultImage = options.config.defaultImage;
    this.#launcher = new Launcher({ binary: options.launcherBinary, logger: options.logger });
    this.#directories = new RuntimeDirectories({ dataDir: options.dataDir });
    this.#guard = new DiskGuard({
      root: this.#directories.root,
      minFreeMb: options.config.minFreeMb,
      logger: options.logger,
      running: () => this.#connected.keys(),
      path: (runtimeId) => this.#directories.path(runtimeId),
      stop: (runtimeId, reason) => this.#stopWriter(runtimeId, reason),
    });
  }

  async check(options: CallOptions): Promise<ProviderCheck> {
    const runtimeId = newProbeId();
    try {
      const prepared = await this.#prepare();
      try {
        await this.#start(
          prepared,
          probeSpec(runtimeId),
          { kind: "host", skeleton: prepared.skeleton },
          options,
        );
      } finally {
        await this.#undo(runtimeId);
      }
      return { healthy: true, notes: [...prepared.notes] };
    } catch (error) {
      return { healthy: false, error: await adviceFor(error), notes: [] };
    }
  }

  settings(): Record<string, unknown> {
    return {
      network_mode: this.#config.networkMode,
      pids_limit: this.#config.pidsLimit,
      disk_mb: this.#config.diskMb,
      added_caps: [...this.#config.addedCaps],
      rooted: process.getuid?.() === 0,
    };
  }

  async spawn(
    spec: RuntimeSpec,
    options: CallOptions & { onStage?: (stage: string, durationMs: number) => void },
  ): Promise<SpawnedRuntime> {
    options.signal.throwIfAborted();
    const known = this.#connected.get(spec.runtimeId);
    if (known !== undefined) return { image: known.record.image };
    this.#refuseWiderNetwork(spec);
    const prepared = await this.#prepare();
    const { image, root, config } = await this.#resolve(prepared, spec.image, options);
    try {
      await this.#start(
        prepared,
        { ...spec, image, env: { ...config.env, ...spec.env }, ...defaultsOf(config, spec) },
        root,
        options,
      );
    } catch (error) {
      await this.#undo(spec.runtimeId);
      throw options.signal.aborted ? options.signal.reason : asDomainError(error, await adviceFor(error));
    }
    return { image };
  }

  async inventory(_options: CallOptions): Promise<InventoryEntry[]> {
    const ids = (await this.#directories.list()).filter((id) => !id.startsWith(probePrefix));
    return Promise.all(
      ids.map(async (runtimeId) => {
        const [record, alive] = await Promise.all([
          this.#directories.record(runtimeId),
          this.#directories.isAlive(runtimeId),
        ]);
        return {
          runtimeId,
          ...(record === undefined ? {} : { sandboxId: record.sandboxId as SandboxId }),
          state: alive ? ("running" as const) : ("dead" as const),
        };
      }),
    );
  }

  async adopt(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    if (this.#connected.has(runtimeId)) return;
    const record = await this.#directories.record(runtimeId);
    if (record === undefined || !(await this.#directories.isAlive(runtimeId))) {
      throw new RuntimeGone(`native runtime ${runtimeId} is not running`);
    }
    await this.#prepare();
    const client = this.#client(record);
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
    this.#connect(record, client);
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

  async logs(runtimeId: RuntimeId, options: CallOptions & { lines: number }): Promise<string[]> {
    const lines = await this.#directories.consoleLines(runtimeId, options.lines);
    if (lines === undefined) throw new RuntimeGone(`native runtime ${runtimeId} has no console`);
    return lines;
  }

  onExit(listener: (runtimeId: RuntimeId, reason: string) => void): () => void {
    this.#exitListeners.add(listener);
    return () => this.#exitListeners.delete(listener);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#guard[Symbol.asyncDispose]();
    for (const { client, stopListening } of this.#connected.values()) {
      stopListening();
      await client[Symbol.asyncDispose]();
    }
    this.#connected.clear();
    await Promise.allSettled([...this.#launching.values(), ...this.#destroying.values()]);
    await this.#launcher[Symbol.asyncDispose]();
    const prepared = await this.#prepared?.catch(() => undefined);
    await prepared?.cgroups?.close();
  }

  #prepare(): Promise<Prepared> {
    this.#prepared ??= this.#survey().catch((error: unknown) => {
      this.#prepared = undefined;
      throw error;
    });
    return this.#prepared;
  }

  async #survey(): Promise<Prepared> {
    const instance = this.#instanceId.replace(/[^a-zA-Z0-9]/g, "").slice(0, 12);
    await mkdir(this.#directories.trash, { recursive: true, mode: 0o700 });
    const [ground, agent] = await Promise.all([
      surveyGround({
        dataDir: this.#dataDir,
        instance,
        diskMb: this.#config.diskMb,
        minFreeMb: this.#config.minFreeMb,
        findProgram,
      }),
      storeAgent({ dataDir: this.#dataDir, binary: this.#agentBinary }),
    ]);
    const ranges = new IdRanges({ base: this.#config.uidBase, offset: Number.parseInt(instance, 36) || 0 });
    for (const runtimeId of await this.#directories.list()) {
      const record = await this.#directories.record(runtimeId);
      if (record?.ids.kind === "range") ranges.restore(record.ids.base, runtimeId);
    }
    if (ground.disks !== undefined) this.#launcher.keepDisks({ ...ground.disks, count: readyDisks });
    const prepared = { ...ground, agent: agent.path, ranges };
    await this.#sweep(prepared);
    return prepared.disks === undefined ? prepared : this.#tryDisk(prepared);
  }

  /** Loop devices can be there and refused, as in many containers: better known now than at every spawn. */
  async #tryDisk(prepared: Prepared): Promise<Prepared> {
    const runtimeId = newProbeId();
    const spec = probeSpec(runtimeId);
    const root = { kind: "host", skeleton: prepared.skeleton } as const;
    try {
      await this.#launcher.launch(
        this.#launchSpec(prepared, spec, root, this.#recordOf(prepared, spec, root)),
      );
      return prepared;
    } catch (error) {
      if (!(error instanceof LauncherFailure) || error.step !== "disk") return prepared;
      const note = `a sandbox's disk has no limit of its own: ${await adviceFor(error)}`;
      return { ...prepared, disks: undefined, notes: [...prepared.notes, note] };
    } finally {
      await this.#remove(prepared, this.#directories.path(runtimeId), runtimeId);
    }
  }

  /** What a service before this one was deleting, or probing, when it ended. */
  async #sweep(prepared: Prepared): Promise<void> {
    const probes = (await this.#directories.list()).filter((id) => id.startsWith(probePrefix));
    for (const runtimeId of probes)
      await this.#remove(prepared, this.#directories.path(runtimeId), runtimeId);
    for (const path of await this.#directories.listTrash()) await this.#remove(prepared, path);
  }

  async #remove(prepared: Prepared, dir: string, runtimeId?: RuntimeId): Promise<void> {
    const record = runtimeId === undefined ? undefined : await this.#directories.record(runtimeId);
    const cgroup = record?.cgroup ?? (runtimeId && prepared.cgroups?.spec(runtimeId)) ?? null;
    const ids = record?.ids ?? this.#idsFor(prepared, undefined);
    await this.#launcher.destroy({ dir, trash: this.#directories.trash, cgroup: cgroup || null, ids });
    if (record?.ids.kind === "range") prepared.ranges.release(record.ids.base, record.runtimeId);
  }

  #refuseWiderNetwork(spec: RuntimeSpec): void {
    const wanted = spec.network ?? this.#config.networkMode;
    if (wanted === "outbound")
      throw new BadRequest(
        'network "outbound" is not available on native; it has "none" and, by configuration, "host"',
      );
    if (wanted === "host" && this.#config.networkMode !== "host")
      throw new BadRequest('network "host" is not allowed here; providers.native.network_mode is "none"');
  }

  async #resolve(
    prepared: Prepared,
    name: string,
    options: CallOptions,
  ): Promise<{ image: string; root: LaunchSpec["root"]; config: ImageConfig }> {
    const host = {
      image: hostImage,
      root: { kind: "host", skeleton: prepared.skeleton } as const,
      config: { env: {} },
    };
    if (name === hostImage) return host;
    const found = await this.#images.resolve(name, options);
    if (found.name === hostImage) return host;
    return { image: found.name, root: { kind: "image", rootfs: found.rootfs }, config: found.config };
  }

  #idsFor(prepared: Prepared, runtimeId: RuntimeId | undefined): IdsSpec {
    if (!prepared.rooted) return prepared.unprivilegedIds;
    const base = runtimeId === undefined ? this.#config.uidBase : prepared.ranges.take(runtimeId);
    return { kind: "range", base, count: idsPerSandbox };
  }

  /** Launches, connects and binds. What it leaves behind when it fails is for #undo. */
  async #start(
    prepared: Prepared,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    options: CallOptions & { onStage?: (stage: string, durationMs: number) => void },
  ): Promise<void> {
    const { runtimeId } = spec;
    await this.#destroying.get(runtimeId);
    const record = this.#recordOf(prepared, spec, root);
    const launch = this.#launchSpec(prepared, spec, root, record);
    const startedAt = performance.now();
    const launched = this.#launch(launch, runtimeId);
    this.#launching.set(runtimeId, launched);
    try {
      await orAborted(launched, options.signal);
    } finally {
      // An aborted caller leaves; destroy() waits for the launch to come to its end.
      const forget = () => this.#launching.delete(runtimeId);
      launched.then(forget, forget);
    }
    const launchedAt = performance.now();
    options.onStage?.("launch", launchedAt - startedAt);
    const client = this.#client(record);
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
    options.onStage?.("configure", performance.now() - launchedAt);
    this.#connect(record, client);
  }

  /** Takes an id range, which the record keeps from then on. */
  #recordOf(prepared: Prepared, spec: RuntimeSpec, root: LaunchSpec["root"]): RuntimeRecord {
    return newRecord(spec, {
      instanceId: this.#instanceId,
      root,
      ids: this.#idsFor(prepared, spec.runtimeId),
      cgroup: prepared.cgroups?.spec(spec.runtimeId) ?? null,
    });
  }

  #launchSpec(
    prepared: Prepared,
    spec: RuntimeSpec,
    root: LaunchSpec["root"],
    record: RuntimeRecord,
  ): LaunchSpec {
    const dir = this.#directories.path(spec.runtimeId);
    const { agent, disks } = prepared;
    return newLaunchSpec(spec, { config: this.#config, dir, record, agent, root, template: disks?.template });
  }

  /** A directory in the way is what a spawn before a crash left: spawns are repeated with the same id. */
  async #launch(launch: LaunchSpec, runtimeId: RuntimeId): Promise<void> {
    try {
      await this.#launcher.launch(launch);
    } catch (error) {
      const taken =
        error instanceof LauncherFailure && error.step === "directory" && error.errno === errnoExists;
      if (!taken) throw error;
      await this.#remove(await this.#prepare(), launch.dir, runtimeId);
      await this.#launcher.launch(launch);
    }
  }

  #client(record: RuntimeRecord): AgentClient {
    const path = join(this.#directories.path(record.runtimeId), "agent.sock");
    return new AgentClient({
      dial: unixDialer(path),
      token: record.token,
      name: record.sandboxId,
      logger: this.#logger,
    });
  }

  #connect(record: RuntimeRecord, client: AgentClient): void {
    const runtimeId = record.runtimeId as RuntimeId;
    const stopListening = client.onGone(() => this.#ended(runtimeId, "the sandbox ended by itself"));
    const operations: SandboxOperations = {
      execs: client.execs,
      files: client.files,
      setExpiry: (expiresInMs, options) => client.setExpiry(expiresInMs, options),
      dialPort: (port, options) => client.dialPort(port, options),
      stats: async (options) => {
        const prepared = await this.#prepare();
        if (prepared.cgroups === undefined) return client.stats(options);
        return { ...(await prepared.cgroups.stats(runtimeId)), pidsLimit: this.#config.pidsLimit };
      },
    };
    this.#connected.set(runtimeId, { record, client, operations, stopListening });
    this.#guard.start();
  }

  async #stopWriter(runtimeId: RuntimeId, reason: string): Promise<void> {
    await this.#undo(runtimeId);
    for (const listener of this.#exitListeners) listener(runtimeId, reason);
  }

  #ended(runtimeId: RuntimeId, reason: string): void {
    const found = this.#connected.get(runtimeId);
    if (found === undefined || this.#destroying.has(runtimeId)) return;
    this.#connected.delete(runtimeId);
    void found.client[Symbol.asyncDispose]();
    if (runtimeId.startsWith(probePrefix)) return;
    for (const listener of this.#exitListeners) listener(runtimeId, reason);
  }

  async #undo(runtimeId: RuntimeId): Promise<void> {
    using deadline = deadlineAfter(undoMs);
    try {
      await this.destroy(runtimeId, { signal: deadline.signal });
    } catch (error) {
      this.#logger.warn(
        { err: error, runtimeId },
        "a runtime could not be removed; its destroy will be repeated",
      );
    }
  }

  async #destroy(runtimeId: RuntimeId): Promise<void> {
    const dir = this.#directories.path(runtimeId);
    const prepared = await this.#prepare();
    await this.#launching.get(runtimeId)?.catch(() => undefined);
    const found = this.#connected.get(runtimeId);
    if (found !== undefined) {
      this.#connected.delete(runtimeId);
      found.stopListening();
      await found.client[Symbol.asyncDispose]();
    }
    try {
      await this.#remove(prepared, dir, runtimeId);
    } catch (error) {
      const cause = error instanceof Error ? error.message : String(error);
      throw new ProviderError(`native runtime ${runtimeId} could not be removed: ${cause}`, { cause: error });
    }
  }
}

const errnoExists = 17;

function defaultsOf(config: ImageConfig, spec: RuntimeSpec): { user?: string; workdir?: string } {
  const user = spec.user ?? config.user;
  const workdir = spec.workdir ?? config.workdir;
  return { ...(user ? { user } : {}), ...(workdir ? { workdir } : {}) };
}

function asDomainError(error: unknown, advice: string): unknown {
  return error instanceof LauncherFailure ? new ProviderError(advice, { cause: error }) : error;
}
