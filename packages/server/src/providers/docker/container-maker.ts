import type { DockerConfig } from "../../config/config.ts";
import type { FairLanes } from "../../platform/fair-lanes.ts";
import type { Logger } from "../../platform/logger.ts";
import {
  type CallOptions,
  type ImageConfig,
  NotFound,
  ProviderError,
  type RuntimeSpec,
} from "../../ports/index.ts";
import type { AgentDelivery } from "./agent-delivery.ts";
import { type AgentMounts, containerSpec } from "./container-spec.ts";
import type { Containers } from "./containers.ts";
import type { EngineClient } from "./engine-client.ts";
import type { EngineDisk } from "./engine-disk.ts";
import { asProviderError, isRefusal } from "./engine-errors.ts";
import { CreatedContainer } from "./engine-shapes.ts";
import type { EngineImages } from "./images.ts";

/**
 * Creating is not given up with its caller, because the engine would go on with it. It has its own deadline, for storage
 * drivers that copy images, and ends before it when the engine answers nobody or the service stops.
 */
const createTimeoutMs = 120_000;

export interface ContainerMakerParts {
  config: DockerConfig;
  instanceId: string;
  seccomp: string | undefined;
  /** Of the engine's machine. */
  processors: number;
  onGvisor: boolean;
  engine: EngineClient;
  containers: Containers;
  images: EngineImages;
  delivery: AgentDelivery;
  disk: Pick<EngineDisk, "storageOptions" | "taken" | "refused">;
  /** Owners take turns at the engine. */
  lanes: Pick<FairLanes, "enter">;
  logger: Logger;
  /** Aborts when the service stops: what is half made is then left to the next start. */
  closing: AbortSignal;
}

/** Makes containers with the agent in them, and starts them. Undoing what it left half-made is its caller's. */
export class ContainerMaker {
  readonly #parts: ContainerMakerParts;

  constructor(parts: ContainerMakerParts) {
    this.#parts = parts;
  }

  /** What the engine is told of one. */
  order(
    runtime: RuntimeSpec,
    {
      image,
      agent,
      storage,
    }: { image: string; agent: AgentMounts; storage: Record<string, string> | undefined },
  ): Record<string, unknown> {
    return containerSpec({
      instanceId: this.#parts.instanceId,
      runtime,
      image,
      config: this.#parts.config,
      agent,
      seccomp: this.#parts.seccomp,
      storage,
      processors: this.#parts.processors,
      onGvisor: this.#parts.onGvisor,
    });
  }

  /**
   * @param options.pulls whether an image that is not there is got first.
   * @returns what of the image applies.
   */
  async create(
    spec: RuntimeSpec,
    { container, image, pulls, signal }: { container: string; image: string; pulls: boolean } & CallOptions,
  ): Promise<ImageConfig> {
    const { images, delivery } = this.#parts;
    const missing = (cause?: unknown) =>
      new NotFound(`image ${image} is not on the Docker Engine`, { what: "image", cause });
    const present = async () => {
      const there = await images.config(image, { signal });
      if (there !== undefined) return there;
      if (!pulls) throw missing();
      await images.pull(image, { signal, owner: spec.ownerId });
      const pulled = await images.config(image, { signal });
      if (pulled === undefined) throw missing();
      return pulled;
    };
    const lend = async () => {
      await present();
      return image;
    };
    const agent = await delivery.prepare(spec.runtimeId, lend, { signal });
    const create = () =>
      this.#inTurn(spec, signal, () =>
        this.#createBounded(container, (storage) => this.order(spec, { image, agent, storage })),
      );
    for (let attempt = 1; ; attempt++) {
      // Before the container: the engine makes a volume for each that an image declares, and goes on with it whoever leaves.
      const config = await present();
      signal.throwIfAborted();
      try {
        await create();
        return config;
      } catch (error) {
        if (!isRefusal(error, 404)) throw createFailure(error);
        // Somebody has just removed it.
        if (attempt > 1) throw missing(error);
      }
    }
  }

  /** Refuses one that would not run our agent. */
  inspect(container: string, options: { image: string } & CallOptions): Promise<void> {
    return this.#parts.delivery.inspect(container, options);
  }

  start(spec: RuntimeSpec, container: string, { signal }: CallOptions): Promise<void> {
    return this.#inTurn(spec, signal, () => this.#parts.containers.start(container, { signal }));
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
