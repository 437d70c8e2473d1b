import { expect, test } from "vitest";
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
    const answer = await on.client.call("GET", "/api/v1/health", undefined, {
      origin: "http://localhost:3000",
    });
    expect(answer.headers.get("access-control-allow-origin")).toBe("http://localhost:3000");
    expect(answer.headers.get("access-control-expose-headers")).toContain("X-Exec-ID");
    const preflight = await on.client.call("OPTIONS", "/api/v1/sandboxes", undefined, {
      origin: "http://localhost:3000",
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
    for (const origin of ["null", "http://localhost.evil.example", "https://127.0.0.1.evil.example"])
      expect((await on.client.call("DELETE", "/api/v1/sandboxes", undefined, { origin })).status).toBe(403);
    const local = await on.client.call("DELETE", "/api/v1/sandboxes", undefined, {
      origin: "http://localhost:5173",
    });
    expect(local.status).toBe(200);
  });
}
