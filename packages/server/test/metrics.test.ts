import { expect, test, vi } from "vitest";
import { restsEverywhere } from "../src/providers/agent/index.ts";
import { readExposition } from "./support/exposition.ts";
import { eventually, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

/** Metrics of one service, where it takes a configuration or a sight of the inside to see them move. */
const metricsOf = async (client: TestClient) => (await client.call("GET", "/api/v1/metrics")).json;

test("the queue's figures move with a spawn that waits, one that waits in vain and one that leaves", async () => {
  await using server = await startTestServer({
    provider: mockProvider,
    env: {
      ALCOVE_DEFAULTS_MAX_SANDBOXES: "1",
      ALCOVE_DEFAULTS_SPAWN_OVERFLOW: "queue",
      ALCOVE_DEFAULTS_SPAWN_QUEUE_TIMEOUT: "400ms",
    },
  });
  const client = new TestClient(server.url);
  const depthOf = async (wanted: number) => {
    const depth = (await metricsOf(client)).scheduler.spawn_queue_depth;
    return depth === wanted ? true : undefined;
  };
  const first = await client.spawn();

  const late = client.call("POST", "/api/v1/sandboxes", {});
  expect((await late).status).toBe(429);
  let { scheduler } = await metricsOf(client);
  expect(scheduler).toMatchObject({
    spawn_overflow: "queue",
    spawn_queue_timeout: "400ms",
    spawn_queue_depth: 0,
    spawn_queued_total: 1,
    spawn_dequeued_total: 0,
    spawn_queue_timeouts: 1,
    spawn_queue_wait_count: 1,
  });
  expect(scheduler.spawn_queue_wait_max_ms).toBeGreaterThanOrEqual(390);
  expect(scheduler.spawn_queue_wait_avg_ms).toBe(scheduler.spawn_queue_wait_total_ms);
  expect(scheduler.spawn_queue_wait_max).toMatch(/^[\d.]+m?s$/);

  server.config.defaults.spawnQueueTimeoutMs = 60_000;
  const waiting = client.call("POST", "/api/v1/sandboxes", {});
  await eventually(() => depthOf(1));
  await client.call("DELETE", `/api/v1/sandboxes/${first}`);
  expect((await waiting).status).toBe(201);

  const leaving = new AbortController();
  const left = fetch(`${server.url}/api/v1/sandboxes`, { method: "POST", signal: leaving.signal });
  await eventually(() => depthOf(1));
  leaving.abort();
  await expect(left).rejects.toThrow();
  await eventually(() => depthOf(0));
  ({ scheduler } = await metricsOf(client));
  expect(scheduler).toMatchObject({
    spawn_queued_total: 3,
    spawn_dequeued_total: 1,
    spawn_queue_timeouts: 1,
    spawn_queue_wait_count: 3,
  });
  const { text } = await client.call("GET", "/api/v1/metrics/prometheus");
  const samples = readExposition(text);
  expect(samples.get("service_open_files")).toBeGreaterThan(10);
  expect(samples.get("service_open_files_max")).toBeGreaterThan(samples.get("service_open_files") ?? 0);
  expect(samples.get("service_spawn_queue_wait_milliseconds_count")).toBe(3);
  expect(samples.get("service_spawn_queue_timeouts_total")).toBe(1);
  expect(samples.get("service_spawn_queued_total")).toBe(3);
});

test("a scrape tells of sandboxes made ahead, of providers that make some", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const scraped = async () => readExposition((await client.call("GET", "/api/v1/metrics/prometheus")).text);
  expect([...(await scraped()).keys()].filter((name) => name.startsWith("service_prepared_"))).toEqual([]);
  const madeAhead = { waiting: 4, claimed: 3, cold: 2, failed: 1, gaveWay: 5 };
  Object.defineProperty(server.provider, "madeAhead", { value: madeAhead });
  const samples = await scraped();
  expect(samples.get('service_prepared_waiting{provider="mock"}')).toBe(4);
  expect(samples.get('service_prepared_spawns_total{provider="mock",outcome="claimed"}')).toBe(3);
  expect(samples.get('service_prepared_spawns_total{provider="mock",outcome="cold"}')).toBe(2);
  expect(samples.get('service_prepared_failures_total{provider="mock"}')).toBe(1);
  expect(samples.get('service_prepared_removed_total{provider="mock"}')).toBe(5);
});

test("a scrape tells of each guard that is switched on whether it is helpless", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const scraped = async () => {
    const { text } = await client.call("GET", "/api/v1/metrics/prometheus");
    return [...readExposition(text)].filter(([name]) => name.startsWith("service_guard_"));
  };
  expect(await scraped()).toEqual([]);
  const guards = [
    { guard: "disk", helpless: false },
    { guard: "kernel_memory", helpless: true },
  ];
  Object.defineProperty(server.provider, "guards", { value: guards });
  expect(await scraped()).toEqual([
    ['service_guard_helpless{provider="mock",guard="disk"}', 0],
    ['service_guard_helpless{provider="mock",guard="kernel_memory"}', 1],
  ]);
});

test("a scrape counts the rests of transfers", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const rests = async () => {
    const { text } = await client.call("GET", "/api/v1/metrics/prometheus");
    return readExposition(text).get("service_transfer_rests_total");
  };
  const before = await rests();
  restsEverywhere.begun("who begins a command");
  expect(restsEverywhere.rest("who moves much", () => undefined)).toBe(true);
  expect(await rests()).toBe((before ?? Number.NaN) + 1);
});

test("figures of the rate limit, of quotas and of readers of events move", async () => {
  await using server = await startTestServer({
    provider: mockProvider,
    env: {
      ALCOVE_RATE_LIMIT_ENABLED: "true",
      ALCOVE_RATE_LIMIT_REQUESTS_PER_MINUTE: "1",
      ALCOVE_RATE_LIMIT_BURST: "2",
    },
  });
  const admin = new TestClient(server.url, { "x-user-id": "admin" });
  const body = { max_sandboxes: 3, max_ttl: "1h" };
  expect((await admin.call("PUT", "/api/v1/quotas/acme", body)).status).toBe(200);
  for (const status of [200, 200, 429])
    expect((await fetch(`${server.url}/api/v1/sandboxes`)).status).toBe(status);
  const reading = new AbortController();
  const reader = await fetch(`${server.url}/api/v1/events`, {
    headers: { "x-user-id": "reader" },
    signal: reading.signal,
  });
  await server.events.flush();
  const metrics = await metricsOf(admin);
  reading.abort();
  await reader.body?.cancel().catch(() => undefined);
  expect(metrics.rate_limit).toMatchObject({
    enabled: true,
    active_buckets: 3,
    allowed_total: 5,
    limited_total: 1,
    evicted_total: 0,
  });
  expect(metrics.quotas).toEqual({
    total: 1,
    with_max_sandboxes: 1,
    with_max_ttl: 1,
    with_max_exec_timeout: 0,
  });
  expect(metrics.events).toMatchObject({ subscribers: 1, history_size: 1, events_total: 1 });
});

test("a scrape or a probe with 10,000 sandboxes walks none of them, and asks no provider", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const id = await client.spawn();
  await client.call("GET", "/ready");
  const { live } = server.lifecycle;
  const { row, provider } = live.get(id) ?? {};
  if (row === undefined) throw new Error("no such sandbox");
  for (let index = 1; index < 10_000; index++) {
    const other = `sb-of-a-test-${index}`;
    live.add({ ...row, id: other as typeof row.id, runtimeId: other as typeof row.runtimeId }, provider);
  }
  const watched = [
    vi.spyOn(live, "all"),
    vi.spyOn(live, "get"),
    vi.spyOn(server.provider, "check"),
    vi.spyOn(server.provider, "inventory"),
    vi.spyOn(server.store.quotas, "summary"),
    ...(["list", "listLive", "liveStates", "inUse", "get"] as const).map((name) =>
      vi.spyOn(server.store.sandboxes, name as "list"),
    ),
  ];
  for (const path of ["/metrics", "/metrics/prometheus", "/diagnostics"]) {
    const { status, text } = await client.call("GET", `/api/v1${path}`);
    expect([status, /\b10000\b/.test(text)], path).toEqual([200, true]);
  }
  expect((await client.call("GET", "/ready")).status).toBe(200);
  for (const spy of watched) expect(spy).not.toHaveBeenCalled();
  for (const entry of live.all()) if (entry.row.id !== id) live.remove(entry);
});

test("diagnostics of a provider that fails keep its words back", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const error = "cannot connect to unix:///home/somebody/docker.sock";
  vi.spyOn(server.provider, "check").mockResolvedValue({ healthy: false, error, notes: [] });
  await client.call("POST", "/api/v1/providers/test");
  expect((await client.call("GET", "/ready")).status).toBe(503);
  const { json, text } = await client.call("GET", "/api/v1/diagnostics");
  expect(json.providers).toMatchObject([{ healthy: false, error: expect.stringContaining("withheld") }]);
  expect(text).not.toContain("docker.sock");
  expect(json.scheduler).toMatchObject({ selected_worker_id: "", eligible_workers: 0 });
  const metrics = await metricsOf(client);
  expect(metrics.providers).toMatchObject({ total: 1, healthy: 0 });
});

test("diagnostics tell a database that does not answer", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  vi.spyOn(server.store, "ping").mockRejectedValue(new Error("/somewhere/alcove.db is gone"));
  const { status, json, text } = await client.call("GET", "/api/v1/diagnostics");
  expect([status, json.store.healthy]).toEqual([200, false]);
  expect(text).not.toContain("/somewhere");
});
