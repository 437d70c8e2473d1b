import type { Diagnostics } from "@alcove/wire";
import { formatDuration } from "@alcove/wire";
import type { Figures, StoreHealth } from "../core/diagnostics/service-figures.ts";
import { presentHealth } from "./present.ts";
import { presentMemory, presentSandboxCounts, presentShared } from "./present-figures.ts";

/** Where to read on, by what may be wrong. */
export const remediation = {
  start: "docs/operations/install.md",
  operate: "docs/operations/operate.md",
  failures: "docs/operations/failures.md",
  logs: "docs/operations/logs.md",
  backup: "docs/operations/backup.md",
  upgrade: "docs/operations/upgrade.md",
  configuration: "docs/configuration.md",
  security: "docs/security.md",
  providers: "docs/api/providers.md",
  quotas: "docs/api/quotas.md",
  metrics: "docs/api/metrics.md",
} as const;

/** What is never told here. */
export const redactions = [
  "api_keys",
  "owner_ids",
  "sandbox_ids",
  "labels",
  "environment",
  "commands",
  "addresses",
  "host_paths",
  "provider_errors",
];

const goArch: Readonly<Record<string, string>> = { x64: "amd64", ia32: "386" };

/** Fit to be handed to somebody else: numbers, and names that the operator chose for providers and this machine. */
export function presentDiagnostics(
  figures: Figures,
  options: { store: StoreHealth; version: string; platform: string; arch: string },
): Diagnostics {
  const { defaults, process } = figures;
  return {
    generated_at: figures.generatedAt.toISOString(),
    build: {
      version: options.version,
      goos: options.platform,
      goarch: goArch[options.arch] ?? options.arch,
    },
    process: {
      uptime: formatDuration(figures.uptimeMs),
      goroutines: process.underWay,
      memory: presentMemory(figures),
      ...(figures.reloadFailed && { reload_failed: figures.reloadFailed.toISOString() }),
    },
    store: {
      healthy: options.store.healthy,
      latency_ms: Math.round(options.store.latencyMs),
      ...(options.store.refusal !== undefined && { refusal: options.store.refusal }),
      ...(options.store.lastBackup && { last_backup: options.store.lastBackup.toISOString() }),
    },
    limits: {
      max_sandboxes: defaults.maxSandboxes,
      max_sandboxes_per_owner: defaults.maxSandboxesPerOwner,
      default_exec_timeout: formatDuration(defaults.defaultExecTimeoutMs),
      max_exec_timeout: formatDuration(defaults.maxExecTimeoutMs),
      max_ttl: formatDuration(defaults.maxTtlMs),
      spawn_overflow: defaults.spawnOverflow,
      spawn_queue_timeout: formatDuration(defaults.spawnQueueTimeoutMs),
      max_spawn_queue: defaults.maxSpawnQueue,
    },
    // What a backend says of its failure names sockets and paths.
    providers: figures.providers.map((entry) => ({
      ...presentHealth(entry),
      ...(entry.healthy ? {} : { error: "withheld; GET /providers tells it" }),
    })),
    sandboxes: presentSandboxCounts(figures),
    ...presentShared(figures),
    remediation,
    redactions,
  };
}
