import { spawn } from "node:child_process";
import { closeSync, existsSync, mkdirSync, mkdtempSync, openSync, rmSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { inject } from "vitest";
import { findProgram, mustRun } from "./programs.ts";

/** A Docker Engine of the tests' own: no bridge, no iptables, its own folders. */
export interface TestEngine {
  /** `unix:///…/docker.sock`. */
  socket: string;
  socketPath: string;
}

export interface OwnedEngine extends TestEngine, AsyncDisposable {}

const startTimeoutMs = 40_000;
const stopTimeoutMs = 30_000;

declare module "vitest" {
  interface ProvidedContext {
    /** Folder of this run's shared engine; its lifeline is held by the run's main process. */
    engineDir: string;
  }
}

/** Makes the folder of an engine that is not started yet, and holds its lifeline. */
export async function prepareEngineDir(): Promise<{ dir: string; release(): Promise<void> }> {
  const dir = mkdtempSync(join(tmpdir(), "alcove-engine-"));
  await mustRun("mkfifo", ["-m", "600", `${dir}/lifeline`]);
  // Read-write, because opening a FIFO for writing alone waits for a reader.
  const lifeline = openSync(`${dir}/lifeline`, "r+");
  return {
    dir,
    release: async () => {
      closeSync(lifeline);
      if (!existsSync(`${dir}/started`)) return rmSync(dir, { recursive: true, force: true });
      const until = Date.now() + stopTimeoutMs;
      while (existsSync(dir) && Date.now() < until) await delay(50);
    },
  };
}

/** The engine all test files of a run share; the first that asks starts it, `global-setup.ts` ends it. */
export async function sharedEngine(): Promise<TestEngine> {
  return startIn(inject("engineDir"));
}

/** An engine of one's own, for benchmarks and for tests that stop it. */
export async function startEngine(): Promise<OwnedEngine> {
  const { dir, release } = await prepareEngineDir();
  try {
    return { ...(await startIn(dir)), [Symbol.asyncDispose]: release };
  } catch (error) {
    await release();
    throw error;
  }
}

async function startIn(dir: string): Promise<TestEngine> {
  const socketPath = `${dir}/docker.sock`;
  if (claim(`${dir}/started`)) {
    writeFileSync(`${dir}/daemon.json`, JSON.stringify(daemonSettings(dir)));
    const script = fileURLToPath(new URL("docker-engine.sh", import.meta.url));
    spawn("sh", [script, dir], { detached: true, stdio: "ignore" }).unref();
  }
  const until = Date.now() + startTimeoutMs;
  while (!(await answers(socketPath))) {
    if (Date.now() > until)
      throw new Error(`dockerd did not answer within ${startTimeoutMs} ms: ${await lastLines(dir)}`);
    await delay(50);
  }
  return { socket: `unix://${socketPath}`, socketPath };
}

function daemonSettings(dir: string): Record<string, unknown> {
  const runsc = findProgram("runsc");
  return {
    hosts: [`unix://${dir}/docker.sock`],
    "data-root": `${dir}/data`,
    "exec-root": `${dir}/exec`,
    pidfile: `${dir}/dockerd.pid`,
    bridge: "none",
    iptables: false,
    ...(runsc === undefined ? {} : { runtimes: { runsc: { path: runsc, runtimeArgs: ["--network=none"] } } }),
  };
}

/** @returns whether this call was the first. */
function claim(path: string): boolean {
  try {
    mkdirSync(path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

function answers(socketPath: string): Promise<boolean> {
  return new Promise((resolve) => {
    const ping = request({ socketPath, path: "/_ping", timeout: 2_000 }, (response) => {
      response.resume();
      resolve(response.statusCode === 200);
    });
    ping.on("timeout", () => ping.destroy());
    ping.on("error", () => resolve(false));
    ping.end();
  });
}

async function lastLines(dir: string): Promise<string> {
  const log = await readFile(`${dir}/dockerd.log`, "utf8").catch(() => "no log was written");
  return log.trim().split("\n").slice(-5).join("\n");
}
