import { afterAll, beforeAll, expect, test } from "vitest";
import { readExposition } from "./support/exposition.ts";
import { TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

/**
 * The interface for operators, key by key, written down here once more: apart from the schemas that the service goes by,
 * so that a schema changed by mistake is seen. A key that ends in `?` may be left out; no other key may be there.
 */
type Shape =
  | "text"
  | "whole"
  | "flag"
  | "duration"
  | "time"
  | "counts"
  | "texts"
  | { [key: string]: Shape }
  | [Shape];

const memory: Shape = { alloc: "whole", sys: "whole", heap_alloc: "whole", gc_cycles: "whole" };
const health: Shape = {
  name: "text",
  healthy: "flag",
  default: "flag",
  latency_ms: "whole",
  last_checked: "time",
  "error?": "text",
  "notes?": "texts",
  capabilities: "texts",
  "runtime_count?": "whole",
};
const worker: Shape = {
  id: "text",
  hostname: "text",
  status: "text",
  providers: "texts",
  capabilities: "texts",
  capacity: {
    max_sandboxes: "whole",
    max_sandboxes_per_owner: "whole",
    "rpc_url?": "text",
    "preview_domain?": "text",
  },
  last_heartbeat: "time",
  created_at: "time",
  updated_at: "time",
  stale: "flag",
};
const quotaSummary: Shape = {
  total: "whole",
  with_max_sandboxes: "whole",
  with_max_ttl: "whole",
  with_max_exec_timeout: "whole",
};
const shared: { [key: string]: Shape } = {
  sandboxes: {
    total: "whole",
    active: "whole",
    by_state: "counts",
    by_provider: "counts",
    by_worker: "counts",
    active_by_worker: "counts",
  },
  workers: { total: "whole", online: "whole", stale: "whole", unhealthy: "whole", items: [worker] },
  leases: { total: "whole", active: "whole", expired: "whole", by_holder: "counts" },
  events: { subscribers: "whole", history_size: "whole", events_total: "whole" },
  scheduler: {
    spawn_overflow: "text",
    spawn_queue_depth: "whole",
    max_spawn_queue: "whole",
    spawn_queue_timeout: "duration",
    admission_control: "text",
    spawn_queued_total: "whole",
    spawn_dequeued_total: "whole",
    spawn_queue_timeouts: "whole",
    spawn_queue_wait_count: "whole",
    spawn_queue_wait_total: "duration",
    spawn_queue_wait_max: "duration",
    spawn_queue_wait_avg: "duration",
    spawn_queue_wait_total_ms: "whole",
    spawn_queue_wait_max_ms: "whole",
    spawn_queue_wait_avg_ms: "whole",
    worker_id: "text",
    selected_worker_id: "text",
    eligible_workers: "whole",
  },
  quotas: quotaSummary,
  rate_limit: {
    enabled: "flag",
    requests_per_minute: "whole",
    burst: "whole",
    key_by: "text",
    active_buckets: "whole",
    allowed_total: "whole",
    limited_total: "whole",
    evicted_total: "whole",
    bucket_ttl: "duration",
    cleanup_interval: "duration",
  },
  operations: [
    {
      operation: "text",
      provider: "text",
      success_total: "whole",
      failure_total: "whole",
      latency_count: "whole",
      latency_total_ms: "whole",
      latency_min_ms: "whole",
      latency_max_ms: "whole",
      latency_avg_ms: "whole",
    },
  ],
};
const metrics: Shape = {
  uptime: "duration",
  goroutines: "whole",
  memory_alloc: "whole",
  memory_sys: "whole",
  memory_heap_alloc: "whole",
  gc_cycles: "whole",
  providers: {
    total: "whole",
    healthy: "whole",
    items: [{ name: "text", healthy: "flag", default: "flag" }],
  },
  ...shared,
  // Previews have figures of their own: docs/decisions/metrics.md.
  previews: {
    connections: "whole",
    answered_total: "whole",
    cut_total: "whole",
    refused_total: "whole",
    websockets_total: "whole",
  },
};
const diagnostics: Shape = {
  generated_at: "time",
  build: { version: "text", goos: "text", goarch: "text" },
  process: { uptime: "duration", goroutines: "whole", memory, "reload_failed?": "time" },
  store: { healthy: "flag", latency_ms: "whole" },
  limits: {
    max_sandboxes: "whole",
    max_sandboxes_per_owner: "whole",
    default_exec_timeout: "duration",
    max_exec_timeout: "duration",
    max_ttl: "duration",
    spawn_overflow: "text",
    spawn_queue_timeout: "duration",
    max_spawn_queue: "whole",
  },
  providers: [health],
  ...shared,
  remediation: {
    start: "text",
    failures: "text",
    logs: "text",
    operate: "text",
    backup: "text",
    upgrade: "text",
    configuration: "text",
    security: "text",
    providers: "text",
    quotas: "text",
    metrics: "text",
  },
  redactions: "texts",
};
/** Beside its settings, whose names are the provider's own. */
const detailKeys: Shape = { name: "text", healthy: "flag", default: "flag", sandbox_count: "whole", health };
const probe = { status: "text", version: "text", uptime: "duration" } as const;
const ready: Shape = { ...probe, ready_providers: "whole", total_providers: "whole", providers: [health] };

const rows: [method: string, path: string, shape: Shape][] = [
  ["GET", "/health", probe],
  ["GET", "/live", probe],
  ["GET", "/ready", ready],
  ["GET", "/providers", [health]],
  ["GET", "/providers/mock", detailKeys],
  ["POST", "/providers/test", { mock: "flag" }],
  ["GET", "/workers", [worker]],
  ["GET", "/workers/local", worker],
  ["POST", "/admin/workers/local/heartbeat", worker],
  ["GET", "/quotas/summary", quotaSummary],
  ["GET", "/metrics", metrics],
  ["GET", "/diagnostics", diagnostics],
  ["GET", "/pool/status", { enabled: "flag" }],
  ["GET", "/admin/providers", [health]],
  ["GET", "/admin/providers/mock", detailKeys],
  ["POST", "/admin/providers/test", { mock: "flag" }],
  ["GET", "/admin/quotas/summary", quotaSummary],
  ["GET", "/admin/metrics", metrics],
  ["GET", "/admin/diagnostics", diagnostics],
  ["DELETE", "/admin/workers/local", { status: "text" }],
];

/** Section 4, scrape metrics: names, and the values that labels have to have. */
const scraped: [name: string, labels: Record<string, readonly string[]>][] = [
  ["service_uptime_seconds", {}],
  ["service_provider_healthy", { provider: ["mock"], default: ["true"] }],
  ["service_spawn_queue_depth", {}],
  ["service_spawn_queue_wait_milliseconds_count", {}],
  ["service_owner_quotas_total", {}],
  ["service_rate_limit_blocked_total", {}],
  ["service_workers_total", { status: ["total", "online", "stale", "unhealthy"] }],
  ["service_leases_total", { status: ["total", "active", "expired"] }],
  ["service_sandboxes_by_worker_total", { worker: ["local"] }],
  ["service_operation_success_total", { operation: ["spawn", "exec", "file_write"], provider: ["mock"] }],
  ["service_operation_failure_total", { operation: ["spawn", "exec", "file_write"], provider: ["mock"] }],
];

let server: TestServer;
let client: TestClient;
beforeAll(async () => {
  server = await startTestServer({ provider: mockProvider });
  client = new TestClient(server.url);
  await client.exec(await client.spawn(), { command: "true" });
});
afterAll(() => server[Symbol.asyncDispose]());

const patterns = {
  duration: /^(?:0s|(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?s|\d+(?:\.\d+)?ms)$/,
  time: /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z$/,
} as const;

/** @returns each place where a value is not as it should be. */
function differences(value: unknown, shape: Shape, at: string): string[] {
  const wrong = (is: boolean) =>
    is ? [] : [`${at}: ${JSON.stringify(value)} is no ${JSON.stringify(shape)}`];
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  switch (shape) {
    case "text":
      return wrong(typeof value === "string");
    case "whole":
      return wrong(Number.isInteger(value) && Number(value) >= 0);
    case "flag":
      return wrong(typeof value === "boolean");
    case "duration":
    case "time":
      return wrong(typeof value === "string" && patterns[shape].test(value));
    case "counts":
      return wrong(isObject && Object.values(value as object).every(Number.isInteger));
    case "texts":
      return wrong(Array.isArray(value) && value.every((one) => typeof one === "string"));
    default:
  }
  if (Array.isArray(shape)) {
    if (!Array.isArray(value) || value.length === 0) return [`${at}: no list, or an empty one`];
    return value.flatMap((item, index) => differences(item, shape[0], `${at}[${index}]`));
  }
  if (!isObject) return [`${at}: no object`];
  const given = value as Record<string, unknown>;
  const known = new Map(Object.entries(shape).map(([key, of]) => [key.replace(/\?$/, ""), { key, of }]));
  return [
    ...Object.keys(given).flatMap((key) => (known.has(key) ? [] : [`${at}.${key}: not in the table`])),
    ...[...known].flatMap(([name, { key, of }]) =>
      name in given
        ? differences(given[name], of, `${at}.${name}`)
        : key.endsWith("?")
          ? []
          : [`${at}.${name}: missing`],
    ),
  ];
}

test.each(rows)("%s %s has every key of its table and no other", async (method, path, shape) => {
  const { status, json } = await client.call(method, `/api/v1${path}`);
  expect(status).toBe(200);
  if (path.endsWith("/providers/mock")) {
    const { config, ...rest } = json;
    expect(Object.values(config).every((text) => typeof text === "string")).toBe(true);
    expect(differences(rest, shape, path)).toEqual([]);
  } else expect(differences(json, shape, path)).toEqual([]);
});

test.each(["/metrics/prometheus", "/admin/metrics/prometheus"])(
  "GET %s has every name and label",
  async (path) => {
    const { text } = await client.call("GET", `/api/v1${path}`);
    const samples = readExposition(text);
    for (const [name, labels] of scraped) {
      const ofName = [...samples.keys()].filter((key) => key.replace(/\{.*/, "") === name);
      expect(ofName, name).not.toEqual([]);
      for (const key of ofName) {
        const given = [...key.matchAll(/(\w+)="/g)].map(([, label]) => label);
        expect(given, key).toEqual(Object.keys(labels));
      }
      for (const [label, values] of Object.entries(labels))
        for (const value of values)
          expect(
            ofName.filter((key) => key.includes(`${label}="${value}"`)),
            `${name} ${label}=${value}`,
          ).not.toEqual([]);
    }
  },
);

test("what an answer lacks, or has too much, is seen", () => {
  const of = (json: unknown) => differences(json, probe, "");
  expect(of({ status: "ok", version: "1", uptime: "1m2.5s" })).toEqual([]);
  for (const bad of [{}, { status: "ok", version: "1" }, { status: "ok", version: "1", uptime: "soon" }, []])
    expect(of(bad)).not.toEqual([]);
  expect(of({ status: "ok", version: "1", uptime: "1s", more: 1 })).toHaveLength(1);
});
