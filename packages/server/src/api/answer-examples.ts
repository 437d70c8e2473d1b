import { redactions, remediation } from "./present-diagnostics.ts";

/**
 * An answer of each kind, by the `$id` of its schema; a test holds it against that schema. Every operation that answers
 * with the schema, or with a list of it, shows it.
 */
const at = "2026-05-04T10:00:00.000Z";
const later = "2026-05-04T10:10:00.000Z";
const saved = { created_at: at, updated_at: at };
const start = { version: "0.1.0", uptime: "1h2m3s" };

const sandbox = {
  ...{ id: "sb-k3v9x0a1b2c3", name: "web", state: "running", provider: "native", image: "host" },
  ...{ memory_mb: 512, vcpus: 1, created_at: at, expires_at: later, metadata: { job: "42" } },
  ...{ preview_domain: "localhost", owner_id: "acme", worker_id: "local" },
};
const stats = {
  cpu_usage_ms: 371,
  memory_bytes: 9_437_184,
  memory_limit_bytes: 536_870_912,
  pids: 3,
  commands: 1,
};
const health = {
  ...{ name: "native", healthy: true, default: true, latency_ms: 4, last_checked: at },
  ...{ capabilities: ["spawn", "exec", "files"], runtime_count: 1 },
};
const worker = {
  ...{
    id: "local",
    hostname: "vm",
    status: "online",
    providers: ["native"],
    capabilities: ["spawn", "exec"],
  },
  capacity: { max_sandboxes: 100, max_sandboxes_per_owner: 0 },
  ...{ last_heartbeat: at, ...saved, stale: false },
};
const key = {
  ...{ name: "ci", owner_id: "acme", scopes: ["read", "write"], configured: false },
  ...{ created_at: at, expires_at: "2026-06-03T10:00:00.000Z" },
};
const quotas = { total: 1, with_max_sandboxes: 1, with_max_ttl: 1, with_max_exec_timeout: 0 };
const memory = { alloc: 57_273_937, sys: 238_034_944, heap_alloc: 48_466_472 };
const limits = {
  ...{
    max_sandboxes: 100,
    max_sandboxes_per_owner: 0,
    default_exec_timeout: "0s",
    max_exec_timeout: "1h0m0s",
  },
  ...{ max_ttl: "24h0m0s", spawn_overflow: "reject", spawn_queue_timeout: "30s", max_spawn_queue: 100 },
};

/** What metrics and diagnostics both tell. */
const figures = {
  sandboxes: {
    ...{ total: 1, active: 1, by_state: { running: 1 }, by_provider: { native: 1 } },
    ...{ by_worker: { local: 1 }, active_by_worker: { local: 1 } },
  },
  workers: { total: 1, online: 1, stale: 0, unhealthy: 0, items: [worker] },
  leases: { total: 1, active: 1, expired: 0, by_holder: { local: 1 } },
  events: { subscribers: 0, history_size: 9, events_total: 9 },
  scheduler: {
    ...{ spawn_overflow: "reject", spawn_queue_depth: 0, max_spawn_queue: 100, spawn_queue_timeout: "30s" },
    ...{ admission_control: "transactional", spawn_queued_total: 0, spawn_dequeued_total: 0 },
    ...{ spawn_queue_timeouts: 0, spawn_queue_wait_count: 0, spawn_queue_wait_total: "0s" },
    ...{ spawn_queue_wait_max: "0s", spawn_queue_wait_avg: "0s", spawn_queue_wait_total_ms: 0 },
    ...{ spawn_queue_wait_max_ms: 0, spawn_queue_wait_avg_ms: 0 },
    ...{ worker_id: "local", selected_worker_id: "local", eligible_workers: 1 },
  },
  quotas,
  rate_limit: {
    ...{ enabled: false, requests_per_minute: 120, burst: 60, key_by: "owner", active_buckets: 0 },
    ...{
      allowed_total: 0,
      limited_total: 0,
      evicted_total: 0,
      bucket_ttl: "15m0s",
      cleanup_interval: "1m0s",
    },
  },
  operations: [
    {
      ...{ operation: "spawn", provider: "native", success_total: 1, failure_total: 0, latency_count: 1 },
      ...{ latency_total_ms: 40, latency_min_ms: 40, latency_max_ms: 40, latency_avg_ms: 40 },
    },
  ],
};

export const answerExamples: Readonly<Record<string, unknown>> = {
  AdmissionDecision: {
    ...{ allowed: true, queueable: false, reason: "", active_sandboxes: 1, max_sandboxes: 100 },
    ...{ active_owner_sandboxes: 0, max_owner_sandboxes: 0, max_ttl: "24h0m0s" },
  },
  ApiKey: key,
  AuditRecord: {
    ...{ id: 3, created_at: at, actor: "api_key", method: "POST", path: "/api/v1/admin/keys", status: 201 },
    ...{
      duration_ms: 3.66,
      request_id: "req-67debcf22bf0-4",
      remote_addr: "127.0.0.1",
      user_agent: "curl/8.14",
    },
  },
  Diagnostics: {
    ...{ generated_at: at, build: { version: start.version, goos: "linux", goarch: "amd64" } },
    process: { uptime: start.uptime, goroutines: 6, memory: { ...memory, gc_cycles: 11 } },
    ...{ store: { healthy: true, latency_ms: 1 }, limits, providers: [health], ...figures },
    ...{ remediation, redactions },
  },
  ExecRecord: {
    ...{ exec_id: "ex-3f2a91c04b7d", pid: 2, state: "exited", command: "make", args: ["-j2"], tty: false },
    ...{ started_at: at, output_bytes: 3, first_offset: 0, ended_at: later, exit_code: 0, reason: "exited" },
    duration: "10m0s",
  },
  ExecResult: {
    ...{ exit_code: 0, stdout: "42\n", stderr: "", duration: "18.4ms", exec_id: "ex-3f2a91c04b7d" },
    reason: "exited",
  },
  FileInfo: {
    ...{ name: "main.py", path: "/workspace/main.py", size: 13, is_dir: false, mod_time: at, mode: "0644" },
    ...{ type: "file", uid: 0, gid: 0 },
  },
  Health: { status: "ok", ...start },
  Liveness: { status: "alive", ...start },
  Metrics: {
    ...{ uptime: start.uptime, goroutines: 6, memory_alloc: memory.alloc, memory_sys: memory.sys },
    ...{ memory_heap_alloc: memory.heap_alloc, gc_cycles: 11 },
    providers: { total: 1, healthy: 1, items: [{ name: "native", healthy: true, default: true }] },
    ...figures,
    previews: { connections: 0, answered_total: 0, cut_total: 0, refused_total: 0, websockets_total: 0 },
  },
  NewApiKey: { key: "alcove_…", ...key },
  OwnerQuota: {
    ...{ owner_id: "acme", max_sandboxes: 5, max_ttl: "2h0m0s", max_exec_timeout: "10m0s" },
    ...{ max_memory_mb: 0, max_vcpus: 0, ...saved },
  },
  OwnerUsage: {
    ...{ owner_id: "acme", active_sandboxes: 1, active_memory_mb: 512, active_vcpus: 1, max_sandboxes: 5 },
    ...{
      max_memory_mb: 0,
      max_vcpus: 0,
      max_ttl: "2h0m0s",
      max_exec_timeout: "10m0s",
      quota_configured: true,
    },
  },
  PoolStatus: { enabled: true, vms: 2, max_vms: 10, total_users: 7, max_users_per_vm: 5 },
  Preview: { url: "http://3000-sb-k3v9x0a1b2c3.localhost:7423/", port: 3000, access: "public" },
  ProviderDetail: {
    ...{ name: "native", healthy: true, default: true, sandbox_count: 1, health },
    config: { network_mode: "none", pids_limit: "512" },
  },
  ProviderHealth: health,
  ProviderTestResult: { native: true },
  PruneResult: { pruned: 2 },
  QuotaSummary: quotas,
  Readiness: { status: "ready", ...start, ready_providers: 1, total_providers: 1, providers: [health] },
  Sandbox: sandbox,
  SandboxStats: stats,
  SandboxUsage: { sandbox, stats },
  SnapshotSummary: {
    image: "python",
    kernel: "vmlinux",
    size_bytes: 268_435_456,
    created_at: at,
    provider: "firecracker",
  },
  StartExecResponse: { exec_id: "ex-3f2a91c04b7d", pid: 2 },
  StdinResponse: { status: "written" },
  Template: {
    name: "python",
    image: "host",
    memory_mb: 512,
    ttl: "15m0s",
    metadata: { team: "red" },
    ...saved,
  },
  Ticket: {
    ticket: "DrGBJj-hyQKxFdVhSGUMrRCiPi6asGmQ",
    sandbox_id: sandbox.id,
    expires_at: "2026-05-04T10:01:00.000Z",
  },
  UnpackResult: { status: "unpacked", entries: 12 },
  Worker: worker,
};
