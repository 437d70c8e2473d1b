import { formatDuration } from "@alcove/wire";
import type { Logger } from "../../platform/logger.ts";
import type { Clock, EventSink, Ids, Store } from "../../ports/index.ts";
import type { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import type { Pool } from "../pool/pool.ts";
import type { ProviderRegistry } from "../providers/provider-registry.ts";
import type { Limits } from "../quotas/limits.ts";
import type { SandboxDefaults } from "../quotas/sandbox-defaults.ts";
import { denied } from "../scheduling/admission.ts";
import { StartGates } from "../scheduling/gate.ts";
import { SpawnQueue } from "../scheduling/spawn-queue.ts";
import type { Drain } from "../workers/drain.ts";
import type { SandboxContext, TemplateExpansion } from "./context.ts";
import { DestroyFlow } from "./destroy-flow.ts";
import { ExpireFlow } from "./expire-flow.ts";
import { ExpiryQueue } from "./expiry-queue.ts";
import { ExtendFlow } from "./extend-flow.ts";
import { FailedSandboxes } from "./failed-sandboxes.ts";
import { IdempotentSpawns } from "./idempotency.ts";
import { type LiveSandbox, LiveSandboxes } from "./live-sandboxes.ts";
import { NamedSpawns } from "./named-spawns.ts";
import { RecoverFlow } from "./recover-flow.ts";
import { SandboxDirectory } from "./sandbox-directory.ts";
import { SandboxService } from "./sandbox-service.ts";
import { SpawnFlow } from "./spawn-flow.ts";

/** What the reconciler works with: the same flows that requests go through. */
export interface SandboxLifecycle {
  readonly live: LiveSandboxes;
  readonly expiry: ExpiryQueue;
  readonly destroys: DestroyFlow;
  readonly recover: RecoverFlow;
  readonly failed: FailedSandboxes;
  readonly gates: StartGates;
  /** Calls back when a destroy could not be finished. */
  onUnfinished(listener: (entry: LiveSandbox) => void): void;
  /** Calls back when a sandbox did not answer. */
  onProbeFailed(listener: (entry: LiveSandbox) => void): void;
  /** Calls back when a sandbox has ended by itself, and its runtime is to be removed. */
  onRemains(listener: (entry: LiveSandbox) => void): void;
}

/** Puts together what a sandbox's life is made of: the service that requests call, and the flows beneath it. */
export function composeSandboxes(options: {
  store: Store;
  registry: ProviderRegistry;
  events: EventSink;
  clock: Clock;
  ids: Ids;
  logger: Logger;
  operations: OperationMetrics;
  /** Read whenever they are applied: a reload changes them. */
  defaults: SandboxDefaults;
  limits: Limits;
  pool: Pool;
  templates: TemplateExpansion;
  drain: Pick<Drain, "since" | "admit">;
  deadmanGraceMs: number;
  workerId: string;
  beforeAnswered?: () => Promise<void>;
}): { sandboxes: SandboxService; lifecycle: SandboxLifecycle } {
  const { clock, events, defaults, store } = options;
  const unfinished = new Set<(entry: LiveSandbox) => void>();
  const failing = new Set<(entry: LiveSandbox) => void>();
  const ended = new Set<(entry: LiveSandbox) => void>();
  const tell = (listeners: ReadonlySet<(entry: LiveSandbox) => void>) => (entry: LiveSandbox) => {
    for (const listener of listeners) listener(entry);
  };
  const live = new LiveSandboxes(options);
  const gates = new StartGates();
  const queue = new SpawnQueue({
    clock,
    events,
    rules: () => ({
      overflow: defaults.spawnOverflow,
      poolOverflow: options.pool.settings.overflow,
      timeoutMs: defaults.spawnQueueTimeoutMs,
      maxWaiting: defaults.maxSpawnQueue,
    }),
    denied: (ownerId, result) => denied(ownerId, result, defaults),
  });
  const expiry: ExpiryQueue = new ExpiryQueue({
    clock,
    onDue: (id) => expires.due(id),
    onJump: ({ byMs, due }) =>
      options.logger.warn(
        { event: "clock.jump", jump_ms: byMs, sandboxes: due },
        byMs > 0
          ? `the clock went ${formatDuration(byMs)} ahead at once, set or after a sleep of the machine: ${due} sandboxes expire by that`
          : `the clock was set back by ${formatDuration(-byMs)}: sandboxes live that much longer`,
      ),
  });
  const context: SandboxContext = {
    ...options,
    queue,
    expiry,
    live,
    run: options.ids.secret(8),
    fence: { holder: options.workerId, generation: 0 },
  };
  const destroys = new DestroyFlow(context, tell(unfinished));
  const expires = new ExpireFlow({ context, destroys, setAgain: (id, at) => expiry.set(id, at) });
  const failed = new FailedSandboxes(context, destroys);
  const recover = new RecoverFlow(context, {
    destroys,
    onProbeFailed: tell(failing),
    onRemains: tell(ended),
  });
  const sandboxes = new SandboxService({
    context,
    gates,
    failed,
    destroys,
    expires,
    directory: new SandboxDirectory({ live, gates, recover, store, registry: options.registry }),
    spawns: new SpawnFlow(context, destroys),
    extends: new ExtendFlow(context, recover),
    idempotent: new IdempotentSpawns(context),
    named: new NamedSpawns(context),
  });
  const lifecycle: SandboxLifecycle = {
    live,
    expiry,
    destroys,
    recover,
    failed,
    gates,
    onUnfinished: (listener) => unfinished.add(listener),
    onProbeFailed: (listener) => failing.add(listener),
    onRemains: (listener) => ended.add(listener),
  };
  return { sandboxes, lifecycle };
}
