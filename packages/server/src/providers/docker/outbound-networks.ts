import { access, constants, stat } from "node:fs/promises";
import { join } from "node:path";
import type { DockerConfig } from "../../config/config.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { identify, isAlive, type ProcessIdentity } from "../../platform/process-identity.ts";
import {
  BadRequest,
  type CallOptions,
  type NetworkChange,
  ProviderError,
  type RuntimeId,
  Unavailable,
} from "../../ports/index.ts";
import {
  closeGroupParents,
  findSlirp,
  type GroupParents,
  groupSpec,
  instanceName,
  KeptNetwork,
  type Launcher,
  LauncherFailure,
  openGroupParents,
  outboundSpec,
  slirpMissing,
} from "../launcher/index.ts";
import type { Containers } from "./containers.ts";
import type { EngineAddress } from "./engine-address.ts";
import { isRootless, sharesKernel, sharesMachine } from "./engine-facts.ts";
import type { EngineInfo } from "./engine-shapes.ts";
import type { RuntimeRecords } from "./runtime-records.ts";

type NetworkListener = (runtimeId: RuntimeId, change: NetworkChange) => void;

/** Users of relays and helpers: of nobody on the host, and beside that of the sockets' folders. */
const firstUid = 1_879_000_002;
const uids = 40_000;
const device = "/dev/net/tun";
const watchMs = 10_000;

/**
 * Gives containers that the engine gave no network one that leads out: the relay of native's sandboxes, which needs of a
 * container no more than its first process. A network is, in turn: attached, watched, and detached; it outlives this object.
 */
export class OutboundNetworks implements AsyncDisposable {
  readonly #config: DockerConfig;
  readonly #address: EngineAddress;
  readonly #info: (options: CallOptions) => Promise<EngineInfo>;
  readonly #containerOf: (runtimeId: RuntimeId) => string;
  readonly #containers: Containers;
  readonly #records: RuntimeRecords;
  readonly #instance: string;
  readonly #logger: Logger;
  readonly #launcher: Launcher;
  readonly #kept = new Map<RuntimeId, KeptNetwork>();
  /** The first process of each container, by which its end is seen without the engine. */
  readonly #processes = new Map<RuntimeId, ProcessIdentity>();
  readonly #listeners = new Set<NetworkListener>();
  #groups: Promise<GroupParents | undefined> | undefined;
  /** Nothing was missing once; what goes away later fails when a network is made. */
  #isComplete = false;

  constructor(options: {
    config: DockerConfig;
    address: EngineAddress;
    info: (options: CallOptions) => Promise<EngineInfo>;
    containerOf: (runtimeId: RuntimeId) => string;
    containers: Containers;
    records: RuntimeRecords;
    instanceId: string;
    launcher: Launcher;
    logger: Logger;
  }) {
    this.#config = options.config;
    this.#address = options.address;
    this.#info = options.info;
    this.#containerOf = options.containerOf;
    this.#containers = options.containers;
    this.#records = options.records;
    this.#instance = instanceName(options.instanceId);
    this.#logger = options.logger;
    this.#launcher = options.launcher;
  }

  /** What a network that leads out needs and this service has not; undefined: nothing that can be known before one is made. */
  async missing(info: EngineInfo): Promise<string | undefined> {
    if (this.#address.kind !== "unix")
      return `an engine on this machine, and ${this.#address.text} is reached over TCP; run the service where the engine is`;
    if (!sharesMachine(this.#address, info) || !sharesKernel(this.#config, info))
      return "containers that share this machine's kernel: set providers.docker.runtime to runc, and use an engine of this machine";
    if (isRootless(info)) return "an engine that runs as root, which a rootless one does not";
    if (process.getuid?.() !== 0) return "a service that runs as root, to enter the network of a container";
    if ((await findSlirp()) === undefined) return slirpMissing;
    return access(device, constants.R_OK | constants.W_OK).then(
      () => undefined,
      (error: unknown) =>
        `${device}: ${messageOf(error)}; modprobe tun, or in a container --device ${device}`,
    );
  }

  /** @throws BadRequest saying what is missing. */
  async refuseWhenMissing(options: CallOptions): Promise<void> {
    if (this.#isComplete) return;
    const missing = await this.missing(await this.#info(options));
    if (missing !== undefined) throw new BadRequest(`network "outbound" on docker needs ${missing}`);
    this.#isComplete = true;
  }

  /**
   * Gives a container that runs its network; one there was ends. Not given up with its caller.
   * @throws BadRequest when the engine turns out to be elsewhere.
   */
  async attach(runtimeId: RuntimeId, { signal }: CallOptions): Promise<void> {
    const slirp = await findSlirp();
    if (slirp === undefined) throw new Unavailable(`network "outbound" needs ${slirpMissing}`);
    const container = await this.#containers.firstProcess(this.#containerOf(runtimeId), { signal });
    try {
      await this.#launcher.attach({
        dir: this.#records.folder(runtimeId),
        // Different ones for containers that run at a time, where the machine has no more processes than that.
        ids: { kind: "range", base: firstUid + (container.pid % uids), count: 1 },
        cgroup: await this.#groupOf(runtimeId),
        outbound: outboundSpec(this.#config, slirp),
        container,
      });
    } catch (error) {
      throw toldFailure(error);
    }
    await this.#learn(runtimeId, container.pid);
  }

  /** Whether one was made. */
  async has(runtimeId: RuntimeId): Promise<boolean> {
    return stat(join(this.#records.folder(runtimeId), "network.json")).then(
      () => true,
      () => false,
    );
  }

  /** From now on it is made again when it is lost. */
  watch(runtimeId: RuntimeId): void {
    if (this.#kept.has(runtimeId)) return;
    const network = new KeptNetwork({
      path: async () => join(await this.#records.steadyFolder(runtimeId), "network.sock"),
      attach: () => this.attach(runtimeId, { signal: AbortSignal.timeout(watchMs) }),
      ended: async () => {
        const process = this.#processes.get(runtimeId);
        return process !== undefined && !(await isAlive(process));
      },
      onChange: (change) => {
        for (const listener of this.#listeners) listener(runtimeId, change);
      },
    });
    this.#kept.set(runtimeId, network);
    if (!this.#processes.has(runtimeId)) void this.#lookUp(runtimeId);
  }

  /** Resolves when nothing is made again any more; what there is stays. */
  async release(runtimeId: RuntimeId): Promise<void> {
    const network = this.#kept.get(runtimeId);
    this.#kept.delete(runtimeId);
    await network?.close();
    if (!this.#kept.has(runtimeId)) this.#processes.delete(runtimeId);
  }

  /** Of a container that an earlier process started. One that cannot be found out about counts as there. */
  async #lookUp(runtimeId: RuntimeId): Promise<void> {
    const signal = AbortSignal.timeout(watchMs);
    const found = await this.#containers
      .firstProcess(this.#containerOf(runtimeId), { signal })
      .catch(() => undefined);
    if (found !== undefined) await this.#learn(runtimeId, found.pid);
    if (!this.#kept.has(runtimeId)) this.#processes.delete(runtimeId);
  }

  async #learn(runtimeId: RuntimeId, pid: number): Promise<void> {
    const process = await identify(pid).catch(() => undefined);
    if (process !== undefined) this.#processes.set(runtimeId, process);
  }

  /** Ends what carries the network of a container that has ended. Idempotent. */
  async detach(runtimeId: RuntimeId): Promise<void> {
    if (!(await this.has(runtimeId))) return;
    try {
      const cgroup = await this.#groupOf(runtimeId);
      await this.#launcher.detach({ dir: this.#records.folder(runtimeId), cgroup });
    } catch (error) {
      throw toldFailure(error);
    }
  }

  onChange(listener: NetworkListener): () => void {
    const own: NetworkListener = (runtimeId, change) => listener(runtimeId, change);
    this.#listeners.add(own);
    return () => this.#listeners.delete(own);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#kept.keys()].map((runtimeId) => this.release(runtimeId)));
    const groups = await this.#groups?.catch(() => undefined);
    if (groups !== undefined) await closeGroupParents(groups);
  }

  /** Without groups its own limits of connections, bytes and memory have to do. */
  async #groupOf(runtimeId: RuntimeId) {
    this.#groups ??= this.#openGroups();
    const groups = await this.#groups;
    return groups === undefined ? null : groupSpec(groups, runtimeId);
  }

  async #openGroups(): Promise<GroupParents | undefined> {
    try {
      const found = await openGroupParents(this.#instance);
      if (!("missing" in found)) return found;
      this.#logger.warn(`networks of containers have no limit of processor time: ${found.missing}`);
      return undefined;
    } catch (cause) {
      // The next network looks again.
      this.#groups = undefined;
      throw new Unavailable(`control groups cannot be made now: ${messageOf(cause)}`, {
        cause,
        retryAfterS: 5,
      });
    }
  }
}

function toldFailure(error: unknown): unknown {
  if (!(error instanceof LauncherFailure)) return error;
  if (error.unanswered) return new Unavailable(error.message, { cause: error, retryAfterS: 5 });
  if (error.step === "engine") return new BadRequest(`network "outbound" on docker: ${error.message}`);
  return new ProviderError(`the network of a container failed at step ${error.step}: ${error.message}`, {
    cause: error,
  });
}
