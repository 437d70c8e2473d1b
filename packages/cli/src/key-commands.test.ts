import type { ApiKey } from "@alcove/wire";
import { expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";

const commands = commandsOfTests();
const { run } = commands;

const ci: ApiKey = {
  name: "ci",
  owner_id: "acme",
  scopes: ["read"],
  configured: false,
  created_at: "2026-11-22T00:00:00.000Z",
};

test("key new sends what was given, and prints the key alone", async () => {
  commands.service.answer = () => ({ json: { key: "alcove_x", ...ci } });
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
  const request = commands.service.requests.at(-1);
  expect([request?.method, request?.path]).toEqual(["POST", "/admin/keys"]);
  expect(JSON.parse(request?.body ?? "")).toEqual({
    name: "ci",
    owner_id: "acme",
    scopes: ["read"],
    ttl: "720h",
  });
});

test.each([
  [["--scope", "read,write", "ci"]],
  [["--scope", "read", "--scope", "write", "ci"]],
  [["ci", "--scope", "read, write,read"]],
])("key new takes scopes and the name in any order: %j", async (args) => {
  commands.service.answer = () => ({ json: { key: "alcove_x", ...ci } });
  expect((await run("key", "new", ...args)).code).toBe(0);
  expect(JSON.parse(commands.service.requests.at(-1)?.body ?? "")).toEqual({
    name: "ci",
    scopes: ["read", "write"],
  });
});

test("key new refuses a scope that there is not, and asks nobody", async () => {
  const { code, stderr } = await run("key", "new", "ci", "--scope", "read,all");
  expect([code, commands.service.requests.length]).toEqual([2, 0]);
  expect(stderr).toContain("expected some of read,write,admin");
});

test("key ls tells whose keys are and when they were used", async () => {
  commands.service.answer = () => ({
    json: [ci, { name: "api_key", scopes: ["read", "write"], configured: true }],
  });
  const { stdout } = await run("key", "ls");
  expect(stdout).toMatch(/ci\s+acme\s+read\s+2026-11-22T00:00:00.000Z\s+never\s+-/);
  expect(stdout).toMatch(/api_key\s+all\s+read,write\s+configuration/);
});

test("key revoke names it in the path", async () => {
  commands.service.answer = () => ({ json: { status: "revoked" } });
  expect((await run("key", "revoke", "ci")).stdout).toBe("ci\n");
  const request = commands.service.requests.at(-1);
  expect([request?.method, request?.path]).toEqual(["DELETE", "/admin/keys/ci"]);
});
