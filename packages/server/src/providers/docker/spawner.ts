import { setTimeout as delay } from "node:timers/promises";
import type { DockerConfig } from "../../config/config.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { FairLanes } from "../../platform/fair-lanes.ts";
import type { Logger } from "../../platform/logger.ts";
import {
  BadRequest,
  type CallOptions,
  type Clock,
  type ImageConfig,
  NotFound,
  ProviderError,
  RuntimeGone,
  type RuntimeSpec,
  Unavailable,
} from "../../ports/index.ts";
import type { SharedTable } from "../agent/index.ts";
import { noteOf } from "../runtime-records/index.ts";
import type { AgentDelivery } from "./agent-delivery.ts";
import { ConnectedRuntime, socketName } from "./connected-runtime.ts";
import { commandCapabilities, containerSpec } from "./container-spec.ts";
import type { Containers } from "./containers.ts";
import type { EngineClient } from "./engine-client.ts";
import type { EngineDisk } from "./engine-disk.ts";
import { asProviderError, isRefusal } from "./engine-errors.ts";
import { CreatedContainer } from "./engine-shapes.ts";
import { resolveImageName } from "./image-reference.ts";
import type { EngineImages } from "./images.ts";
import { containerName } from "./labels.ts";
import { networkFor } from "./network-mode.ts";
import type { OutboundNetworks } from "./outbound-networks.ts";
import type { RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";
import { fileAppears } from "./socket-wait.ts";

/**
 * Creating is not given up with its caller, because the engine would go on with it. It has its own deadline, for storage
 * drivers that copy images, and ends before it when the engine answers nobody or the service stops.
 */
const createTimeoutMs = 120_000;
/** From the start of a container to its agent's first answer. */
const agentTimeoutMs = 20_000;
const agentRetryMs = 20;
const workspace = "/workspace";

type OnStage = (stage: string, durationMs: number) => void;

/** Makes one runtime at a time of a kind: container, agent, binding. Undoing what it left half-made is its caller's. */
export class Spawner {
  readonly #parts: SpawnerParts;

  constructor(parts: SpawnerParts) {
    this.#parts = parts;
  }

  async spawn(
    spec: RuntimeSpec,
    { signal, onStage }: CallOptions & { onStage: OnStage },
  ): Promise<{ runtime: ConnectedRuntime; image: string }> {
    const { config, instanceId, records, delivery, containers, clock } = this.#parts;
    const image = resolveImageName(spec.image, this.#parts.aliases);
    const leadsOut = networkFor(config.networkMode, spec.network) === "outbound";
    if (leadsOut) await this.#parts.networks.refuseWhenMissing({ signal });
    const container = containerName(instanceId, spec.runtimeId);
    const record: RuntimeRecord = {
      version: 1,
      instanceId,
      runtimeId: spec.runtimeId,
      sandboxId: spec.sandboxId,
      token: this.#parts.newToken(),
      image,
      transport: delivery.transport,
      engine: this.#parts.engine.address.text,
      createdAt: clock.now().toISOString(),
      sandbox: noteOf(spec),
    };
    const stage = stages(clock, onStage);
    await records.save(record, spec.runtimeId);
    const imageConfig = await this.#create(spec, { container, image, signal });
    signal.throwIfAborted();
    await delivery.inspect(container, { image, signal });
    stage("create");
    await this.#inTurn(spec, signal, () => containers.start(container, { signal }));
    stage("start");
    if (leadsOut) {
      await this.#parts.networks.attach(spec.runtimeId, { signal });
      stage("network");
    }
    using deadline = deadlineAfter(agentTimeoutMs, signal);
    try {
      const runtime = await this.#reach(spec, record, container, imageConfig, deadline.signal);
      stage("agent");
      return { runtime, image };
    } catch (error) {
      signal.throwIfAborted();
      if (!deadline.signal.aborted) throw error;
      throw new Unavailable(
        `the agent of sandbox ${spec.sandboxId} did not answer within ${agentTimeoutMs} ms`,
        {
          cause: error,
        },
      );
    }
  }

  /** Creates the container, getting its image first when that is not there. @returns what of the image applies. */
  async #create(
    spec: RuntimeSpec,
    { container, image, signal }: { container: string; image: string } & CallOptions,
  ): Promise<ImageConfig> {
    const { images, delivery } = this.#parts;
    const present = async () => {
      if ((await images.config(image, { signal })) === undefined)
        await images.pull(image, { signal, owner: spec.ownerId });
      return image;
    };
    const agent = await delivery.prepare(spec.runtimeId, present, { signal });
    const body = (storage: Record<string, string> | undefined) =>
      containerSpec({
        instanceId: this.#parts.instanceId,
        runtime: spec,
        image,
        config: this.#parts.config,
        agent,
        seccomp: this.#parts.seccomp,
        storage,
        processors: this.#parts.processors,
        onGvisor: this.#parts.onGvisor,
      });
    const create = () => this.#inTurn(spec, signal, () => this.#createBounded(container, body));
    // Both at once: an image that is there, as it nearly always is, costs no round trip.
    const [created, config] = await Promise.allSettled([create(), images.config(image, { signal })]);
    if (config.status === "rejected") throw config.reason;
    if (created.status === "fulfilled") return config.value ?? { env: {} };
    if (!isRefusal(created.reason, 404)) throw createFailure(created.reason);
    signal.throwIfAborted();
    await images.pull(image, { signal, owner: spec.ownerId });
    try {
      await create();
    } catch (error) {
      if (isRefusal(error, 404))
        throw new NotFound(`image ${image} is not on the Docker Engine`, { what: "image", cause: error });
      throw createFailure(error);
    }
    return (await images.config(image, { signal })) ?? { env: {} };
  }

  /** What the engine takes long for; a pull has turns of its own. */
  async #inTurn<T>({ ownerId = "" }: RuntimeSpec, signal: AbortSignal, ask: () => Promise<T>): Promise<T> {
    const lane = await this.#parts.lanes.enter(ownerId, { signal });
    try {
      return await ask();
    } finally {
      lane.leave();
    }
  }

  /** With the disk bounded by the engine, where it can. */
  async #createBounded(
    container: string,
    body: (storage: Record<string, string> | undefined) => Record<string, unknown>,
  ): Promise<void> {
    const { disk } = this.#parts;
    const storage = disk.storageOptions();
    try {
      await this.#createOnce(container, body(storage));
      if (storage !== undefined) disk.taken();
    } catch (error) {
      if (storage === undefined || !disk.refused(error)) throw error;
      await this.#createOnce(container, body(undefined));
    }
  }

  async #createOnce(container: string, body: Record<string, unknown>): Promise<void> {
    const { engine, containers, logger } = this.#parts;
    using awake = engine.waits.whileAwake(this.#parts.closing);
    const { signal } = awake;
    const path = "/containers/create";
    const query = { name: container };
    const create = () =>
      engine.call({ method: "POST", path, query, body, signal, withinMs: createTimeoutMs }, CreatedContainer);
    const created = await create().catch(async (error) => {
      // A spawn that is repeated after a crash starts over.
      if (!isRefusal(error, 409)) throw error;
      await containers.remove(container, { signal });
      return create();
    });
    for (const warning of created.Warnings ?? []) logger.warn({ container }, `the Docker Engine: ${warning}`);
  }

  /** Waits for the agent and binds it. */
  async #reach(
    spec: RuntimeSpec,
    record: RuntimeRecord,
    container: string,
    image: ImageConfig,
    signal: AbortSignal,
  ): Promise<ConnectedRuntime> {
    const { engine, records, watches, logger } = this.#parts;
    if (record.transport === "socket") await this.#socketAppears(spec, container, signal);
    const runtime = await ConnectedRuntime.open({ record, records, container, engine, watches, logger });
    try {
      await Promise.all([
        this.#configure(runtime, spec, image, signal),
        runtime.socket === undefined
          ? undefined
          : records.save({ ...record, socket: runtime.socket }, record.runtimeId),
      ]);
      return runtime;
    } catch (error) {
      await runtime[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Waits for the agent's socket, but not for that of a container that has ended. */
  async #socketAppears(spec: RuntimeSpec, container: string, signal: AbortSignal): Promise<void> {
    const { records, containers } = this.#parts;
    const over = new AbortController();
    const either = AbortSignal.any([signal, over.signal]);
    const ended = async () => {
      // Nearly always the socket is there at once, and nobody need ask the engine.
      await delay(100, undefined, { signal: either });
      const reason = await containers.endReason(container, { withinMs: agentTimeoutMs, signal: either });
      throw await this.#agentFailed(spec, container, reason ?? "no socket appeared", either);
    };
    try {
      await Promise.race([fileAppears(records.socketFolder(spec.runtimeId), socketName, either), ended()]);
    } finally {
      over.abort(new Error("the wait for the agent's socket is over"));
    }
  }

  async #configure(
    runtime: ConnectedRuntime,
    spec: RuntimeSpec,
    image: ImageConfig,
    signal: AbortSignal,
  ): Promise<void> {
    const { config, containers, ringBytes } = this.#parts;
    // The root directory is what engines say for "no working directory".
    const imageWorkdir = image.workdir === "/" ? undefined : image.workdir;
    const workdir = spec.workdir ?? imageWorkdir;
    const user = spec.user ?? (config.user || image.user);
    const request = {
      sandboxId: spec.sandboxId,
      env: { ...image.env, ...spec.env },
      ...(user === undefined ? {} : { user }),
      ...(workdir === undefined ? {} : { workdir }),
      expiresInMs: spec.expiresInMs,
      execCaps: commandCapabilities(config),
      ...(ringBytes === undefined ? {} : { ringBytes }),
    };
    for (;;) {
      try {
        await runtime.client.configure(request, { signal });
        break;
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof RuntimeGone)) throw error;
        // Either the agent does not listen yet or the container has ended.
        const reason = await containers.endReason(runtime.container, { withinMs: agentRetryMs, signal });
        if (reason !== undefined) throw await this.#agentFailed(spec, runtime.container, reason, signal);
      }
    }
    // /workspace is in every sandbox, whatever its working directory.
    if (workdir === undefined || workdir === workspace) return;
    await runtime.client.files.mkdir(workspace, { parents: true, signal }).catch((error) => {
      if (config.readOnlyRootfs) return;
      if (!(error instanceof NotFound)) throw error;
      throw new BadRequest(`the image has a symlink at ${workspace} that leads nowhere`, { cause: error });
    });
  }

  async #agentFailed(
    spec: RuntimeSpec,
    container: string,
    reason: string,
    signal: AbortSignal,
  ): Promise<ProviderError> {
    const lines = await this.#parts.containers.logs(container, { lines: 20, signal }).catch(() => []);
    return new ProviderError(`the agent of sandbox ${spec.sandboxId} did not come up: ${reason}`, {
      cause: new Error(lines.join("\n")),
    });
  }
}

export interface SpawnerParts {
  config: DockerConfig;
  instanceId: string;
  aliases: Readonly<Record<string, string>>;
  /** Output kept for each command; undefined: the agent's own default. */
  ringBytes: number | undefined;
  seccomp: string | undefined;
  /** Of the engine's machine. */
  processors: number;
  onGvisor: boolean;
  engine: EngineClient;
  containers: Containers;
  images: EngineImages;
  records: RuntimeRecords;
  networks: OutboundNetworks;
  delivery: AgentDelivery;
  disk: Pick<EngineDisk, "storageOptions" | "taken" | "refused">;
  watches: SharedTable;
  /** Owners take turns at the engine. */
  lanes: Pick<FairLanes, "enter">;
  logger: Logger;
  clock: Clock;
  newToken: () => string;
  /** Aborts when the service stops: what is half made is then left to the next start. */
  closing: AbortSignal;
}

function createFailure(error: unknown): unknown {
  if (isRefusal(error, 400) && /bind source path does not exist|invalid mount config/.test(error.said)) {
    return new ProviderError(
      "the Docker Engine does not see data_dir, which holds the agent and its socket; " +
        "set providers.docker.agent_transport to stdio, or put data_dir where the engine sees it",
      { cause: error },
    );
  }
  return asProviderError("create the container", error);
}

/** Tells each stage's duration as it ends. */
function stages(clock: Clock, onStage: OnStage): (stage: string) => void {
  let since = clock.monotonicMs();
  return (stage) => {
    const now = clock.monotonicMs();
    onStage(stage, now - since);
    since = now;
  };
}
