import type { Capability } from "@alcove/wire";
import {
  type CallOptions,
  type InventoryEntry,
  type NetworkChange,
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
  Unavailable,
} from "../../ports/index.ts";

/** Runtimes as a backend would hold them: they outlive the provider object that made them. */
export class ScriptedBackend {
  readonly runtimes = new Map<
    RuntimeId,
    {
      sandboxId: SandboxId;
      state: InventoryEntry["state"];
      expiresInMs: number | null;
      note?: NonNullable<InventoryEntry["note"]>;
    }
  >();
}

export type Step = "spawn" | "spawned" | "destroy" | "destroyed" | "inventory" | "adopt" | "set_expiry";

/** Runs before (or, for the past tense, after) the effect of a step: throw to fail it, wait to delay it. */
export type StepHook = (
  step: Step,
  runtimeId: RuntimeId | undefined,
  signal: AbortSignal,
) => Promise<void> | void;

/** A provider whose every step a test can delay, fail or hang, on a backend it can edit. */
export class ScriptedProvider implements RuntimeProvider {
  readonly name: string;
  readonly capabilities: ReadonlySet<Capability>;
  readonly defaultImage = "scripted:1";
  readonly inProcess: boolean;
  readonly place?: string;
  /** What it calls the runtime of a spawn; undefined: as was proposed. */
  readonly #nameRuntime: ((proposed: RuntimeId) => RuntimeId) | undefined;
  readonly backend: ScriptedBackend;
  readonly specs: RuntimeSpec[] = [];
  hook: StepHook = () => undefined;
  checkResult: ProviderCheck = { healthy: true, notes: [] };
  /** Runtimes whose records are lost: they run, and no inventory has them. */
  readonly unlisted = new Set<RuntimeId>();
  readonly #connected = new Set<RuntimeId>();
  /** Which connection a runtime has: operations belong to one. */
  readonly #connections = new Map<RuntimeId, object>();
  readonly #networkListeners = new Set<(runtimeId: RuntimeId, change: NetworkChange) => void>();
  readonly #exitListeners = new Set<(runtimeId: RuntimeId, reason: string) => void>();

  constructor(
    options: {
      name?: string;
      capabilities?: readonly Capability[];
      backend?: ScriptedBackend;
      hook?: StepHook;
      inProcess?: boolean;
      place?: string;
      nameRuntime?: (proposed: RuntimeId) => RuntimeId;
    } = {},
  ) {
    this.name = options.name ?? "scripted";
    this.capabilities = new Set(options.capabilities ?? ["spawn", "exec", "files", "runtime_inventory"]);
    this.backend = options.backend ?? new ScriptedBackend();
    this.inProcess = options.inProcess ?? false;
    this.#nameRuntime = options.nameRuntime;
    if (options.place !== undefined) this.place = options.place;
    if (options.hook !== undefined) this.hook = options.hook;
  }

  async check(): Promise<ProviderCheck> {
    return this.checkResult;
  }

  settings(): Record<string, unknown> {
    return {};
  }

  async spawn(spec: RuntimeSpec, options: CallOptions): Promise<SpawnedRuntime> {
    this.specs.push(spec);
    await this.hook("spawn", spec.runtimeId, options.signal);
    const { sandboxId, expiresInMs } = spec;
    const given = this.#nameRuntime?.(spec.runtimeId);
    const runtimeId = given ?? spec.runtimeId;
    this.backend.runtimes.set(runtimeId, { sandboxId, state: "running", expiresInMs });
    this.#connected.add(runtimeId);
    await this.hook("spawned", runtimeId, options.signal);
    return { image: spec.image, ...(given === undefined ? {} : { runtimeId: given }) };
  }

  async inventory(options: CallOptions): Promise<InventoryEntry[]> {
    const listed = [...this.backend.runtimes].filter(([runtimeId]) => !this.unlisted.has(runtimeId));
    const entries = listed.map(([runtimeId, { sandboxId, state, note }]) => ({
      runtimeId,
      sandboxId,
      state,
      ...(note === undefined ? {} : { note }),
    }));
    await this.hook("inventory", undefined, options.signal);
    return entries;
  }

  async adopt(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    await this.hook("adopt", runtimeId, options.signal);
    this.#require(runtimeId);
    if (this.#connected.has(runtimeId)) return;
    this.#connected.add(runtimeId);
    this.#connections.set(runtimeId, {});
  }

  async destroy(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    await this.hook("destroy", runtimeId, options.signal);
    this.backend.runtimes.delete(runtimeId);
    this.#connected.delete(runtimeId);
    await this.hook("destroyed", runtimeId, options.signal);
  }

  sandbox(runtimeId: RuntimeId): SandboxOperations {
    if (!this.#connected.has(runtimeId)) throw new RuntimeGone(`runtime ${runtimeId} is not connected`);
    const connection = this.#connections.get(runtimeId);
    const isCurrent = () => this.#connected.has(runtimeId) && this.#connections.get(runtimeId) === connection;
    return new ScriptedOperations(isCurrent, async (expiresInMs, options) => {
      await this.hook("set_expiry", runtimeId, options.signal);
      this.#require(runtimeId).expiresInMs = expiresInMs;
    });
  }

  async logs(_runtimeId: RuntimeId, options: CallOptions & { lines: number }): Promise<string[]> {
    return ["booted"].slice(-options.lines);
  }

  onExit(listener: (runtimeId: RuntimeId, reason: string) => void): () => void {
    this.#exitListeners.add(listener);
    return () => this.#exitListeners.delete(listener);
  }

  onNetwork(listener: (runtimeId: RuntimeId, change: NetworkChange) => void): () => void {
    this.#networkListeners.add(listener);
    return () => this.#networkListeners.delete(listener);
  }

  tellNetwork(runtimeId: RuntimeId, change: NetworkChange): void {
    for (const listener of this.#networkListeners) listener(runtimeId, change);
  }

  /** The runtime ends by itself. */
  die(runtimeId: RuntimeId, options: { reason?: string; silently?: boolean } = {}): void {
    const runtime = this.backend.runtimes.get(runtimeId);
    if (runtime !== undefined) runtime.state = "dead";
    this.#connected.delete(runtimeId);
    if (options.silently !== true) this.tellExit(runtimeId, options.reason ?? "killed");
  }

  /** Says that a runtime seems to have ended, whether it has or not. */
  tellExit(runtimeId: RuntimeId, reason: string): void {
    for (const listener of this.#exitListeners) listener(runtimeId, reason);
  }

  /** The connection to a runtime breaks; the operations handed out are dead from then on. */
  disconnect(runtimeId: RuntimeId): void {
    this.#connected.delete(runtimeId);
  }

  get listeners(): number {
    return this.#exitListeners.size + this.#networkListeners.size;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#connected.clear();
  }

  #require(runtimeId: RuntimeId) {
    const runtime = this.backend.runtimes.get(runtimeId);
    if (runtime?.state === "unreadable")
      throw new Unavailable(`the record of runtime ${runtimeId} cannot be read by this release`);
    if (runtime?.state !== "running") throw new RuntimeGone(`runtime ${runtimeId} is gone`);
    return runtime;
  }
}

/** Only the expiry is scripted; commands and files are other tests' matter. */
class ScriptedOperations implements SandboxOperations {
  readonly setExpiry: SandboxOperations["setExpiry"];
  readonly #isCurrent: () => boolean;

  constructor(isCurrent: () => boolean, setExpiry: SandboxOperations["setExpiry"]) {
    this.#isCurrent = isCurrent;
    this.setExpiry = setExpiry;
  }

  get execs(): never {
    throw new ProviderError("scripted sandboxes run no commands");
  }
  get files(): never {
    throw new ProviderError("scripted sandboxes hold no files");
  }
  async stats(): Promise<RuntimeStats> {
    if (!this.#isCurrent()) throw new RuntimeGone("the connection broke");
    return { pids: 1 };
  }
  async dialPort(): Promise<never> {
    throw new ProviderError("scripted sandboxes have no ports");
  }
}

/** A hook's wait that ends with the signal, as a well-behaved backend call does. */
export function hang(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}
