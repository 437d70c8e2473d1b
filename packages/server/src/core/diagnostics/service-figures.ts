import type { Config } from "../../config/config.ts";
import { abortable } from "../../platform/abortable.ts";
import type { BulkRests } from "../../platform/bulk-rests.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { DescriptorFigures } from "../../platform/descriptors.ts";
import type { DiskFigure, DiskFigures } from "../../platform/disk-figures.ts";
import type { LastBackup } from "../../platform/last-backup.ts";
import type { ProcessFigures } from "../../platform/process-figures.ts";
import type { Clock } from "../../ports/clock.ts";
import type { QuotaSummary } from "../../ports/quota-store.ts";
import type { Latencies, Store } from "../../ports/store.ts";
import type { AuditLog } from "../audit/audit-log.ts";
import type { EventLog } from "../events/event-log.ts";
import type { ExecService } from "../exec/exec-service.ts";
import type { PreviewCounts } from "../previews/preview-counts.ts";
import type { Previews } from "../previews/previews.ts";
import { localWorkerId } from "../providers/provider-address.ts";
import type { ProviderHealthEntry, ProviderRegistry } from "../providers/provider-registry.ts";
import type { Quotas } from "../quotas/quotas.ts";
import type { RateLimits } from "../rate-limits/rate-limits.ts";
import type { SandboxService } from "../sandboxes/sandbox-service.ts";
import type { SandboxCounts } from "../sandboxes/sandbox-tally.ts";
import type { QueueStats } from "../scheduling/queue-stats.ts";
import type { Drain } from "../workers/drain.ts";
import type { WorkerFigures } from "../workers/local-worker.ts";
import type { Workers } from "../workers/workers.ts";
import type { Incidents } from "./incidents.ts";
import type { OperationFigures, OperationMetrics } from "./operation-metrics.ts";
import type { ResponseCounts } from "./response-counts.ts";

const pingDeadlineMs = 2_000;

/** Where figures come from. */
export interface FigureSources {
  clock: Clock;
  config: Pick<Config, "defaults" | "rateLimit">;
  /** Monotonic, milliseconds. */
  startedMs: number;
  process: ProcessFigures;
  registry: Pick<ProviderRegistry, "lastKnown" | "madeAhead" | "guards">;
  sandboxes: Pick<SandboxService, "counts" | "figures" | "ready">;
  quotas: Pick<Quotas, "counts">;
  rateLimits: Pick<RateLimits, "totals">;
  audit: Pick<AuditLog, "missing">;
  events: Pick<EventLog, "subscribers" | "total" | "historySize">;
  workers: Pick<Workers, "list">;
  drain: Pick<Drain, "since">;
  operations: OperationMetrics;
  store: Pick<Store, "ping" | "commits">;
  /** Why nothing new can be written down; undefined when it can. */
  storeRefusal?: () => string | undefined;
  execs: Pick<ExecService, "running">;
  /** Of what moves much, while others begin commands. */
  rests: Pick<BulkRests, "total">;
  responses: Pick<ResponseCounts, "all">;
  disks: Pick<DiskFigures, "all">;
  descriptors: Pick<DescriptorFigures, "all">;
  /** When the configuration could not be read again, and what was read before goes on applying. */
  reload: { readonly failedAt: Date | undefined };
  lastBackup: Pick<LastBackup, "at" | "look">;
  previews: Pick<Previews, "counts" | "places">;
}

/** What the service knows of itself at one moment. */
export interface Figures {
  readonly generatedAt: Date;
  readonly uptimeMs: number;
  readonly process: {
    readonly underWay: number;
    readonly gcCycles: number;
    /** Seconds of processor time, and those in which the event loop was not idle. */
    readonly cpuSeconds: number;
    readonly busySeconds: number;
    readonly memory: ProcessFigures["memory"];
  };
  readonly defaults: Config["defaults"];
  readonly scheduler: {
    readonly queueDepth: number;
    readonly queue: QueueStats;
    readonly workerId: string;
    /** Where a spawn would go now; empty: nowhere. */
    readonly selectedWorkerId: string;
    readonly eligibleWorkers: number;
  };
  readonly quotas: QuotaSummary;
  readonly rateLimit: { readonly settings: Config["rateLimit"]; readonly totals: RateLimits["totals"] };
  readonly providers: readonly ProviderHealthEntry[];
  readonly madeAhead: ReturnType<ProviderRegistry["madeAhead"]>;
  readonly guards: ReturnType<ProviderRegistry["guards"]>;
  readonly workers: readonly WorkerFigures[];
  readonly leases: {
    readonly total: number;
    readonly active: number;
    readonly expired: number;
    readonly byHolder: Readonly<Record<string, number>>;
  };
  readonly sandboxes: SandboxCounts;
  readonly events: { readonly subscribers: number; readonly historySize: number; readonly total: number };
  readonly operations: readonly OperationFigures[];
  readonly incidents: Incidents["all"];
  /** Calls that are not in the audit history. */
  readonly auditMissing: number;
  /** Spawns that name no provider can succeed now. */
  readonly ready: boolean;
  readonly draining: boolean;
  /** Commands that run. */
  readonly runningExecs: number;
  /** Times that what moves much of a sandbox has rested while others began commands. */
  readonly transferRests: number;
  readonly responses: ResponseCounts["all"];
  readonly commits: Latencies;
  readonly disks: readonly DiskFigure[];
  readonly descriptors: DescriptorFigures["all"];
  /** undefined: what was asked for last applies. */
  readonly reloadFailed: Date | undefined;
  /** undefined: never. */
  readonly lastBackup: Date | undefined;
  /** Connections to ports of sandboxes that are open, and what became of what was asked of those. */
  readonly previews: PreviewCounts["all"] & { readonly connections: number };
}

export interface StoreHealth {
  readonly healthy: boolean;
  readonly latencyMs: number;
  /** Why nothing new is written down now. */
  readonly refusal?: string;
  /** Absent: never. */
  readonly lastBackup?: Date;
}

/**
 * Metrics and diagnostics. Everything is read from counters and from what was found last: a scrape costs the same with
 * ten sandboxes and ten thousand, and asks no provider. docs/api/metrics.md.
 */
export class ServiceFigures {
  readonly #parts: FigureSources;

  constructor(parts: FigureSources) {
    this.#parts = parts;
  }

  async current(): Promise<Figures> {
    const { clock, config, process, sandboxes, quotas, rateLimits, events, operations } = this.#parts;
    const providers = this.#parts.registry.lastKnown();
    const historySize = await events.historySize();
    const counts = sandboxes.counts;
    const { queueDepth, queue } = sandboxes.figures;
    const draining = this.#parts.drain.since !== undefined;
    const takesSpawns =
      !draining &&
      sandboxes.ready &&
      providers.some((entry) => entry.default && entry.healthy && !entry.cannotSpawn);
    return {
      generatedAt: clock.now(),
      uptimeMs: clock.monotonicMs() - this.#parts.startedMs,
      process: {
        underWay: process.underWay,
        gcCycles: process.gcCycles,
        memory: process.memory,
        cpuSeconds: process.cpuSeconds,
        busySeconds: process.busySeconds,
      },
      defaults: config.defaults,
      scheduler: {
        queueDepth,
        queue,
        workerId: localWorkerId,
        selectedWorkerId: takesSpawns ? localWorkerId : "",
        eligibleWorkers: takesSpawns ? 1 : 0,
      },
      quotas: quotas.counts,
      rateLimit: { settings: config.rateLimit, totals: rateLimits.totals },
      providers,
      madeAhead: this.#parts.registry.madeAhead(),
      guards: this.#parts.registry.guards(),
      workers: this.#parts.workers.list(),
      leases: leasesOf(counts),
      sandboxes: withZeros(counts, providers),
      events: { subscribers: events.subscribers, historySize, total: events.total },
      operations: operations.all,
      incidents: operations.incidents.all,
      auditMissing: this.#parts.audit.missing,
      ready: takesSpawns && this.#parts.storeRefusal?.() === undefined,
      draining,
      runningExecs: this.#parts.execs.running,
      transferRests: this.#parts.rests.total,
      responses: this.#parts.responses.all,
      commits: this.#parts.store.commits,
      previews: { ...this.#parts.previews.counts.all, connections: this.#parts.previews.places.taken },
      disks: this.#parts.disks.all,
      descriptors: this.#parts.descriptors.all,
      reloadFailed: this.#parts.reload.failedAt,
      lastBackup: this.#parts.lastBackup.at,
    };
  }

  /** Asks the database for something small, and its directory when it was backed up. */
  async storeHealth(): Promise<StoreHealth> {
    const { clock, store, lastBackup } = this.#parts;
    using deadline = deadlineAfter(pingDeadlineMs);
    const startedMs = clock.monotonicMs();
    // Of a disk that does not answer what it said last.
    const backedUp = abortable(lastBackup.look(), deadline.signal).catch(() => lastBackup.at);
    const healthy = await abortable(store.ping(), deadline.signal).then(
      () => true,
      () => false,
    );
    const latencyMs = clock.monotonicMs() - startedMs;
    const refusal = this.#parts.storeRefusal?.();
    const at = await backedUp;
    return {
      healthy,
      latencyMs,
      ...(refusal !== undefined && { refusal }),
      ...(at !== undefined && { lastBackup: at }),
    };
  }
}

/** A sandbox of this process is its own from the reservation until it is gone, and its hold of it does not expire. */
function leasesOf({ total, byWorker }: SandboxCounts): Figures["leases"] {
  return { total, active: total, expired: 0, byHolder: byWorker };
}

/** What there could be and is not now is told as 0, so that a series does not end with its last sandbox. */
function withZeros(counts: SandboxCounts, providers: readonly ProviderHealthEntry[]): SandboxCounts {
  const none = { creating: 0, running: 0, unhealthy: 0, expired: 0, error: 0 };
  return {
    ...counts,
    byState: { ...none, ...counts.byState },
    byProvider: { ...Object.fromEntries(providers.map(({ name }) => [name, 0])), ...counts.byProvider },
    byWorker: { [localWorkerId]: 0, ...counts.byWorker },
    activeByWorker: { [localWorkerId]: 0, ...counts.activeByWorker },
  };
}
