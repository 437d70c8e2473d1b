import { randomBytes } from "node:crypto";
import { access, constants } from "node:fs/promises";

import type { Capability } from "@alcove/wire";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { orMissing } from "../../platform/missing.ts";
import { identify, isAlive } from "../../platform/process-identity.ts";
import { runProgram } from "../../platform/run-program.ts";
import { stagesOf } from "../../platform/stages.ts";
import {
  BadRequest,
  type CallOptions,
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
  type SpawnOptions,
} from "../../ports/index.ts";
import {
  AgentClient,
  agentCapabilities,
  pinnedUnixDialer,
  sharedWatchTable,
  storeAgent,
} from "../agent/index.ts";
import { fromNote, noteOf, SpawnsUnderWay, UnreadableRecord } from "../runtime-records/index.ts";
import { launchProot } from "./launch.ts";
import { findByRootfs, killTraced, statsOfTraced } from "./process-tree.ts";
import { hostImage, prepareRoot, removeFolder } from "./rootfs.ts";
import { type RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";
import { removeScratch, shareLoader } from "./scratch.ts";

export interface ProotConfig {
  defaultImage: string;
  prootBinary: string;
}

/** How long undoing may take, whatever became of the call that failed. */
const undoMs = 20_000;
/** How long an agent may take to end by itself before it is killed. */
const shutdownMs = 500;

interface Connected {
  client: AgentClient;
  operations: SandboxOperations;
  closeDialer: () => Promise<void>;
  stopListening: () => void;
}

const capabilities: ReadonlySet<Capability> = new Set([...agentCapabilities, "userspace_isolation"]);
/** Files look writable to a made-up root; that a signal typed at a terminal reached nobody was seen, and why is not known. */
const lackedByFakeRoot: ReadonlySet<Capability> = new Set(["pty_interrupt", "file_modes"]);

/**
 * Sandboxes by path translation alone: processes of the machine's that see another root. For machines without
 * namespaces; it keeps programs apart by convention, not by force. A runtime is: being made (`#spawning`), connected
 * (`#connected`), ended by itself (told once to `onExit`), or known only from its folder.
 */
export class ProotProvider implements RuntimeProvider {
  readonly name = "proot";
  readonly capabilities: ReadonlySet<Capability>;
  readonly defaultImage: string;
  readonly #config: ProotConfig;
  readonly #dataDir: string;
  readonly #instanceId: string;
  readonly #agentBinary: string;
  readonly #images: ImageStore;
  readonly #ringBytes: number | undefined;
  readonly #logger: Logger;
  readonly #records: RuntimeRecords;
  readonly #asRoot: boolean;
  readonly #spawns = new SpawnsUnderWay();
  readonly #spawning = new Map<RuntimeId, { done: Promise<unknown>; stop: AbortController }>();
  readonly #watches = sharedWatchTable();
  readonly #connected = new Map<RuntimeId, Connected>();
  readonly #exitListeners = new Set<(runtimeId: RuntimeId, reason: string) => void>();
  #closed = false;

  constructor(options: {
    config: ProotConfig;
    dataDir: string;
    instanceId: string;
    /** The built agent. */
    agentBinary: string;
    images: ImageStore;
    /** Output kept for each command; unset: the agent's own default. */
    ringBytes?: number;
    logger: Logger;
  }) {
    this.#config = options.config;
    this.#dataDir = options.dataDir;
    this.#instanceId = options.instanceId;
    this.#agentBinary = options.agentBinary;
    this.#images = options.images;
    this.#ringBytes = options.ringBytes;
    this.#logger = options.logger;
    this.defaultImage = options.config.defaultImage;
    this.#asRoot = process.getuid?.() === 0;
    this.#records = new RuntimeRecords({ dataDir: options.dataDir, asRoot: this.#asRoot });
    this.capabilities = this.#asRoot
      ? new Set([...capabilities, "users"])
      : capabilities.difference(lackedByFakeRoot);
  }

  async check(options: CallOptions): Promise<ProviderCheck> {
    const notes = ["proot translates paths and isolates nothing: run only what you would run as yourself"];
    notes.push(
      this.#asRoot
        ? "the service runs as root, so commands do too; image host is refused"
        : "every command runs as the service's user, shown as root; other users are refused",
    );
    if (!this.#asRoot) {
      notes.push(
        "Ctrl-C typed into a terminal may be echoed and end nothing (send a signal then), and proot shows files of mode 0444 as 0644",
      );
    }
    if (process.platform !== "linux") {
      return { healthy: false, error: `proot needs Linux, this is ${process.platform}`, notes };
    }
    try {
      await access(this.#agentBinary, constants.R_OK);
    } catch {
      const error = `the agent ${this.#agentBinary} is missing; "node scripts/build-agent.mjs" builds it`;
      return { healthy: false, error, notes };
    }
    try {
      await runProgram(this.#config.prootBinary, ["-r", "/", "/bin/sh", "-c", ":"], options);
      return { healthy: true, notes };
    } catch (error) {
      const way = "install proot, allow ptrace, or set providers.proot.proot_binary";
      return { healthy: false, error: `${messageOf(error)} (${way})`, notes };
    }
  }

  settings(): Record<string, unknown> {
    return { isolation: "none", fake_root: !this.#asRoot };
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
    const entries: InventoryEntry[] = [];
    for (const runtimeId of await this.#records.list()) {
      const entry = await this.#inventoryEntry(runtimeId);
      if (entry !== undefined) entries.push(entry);
    }
    // What went out of sight meanwhile was not found, and is there all the same.
    await this.#records.inSight();
    return entries;
  }

  /** @returns undefined for what another installation made. */
  async #inventoryEntry(runtimeId: RuntimeId): Promise<InventoryEntry | undefined> {
    try {
      const record = await this.#records.read(runtimeId);
      if (record === undefined) return { runtimeId, state: "dead" };
      if (record.instanceId !== this.#instanceId) return undefined;
      const running = record.process !== undefined && (await isAlive(record.process));
      return {
        runtimeId,
        state: running ? "running" : "dead",
        sandboxId: record.sandboxId as SandboxId,
        ...fromNote(record),
      };
    } catch (error) {
      if (!(error instanceof UnreadableRecord)) throw error;
      return { runtimeId, state: "unreadable" };
    }
  }

  async adopt(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    options.signal.throwIfAborted();
    if (this.#connected.has(runtimeId)) return;
    const record = await this.#records.read(runtimeId);
    if (record?.process === undefined || !(await isAlive(record.process))) throw gone(runtimeId);
    const connected = await this.#connect(record, runtimeId);
    try {
      await connected.client.info(options);
    } catch (error) {
      await disconnect(connected);
      throw error;
    }
    if (this.#connected.has(runtimeId)) await disconnect(connected);
    else this.#keep(runtimeId, connected);
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
    const connected = this.#connected.get(runtimeId);
    if (connected === undefined) throw gone(runtimeId);
    return connected.operations;
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

  /** Lets go of every runtime without ending it. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.#exitListeners.clear();
    for (const { stop } of this.#spawning.values()) stop.abort(new RuntimeGone("the service is stopping"));
    await Promise.allSettled([...this.#spawning.values()].map(({ done }) => done));
    const connected = [...this.#connected.values()];
    this.#connected.clear();
    await Promise.all(connected.map(disconnect));
    await this.#records[Symbol.asyncDispose]();
  }

  async #spawn(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
    this.#refuse(spec);
    const { runtimeId } = spec;
    const stage = stagesOf(options.onStage);
    const record: RuntimeRecord = {
      version: 1,
      instanceId: this.#instanceId,
      runtimeId,
      sandboxId: spec.sandboxId,
      token: randomBytes(32).toString("hex"),
      image: spec.image,
      createdAt: new Date().toISOString(),
      sandbox: noteOf(spec),
    };
    let connected: Connected | undefined;
    try {
      await this.#records.inSight();
      const agent = await storeAgent({ dataDir: this.#dataDir, binary: this.#agentBinary });
      await this.#records.save(record, runtimeId);
      const rootfs = this.#records.rootfs(runtimeId);
      const root = await prepareRoot(rootfs, {
        image: spec.image,
        owner: spec.ownerId,
        images: this.#images,
        dataDir: this.#dataDir,
        signal: options.signal,
      });
      stage("rootfs");
      options.signal.throwIfAborted();
      const { pid } = launchProot({
        prootBinary: this.#config.prootBinary,
        folder: this.#records.folder(runtimeId),
        rootfs,
        binds: root.binds,
        agentPath: agent.path,
        fakeRoot: !this.#asRoot,
        passingGroup: this.#asRoot ? await this.#records.openToGroup(runtimeId) : undefined,
      });
      const identity = await identify(pid);
      if (identity === undefined) throw await this.#startFailure(runtimeId);
      const complete: RuntimeRecord = { ...record, image: root.image, process: identity };
      await this.#records.save(complete, runtimeId);
      stage("launch");
      connected = await this.#connect(complete, runtimeId);
      await this.#configure(connected.client, spec, root, options);
      if (this.#asRoot) await shareLoader(pid);
      stage("agent");
      if (this.#closed) throw new RuntimeGone("the service is stopping");
      this.#keep(runtimeId, connected);
      return { image: root.image };
    } catch (error) {
      if (connected !== undefined) await disconnect(connected);
      const failure =
        error instanceof RuntimeGone && !options.signal.aborted ? await this.#startFailure(runtimeId) : error;
      using deadline = deadlineAfter(undoMs);
      await this.#remove(runtimeId, { signal: deadline.signal }).catch((undoError: unknown) => {
        // The folder stays, so that the inventory shows it and the next destroy tries again.
        this.#logger.warn({ err: undoError, runtime_id: runtimeId }, "a failed spawn could not be undone");
      });
      throw failure;
    }
  }

  #refuse(spec: RuntimeSpec): void {
    if (spec.network === "none") {
      throw new BadRequest("provider proot cannot take the network away; leave network out or use native");
    }
    if (spec.image === hostImage && this.#asRoot) {
      throw new BadRequest(
        "image host is refused while the service runs as root, because a sandbox of provider proot could then write " +
          "the machine's own /usr: run the service as another user, or name a stored image (alcove image list)",
      );
    }
  }

  #configure(
    client: AgentClient,
    spec: RuntimeSpec,
    root: { config: { env: Readonly<Record<string, string>>; user?: string; workdir?: string } },
    options: CallOptions,
  ): Promise<void> {
    // Only root can become the user an image names; without it every command runs as the service's user.
    const user = spec.user ?? (this.#asRoot ? root.config.user : undefined);
    const workdir = spec.workdir ?? root.config.workdir;
    return client.configure(
      {
        sandboxId: spec.sandboxId,
        env: { ...root.config.env, ...spec.env },
        expiresInMs: spec.expiresInMs,
        ...(user === undefined ? {} : { user }),
        ...(workdir === undefined ? {} : { workdir }),
        ...(this.#ringBytes === undefined ? {} : { ringBytes: this.#ringBytes }),
      },
      options,
    );
  }

  async #connect(record: RuntimeRecord, runtimeId: RuntimeId): Promise<Connected> {
    const pinned = await orMissing(pinnedUnixDialer(this.#records.socket(runtimeId)), undefined);
    if (pinned === undefined) throw gone(runtimeId);
    const client = new AgentClient({
      dial: pinned.dial,
      token: record.token,
      name: record.sandboxId,
      owner: record.sandbox?.ownerId ?? "",
      watches: this.#watches,
      logger: this.#logger,
    });
    const operations: SandboxOperations = {
      execs: client.execs,
      files: client.files,
      setExpiry: (expiresInMs, options) => client.setExpiry(expiresInMs, options),
      stats: async () => (record.process === undefined ? {} : statsOfTraced(record.process)),
      dialPort: (port, options) => client.dialPort(port, options),
    };
    return { client, operations, closeDialer: pinned.close, stopListening: () => undefined };
  }

  #keep(runtimeId: RuntimeId, connected: Connected): void {
    this.#connected.set(runtimeId, connected);
    connected.stopListening = connected.client.onGone(() => {
      if (this.#connected.get(runtimeId) !== connected) return;
      this.#connected.delete(runtimeId);
      void disconnect(connected);
      for (const listener of this.#exitListeners) listener(runtimeId, "the sandbox ended by itself");
    });
  }

  async #remove(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    const record = await this.#records.readIfWhole(runtimeId);
    // Another installation's, as a copied data directory has them: its processes are that one's.
    if (record !== undefined && record.instanceId !== this.#instanceId) return;
    const connected = this.#connected.get(runtimeId);
    this.#connected.delete(runtimeId);
    connected?.stopListening();
    const rootfs = this.#records.rootfs(runtimeId);
    if (record?.process !== undefined) {
      if (connected !== undefined) await this.#askToEnd(connected.client);
      await killTraced(record.process, options);
      await removeScratch(record.process.pid);
    } else {
      for (const pid of await findByRootfs(rootfs)) {
        const identity = await identify(pid);
        if (identity !== undefined) await killTraced(identity, options);
        await removeScratch(pid);
      }
    }
    if (connected !== undefined) await disconnect(connected);
    // The record goes last: until then the inventory shows what is left.
    await removeFolder(rootfs, options);
    await removeFolder(this.#records.folder(runtimeId), options);
  }

  /** The agent knows its processes best; whether it answers or not, the kill follows. */
  async #askToEnd(client: AgentClient): Promise<void> {
    using deadline = deadlineAfter(shutdownMs);
    await client.shutdown({ signal: deadline.signal }).catch((error: unknown) => {
      this.#logger.debug({ err: error }, "an agent did not answer its shutdown");
    });
  }

  async #startFailure(runtimeId: RuntimeId): Promise<ProviderError> {
    const lines = (await this.#records.consoleLines(runtimeId, 5)) ?? [];
    return new ProviderError(
      `proot ended before its agent answered: ${lines.join("; ") || "it said nothing"}`,
    );
  }
}

async function disconnect(connected: Connected): Promise<void> {
  connected.stopListening();
  await connected.client[Symbol.asyncDispose]();
  await connected.closeDialer();
}

function gone(runtimeId: RuntimeId): RuntimeGone {
  return new RuntimeGone(`runtime ${runtimeId} is not running`);
}
