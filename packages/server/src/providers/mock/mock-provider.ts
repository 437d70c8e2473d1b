import type { Capability } from "@alcove/wire";
import type { Logger } from "../../platform/logger.ts";
import type { Clock } from "../../ports/clock.ts";
import { BadRequest, RuntimeGone } from "../../ports/errors.ts";
import type { RuntimeId } from "../../ports/ids.ts";
import type {
  InventoryEntry,
  ProviderCheck,
  RuntimeProvider,
  RuntimeSpec,
  SpawnedRuntime,
  SpawnOptions,
} from "../../ports/runtime-provider.ts";
import type { CallOptions, SandboxOperations } from "../../ports/sandbox-operations.ts";
import { type MockBehaviour, readBehaviour } from "./behaviour.ts";
import { MockSandbox } from "./mock-sandbox.ts";
import { pause } from "./pause.ts";
import { findUser } from "./sandbox-fs.ts";
import { ShellPool } from "./shell-pool.ts";

export interface MockProviderConfig {
  defaultImage: string;
  maxWorkers: number;
}

interface MockRuntime {
  spec: RuntimeSpec;
  behaviour: MockBehaviour;
  sandbox: MockSandbox;
  startedAt: Date;
  failuresLeft: number;
}

/**
 * Simulates sandboxes in this process, without isolation worth the name and without access to the host: shells of
 * `just-bash` in worker threads, file systems in memory. Nothing survives the process: inventory is empty at its start.
 */
export class MockProvider implements RuntimeProvider {
  readonly name = "mock";
  readonly capabilities: ReadonlySet<Capability> = new Set<Capability>([
    "spawn",
    "exec",
    "exec_stream",
    "files",
    "console",
    "health",
    "runtime_inventory",
    "reattach",
    "watch",
    "stats",
    "users",
    "file_modes",
    "archives",
  ]);
  readonly defaultImage: string;
  readonly inProcess = true;
  readonly #config: MockProviderConfig;
  readonly #clock: Clock;
  readonly #pool: ShellPool;
  readonly #runtimes = new Map<RuntimeId, MockRuntime>();
  readonly #exitListeners = new Set<(runtimeId: RuntimeId, reason: string) => void>();

  constructor(options: { config: MockProviderConfig; logger: Logger; clock: Clock }) {
    this.#config = options.config;
    this.#clock = options.clock;
    this.defaultImage = options.config.defaultImage;
    this.#pool = new ShellPool({ maxWorkers: options.config.maxWorkers, logger: options.logger });
  }

  async check(_options: CallOptions): Promise<ProviderCheck> {
    return { healthy: true, notes: ["commands are simulated, not run: for tests and demos only"] };
  }

  settings(): Record<string, unknown> {
    return { max_workers: this.#config.maxWorkers, simulated: true };
  }

  async spawn(spec: RuntimeSpec, options: SpawnOptions): Promise<SpawnedRuntime> {
    options.signal.throwIfAborted();
    const behaviour = readBehaviour(spec.metadata);
    if (spec.user !== undefined && findUser(spec.user) === undefined)
      throw new BadRequest(
        `user "${spec.user}" is not known in a mock sandbox; it has root, user and nobody`,
      );
    if (behaviour.spawnDelayMs > 0) {
      await pause(this.#clock, behaviour.spawnDelayMs, options.signal);
      options.onStage?.("delay", behaviour.spawnDelayMs);
    }
    if (behaviour.spawnError !== undefined) throw behaviour.spawnError;
    if (!this.#runtimes.has(spec.runtimeId)) {
      const sandbox = new MockSandbox({
        spec,
        behaviour,
        pool: this.#pool,
        clock: this.#clock,
        onExpired: () => this.#expire(spec.runtimeId),
      });
      const failuresLeft = behaviour.destroyFailures;
      this.#runtimes.set(spec.runtimeId, {
        spec,
        behaviour,
        sandbox,
        startedAt: this.#clock.now(),
        failuresLeft,
      });
    }
    return { image: spec.image };
  }

  async inventory(_options: CallOptions): Promise<InventoryEntry[]> {
    return [...this.#runtimes.values()].map(({ spec }) => ({
      runtimeId: spec.runtimeId,
      sandboxId: spec.sandboxId,
      state: "running",
    }));
  }

  async adopt(runtimeId: RuntimeId, _options: CallOptions): Promise<void> {
    this.#find(runtimeId);
  }

  async destroy(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    const runtime = this.#runtimes.get(runtimeId);
    if (runtime === undefined) return;
    const { behaviour } = runtime;
    if (behaviour.destroyDelayMs > 0) await pause(this.#clock, behaviour.destroyDelayMs, options.signal);
    if (behaviour.destroyError !== undefined && runtime.failuresLeft > 0) {
      runtime.failuresLeft -= 1;
      throw behaviour.destroyError;
    }
    await runtime.sandbox.end();
    this.#runtimes.delete(runtimeId);
  }

  sandbox(runtimeId: RuntimeId): SandboxOperations {
    return this.#find(runtimeId).sandbox;
  }

  async logs(runtimeId: RuntimeId, options: CallOptions & { lines: number }): Promise<string[]> {
    const { spec, startedAt, sandbox } = this.#find(runtimeId);
    const lines = [
      `${startedAt.toISOString()} mock: sandbox ${spec.sandboxId} started with image ${spec.image}`,
    ];
    for (const exec of await sandbox.execs.list()) {
      lines.push(`${exec.startedAt.toISOString()} mock: ${exec.execId} started, pid ${exec.pid}`);
      if (exec.exit !== undefined)
        lines.push(
          `${exec.exit.endedAt.toISOString()} mock: ${exec.execId} ${exec.exit.reason}, exit code ${exec.exit.exitCode}`,
        );
    }
    return lines.sort().slice(Math.max(0, lines.length - options.lines));
  }

  onExit(listener: (runtimeId: RuntimeId, reason: string) => void): () => void {
    this.#exitListeners.add(listener);
    return () => this.#exitListeners.delete(listener);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#runtimes.values()].map((runtime) => runtime.sandbox.end()));
    this.#runtimes.clear();
    await this.#pool[Symbol.asyncDispose]();
  }

  #expire(runtimeId: RuntimeId): void {
    const runtime = this.#runtimes.get(runtimeId);
    if (runtime === undefined) return;
    this.#runtimes.delete(runtimeId);
    void runtime.sandbox.end();
    for (const listener of this.#exitListeners)
      listener(runtimeId, "the sandbox reached its expiry and ended itself");
  }

  #find(runtimeId: RuntimeId): MockRuntime {
    const runtime = this.#runtimes.get(runtimeId);
    if (runtime === undefined) throw new RuntimeGone(`mock runtime ${runtimeId} has ended`);
    return runtime;
  }
}
