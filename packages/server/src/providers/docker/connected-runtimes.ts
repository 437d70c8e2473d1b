import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";
import type { ConnectedRuntime } from "./connected-runtime.ts";
import { ContainerEvents } from "./container-events.ts";
import type { Containers } from "./containers.ts";
import type { EngineClient } from "./engine-client.ts";
import { runtimeOf } from "./labels.ts";

/** A container ends within this time of its agent, or its agent is not gone. */
const endTimeoutMs = 5_000;

type ExitListener = (runtimeId: RuntimeId, reason: string) => void;

/**
 * The runtimes this process speaks to. One leaves when it is taken out to be destroyed, or when it ended by itself;
 * then the listeners are told, once. Signs of an end are the engine's events and the agent's connection breaking;
 * each is looked into, because a connection may break alone.
 */
export class ConnectedRuntimes implements AsyncDisposable {
  readonly #containers: Containers;
  readonly #instanceId: string;
  readonly #logger: Logger;
  readonly #reconnect: (runtimeId: RuntimeId, signal: AbortSignal) => Promise<void>;
  readonly #events: ContainerEvents;
  readonly #closing = new AbortController();
  readonly #runtimes = new Map<RuntimeId, ConnectedRuntime>();
  /** Being destroyed: their end is nobody's news. */
  readonly #leaving = new Set<RuntimeId>();
  readonly #listeners = new Set<ExitListener>();

  constructor(options: {
    engine: EngineClient;
    containers: Containers;
    instanceId: string;
    logger: Logger;
    /** Connects to a runtime anew; rejects when it is dead. */
    reconnect: (runtimeId: RuntimeId, signal: AbortSignal) => Promise<void>;
    /** The engine is back after it was away. */
    onEngineBack?: () => void;
  }) {
    this.#containers = options.containers;
    this.#instanceId = options.instanceId;
    this.#logger = options.logger;
    this.#reconnect = options.reconnect;
    this.#events = new ContainerEvents({
      engine: options.engine,
      instanceId: options.instanceId,
      logger: options.logger,
      onDied: (runtimeId) => void this.#suspect(runtimeId),
      onReconnected: () => {
        options.onEngineBack?.();
        void this.#suspectAll();
      },
    });
  }

  get(runtimeId: RuntimeId): ConnectedRuntime | undefined {
    return this.#runtimes.get(runtimeId);
  }

  add(runtime: ConnectedRuntime): void {
    this.#runtimes.set(runtime.runtimeId, runtime);
    this.#events.start();
    runtime.client.onGone(() => void this.#suspect(runtime.runtimeId));
  }

  /** Takes a runtime out while `destroy` runs; when that fails it stays. */
  async during(runtimeId: RuntimeId, destroy: () => Promise<void>): Promise<void> {
    this.#leaving.add(runtimeId);
    try {
      await destroy();
      const runtime = this.#runtimes.get(runtimeId);
      this.#runtimes.delete(runtimeId);
      await runtime?.[Symbol.asyncDispose]();
    } finally {
      this.#leaving.delete(runtimeId);
    }
  }

  /** Without those that are being destroyed. */
  keys(): Iterable<RuntimeId> {
    return this.#runtimes.keys().filter((runtimeId) => !this.#leaving.has(runtimeId));
  }

  leaving(): Iterable<RuntimeId> {
    return this.#leaving.keys();
  }

  /** Ends one by `remove` for a reason of this service's, which the listeners are told. When that fails it stays. */
  async end(runtimeId: RuntimeId, reason: string, remove: () => Promise<void>): Promise<void> {
    if (!this.#runtimes.has(runtimeId) || this.#leaving.has(runtimeId)) return;
    await this.during(runtimeId, remove);
    this.#tell(runtimeId, reason);
  }

  onExit(listener: ExitListener): () => void {
    const own: ExitListener = (runtimeId, reason) => listener(runtimeId, reason);
    this.#listeners.add(own);
    return () => this.#listeners.delete(own);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort(new Error("the provider was closed"));
    this.#events[Symbol.dispose]();
    const runtimes = [...this.#runtimes.values()];
    this.#runtimes.clear();
    await Promise.all(runtimes.map((runtime) => runtime[Symbol.asyncDispose]()));
  }

  /** Looks whether a runtime that seems to have ended has. */
  async #suspect(runtimeId: RuntimeId): Promise<void> {
    const runtime = this.#runtimes.get(runtimeId);
    if (runtime === undefined || this.#leaving.has(runtimeId)) return;
    const { signal } = this.#closing;
    try {
      const reason = await this.#containers.endReason(runtime.container, { withinMs: endTimeoutMs, signal });
      if (!this.#holds(runtime)) return;
      if (reason === undefined) await this.#replace(runtime);
      else await this.#ended(runtime, reason);
    } catch (error) {
      // The engine is away. Its event stream comes back with it, and then every runtime is looked at.
      if (!signal.aborted)
        this.#logger.warn({ err: error, runtime_id: runtimeId }, "cannot tell whether a container has ended");
    }
  }

  async #suspectAll(): Promise<void> {
    const { signal } = this.#closing;
    try {
      const containers = await this.#containers.list(this.#instanceId, { signal });
      const running = new Set(
        containers
          .filter(({ State }) => State === "running")
          .map(({ Name, Labels }) => runtimeOf(this.#instanceId, { name: Name, labels: Labels })),
      );
      for (const runtimeId of this.#runtimes.keys())
        if (!running.has(runtimeId)) void this.#suspect(runtimeId);
    } catch (error) {
      if (!signal.aborted) this.#logger.warn({ err: error }, "cannot tell which containers have ended");
    }
  }

  /** The container runs: only the way to its agent broke, with an engine that was restarted for instance. */
  async #replace(runtime: ConnectedRuntime): Promise<void> {
    const { runtimeId } = runtime;
    this.#runtimes.delete(runtimeId);
    await runtime[Symbol.asyncDispose]();
    using deadline = deadlineAfter(endTimeoutMs, this.#closing.signal);
    try {
      await this.#reconnect(runtimeId, deadline.signal);
      this.#logger.warn(
        { runtime_id: runtimeId },
        "the connection to a sandbox's agent broke and was made anew",
      );
    } catch (error) {
      if (this.#closing.signal.aborted) return;
      this.#logger.warn({ err: error, runtime_id: runtimeId }, "the agent of a sandbox is gone");
      this.#tell(runtimeId, "its agent does not answer any more");
    }
  }

  async #ended(runtime: ConnectedRuntime, reason: string): Promise<void> {
    this.#runtimes.delete(runtime.runtimeId);
    await runtime[Symbol.asyncDispose]();
    this.#tell(runtime.runtimeId, reason);
  }

  /** Whether nobody else has dealt with its end. */
  #holds(runtime: ConnectedRuntime): boolean {
    return this.#runtimes.get(runtime.runtimeId) === runtime && !this.#leaving.has(runtime.runtimeId);
  }

  #tell(runtimeId: RuntimeId, reason: string): void {
    for (const listener of this.#listeners) listener(runtimeId, reason);
  }
}
