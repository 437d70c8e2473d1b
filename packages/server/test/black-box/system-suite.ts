import { existsSync } from "node:fs";
import { expect, test } from "vitest";
import { readExposition } from "../support/exposition.ts";
import { projectVersion } from "../support/test-server.ts";
import type { Subject } from "./black-box.ts";

export function systemSuite(on: Subject): void {
  test.each([
    ["/api/v1/health", "ok"],
    ["/api/v1/live", "alive"],
  ])("GET %s answers status %s, version and uptime", async (path, status) => {
    const answer = await on.client.call("GET", path);
    expect(answer.status).toBe(200);
    expect(answer.json).toEqual({ status, version: projectVersion, uptime: expect.stringMatching(/s$/) });
  });

  test("probes answer without the prefix too, and nothing else does", async () => {
    for (const path of ["/live", "/ready", "/health?from=probe"])
      expect((await on.client.call("GET", path)).status, path).toBe(200);
    expect((await on.client.call("GET", "/sandboxes")).status).toBe(404);
    expect((await on.client.call("POST", "/live")).status).toBe(405);
  });

  test("GET /ready counts and lists the providers", async () => {
    const { status, json } = await on.client.call("GET", "/api/v1/ready");
    expect(status).toBe(200);
    expect(json).toMatchObject({ status: "ready", ready_providers: 1, total_providers: 1 });
    expect(json.providers[0]).toMatchObject({ name: on.server.provider.name, healthy: true, default: true });
  });

  test.each(["/api/v1/metrics", "/api/v1/admin/metrics"])(
    "GET %s counts what there is and what was done",
    async (path) => {
      const { name } = on.server.provider;
      await on.client.exec(on.sandbox, { command: "true" });
      await on.client.exec(on.sandbox, { command: "exit 3" });
      const ended = await on.client.spawn();
      await on.client.call("DELETE", `/api/v1/sandboxes/${ended}`);
      const { status, json } = await on.client.call("GET", path);
      expect(status).toBe(200);
      expect(Object.keys(json).sort()).toEqual(
        [
          ...["uptime", "goroutines", "memory_alloc", "memory_sys", "memory_heap_alloc", "gc_cycles"],
          ...["sandboxes", "providers", "workers", "leases", "events", "scheduler", "quotas"],
          ...["rate_limit", "operations"],
          // Beyond the interface's own.
          "previews",
        ].sort(),
      );
      expect(json).toMatchObject({ uptime: expect.stringMatching(/s$/), goroutines: expect.any(Number) });
      expect(json.memory_sys).toBeGreaterThan(1_048_576);
      expect(json.memory_alloc).toBeGreaterThanOrEqual(json.memory_heap_alloc);
      expect(json.providers).toEqual({
        total: 1,
        healthy: 1,
        items: [{ name, healthy: true, default: true }],
      });
      sharedFigures(json, name);
    },
  );

  /** What metrics and diagnostics have in common, every key of it. */
  // biome-ignore lint/suspicious/noExplicitAny: the body of an answer.
  function sharedFigures(json: any, provider: string): void {
    const { sandboxes } = json;
    const sum = (counts: Record<string, number>) => Object.values(counts).reduce((all, one) => all + one, 0);
    expect(Object.keys(sandboxes).sort()).toEqual([
      "active",
      "active_by_worker",
      "by_provider",
      "by_state",
      "by_worker",
      "total",
    ]);
    expect(sandboxes.total).toBeGreaterThanOrEqual(1);
    expect(sandboxes.active).toBeGreaterThanOrEqual(1);
    expect(Object.keys(sandboxes.by_state).sort()).toEqual([
      ...["creating", "error", "expired", "running", "unhealthy"],
    ]);
    expect(sum(sandboxes.by_state)).toBe(sandboxes.total);
    expect(sandboxes.by_provider).toEqual({ [provider]: sandboxes.total });
    expect(sandboxes.by_worker).toEqual({ local: sandboxes.total });
    expect(sandboxes.active_by_worker).toEqual({ local: sandboxes.active });
    expect(json.leases).toEqual({
      total: sandboxes.total,
      active: sandboxes.total,
      expired: 0,
      by_holder: { local: sandboxes.total },
    });
    const time = expect.stringMatching(/^\d{4}-.*Z$/);
    const limits = on.server.config.defaults;
    expect(json.workers).toEqual({
      total: 1,
      online: 1,
      stale: 0,
      unhealthy: 0,
      items: [
        {
          id: "local",
          hostname: expect.any(String),
          status: "online",
          providers: [provider],
          capabilities: expect.arrayContaining(["api", "single_node", "spawn", "exec", "files"]),
          capacity: {
            max_sandboxes: limits.maxSandboxes,
            max_sandboxes_per_owner: limits.maxSandboxesPerOwner,
          },
          last_heartbeat: time,
          created_at: time,
          updated_at: time,
          stale: false,
        },
      ],
    });
    expect(json.events).toEqual({
      subscribers: expect.any(Number),
      history_size: expect.any(Number),
      events_total: expect.any(Number),
    });
    expect(json.events.events_total).toBeGreaterThan(2);
    expect(json.scheduler).toEqual({
      spawn_overflow: "reject",
      spawn_queue_depth: 0,
      max_spawn_queue: limits.maxSpawnQueue,
      spawn_queue_timeout: "30s",
      admission_control: expect.any(String),
      spawn_queued_total: 0,
      spawn_dequeued_total: 0,
      spawn_queue_timeouts: 0,
      spawn_queue_wait_count: 0,
      spawn_queue_wait_total: "0s",
      spawn_queue_wait_max: "0s",
      spawn_queue_wait_avg: "0s",
      spawn_queue_wait_total_ms: 0,
      spawn_queue_wait_max_ms: 0,
      spawn_queue_wait_avg_ms: 0,
      worker_id: "local",
      selected_worker_id: "local",
      eligible_workers: 1,
    });
    expect(Object.keys(json.quotas).sort()).toEqual([
      ...["total", "with_max_exec_timeout", "with_max_sandboxes", "with_max_ttl"],
    ]);
    expect(json.rate_limit).toEqual({
      enabled: false,
      requests_per_minute: 120,
      burst: 60,
      key_by: "owner",
      active_buckets: 0,
      allowed_total: 0,
      limited_total: 0,
      evicted_total: 0,
      bucket_ttl: "15m0s",
      cleanup_interval: "1m0s",
    });
    const operations: Record<string, number>[] = json.operations;
    expect(operations.map(({ operation }) => operation)).toEqual([
      ...["spawn", "destroy", "exec", "exec_stream", "file_write", "file_read", "file_list", "file_delete"],
      ...["file_move", "file_chmod", "file_stat", "file_glob"],
    ]);
    for (const entry of operations) {
      expect(Object.keys(entry).sort()).toEqual([
        ...["failure_total", "latency_avg_ms", "latency_count", "latency_max_ms", "latency_min_ms"],
        ...["latency_total_ms", "operation", "provider", "success_total"],
      ]);
      expect(entry.provider).toBe(provider);
      for (const [key, value] of Object.entries(entry))
        if (!["operation", "provider"].includes(key)) expect(value, key).toSatisfy(Number.isInteger);
    }
    const done = (name: string) => operations.find(({ operation }) => String(operation) === name);
    for (const name of ["spawn", "destroy", "exec"]) {
      expect(done(name)?.success_total, name).toBeGreaterThanOrEqual(1);
      expect(done(name)?.latency_count, name).toBe(
        (done(name)?.success_total ?? 0) + (done(name)?.failure_total ?? 0),
      );
    }
  }

  test.each(["/api/v1/metrics/prometheus", "/api/v1/admin/metrics/prometheus"])(
    "GET %s is a scrape that a strict reader takes",
    async (path) => {
      const { name } = on.server.provider;
      const { status, headers, text } = await on.client.call("GET", path);
      expect(status).toBe(200);
      expect(headers.get("content-type")).toBe("text/plain; version=0.0.4; charset=utf-8");
      const samples = readExposition(text);
      const value = (of: string) => samples.get(of);
      expect(value("service_uptime_seconds")).toBeGreaterThan(0);
      expect(value(`service_provider_healthy{provider="${name}",default="true"}`)).toBe(1);
      expect(value("service_spawn_queue_depth")).toBe(0);
      expect(value("service_spawn_queue_wait_milliseconds_count")).toBe(0);
      expect(value("service_owner_quotas_total")).toBeGreaterThanOrEqual(0);
      expect(value("service_rate_limit_blocked_total")).toBe(0);
      for (const [label, count] of Object.entries({ total: 1, online: 1, stale: 0, unhealthy: 0 }))
        expect(value(`service_workers_total{status="${label}"}`), label).toBe(count);
      const held = value('service_leases_total{status="total"}');
      expect(held).toBeGreaterThanOrEqual(1);
      expect(value('service_leases_total{status="active"}')).toBe(held);
      expect(value('service_leases_total{status="expired"}')).toBe(0);
      expect(value('service_sandboxes_by_worker_total{worker="local"}')).toBe(held);
      const spawns = `{operation="spawn",provider="${name}"}`;
      expect(value(`service_operation_success_total${spawns}`)).toBeGreaterThanOrEqual(1);
      expect(value(`service_operation_failure_total${spawns}`)).toBeGreaterThanOrEqual(0);
      expect(value(`service_operation_latency_milliseconds_count${spawns}`)).toBeGreaterThanOrEqual(1);
    },
  );

  test.each(["/api/v1/diagnostics", "/api/v1/admin/diagnostics"])(
    "GET %s tells how the service is, and names nobody",
    async (path) => {
      const { name } = on.server.provider;
      const owner = "owner-told-to-nobody";
      const id = await on.client.spawn({ owner_id: owner, env: { SECRET_NAME: "secret-value" } });
      const { status, json, text } = await on.client.call("GET", path);
      expect(status).toBe(200);
      await on.client.call("DELETE", `/api/v1/sandboxes/${id}`);
      expect(Object.keys(json).sort()).toEqual(
        [
          ...["generated_at", "build", "process", "store", "limits", "scheduler", "quotas", "rate_limit"],
          ...["providers", "workers", "leases", "sandboxes", "events", "operations", "remediation"],
          "redactions",
        ].sort(),
      );
      expect(Math.abs(Date.parse(json.generated_at) - Date.now())).toBeLessThan(60_000);
      expect(json.build).toEqual({
        version: projectVersion,
        goos: process.platform,
        goarch: process.arch === "x64" ? "amd64" : process.arch,
      });
      const memory = { alloc: 0, sys: 0, heap_alloc: 0, gc_cycles: 0 };
      expect(json.process).toEqual({
        uptime: expect.stringMatching(/s$/),
        goroutines: expect.any(Number),
        memory: Object.fromEntries(Object.keys(memory).map((key) => [key, expect.any(Number)])),
      });
      expect(json.store).toEqual({ healthy: true, latency_ms: expect.any(Number) });
      const { maxSandboxes, maxSandboxesPerOwner, maxSpawnQueue } = on.server.config.defaults;
      expect(json.limits).toEqual({
        max_sandboxes: maxSandboxes,
        max_sandboxes_per_owner: maxSandboxesPerOwner,
        default_exec_timeout: "0s",
        max_exec_timeout: "1h0m0s",
        max_ttl: "24h0m0s",
        spawn_overflow: "reject",
        spawn_queue_timeout: "30s",
        max_spawn_queue: maxSpawnQueue,
      });
      expect(json.providers).toEqual([
        expect.objectContaining({ name, healthy: true, default: true, latency_ms: expect.any(Number) }),
      ]);
      sharedFigures(json, name);
      for (const page of Object.values<string>(json.remediation))
        expect(existsSync(new URL(`../../../../${page}`, import.meta.url)), page).toBe(true);
      expect(json.redactions).toEqual(expect.arrayContaining(["owner_ids", "api_keys", "addresses"]));
      const hidden = [owner, id, "SECRET_NAME", "secret-value", on.server.config.dataDir, "127.0.0.1"];
      for (const words of hidden) expect(text).not.toContain(words);
    },
  );

  test("HEAD works on probes", async () => {
    expect((await on.client.call("HEAD", "/api/v1/health")).status).toBe(200);
  });

  test("GET /providers, /providers/{name} and POST /providers/test describe the provider", async () => {
    const { name } = on.server.provider;
    const list = await on.client.call("GET", "/api/v1/providers");
    expect(list.json).toEqual([
      expect.objectContaining({
        name,
        healthy: true,
        default: true,
        latency_ms: expect.any(Number),
        last_checked: expect.stringMatching(/Z$/),
        capabilities: expect.arrayContaining(["spawn", "exec", "files"]),
      }),
    ]);
    const detail = await on.client.call("GET", `/api/v1/providers/${name}`);
    expect(detail.json).toMatchObject({ name, healthy: true, default: true, health: { name } });
    expect(detail.json.sandbox_count).toBeGreaterThanOrEqual(1);
    expect(Object.keys(detail.json.config)).not.toEqual([]);
    for (const value of Object.values(detail.json.config)) expect(value).toBeTypeOf("string");
    const tested = await on.client.call("POST", "/api/v1/providers/test");
    expect(tested.json).toEqual({ [name]: true });
    const missing = await on.client.call("GET", "/api/v1/providers/nope");
    expect([missing.status, missing.json.code]).toEqual([404, "not_found"]);
  });

  test("X-Request-ID is echoed when it is sane, else made", async () => {
    const echoed = await on.client.call("GET", "/api/v1/health", undefined, { "x-request-id": "trace-42" });
    expect(echoed.headers.get("x-request-id")).toBe("trace-42");
    for (const bad of ["", "a b", "x".repeat(200), "<script>"]) {
      const made = await on.client.call("GET", "/api/v1/health", undefined, { "x-request-id": bad });
      expect(made.headers.get("x-request-id")).toMatch(/^req-/);
    }
  });

  test("an unknown path is a JSON 404, a wrong method a JSON 405 with Allow", async () => {
    const unknown = await on.client.call("GET", "/api/v1/nothing");
    expect([unknown.status, unknown.json.code]).toEqual([404, "not_found"]);
    const wrong = await on.client.call("PUT", "/api/v1/sandboxes");
    expect([wrong.status, wrong.json.code]).toEqual([405, "method_not_allowed"]);
    expect(wrong.headers.get("allow")).toBe("DELETE, GET, HEAD, POST");
    expect(unknown.headers.get("x-request-id")).toMatch(/^req-/);
  });

  test("the docs are one page of our own", async () => {
    const docs = await on.client.call("GET", "/docs");
    expect(docs.status).toBe(200);
    expect(docs.headers.get("content-type")).toContain("text/html");
    expect(docs.text).not.toMatch(/https?:\/\//);
    const document = await on.client.call("GET", "/api/v1/openapi.json");
    expect(document.json.openapi).toBe("3.1.0");
  });

  test("browsers may call from anywhere they are allowed to, and read our headers", async () => {
    const origin = on.server.url;
    const answer = await on.client.call("GET", "/api/v1/health", undefined, { origin });
    expect(answer.headers.get("access-control-allow-origin")).toBe(origin);
    expect(answer.headers.get("access-control-expose-headers")).toContain("X-Exec-ID");
    const preflight = await on.client.call("OPTIONS", "/api/v1/sandboxes", undefined, {
      origin,
      "access-control-request-method": "POST",
      "access-control-request-headers": "x-api-key,content-type",
    });
    expect(preflight.status).toBe(204);
    expect(preflight.headers.get("access-control-allow-methods")).toContain("DELETE");
    expect(preflight.headers.get("access-control-allow-headers")).toContain("x-api-key");
  });

  test("with auth off a page from elsewhere changes nothing, whatever name it calls us by", async () => {
    const page = await on.client.call("POST", "/api/v1/sandboxes", {}, { origin: "https://evil.example" });
    expect([page.status, page.json.code]).toEqual([403, "forbidden"]);
    for (const origin of [
      ...["null", "http://localhost.evil.example", "https://127.0.0.1.evil.example"],
      "http://localhost:5173",
    ])
      expect((await on.client.call("DELETE", "/api/v1/sandboxes", undefined, { origin })).status).toBe(403);
    const own = await on.client.call("DELETE", "/api/v1/sandboxes", undefined, { origin: on.server.url });
    expect(own.status).toBe(200);
  });
}
