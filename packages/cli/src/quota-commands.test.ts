import type { OwnerQuota, OwnerUsage } from "@alcove/wire";
import { expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";

const commands = commandsOfTests();
const { run } = commands;

const quota: OwnerQuota = {
  owner_id: "acme",
  max_sandboxes: 5,
  max_ttl: "2h0m0s",
  max_exec_timeout: "0s",
  max_memory_mb: 4_096,
  max_vcpus: 0,
  created_at: "2026-11-22T00:00:00.000Z",
  updated_at: "2026-11-22T00:00:00.000Z",
};

test("quota set sends what was given and nothing else", async () => {
  commands.service.answer = () => ({ json: quota });
  const { code, stdout } = await run("quota", "set", "acme", "--max-sandboxes", "5", "--max-ttl", "2h");
  expect(code).toBe(0);
  const [request] = commands.service.requests;
  expect([request?.method, request?.path]).toEqual(["PUT", "/quotas/acme"]);
  expect(JSON.parse(request?.body ?? "")).toEqual({ max_sandboxes: 5, max_ttl: "2h" });
  expect(stdout).toMatch(/acme\s+5\s+2h0m0s\s+default\s+4096 MB\s+default/);
});

test("quota ls goes through every page", async () => {
  commands.service.answer = ({ query }) =>
    query.get("cursor") === "next"
      ? { json: [{ ...quota, owner_id: "zoe" }] }
      : { json: [quota], headers: { "x-next-cursor": "next" } };
  const { stdout } = await run("quota", "ls", "--json");
  expect(JSON.parse(stdout).map(({ owner_id }: OwnerQuota) => owner_id)).toEqual(["acme", "zoe"]);
});

test("quota show tells what an owner has and may have", async () => {
  const usage: OwnerUsage = {
    owner_id: "acme",
    active_sandboxes: 2,
    active_memory_mb: 1_024,
    active_vcpus: 2,
    max_sandboxes: 5,
    max_memory_mb: 0,
    max_vcpus: 8,
    max_ttl: "2h0m0s",
    max_exec_timeout: "0s",
    quota_configured: true,
  };
  commands.service.answer = () => ({ json: usage });
  const { stdout } = await run("quota", "show", "acme");
  expect(stdout).toMatch(/sandboxes\s+2\s+5\n/);
  expect(stdout).toMatch(/memory\s+1024 MB\s+no limit\n/);
});

test("quota rm of none ends with the code of what does not exist", async () => {
  expect((await run("quota", "rm", "nobody")).code).toBe(3);
  expect(commands.service.requests[0]?.method).toBe("DELETE");
});
