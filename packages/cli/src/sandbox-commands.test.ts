import type { Sandbox } from "@alcove/wire";
import { beforeEach, describe, expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";
import { runCli } from "./testing/run-cli.ts";

const at = commandsOfTests();

const sandbox: Sandbox = {
  id: "sb-aaaaaaaaaaaa",
  state: "running",
  provider: "native",
  image: "host",
  memory_mb: 512,
  vcpus: 1,
  created_at: new Date(Date.now() - 90_000).toISOString(),
  expires_at: new Date(Date.now() + 1_710_500).toISOString(),
  metadata: { job: "a\u001b[31m" },
  preview_domain: "localhost",
  owner_id: "",
  worker_id: "local",
};

test("a shell that completes a word does not wait long for a service that says nothing", async () => {
  at.service.answer = () => ({ hang: true });
  const startedAt = performance.now();
  expect((await at.run("ls", "--words")).code).not.toBe(0);
  expect(performance.now() - startedAt).toBeLessThan(20_000);
});

describe("whatever a service says", () => {
  const orders = "\u001b]0;title\u0007";
  test.each([
    ["spawn"],
    ["ls", "-q"],
    ["extend", "sb-a", "1m"],
    ["open", "sb-a", "80", "--no-browser"],
    ["exec", "-d", "sb-a", "true"],
    ["exec", "--json", "sb-a", "true"],
  ])("%s: gives the terminal no orders", async (...args) => {
    const named = { ...sandbox, id: `sb-b${orders}`, provider: `native${orders}` };
    const late = { code: "timeout", message: `late${orders}`, exit_code: 1 };
    at.service.answer = ({ path: route }) => {
      if (route.endsWith("/exec")) return { status: 408, json: late };
      if (route.endsWith("/execs")) return { json: { exec_id: `ex-b${orders}` } };
      if (route.includes("/preview/")) return { json: { url: `http://b/${orders}` } };
      return { json: args[0] === "ls" ? [named] : named };
    };
    const { stdout, stderr } = await at.run(...args);
    expect(stdout + stderr).toContain("]0;title");
    expect(stdout + stderr).not.toContain("\u001b");
  });
});

test.each([
  ["stats", "."],
  ["kill", ".."],
  ["exec", "..", "true"],
  ["template", "show", ".."],
])("%s %s: what leads to another path is refused, and nothing is asked", async (...args) => {
  const { code, stderr } = await at.run(...args);
  expect(code).toBe(args[0] === "exec" ? 125 : 1);
  expect(stderr).toContain('." would lead to another path; give the id or name');
  expect(at.service.requests).toEqual([]);
});

describe("exit codes", () => {
  test.each([
    [["nope"], 2],
    [["spawn", "--memory", "much"], 2],
    [["spawn", "--metadata", "novalue"], 2],
    [["exec", "sb-a"], 2],
    [["exec", "-d", "-i", "sb-a", "true"], 2],
    [["exec", "sb-a", "--"], 2],
    [["kill"], 2],
    [["ls", "--state", "asleep"], 2],
    [["cp", "a", "b"], 2],
    [["cp", "sb-a:relative", "b"], 2],
    [["--help"], 0],
    [["exec", "--help"], 0],
    [["--version"], 0],
  ])("%j ends with %i", async (args, code) => {
    expect((await at.run(...args)).code).toBe(code);
  });

  test.each([
    [404, "not_found", 3],
    [401, "unauthorized", 4],
    [403, "forbidden", 4],
    [429, "resource_limit", 5],
    [503, "unavailable", 6],
    [409, "conflict", 1],
    [500, "internal", 1],
  ])("a refusal with %i %s ends with %i and the service's message", async (status, code, exitCode) => {
    at.service.answer = () => ({
      status,
      json: { code, message: "the reason" },
      headers: { "x-request-id": "req-1" },
    });
    const result = await at.run("spawn");
    expect(result).toMatchObject({ code: exitCode, stdout: "" });
    expect(result.stderr).toContain("the reason");
    expect(result.stderr.includes("req-1")).toBe(status >= 500);
  });

  test("nobody at the address ends with 6 and says how to start a service", async () => {
    const result = await runCli(["ls"], { url: "http://127.0.0.1:1" });
    expect(result.code).toBe(6);
    expect(result.stderr).toContain("bin/alcove serve");
  });

  test("exec tells failures of its own apart from the command's", async () => {
    at.service.answer = () => ({ status: 404, json: { code: "not_found", message: "no such sandbox" } });
    expect((await runCli(["exec", "sb-a", "true"], { url: "http://127.0.0.1:1" })).code).toBe(125);
    expect((await at.run("exec", "--json", "sb-a", "true")).code).toBe(125);
  });
});

describe("spawn", () => {
  test("prints the id alone on standard output", async () => {
    at.service.answer = () => ({ status: 201, json: sandbox });
    const result = await at.run(
      "spawn",
      "--image",
      "host",
      "-m",
      "64",
      "--metadata",
      "a=b=c",
      "-e",
      "X=",
      "--ttl",
      "5m",
    );
    expect(result).toMatchObject({ code: 0, stdout: "sb-aaaaaaaaaaaa\n" });
    expect(result.stderr).toMatch(/^running on native, image host, after \d+ m?s; lives for 30m\n$/);
    expect(JSON.parse(at.service.requests[0]?.body ?? "")).toEqual({
      image: "host",
      memory_mb: 64,
      metadata: { a: "b=c" },
      env: { X: "" },
      ttl: "5m",
    });
  });

  test("--json prints the sandbox and nothing on standard error", async () => {
    at.service.answer = () => ({ status: 201, json: sandbox });
    const result = await at.run("spawn", "--json", "--api-key", "k3y", "--user-id", "acme");
    expect(JSON.parse(result.stdout)).toEqual(sandbox);
    expect(result.stderr).toBe("");
    expect(at.service.requests[0]?.headers).toMatchObject({ "x-api-key": "k3y", "x-user-id": "acme" });
  });
});

describe("ls", () => {
  test("aligns columns and shows no control character of a label", async () => {
    at.service.answer = () => ({ json: [sandbox, { ...sandbox, id: "sb-b", metadata: {} }] });
    const { stdout } = await at.run("ls");
    const lines = stdout.split("\n");
    expect(lines[0]).toBe(
      "ID               STATE    PROVIDER  IMAGE  MEMORY  VCPUS  AGE    ENDS IN  METADATA",
    );
    expect(lines[1]).toContain("job=a\\u001b[31m");
    expect(stdout).not.toContain("\u001b");
    expect(lines[2]).toMatch(/^sb-b +running/);
  });

  test("follows the cursor to the end and stops at --limit", async () => {
    at.service.answer = ({ query }) =>
      query.get("cursor") === null
        ? { json: [sandbox, { ...sandbox, id: "sb-2" }], headers: { "x-next-cursor": "c1" } }
        : { json: [{ ...sandbox, id: "sb-3" }] };
    expect((await at.run("ls", "-q")).stdout).toBe("sb-aaaaaaaaaaaa\nsb-2\nsb-3\n");
    expect((await at.run("ls", "-q", "-n", "1")).stdout).toBe("sb-aaaaaaaaaaaa\n");
  });

  test("without sandboxes prints nothing on standard output", async () => {
    at.service.answer = () => ({ json: [] });
    expect(await at.run("ls")).toEqual({ code: 0, stdout: "", stderr: "no sandboxes\n" });
  });
});

describe("kill", () => {
  test("goes on after a refusal and ends with its code", async () => {
    at.service.answer = ({ path: route }) =>
      route === "/sandboxes/sb-2"
        ? { status: 404, json: { code: "not_found", message: "no sandbox sb-2" } }
        : { json: { status: "destroyed" } };
    const result = await at.run("kill", "sb-1", "sb-2", "sb-3");
    expect(result.code).toBe(3);
    expect(result.stdout.split("\n").sort()).toEqual(["", "sb-1", "sb-3"]);
    expect(result.stderr).toContain("no sandbox sb-2");
  });
});

describe("whose sandboxes", () => {
  beforeEach(() => {
    const all = ["ada", "bob", ""].map((owner_id) => ({
      ...sandbox,
      id: `sb-${owner_id || "nobody"}`,
      owner_id,
    }));
    at.service.answer = ({ method, query }) =>
      method === "DELETE"
        ? { json: { status: "destroyed" } }
        : { json: all.filter(({ owner_id }) => [null, owner_id].includes(query.get("owner_id"))) };
  });

  test.each([
    [[], ["sb-ada", "sb-bob", "sb-nobody"]],
    [["--user-id", "ada"], ["sb-ada"]],
    [["--owner", "ada"], ["sb-ada"]],
    [["--owner", "bob", "--user-id", "ada"], ["sb-bob"]],
  ])("ls and kill --all with %j take %j", async (flags, expected) => {
    expect((await at.run("ls", "-q", ...flags)).stdout.trim().split("\n")).toEqual(expected);
    const { destroyed } = JSON.parse((await at.run("kill", "--all", "--json", ...flags)).stdout);
    expect(destroyed.sort()).toEqual(expected);
    const deleted = at.service.requests.filter(({ method }) => method === "DELETE");
    expect(deleted.map(({ path }) => path).sort()).toEqual(expected.map((id) => `/sandboxes/${id}`));
  });

  test.each([
    ["ls", "--owner", ""],
    ["kill", "--all", "--owner", ""],
    ["kill", "--all", "--user-id", ""],
    ["kill", "sb-bob", "--owner", "ada"],
  ])("%j is refused", async (...args) => {
    expect((await at.run(...args)).code).toBe(2);
    expect(at.service.requests).toEqual([]);
  });

  test.each([
    ["spawn", "--ttl", "30"],
    ["acquire", "web", "--ttl", "30"],
    ["extend", "sb-bob", "30"],
    ["exec", "--timeout", "30", "sb-bob", "true"],
    ["exec", "--cpu-time", "30", "sb-bob", "true"],
    ["shell", "--timeout", "30", "sb-bob"],
    ["open", "--ttl", "30", "sb-bob", "80"],
    ["quota", "set", "ada", "--max-ttl", "30"],
    ["quota", "set", "ada", "--max-exec-timeout", "30"],
    ["key", "new", "ci", "--ttl", "30"],
    ["template", "save", "base", "--image", "host", "--ttl", "30"],
  ])("%j makes no sense, and is told what was meant before anybody is asked", async (...args) => {
    const { code, stderr } = await at.run(...args);
    expect({ code, stderr }).toEqual({ code: 2, stderr: expect.stringContaining("30s are seconds") });
    expect(at.service.requests).toEqual([]);
  });

  test.each([
    ["spawn", "--ttl", "0s"],
    ["acquire", "web", "--ttl=0ms"],
    ["extend", "sb-bob", "0s"],
    ["exec", "--timeout", "0s", "sb-bob", "true"],
    ["exec", "--cpu-time", "0s", "sb-bob", "true"],
    ["open", "--ttl", "0m", "sb-bob", "80"],
    ["key", "new", "ci", "--ttl", "0s"],
    ["template", "save", "base", "--image", "host", "--ttl", "0h"],
  ])("%j lasts for no time, and is refused before anybody is asked", async (...args) => {
    const { code, stderr } = await at.run(...args);
    expect({ code, stderr }).toEqual({ code: 2, stderr: expect.stringContaining("must be longer than 0s") });
    expect(at.service.requests).toEqual([]);
  });

  test("a limit of a quota that is no time is its default", async () => {
    at.service.answer = () => ({ json: { owner_id: "ada" } });
    expect((await at.run("quota", "set", "ada", "--max-ttl", "0s")).code).toBe(0);
  });
});
