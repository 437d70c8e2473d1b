import { type Static, Type } from "typebox";
import { QuotaSummary } from "./quotas.ts";
import { ProviderHealth } from "./system.ts";
import { Duration } from "./texts.ts";
import { Worker } from "./workers.ts";

const Count = Type.Integer({ minimum: 0 });
const Counts = Type.Record(Type.String(), Count);
const Time = Type.String({ format: "date-time" });

/** See docs/api/metrics.md. */
export const WorkerFigures = Type.Object(
  { total: Count, online: Count, stale: Count, unhealthy: Count, items: Type.Array(Worker) },
  { $id: "WorkerFigures" },
);
export type WorkerFigures = Static<typeof WorkerFigures>;

/** See docs/api/metrics.md. */
export const LeaseFigures = Type.Object(
  { total: Count, active: Count, expired: Count, by_holder: Counts },
  { $id: "LeaseFigures" },
);
export type LeaseFigures = Static<typeof LeaseFigures>;

/** See docs/api/metrics.md. */
export const SandboxFigures = Type.Object(
  {
    total: Count,
    active: Count,
    by_state: Counts,
    by_provider: Counts,
    by_worker: Counts,
    active_by_worker: Counts,
  },
  { $id: "SandboxFigures" },
);
export type SandboxFigures = Static<typeof SandboxFigures>;

/** See docs/api/metrics.md. */
export const EventFigures = Type.Object(
  { subscribers: Count, history_size: Count, events_total: Count },
  { $id: "EventFigures" },
);
export type EventFigures = Static<typeof EventFigures>;

/** See docs/api/metrics.md. */
export const SchedulerFigures = Type.Object(
  {
    spawn_overflow: Type.String(),
    spawn_queue_depth: Count,
    max_spawn_queue: Count,
    spawn_queue_timeout: Duration,
    admission_control: Type.String(),
    spawn_queued_total: Count,
    spawn_dequeued_total: Count,
    spawn_queue_timeouts: Count,
    spawn_queue_wait_count: Count,
    spawn_queue_wait_total: Duration,
    spawn_queue_wait_max: Duration,
    spawn_queue_wait_avg: Duration,
    spawn_queue_wait_total_ms: Count,
    spawn_queue_wait_max_ms: Count,
    spawn_queue_wait_avg_ms: Count,
    worker_id: Type.String(),
    selected_worker_id: Type.String(),
    eligible_workers: Count,
  },
  { $id: "SchedulerFigures" },
);
export type SchedulerFigures = Static<typeof SchedulerFigures>;

/** See docs/api/metrics.md. */
export const RateLimitFigures = Type.Object(
  {
    enabled: Type.Boolean(),
    requests_per_minute: Count,
    burst: Count,
    key_by: Type.String(),
    active_buckets: Count,
    allowed_total: Count,
    limited_total: Count,
    evicted_total: Count,
    bucket_ttl: Duration,
    cleanup_interval: Duration,
  },
  { $id: "RateLimitFigures" },
);
export type RateLimitFigures = Static<typeof RateLimitFigures>;

/** See docs/api/metrics.md. */
export const OperationFigures = Type.Object(
  {
    operation: Type.String(),
    provider: Type.String(),
    success_total: Count,
    failure_total: Count,
    latency_count: Count,
    latency_total_ms: Count,
    latency_min_ms: Count,
    latency_max_ms: Count,
    latency_avg_ms: Count,
  },
  { $id: "OperationFigures" },
);
export type OperationFigures = Static<typeof OperationFigures>;

/** See docs/api/metrics.md. */
export const PreviewFigures = Type.Object(
  {
    connections: Count,
    answered_total: Count,
    cut_total: Count,
    refused_total: Count,
    websockets_total: Count,
  },
  { $id: "PreviewFigures" },
);
export type PreviewFigures = Static<typeof PreviewFigures>;

/** `GET /metrics`. docs/api/metrics.md. */
export const Metrics = Type.Object(
  {
    uptime: Duration,
    goroutines: Count,
    memory_alloc: Count,
    memory_sys: Count,
    memory_heap_alloc: Count,
    gc_cycles: Count,
    sandboxes: SandboxFigures,
    providers: Type.Object({
      total: Count,
      healthy: Count,
      items: Type.Array(
        Type.Object({ name: Type.String(), healthy: Type.Boolean(), default: Type.Boolean() }),
      ),
    }),
    workers: WorkerFigures,
    leases: LeaseFigures,
    events: EventFigures,
    scheduler: SchedulerFigures,
    quotas: QuotaSummary,
    rate_limit: RateLimitFigures,
    operations: Type.Array(OperationFigures),
    previews: PreviewFigures,
  },
  { $id: "Metrics" },
);
export type Metrics = Static<typeof Metrics>;

/** `GET /diagnostics`. docs/api/metrics.md. */
export const Diagnostics = Type.Object(
  {
    generated_at: Time,
    build: Type.Object({ version: Type.String(), goos: Type.String(), goarch: Type.String() }),
    process: Type.Object({
      uptime: Duration,
      goroutines: Count,
      memory: Type.Object({ alloc: Count, sys: Count, heap_alloc: Count, gc_cycles: Count }),
      reload_failed: Type.Optional(
        Type.String({
          format: "date-time",
          description:
            "When the configuration could not be read again, so that the former one goes on applying; absent: what was asked for last applies.",
        }),
      ),
    }),
    store: Type.Object({
      healthy: Type.Boolean(),
      latency_ms: Count,
      refusal: Type.Optional(
        Type.String({
          description: "Why nothing new is written down now: a full or broken disk, damage; absent: it is.",
        }),
      ),
      last_backup: Type.Optional(
        Type.String({ format: "date-time", description: "When `alcove backup` last ended; absent: never." }),
      ),
    }),
    limits: Type.Object({
      max_sandboxes: Count,
      max_sandboxes_per_owner: Count,
      default_exec_timeout: Duration,
      max_exec_timeout: Duration,
      max_ttl: Duration,
      spawn_overflow: Type.String(),
      spawn_queue_timeout: Duration,
      max_spawn_queue: Count,
    }),
    scheduler: SchedulerFigures,
    quotas: QuotaSummary,
    rate_limit: RateLimitFigures,
    providers: Type.Array(ProviderHealth),
    workers: WorkerFigures,
    leases: LeaseFigures,
    sandboxes: SandboxFigures,
    events: EventFigures,
    operations: Type.Array(OperationFigures),
    remediation: Type.Record(Type.String(), Type.String()),
    redactions: Type.Array(Type.String()),
  },
  { $id: "Diagnostics" },
);
export type Diagnostics = Static<typeof Diagnostics>;
