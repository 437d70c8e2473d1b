import type * as wire from "@alcove/wire";
import { formatDuration } from "@alcove/wire";
import type { OperationFigures } from "../core/diagnostics/operation-metrics.ts";
import type { Figures } from "../core/diagnostics/service-figures.ts";
import type { WorkerFigures } from "../core/workers/local-worker.ts";

/** Limits are counted inside the transaction that reserves, so that they hold however many ask at once. */
const admissionControl = "transactional";

export function presentMetrics(figures: Figures): wire.Metrics {
  const { process, providers } = figures;
  const memory = presentMemory(figures);
  return {
    uptime: formatDuration(figures.uptimeMs),
    goroutines: process.underWay,
    memory_alloc: memory.alloc,
    memory_sys: memory.sys,
    memory_heap_alloc: memory.heap_alloc,
    gc_cycles: memory.gc_cycles,
    sandboxes: presentSandboxCounts(figures),
    providers: {
      total: providers.length,
      healthy: providers.filter(({ healthy }) => healthy).length,
      items: providers.map((entry) => ({
        name: entry.name,
        healthy: entry.healthy,
        default: entry.default,
      })),
    },
    ...presentShared(figures),
    previews: presentPreviews(figures),
  };
}

/** What metrics and diagnostics tell in the same words. */
export function presentShared(figures: Figures) {
  const { workers, leases, events, quotas } = figures;
  return {
    workers: {
      total: workers.length,
      online: workers.filter(({ status, stale }) => status === "online" && !stale).length,
      stale: workers.filter(({ stale }) => stale).length,
      unhealthy: 0,
      items: workers.map(presentWorker),
    },
    leases: {
      total: leases.total,
      active: leases.active,
      expired: leases.expired,
      by_holder: leases.byHolder,
    },
    events: {
      subscribers: events.subscribers,
      history_size: events.historySize,
      events_total: events.total,
    },
    scheduler: presentScheduler(figures),
    quotas: {
      total: quotas.total,
      with_max_sandboxes: quotas.withMaxSandboxes,
      with_max_ttl: quotas.withMaxTtl,
      with_max_exec_timeout: quotas.withMaxExecTimeout,
    },
    rate_limit: presentRateLimit(figures),
    operations: figures.operations.map(presentOperation),
  };
}

export function presentMemory({ process: { memory, gcCycles } }: Figures) {
  return { alloc: memory.used, sys: memory.all, heap_alloc: memory.heapUsed, gc_cycles: gcCycles };
}

export function presentSandboxCounts({ sandboxes }: Figures): wire.SandboxFigures {
  return {
    total: sandboxes.total,
    active: sandboxes.active,
    by_state: sandboxes.byState,
    by_provider: sandboxes.byProvider,
    by_worker: sandboxes.byWorker,
    active_by_worker: sandboxes.activeByWorker,
  };
}

function presentScheduler({ scheduler, defaults }: Figures): wire.SchedulerFigures {
  const { queue } = scheduler;
  const averageMs = queue.waitCount === 0 ? 0 : queue.waitTotalMs / queue.waitCount;
  return {
    spawn_overflow: defaults.spawnOverflow,
    spawn_queue_depth: scheduler.queueDepth,
    max_spawn_queue: defaults.maxSpawnQueue,
    spawn_queue_timeout: formatDuration(defaults.spawnQueueTimeoutMs),
    admission_control: admissionControl,
    spawn_queued_total: queue.queuedTotal,
    spawn_dequeued_total: queue.dequeuedTotal,
    spawn_queue_timeouts: queue.timeouts,
    spawn_queue_wait_count: queue.waitCount,
    spawn_queue_wait_total: formatDuration(queue.waitTotalMs),
    spawn_queue_wait_max: formatDuration(queue.waitMaxMs),
    spawn_queue_wait_avg: formatDuration(averageMs),
    spawn_queue_wait_total_ms: Math.round(queue.waitTotalMs),
    spawn_queue_wait_max_ms: Math.round(queue.waitMaxMs),
    spawn_queue_wait_avg_ms: Math.round(averageMs),
    worker_id: scheduler.workerId,
    selected_worker_id: scheduler.selectedWorkerId,
    eligible_workers: scheduler.eligibleWorkers,
  };
}

function presentRateLimit({ rateLimit: { settings, totals } }: Figures): wire.RateLimitFigures {
  return {
    enabled: settings.enabled,
    requests_per_minute: settings.requestsPerMinute,
    burst: settings.burst,
    key_by: settings.keyBy,
    active_buckets: totals.active,
    allowed_total: totals.allowed,
    limited_total: totals.limited,
    evicted_total: totals.evicted,
    bucket_ttl: formatDuration(settings.bucketTtlMs),
    cleanup_interval: formatDuration(settings.cleanupIntervalMs),
  };
}

function presentPreviews({ previews }: Figures): wire.PreviewFigures {
  return {
    connections: previews.connections,
    answered_total: previews.answered,
    cut_total: previews.cut,
    refused_total: previews.refused,
    websockets_total: previews.sockets,
  };
}

function presentOperation(figures: OperationFigures): wire.OperationFigures {
  const { count, sum } = figures.latencies;
  return {
    operation: figures.operation,
    provider: figures.provider,
    success_total: figures.succeeded,
    failure_total: figures.failed,
    latency_count: count,
    latency_total_ms: Math.round(sum),
    latency_min_ms: Math.round(figures.shortestMs),
    latency_max_ms: Math.round(figures.longestMs),
    latency_avg_ms: count === 0 ? 0 : Math.round(sum / count),
  };
}

export function presentWorker(worker: WorkerFigures): wire.Worker {
  return {
    id: worker.id,
    hostname: worker.hostname,
    status: worker.status,
    providers: [...worker.providers],
    capabilities: [...worker.capabilities],
    capacity: {
      max_sandboxes: worker.capacity.maxSandboxes,
      max_sandboxes_per_owner: worker.capacity.maxSandboxesPerOwner,
    },
    last_heartbeat: worker.lastHeartbeat.toISOString(),
    created_at: worker.createdAt.toISOString(),
    updated_at: worker.updatedAt.toISOString(),
    stale: worker.stale,
  };
}
