import { eventData } from "@alcove/wire";
import { silentLogger } from "../../platform/logger.ts";
import { randomIds } from "../../platform/random-ids.ts";
import type { Clock, EmittedEvent, EventSink, RuntimeProvider, Store } from "../../ports/index.ts";
import { AuditLog } from "../audit/audit-log.ts";
import { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import { Pool, type PoolSettings } from "../pool/pool.ts";
import { localWorkerId } from "../providers/provider-address.ts";
import { ProviderRegistry } from "../providers/provider-registry.ts";
import { Limits, type QuotaLookup } from "../quotas/limits.ts";
import type { SandboxDefaults } from "../quotas/sandbox-defaults.ts";
import { Reconciler, type ReconcilerOptions } from "../reconcile/reconciler.ts";
import { Retention } from "../reconcile/retention.ts";
import { composeSandboxes } from "../sandboxes/compose.ts";
import type { SandboxService } from "../sandboxes/sandbox-service.ts";
import { Templates } from "../templates/templates.ts";
import type { FakeClock } from "./fake-clock.ts";
import { ScriptedProvider } from "./scripted-provider.ts";

export const testDefaults: SandboxDefaults = {
  ttlMs: 30 * 60_000,
  memoryMb: 512,
  vcpus: 1,
  maxTtlMs: 24 * 3_600_000,
  defaultExecTimeoutMs: 0,
  maxExecTimeoutMs: 3_600_000,
  maxSandboxes: 100,
  maxSandboxesPerOwner: 0,
  maxMemoryMb: 0,
  maxVcpus: 0,
  memoryOvercommit: 8,
  vcpuOvercommit: 64,
  spawnOverflow: "reject",
  spawnQueueTimeoutMs: 30_000,
  maxSpawnQueue: 100,
};

export class RecordingSink implements EventSink {
  readonly events: EmittedEvent[] = [];
  /** What the documentation of events does not name. */
  readonly undocumented: string[] = [];
  emit(event: EmittedEvent): void {
    const known: readonly string[] = eventData[event.type];
    const unknown = Object.keys(event.data ?? {}).filter((name) => !known.includes(name));
    if (unknown.length > 0) this.undocumented.push(`${event.type}: ${unknown.join(" ")}`);
    this.events.push(event);
  }
  types(sandboxId?: string): string[] {
    return this.events.filter((e) => sandboxId === undefined || e.sandboxId === sandboxId).map((e) => e.type);
  }
}

export const forever = new AbortController().signal;

/** One process of the control plane: service and reconciler on a store and a provider. */
export class Harness<C extends Clock = FakeClock> implements AsyncDisposable {
  readonly clock: C;
  readonly provider: ScriptedProvider;
  readonly events = new RecordingSink();
  readonly registry: ProviderRegistry;
  readonly service: SandboxService;
  readonly reconciler: Reconciler;
  readonly operations: OperationMetrics;
  readonly store: Store;

  constructor(options: {
    store: Store;
    clock: C;
    provider?: ScriptedProvider;
    more?: RuntimeProvider[];
    defaults?: Partial<SandboxDefaults>;
    quotas?: QuotaLookup;
    pool?: Partial<PoolSettings>;
    deadmanGraceMs?: number;
    recovery?: NonNullable<ReconcilerOptions["recovery"]>;
  }) {
    this.clock = options.clock;
    this.store = options.store;
    this.provider = options.provider ?? new ScriptedProvider();
    const { clock, store, events } = this;
    const providers = [this.provider, ...(options.more ?? [])];
    this.registry = new ProviderRegistry({ providers, defaultName: this.provider.name, clock });
    const defaults = { ...testDefaults, ...options.defaults };
    this.operations = new OperationMetrics({ clock, providers: providers.map(({ name }) => name) });
    const shared = {
      store,
      operations: this.operations,
      registry: this.registry,
      events,
      clock,
      logger: silentLogger,
    };
    const { sandboxes, lifecycle } = composeSandboxes({
      ...shared,
      ids: randomIds,
      defaults,
      limits: new Limits(defaults, options),
      pool: new Pool({ ...testPool, ...options.pool }),
      templates: new Templates({ store: store.templates, clock }),
      drain: { since: undefined, admit: () => undefined },
      deadmanGraceMs: options.deadmanGraceMs ?? 300_000,
      workerId: localWorkerId,
    });
    this.service = sandboxes;
    const { recovery } = options;
    this.reconciler = new Reconciler({
      ...shared,
      lifecycle,
      retentionMs: 24 * 3_600_000,
      ...(recovery === undefined ? {} : { recovery }),
      retention: new Retention({
        store,
        clock,
        logger: silentLogger,
        retentionMs: 24 * 3_600_000,
        maxDestroyed: 100_000,
        eventsMaxAgeMs: 24 * 3_600_000,
        audit: new AuditLog({
          store: store.audit,
          clock,
          logger: silentLogger,
          retention: { ageMs: 90 * 24 * 3_600_000, count: 100_000 },
        }),
      }),
    });
  }

  async start(): Promise<this> {
    this.reconciler.start();
    await this.reconciler.ready;
    await this.reconciler.reconcile();
    return this;
  }

  async spawn(input: Parameters<SandboxService["spawn"]>[0] = {}) {
    return (await this.service.spawn(input, { signal: forever })).sandbox;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.reconciler[Symbol.asyncDispose]();
    await this.service[Symbol.asyncDispose]();
    if (this.events.undocumented.length > 0)
      throw new Error(`docs/api/events.md does not name ${this.events.undocumented.join(", ")}`);
  }
}

const testPool: PoolSettings = {
  enabled: false,
  maxVms: 2,
  maxUsersPerVm: 2,
  image: "",
  memoryMb: 256,
  vcpus: 2,
  overflow: "reject",
};
