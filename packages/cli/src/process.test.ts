import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import type { Diagnostics } from "@alcove/wire";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { finish } from "./testing/run-cli.ts";

vi.setConfig({ testTimeout: 120_000 });

const root = fileURLToPath(new URL("../../..", import.meta.url));
// Without a built agent the start would build it, which takes minutes.
const builder: string = path.join(root, "scripts/build-agent.mjs");
const skip = !(await import(builder)).agentIsCurrent();

let dir: string;
let started: ChildProcessWithoutNullStreams | undefined;
beforeEach(async () => {
  dir = await mkdtemp(path.join(tmpdir(), "alcove-process-"));
});
afterEach(async () => {
  try {
    if (started?.pid !== undefined) process.kill(-started.pid, "SIGKILL");
  } catch (error) {
    expect(error).toMatchObject({ code: "ESRCH" });
  }
  started = undefined;
  await rm(dir, { recursive: true, force: true });
});

/** Starts the service as a person would. @returns its address once it listens, and its output. */
async function start(command: string, args: readonly string[], cwd = root) {
  const env: NodeJS.ProcessEnv = {};
  for (const [name, value] of Object.entries(process.env)) if (!name.startsWith("ALCOVE_")) env[name] = value;
  // A group of its own, so that nothing is left of it whatever happens.
  const child = spawn(command, args, { cwd, env, detached: true });
  started = child;
  const ended = finish(child);
  let report = "";
  while (!report.includes("Next")) report += String((await once(child.stdout, "data"))[0]);
  return { child, ended, url: /http:\/\/127\.0\.0\.1:\d+/.exec(report)?.[0] ?? "" };
}

/** Resolves once the text stands in what the process logs from now on. */
function says(child: ChildProcessWithoutNullStreams, text: string): Promise<void> {
  let log = "";
  return new Promise((resolve) => {
    child.stderr.on("data", (data) => {
      log += data;
      if (log.includes(text)) resolve();
    });
  });
}

/** SIGHUP has a handler of the program's own. */
function catchesHup(pid: number | undefined): boolean {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return (Number.parseInt(/^SigCgt:\s+([0-9a-f]+)/m.exec(status)?.[1] ?? "0", 16) & 1) === 1;
}

const flags = () => ["--port", "0", "--data-dir", path.join(dir, "data"), "--provider", "mock"];
const live = async (url: string) => (await fetch(`${url}/api/v1/live`)).status;

describe.skipIf(skip)(`the service's process${skip ? " (skipped: the agent is not built)" : ""}`, () => {
  test("is the one that was started: SIGUSR1 and SIGHUP leave it alone, SIGTERM ends it", async () => {
    const key = path.join(dir, "key");
    await writeFile(key, "the-first-key-of-this-test", { mode: 0o600 });
    const auth = ["--set", `auth.api_key_file=${key}`];
    const { child, ended, url } = await start(path.join(root, "bin/alcove"), ["serve", ...flags(), ...auth]);
    expect(readFileSync(`/proc/${child.pid}/cmdline`, "utf8")).toContain("packages/cli/src/bin.cjs\0serve");
    const list = async (apiKey: string) =>
      (await fetch(`${url}/api/v1/sandboxes`, { headers: { "x-api-key": apiKey } })).status;
    expect(await list("the-first-key-of-this-test")).toBe(200);
    child.kill("SIGUSR1");
    await writeFile(key, "another-key-of-this-test");
    child.kill("SIGHUP");
    await vi.waitUntil(async () => (await list("another-key-of-this-test")) === 200, { timeout: 30_000 });
    expect(await list("the-first-key-of-this-test")).toBe(401);
    child.kill("SIGTERM");
    const { code, stderr } = await ended;
    expect([code, stderr.includes("Debugger")]).toEqual([0, false]);
  });

  test("outlives SIGHUP while it is set up and while it starts, and reads the configuration again afterwards", async () => {
    const [begun, go] = [path.join(dir, "begun"), path.join(dir, "go")];
    const real = (process.env.PATH ?? "").split(":").map((folder) => path.join(folder, "node"));
    const setUp = `#!/bin/sh\n: >${begun}\nuntil [ -e ${go} ]; do sleep 0.05; done\nexec ${real.find((file) => existsSync(file))} "$@"\n`;
    await mkdir(path.join(dir, "bin"));
    await writeFile(path.join(dir, "bin/node"), setUp, { mode: 0o755 });
    const child = spawn(
      path.join(root, "bin/alcove"),
      ["serve", ...flags(), "--set", "logging.format=json"],
      {
        cwd: root,
        env: { ...process.env, PATH: `${dir}/bin:${process.env.PATH}` },
        detached: true,
      },
    );
    started = child;
    const ended = finish(child);
    let report = "";
    child.stdout.on("data", (data) => {
      report += data;
    });
    await vi.waitUntil(() => existsSync(begun), { timeout: 30_000 });
    child.kill("SIGHUP");
    await writeFile(go, "");
    // Node takes the signal's usual effect back for a moment as it begins.
    await vi.waitUntil(() => catchesHup(child.pid) || child.exitCode !== null, { timeout: 60_000 });
    await vi.waitUntil(
      () => {
        child.kill("SIGHUP");
        return report.includes("Next") || child.exitCode !== null || child.signalCode !== null;
      },
      { timeout: 60_000, interval: 10 },
    );
    expect([child.exitCode, child.signalCode]).toEqual([null, null]);
    child.kill("SIGTERM");
    const { code, stderr } = await ended;
    expect(code).toBe(0);
    expect(stderr).toContain("the configuration was read again");
  });

  test("keys that are gone from the configuration count no more at SIGHUP: it is closed, not open, and says so", async () => {
    const file = path.join(dir, "alcove.yaml");
    await writeFile(file, "auth: { api_key: the-only-key-of-this-test }\nlogging: { format: json }\n", {
      mode: 0o600,
    });
    const { child, ended, url } = await start(path.join(root, "bin/alcove"), [
      ...["serve", ...flags(), "--config", file],
    ]);
    const list = async (headers: Record<string, string>) =>
      (await fetch(`${url}/api/v1/sandboxes`, { headers })).status;
    const withKey = { "x-api-key": "the-only-key-of-this-test" };
    expect(await list(withKey)).toBe(200);
    await writeFile(file, "logging: { format: json }\n");
    child.kill("SIGHUP");
    await vi.waitUntil(async () => (await list(withKey)) === 401, { timeout: 30_000 });
    expect(await list({})).toBe(401);
    child.kill("SIGTERM");
    const { stderr } = await ended;
    expect(stderr).toContain("the keys of the configuration are gone, which applies: nobody is let in by it");
    expect(stderr).toContain("auth.enabled changed too; that needs a restart");
  });

  test("takes up limits and defaults at SIGHUP, and names what needs a restart", async () => {
    const file = path.join(dir, "alcove.yaml");
    await writeFile(file, "defaults: { max_sandboxes: 1 }\nlogging: { format: json }\n");
    const { child, ended, url } = await start(path.join(root, "bin/alcove"), [
      ...["serve", ...flags(), "--config", file],
    ]);
    const spawnOne = async () => {
      const init = { method: "POST", headers: { "content-type": "application/json" }, body: "{}" };
      const answer = await fetch(`${url}/api/v1/sandboxes`, init);
      const { created_at = "", expires_at = "", message } = (await answer.json()) as Record<string, string>;
      return { status: answer.status, message, lifeMs: Date.parse(expires_at) - Date.parse(created_at) };
    };
    expect((await spawnOne()).status).toBe(201);
    expect((await spawnOne()).status).toBe(429);
    const queued = "spawn_overflow: queue, spawn_queue_timeout: 1ms";
    const exec = "exec: { disconnect_grace: 31s }";
    await writeFile(
      file,
      `defaults: { max_sandboxes: 2, ttl: 2h, ${queued} }\nlogging: { format: json }\n${exec}\n`,
    );
    const reloaded = says(child, "the configuration was read again");
    child.kill("SIGHUP");
    await reloaded;
    const second = await spawnOne();
    expect(second.status).toBe(201);
    expect(second.lifeMs).toBe(7_200_000);
    expect(await spawnOne()).toMatchObject({ status: 429, message: expect.stringContaining("waited 1ms") });
    child.kill("SIGTERM");
    const { stderr } = await ended;
    expect(stderr).toContain("exec.disconnect_grace changed too; that needs a restart");
    expect(stderr).toContain(
      "defaults.max_sandboxes, defaults.spawn_overflow, defaults.spawn_queue_timeout, defaults.ttl changed and apply",
    );
  });

  test("a configuration that was found and is away at SIGHUP is missing: nothing changes, told without a stack", async () => {
    const file = path.join(dir, "alcove.yaml");
    await writeFile(file, "auth: { api_key: the-key-of-this-test }\nlogging: { format: json }\n", {
      mode: 0o600,
    });
    const { child, ended, url } = await start(path.join(root, "bin/alcove"), ["serve", ...flags()], dir);
    await rename(file, path.join(dir, "away.yaml"));
    const refused = says(child, "the configuration cannot be read; nothing has changed");
    child.kill("SIGHUP");
    await refused;
    const headers = { "x-api-key": "the-key-of-this-test" };
    expect((await fetch(`${url}/api/v1/sandboxes`, { headers })).status).toBe(200);
    const failed = async () => {
      const { process } = (await (
        await fetch(`${url}/api/v1/diagnostics`, { headers })
      ).json()) as Diagnostics;
      return process.reload_failed;
    };
    expect(await failed()).toEqual(expect.any(String));
    await rename(path.join(dir, "away.yaml"), file);
    child.kill("SIGHUP");
    await vi.waitUntil(async () => (await failed()) === undefined, { timeout: 30_000 });
    child.kill("SIGTERM");
    const { stderr } = await ended;
    const line = stderr.split("\n").find((one) => one.includes("nothing has changed"));
    expect(JSON.parse(line ?? "").error).toContain("alcove.yaml: ENOENT");
    expect(line).not.toContain("    at ");
    expect(stderr.match(/the configuration was read again/g)).toHaveLength(1);
  });

  test("gets the SIGTERM that npm was sent, and is gone when npm is", async () => {
    const { child, ended, url } = await start("npm", ["start", "--", ...flags()]);
    expect(await live(url)).toBe(200);
    child.kill("SIGTERM");
    await ended;
    await expect(live(url)).rejects.toThrow();
  });
});
