import type { AuditRecord } from "@alcove/wire";
import { expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";

const commands = commandsOfTests();
const { run } = commands;

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
  commands.service.answer = () => ({ json: [record] });
  const since = "2026-11-21T00:00:00Z";
  const until = "2026-11-23T00:00:00Z";
  const { code, stdout } = await run(
    ...["audit", "--limit", "5", "--actor", "admin_api_key", "--method", "PUT", "--status", "200"],
    ...["--path", "/quotas/", "--since", since, "--until", until, "--cursor", "8"],
  );
  expect(code).toBe(0);
  const [request] = commands.service.requests;
  expect([request?.method, request?.path]).toEqual(["GET", "/admin/audit"]);
  expect(Object.fromEntries(request?.query ?? [])).toEqual({
    limit: "5",
    actor: "admin_api_key",
    method: "PUT",
    status: "200",
    path: "/quotas/",
    since,
    until,
    cursor: "8",
  });
  expect(stdout).toMatch(/00\.000Z\s+admin_api_key\s+PUT\s+\/api\/v1\/quotas\/acme\s+200\s+127\.0\.0\.1\n/);
});

test("audit --json prints the records", async () => {
  commands.service.answer = () => ({ json: [record] });
  expect(JSON.parse((await run("audit", "--json")).stdout)).toEqual([record]);
});

test("audit --csv prints what the service answers", async () => {
  commands.service.answer = () => ({ json: "id,actor" });
  expect((await run("audit", "--csv")).stdout).toBe('"id,actor"');
  expect(commands.service.requests[0]?.query.get("format")).toBe("csv");
});
