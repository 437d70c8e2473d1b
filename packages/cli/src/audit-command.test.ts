import type { AuditRecord } from "@alcove/wire";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { FakeService } from "./testing/fake-service.ts";
import { runCli } from "./testing/run-cli.ts";

// Each command is a process of its own, on a machine that may be busy.
vi.setConfig({ testTimeout: 60_000 });

let service: FakeService;
beforeEach(async () => {
  service = await FakeService.start();
});
afterEach(() => service[Symbol.asyncDispose]());
const run = (...args: string[]) => runCli(args, { url: service.url });

const record: AuditRecord = {
  id: 7,
  created_at: "2026-11-22T00:00:00.000Z",
  actor: "admin_api_key",
  method: "PUT",
  path: "/api/v1/quotas/acme",
  status: 200,
  duration_ms: 1.5,
  request_id: "req-1",
  remote_addr: "127.0.0.1",
  user_agent: "curl/8",
};

test("audit asks with every filter that was given, and shows a table", async () => {
  service.answer = () => ({ json: [record] });
  const since = "2026-11-21T00:00:00Z";
  const until = "2026-11-23T00:00:00Z";
  const { code, stdout } = await run(
    ...["audit", "--limit", "5", "--actor", "admin_api_key", "--method", "PUT", "--status", "200"],
    ...["--path", "/quotas/", "--since", since, "--until", until],
  );
  expect(code).toBe(0);
  const [request] = service.requests;
  expect([request?.method, request?.path]).toEqual(["GET", "/admin/audit"]);
  expect(Object.fromEntries(request?.query ?? [])).toEqual({
    limit: "5",
    actor: "admin_api_key",
    method: "PUT",
    status: "200",
    path: "/quotas/",
    since,
    until,
  });
  expect(stdout).toMatch(/00\.000Z\s+admin_api_key\s+PUT\s+\/api\/v1\/quotas\/acme\s+200\s+127\.0\.0\.1\n/);
});

test("audit --json prints the records", async () => {
  service.answer = () => ({ json: [record] });
  expect(JSON.parse((await run("audit", "--json")).stdout)).toEqual([record]);
});

test("audit --csv prints what the service answers", async () => {
  service.answer = () => ({ json: "id,actor" });
  expect((await run("audit", "--csv")).stdout).toBe('"id,actor"');
  expect(service.requests[0]?.query.get("format")).toBe("csv");
});
