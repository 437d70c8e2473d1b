import { readFile, rename } from "node:fs/promises";
import { join } from "node:path";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter, ShuttingDown } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { exists, orMissing } from "../../platform/missing.ts";
import {
  BadRequest,
  type CallOptions,
  type ImageConfig,
  type MadeAhead,
  NotFound,
  type RuntimeId,
  type RuntimeSpec,
  type SandboxId,
} from "../../ports/index.ts";
import { holdAgent, pinnedUnixDialer } from "../agent/index.ts";
import type { Launcher } from "../launcher/index.ts";
import { newPreparedId, PreparedStock } from "../prepared/index.ts";
import { type AgentBinding, agentTimeoutMs } from "./agent-binding.ts";
import type { AgentDelivery } from "./agent-delivery.ts";
import { type ConnectedRuntime, socketName } from "./connected-runtime.ts";
import type { ContainerMaker } from "./container-maker.ts";
import type { Containers } from "./containers.ts";
import type { EngineDisk } from "./engine-disk.ts";
import type { EngineImages } from "./images.ts";
import { containerName } from "./labels.ts";
import {
  type ContainerShape,
  namedFiles,
  type PreparedContainer,
  preparedSpec,
  renameIn,
  shapeKey,
  shapeOf,
} from "./prepared-container.ts";
import type { RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";

/** A claim that takes longer is slower than a spawn that begins anew. */
const claimTimeoutMs = 5_000;
const makeTimeoutMs = 60_000;
const removeTimeoutMs = 10_000;
/** For one that is being made while the service stops: what the engine was asked for cannot be taken back. */
const closeTimeoutMs = 5_000;
/** Whose name stands in what is compared. */
const nobody = { runtimeId: "prepared-" as RuntimeId, sandboxId: "prepared-" as SandboxId };
const resolvers = "/etc/resolv.conf";

/** What containers are made with at the moment. */
export interface ContainerTools {
  maker: ContainerMaker;
  binding: AgentBinding;
  delivery: AgentDelivery;
  /** Why none can be prepared here. */
  unprepared: string | undefined;
}

type ClaimOptions = CallOptions & {
  record: RuntimeRecord;
  network: string;
  maker: ContainerMaker;
  binding: AgentBinding;
  delivery: AgentDelivery;
};

export interface PreparedContainersOptions {
  /** Of each kind; 0: none. */
  count: number;
  instanceId: string;
  containers: Containers;
  images: EngineImages;
  records: RuntimeRecords;
  disk: Pick<EngineDisk, "storageOptions">;
  launcher: Pick<Launcher, "name">;
  /** @param options.closing aborts what the engine would otherwise be waited for. */
  tools: (options: CallOptions & { closing: AbortSignal }) => Promise<ContainerTools>;
  /** Rejects while the disk has no room for another sandbox. */
  refuseWhenShort: () => Promise<void>;
  /** Whether somebody waits for the engine. */
  isBusy: () => boolean;
  logger: Logger;
  /** Aborts when the service stops. */
  closing: AbortSignal;
}

/**
 * Containers that were made and started before it is known for whom. States of one: being made, waiting, given away, and from then
 * on a runtime like any other, once its folder and then its name are the runtime's. What is named as nobody's and is not in
 * `#own` was left by a service before this one: `sweep` removes it.
 */
export class PreparedContainers implements AsyncDisposable {
  readonly #options: PreparedContainersOptions;
  readonly #stock: PreparedStock<ContainerShape, PreparedContainer>;
  /** Names of those that this object makes, keeps, gives away or removes. */
  readonly #own = new Set<RuntimeId>();
  readonly #sweeping = new Map<RuntimeId, Promise<void>>();
  readonly #abandon = new AbortController();

  constructor(options: PreparedContainersOptions) {
    this.#options = options;
    this.#stock = new PreparedStock({
      count: options.count,
      keyOf: shapeKey,
      site: {
        make: (shape) => this.#make(shape),
        discard: (one) => this.#remove(one),
        isBusy: options.isBusy,
        onFailure: (err) => {
          if (options.closing.aborted) return;
          options.logger.warn({ err }, "no container could be prepared; it is tried again");
        },
        onGaveWay: (count, err) =>
          options.logger.warn({ err, count }, "prepared containers are removed, since a spawn found no room"),
      },
    });
  }

  get figures(): MadeAhead | undefined {
    return this.#stock.figures;
  }

  /** Something came to its end: what was taken is made again when nothing else comes. */
  later(): void {
    this.#stock.later();
  }

  /** The engine was away: what it makes now may be another thing. */
  lose(): void {
    this.#stock.lose();
  }

  /** Somebody lacks room. @returns whether there is more than there was at `sinceMs`, by `performance.now()`. */
  giveWay(sinceMs: number, why: unknown): Promise<boolean> {
    return this.#stock.giveWay(sinceMs, why);
  }

  /**
   * Makes one that waits somebody's. Resolves when that is written down, its name is the runtime's and its agent knows it.
   * @returns undefined when there is none that fits, or it came to nothing: nothing of it is left then.
   * @throws BadRequest for what a new container would be refused for too.
   */
  async claim(spec: RuntimeSpec, options: ClaimOptions): Promise<ConnectedRuntime | undefined> {
    const claimed = await this.#claim(spec, options);
    this.#stock.became(claimed === undefined ? "cold" : "claimed");
    return claimed;
  }

  async #claim(spec: RuntimeSpec, options: ClaimOptions): Promise<ConnectedRuntime | undefined> {
    const { record, network, maker, signal } = options;
    const { count, records, logger } = this.#options;
    if (count === 0) return undefined;
    const shape = shapeOf(spec, record.image, network);
    if (shape === undefined) return undefined;
    // Whatever else of a spawn the engine would be told makes another container of it.
    if (this.#order(spec, shape, maker) !== this.#usualOrder(shape, maker)) return undefined;
    // A spawn that is repeated after a crash starts over.
    if (await exists(records.folder(spec.runtimeId))) return undefined;
    const present = this.#stock.has(shape) ? await this.#present(shape, options) : undefined;
    const found = this.#stock.take(shape, () => present?.madeOf);
    if (found === undefined || present === undefined) return undefined;
    try {
      return await this.#give(found, spec, { ...options, image: present.config });
    } catch (error) {
      await this.#remove({ ...found, runtimeId: spec.runtimeId });
      signal.throwIfAborted();
      if (error instanceof BadRequest) throw error;
      logger.info(
        { err: error, runtime_id: spec.runtimeId },
        "a prepared container could not be claimed, and another one is made",
      );
      return undefined;
    } finally {
      this.#own.delete(found.name);
    }
  }

  /** Removes in the background what an earlier service left. @param names of containers and folders. */
  sweep(names: Iterable<RuntimeId>): void {
    for (const name of new Set(names)) {
      if (this.#own.has(name) || this.#sweeping.has(name)) continue;
      const work = this.#remove({ name }).finally(() => this.#sweeping.delete(name));
      this.#sweeping.set(name, work);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const impatient = setTimeout(() => this.#abandon.abort(new ShuttingDown()), closeTimeoutMs);
    await this.#stock[Symbol.asyncDispose]();
    clearTimeout(impatient);
    await Promise.all(this.#sweeping.values());
  }

  async #make(shape: ContainerShape): Promise<PreparedContainer | undefined> {
    using deadline = deadlineAfter(makeTimeoutMs, this.#abandon.signal);
    const { signal } = deadline;
    const { records, containers, closing } = this.#options;
    const tools = await this.#options.tools({ signal, closing: this.#abandon.signal });
    if (tools.unprepared !== undefined) return undefined;
    await records.inSight();
    await this.#options.refuseWhenShort();
    const before = await this.#present(shape, { ...tools, signal });
    // An image that was removed, say: who spawns of it again wants it prepared again.
    if (before === undefined) return undefined;
    closing.throwIfAborted();
    const name = newPreparedId();
    this.#own.add(name);
    let found: Omit<PreparedContainer, "madeOf"> | undefined;
    try {
      found = await this.#start(name, shape, { ...tools, signal });
      const after = await this.#present(shape, { ...tools, signal });
      const inspection = await containers.inspect(found.container.id, { signal });
      if (inspection?.State.Running && after?.madeOf === before.madeOf) {
        this.#options.logger.debug({ container: name }, "a container was prepared");
        return { ...found, madeOf: before.madeOf };
      }
      throw new Error("what containers are made of changed meanwhile");
    } catch (error) {
      await this.#remove(found ?? { name });
      if (error instanceof NotFound) return undefined;
      throw error;
    }
  }

  /**
   * What a claim will do is done here too, with the name that it has: where the service sees neither the engine's processes nor its
   * files, in a container of its own for one, nothing is prepared, and no spawn pays for finding that out.
   */
  async #start(
    name: RuntimeId,
    shape: ContainerShape,
    { maker, binding, signal }: ContainerTools & CallOptions,
  ): Promise<Omit<PreparedContainer, "madeOf">> {
    const { instanceId, containers, records, closing } = this.#options;
    const spec = preparedSpec(name, shape);
    const container = containerName(instanceId, name);
    await maker.create(spec, { container, image: shape.image, pulls: false, signal });
    closing.throwIfAborted();
    await maker.start(spec, container, { signal });
    using inTime = deadlineAfter(agentTimeoutMs, signal);
    await binding.socketAppears(spec, container, { signal: inTime.signal });
    const inspection = await containers.inspect(container, { signal });
    const pid = inspection?.State.Pid ?? 0;
    if (inspection === undefined || pid <= 0) throw new Error("the container has ended");
    const made = { name, container: { id: inspection.Id, pid }, files: await namedFiles(inspection, name) };
    await Promise.all(this.#nameAnew(made, name, { signal }));
    const pinned = await pinnedUnixDialer(join(records.socketFolder(name), socketName));
    try {
      const agent = await holdAgent(pinned.dial, { signal: inTime.signal });
      return { ...made, socket: pinned.identity, agent, ended: agent.ended };
    } finally {
      await pinned.close();
    }
  }

  /** What a container of this shape is made of now. @returns undefined when its image is not there. */
  async #present(
    shape: ContainerShape,
    { maker, delivery, signal }: Pick<ContainerTools, "maker" | "delivery"> & CallOptions,
  ): Promise<{ madeOf: string; config: ImageConfig } | undefined> {
    const { images } = this.#options;
    const [image, agent, resolv] = await Promise.all([
      images.inspect(shape.image, { signal }),
      delivery.identity(),
      // The engine gives each container a copy of the machine's.
      orMissing(readFile(resolvers, "utf8"), ""),
    ]);
    if (image === undefined || agent === undefined) return undefined;
    const order = this.#usualOrder(shape, maker);
    return { madeOf: JSON.stringify([order, image.id, agent, resolv]), config: image.config };
  }

  /** What the engine is told of one that is prepared, but for its name. */
  #usualOrder(shape: ContainerShape, maker: ContainerMaker): string {
    return this.#order(preparedSpec(nobody.runtimeId, shape), shape, maker);
  }

  #order(spec: RuntimeSpec, { image }: ContainerShape, maker: ContainerMaker): string {
    const storage = this.#options.disk.storageOptions();
    const agent = { mounts: [], tmpfs: {} };
    return JSON.stringify(maker.order({ ...spec, ...nobody }, { image, agent, storage }));
  }

  /** Tells one that runs its host name, in both places that have it. Each goes on by itself. */
  #nameAnew(
    { name, container, files }: Pick<PreparedContainer, "name" | "container" | "files">,
    hostname: string,
    { signal }: CallOptions,
  ): Promise<void>[] {
    const { launcher } = this.#options;
    return [abortable(launcher.name({ container, hostname }), signal), renameIn(files, name, hostname)];
  }

  async #give(
    found: PreparedContainer,
    spec: RuntimeSpec,
    {
      record,
      binding,
      image,
      signal,
    }: { record: RuntimeRecord; binding: AgentBinding; image: ImageConfig } & CallOptions,
  ): Promise<ConnectedRuntime> {
    const { instanceId, records, containers, closing } = this.#options;
    const { name, container, socket, agent } = found;
    const { runtimeId, sandboxId } = spec;
    using deadline = deadlineAfter(claimTimeoutMs, signal);
    const owned = { ...record, ...(socket === undefined ? {} : { socket }) };
    // Whose it is: everything after this is undone under the runtime's id, by this process or by the next one.
    await rename(records.folder(name), records.folder(runtimeId));
    const named = containerName(instanceId, runtimeId);
    // None of them needs another, and all have come to their end when one that failed is undone.
    const [bound, ...rest] = await Promise.allSettled([
      binding.bind(spec, {
        record: owned,
        container: named,
        image,
        save: () => records.save(owned, runtimeId),
        signal: deadline.signal,
      }),
      containers.rename(container.id, named, { signal: closing }),
      ...this.#nameAnew(found, sandboxId, deadline),
    ]);
    const failure = [bound, ...rest].find((one) => one.status === "rejected");
    if (failure === undefined && bound.status === "fulfilled" && !signal.aborted) {
      agent[Symbol.dispose]();
      return bound.value;
    }
    if (bound.status === "fulfilled") await bound.value[Symbol.asyncDispose]();
    signal.throwIfAborted();
    throw failure?.reason;
  }

  /**
   * Does not fail: what is left is removed once an inventory shows it.
   * @param options.runtimeId whose its folder may be already.
   */
  async #remove({
    name,
    container,
    agent,
    runtimeId,
  }: Pick<PreparedContainer, "name"> &
    Partial<PreparedContainer> & { runtimeId?: RuntimeId }): Promise<void> {
    const { instanceId, records, containers, logger } = this.#options;
    agent?.[Symbol.dispose]();
    // By its id where its name may be another by now.
    const id = container?.id ?? containerName(instanceId, name);
    using deadline = deadlineAfter(removeTimeoutMs);
    try {
      await containers.remove(id, { signal: deadline.signal });
      // What is out of sight is not gone, and nobody would look for it before the next start.
      await records.inSight();
      await records.remove(name);
      if (runtimeId !== undefined) await records.remove(runtimeId);
    } catch (err) {
      logger.warn({ err, container: id }, "a prepared container cannot be removed yet");
      // A new container of this runtime would find the socket of this one's agent there.
      if (runtimeId !== undefined) await records.remove(runtimeId).catch(ignoreOutcome);
    } finally {
      this.#own.delete(name);
    }
  }
}
