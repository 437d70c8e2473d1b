import type { ApiKey } from "@alcove/wire";
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

const ci: ApiKey = {
  name: "ci",
  owner_id: "acme",
  scopes: ["read"],
  configured: false,
  created_at: "2026-11-22T00:00:00.000Z",
};

test("key new sends what was given, and prints the key alone", async () => {
  service.answer = () => ({ json: { key: "alcove_x", ...ci } });
  const { code, stdout, stderr } = await run(
    "key",
    "new",
    "ci",
    "--owner",
    "acme",
    "--scope",
    "read",
    "--ttl",
    "720h",
  );
  expect([code, stdout]).toEqual([0, "alcove_x\n"]);
  expect(stderr).toMatch(/told this once/);
  const request = service.requests.at(-1);
  expect([request?.method, request?.path]).toEqual(["POST", "/admin/keys"]);
  expect(JSON.parse(request?.body ?? "")).toEqual({
    name: "ci",
    owner_id: "acme",
    scopes: ["read"],
    ttl: "720h",
  });
});

test("key ls tells whose keys are and when they were used", async () => {
  service.answer = () => ({ json: [ci, { name: "api_key", scopes: ["read", "write"], configured: true }] });
  const { stdout } = await run("key", "ls");
  expect(stdout).toMatch(/ci\s+acme\s+read\s+2026-11-22T00:00:00.000Z\s+never\s+-/);
  expect(stdout).toMatch(/api_key\s+all\s+read,write\s+configuration/);
});

test("key revoke names it in the path", async () => {
  service.answer = () => ({ json: { status: "revoked" } });
  expect((await run("key", "revoke", "ci")).stdout).toBe("ci\n");
  const request = service.requests.at(-1);
  expect([request?.method, request?.path]).toEqual(["DELETE", "/admin/keys/ci"]);
});
