import type { OperationFigures } from "../core/diagnostics/operation-metrics.ts";
import type { Figures } from "../core/diagnostics/service-figures.ts";
import { Exposition, type Labels } from "../platform/metrics/exposition.ts";
import { presentShared } from "./present-figures.ts";

/** Figures for a scrape. Names are the interface's, `_total` of what can fall included. docs/api/metrics.md. */
export function exposeFigures(figures: Figures): string {
  const text = new Exposition();
  const { process, scheduler, sandboxes, providers, rateLimit, operations, previews } = figures;
  const { queue } = scheduler;
  const { workers, leases, events, quotas } = presentShared(figures);

  text.gauge("service_uptime_seconds", "Seconds since the start of the service.", figures.uptimeMs / 1_000);
  text.gauge("service_memory_bytes", "Memory of the process.", [
    [{ kind: "alloc" }, process.memory.used],
    [{ kind: "sys" }, process.memory.all],
    [{ kind: "heap_alloc" }, process.memory.heapUsed],
  ]);
  text.gauge("service_goroutines", "Open handles and requests under way.", process.underWay);
  text.counter("service_gc_cycles_total", "Collections of garbage.", process.gcCycles);

  text.counter("service_cpu_seconds_total", "Processor time of the process.", figures.process.cpuSeconds);
  text.counter(
    "service_event_loop_busy_seconds_total",
    "Time in which the event loop had something to do.",
    figures.process.busySeconds,
  );
  text.gauge("service_open_files", "Descriptors that are open.", figures.descriptors.open);
  text.gauge("service_open_files_max", "Descriptors there may be.", figures.descriptors.most);
  text.counter(
    "service_sandboxes_ended_total",
    "Sandboxes that ended without being destroyed, by what ended them.",
    by("by", figures.incidents.ended),
  );
  text.counter(
    "service_networks_lost_total",
    "Networks of sandboxes that ended under them.",
    figures.incidents.networksLost,
  );
  text.counter(
    "service_sandboxes_recovered_total",
    "Sandboxes that ran and that the database did not know.",
    figures.incidents.recovered,
  );
  text.counter(
    "service_audit_missing_total",
    "Calls that are not in the audit history.",
    figures.auditMissing,
  );
  text.gauge("service_ready", "Whether spawns can succeed now.", figures.ready ? 1 : 0);
  text.gauge(
    "service_draining",
    "Whether no new sandboxes are taken, as was asked for.",
    figures.draining ? 1 : 0,
  );
  text.counter(
    "service_responses_total",
    "Requests answered, by class of status.",
    by("class", figures.responses),
  );
  text.gauge("service_disk_free_bytes", "Room where the service writes.", [
    ...figures.disks.map(({ name, freeBytes }): [Labels, number] => [{ disk: name }, freeBytes]),
  ]);
  text.gauge("service_disk_size_bytes", "Size of that file system.", [
    ...figures.disks.map(({ name, sizeBytes }): [Labels, number] => [{ disk: name }, sizeBytes]),
  ]);
  text.gauge("service_disk_free_inodes", "Files that can still be made there, where that is bounded.", [
    ...figures.disks.flatMap(({ name, freeInodes }): [Labels, number][] =>
      freeInodes === undefined ? [] : [[{ disk: name }, freeInodes]],
    ),
  ]);
  text.gauge(
    "service_config_reload_successful",
    "Whether the configuration could be read when that was asked for last.",
    figures.reloadFailed === undefined ? 1 : 0,
  );
  text.gauge(
    "service_last_backup_timestamp_seconds",
    "When a backup was made last; 0: never.",
    (figures.lastBackup?.getTime() ?? 0) / 1_000,
  );
  text.histogram("service_store_commit_milliseconds", "How long the database took to make writes durable.", [
    [{}, figures.commits],
  ]);

  text.gauge(
    "service_provider_healthy",
    "Whether a provider was healthy when it was looked at last.",
    providers.map(({ name, healthy, default: isDefault }) => [
      { provider: name, default: String(isDefault) },
      healthy ? 1 : 0,
    ]),
  );
  text.gauge(
    "service_guard_helpless",
    "Whether a guard stops no sandbox though it may have to: it cannot look, or nobody is to blame.",
    figures.guards.map(({ name, guard, helpless }) => [{ provider: name, guard }, helpless ? 1 : 0]),
  );
  text.gauge(
    "service_prepared_waiting",
    "Sandboxes that are made ahead and wait for somebody.",
    figures.madeAhead.map(({ name, figures: { waiting } }) => [{ provider: name }, waiting]),
  );
  text.counter(
    "service_prepared_spawns_total",
    "Spawns of providers that make sandboxes ahead, by whether one was claimed.",
    figures.madeAhead.flatMap(({ name, figures: { claimed, cold } }): [Labels, number][] => [
      [{ provider: name, outcome: "claimed" }, claimed],
      [{ provider: name, outcome: "cold" }, cold],
    ]),
  );
  text.counter(
    "service_prepared_failures_total",
    "Times that no sandbox could be made ahead.",
    figures.madeAhead.map(({ name, figures: { failed } }) => [{ provider: name }, failed]),
  );
  text.counter(
    "service_prepared_removed_total",
    "Sandboxes that were made ahead and removed because a spawn found no room.",
    figures.madeAhead.map(({ name, figures: { gaveWay } }) => [{ provider: name }, gaveWay]),
  );
  text.gauge("service_sandboxes_active", "Sandboxes that count against limits.", sandboxes.active);
  text.gauge(
    "service_sandboxes_max",
    "Sandboxes there may be; 0: any number.",
    figures.defaults.maxSandboxes,
  );
  text.gauge("service_execs_running", "Commands that run.", figures.runningExecs);
  text.counter(
    "service_transfer_rests_total",
    "Times that a transfer of output, files or previews rested while others began commands.",
    figures.transferRests,
  );
  text.gauge("service_sandboxes_by_state_total", "Sandboxes there are.", by("state", sandboxes.byState));
  text.gauge(
    "service_sandboxes_by_provider_total",
    "Sandboxes there are.",
    by("provider", sandboxes.byProvider),
  );
  text.gauge("service_sandboxes_by_worker_total", "Sandboxes there are.", by("worker", sandboxes.byWorker));
  text.gauge("service_workers_total", "Workers.", status(workers, ["total", "online", "stale", "unhealthy"]));
  text.gauge(
    "service_leases_total",
    "Holds that workers have of sandboxes.",
    status(leases, ["total", "active", "expired"]),
  );
  text.gauge("service_owner_quotas_total", "Owners that have a quota.", quotas.total);

  text.gauge("service_spawn_queue_depth", "Spawns that wait for capacity.", scheduler.queueDepth);
  text.counter("service_spawn_queued_total", "Spawns that began to wait.", queue.queuedTotal);
  text.counter(
    "service_spawn_dequeued_total",
    "Spawns that got their place after a wait.",
    queue.dequeuedTotal,
  );
  text.counter("service_spawn_queue_timeouts_total", "Spawns that waited in vain.", queue.timeouts);
  text.histogram("service_spawn_queue_wait_milliseconds", "Waits of spawns that have ended.", [
    [{}, queue.waits],
  ]);

  text.counter("service_rate_limit_allowed_total", "Requests let through.", rateLimit.totals.allowed);
  text.counter("service_rate_limit_blocked_total", "Requests refused as too many.", rateLimit.totals.limited);
  text.gauge("service_rate_limit_active_buckets", "Callers that are counted.", rateLimit.totals.active);
  text.gauge("service_event_subscribers", "Readers of the event stream.", events.subscribers);
  text.counter("service_events_total", "Events emitted.", events.events_total);

  text.gauge(
    "service_preview_connections",
    "Connections to ports of sandboxes that are open.",
    previews.connections,
  );
  text.counter(
    "service_preview_requests_total",
    "Requests for ports of sandboxes, by what became of them.",
    by("outcome", { answered: previews.answered, cut: previews.cut, refused: previews.refused }),
  );
  text.counter(
    "service_preview_websockets_total",
    "WebSockets and tunnels to ports of sandboxes.",
    previews.sockets,
  );

  text.counter(
    "service_operation_success_total",
    "What providers did as they were asked.",
    operations.map((one) => [labelsOf(one), one.succeeded]),
  );
  text.counter(
    "service_operation_failure_total",
    "What providers failed at.",
    operations.map((one) => [labelsOf(one), one.failed]),
  );
  text.histogram(
    "service_operation_latency_milliseconds",
    "How long spawns, destroys and commands took.",
    operations
      .filter(({ operation }) => ["spawn", "destroy", "exec", "exec_stream"].includes(operation))
      .map((one) => [labelsOf(one), one.latencies]),
  );
  return text.toString();
}

function labelsOf({ operation, provider }: OperationFigures): Labels {
  return { operation, provider };
}

function by(label: string, counts: Readonly<Record<string, number>>): [Labels, number][] {
  return Object.entries(counts).map(([name, count]) => [{ [label]: name }, count]);
}

function status<K extends string>(
  counts: Readonly<Record<K, number>>,
  names: readonly K[],
): [Labels, number][] {
  return names.map((name) => [{ status: name }, counts[name]]);
}
