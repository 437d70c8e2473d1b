import { type ChildProcess, execFile, spawn } from "node:child_process";
import { createWriteStream, type WriteStream } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

export const projectRoot = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");

const run = promisify(execFile);
const entryIn = (root: string) => path.join(root, "packages/cli/src/bin.cjs");

async function nodeFlagsIn(root: string): Promise<string[]> {
  return JSON.parse(await readFile(path.join(root, "scripts/setup/service-node-flags.json"), "utf8"));
}

/** The service in a process of its own, on a data directory of its own. */
export interface Service extends AsyncDisposable {
  url: string;
  /** Another one after `restart`. */
  readonly pid: number;
  dataDir: string;
  /** Resident set of the server process, bytes. */
  rssBytes(): Promise<number>;
  /** Ends it and starts it again on the same data directory. @returns milliseconds from its start until it is ready. */
  restart(): Promise<number>;
  /** Runs an `alcove` command on the same data directory. */
  command(args: readonly string[]): Promise<unknown>;
}

export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (address === null || typeof address === "string") throw new Error("no free port");
  return address.port;
}

/**
 * Starts the service with `settings` (config keys as environment variables) and waits until it is ready.
 * @param options root: of another commit of the project that is laid out; nodeFlags: beside its own.
 */
export async function startService(
  settings: Record<string, string>,
  { root = projectRoot, nodeFlags = [] }: { root?: string; nodeFlags?: readonly string[] } = {},
): Promise<Service> {
  const dataDir = await mkdtemp(path.join(tmpdir(), "alcove-bench-"));
  const port = await freePort();
  const env = {
    ...process.env,
    ALCOVE_DATA_DIR: path.join(dataDir, "data"),
    ALCOVE_SERVER_PORT: String(port),
    ALCOVE_LOGGING_LEVEL: "warn",
    ALCOVE_SERVER_DESTROY_ON_EXIT: "true",
    ALCOVE_DEFAULTS_MAX_SANDBOXES: "0",
    ALCOVE_DEFAULTS_MEMORY_OVERCOMMIT: "0",
    ALCOVE_DEFAULTS_VCPU_OVERCOMMIT: "0",
    ...settings,
  };
  const url = `http://127.0.0.1:${port}`;
  const log = createWriteStream(path.join(dataDir, "service.log"));
  const args = [...(await nodeFlagsIn(root)), ...nodeFlags, entryIn(root), "serve"];
  const start = () => startProcess({ args, cwd: dataDir, env, url, log });
  let running = await start();
  return {
    url,
    get pid() {
      return running.pid;
    },
    dataDir: env.ALCOVE_DATA_DIR,
    rssBytes: async () => rssOf(running.pid),
    command: (args) => run(process.execPath, [entryIn(root), ...args], { cwd: dataDir, env }),
    restart: async () => {
      await running.end();
      const started = performance.now();
      running = await start();
      return performance.now() - started;
    },
    async [Symbol.asyncDispose]() {
      await running.end();
      log.end();
      await rm(dataDir, { recursive: true, force: true, maxRetries: 3 });
    },
  };
}

/** @returns once it is ready. */
async function startProcess(options: {
  args: readonly string[];
  cwd: string;
  env: NodeJS.ProcessEnv;
  url: string;
  log: WriteStream;
}): Promise<{ pid: number; end: () => Promise<void> }> {
  const { args, cwd, env, url, log } = options;
  const child: ChildProcess = spawn(process.execPath, args, {
    cwd,
    stdio: ["ignore", "pipe", "pipe"],
    env,
  });
  child.stdout?.pipe(log, { end: false });
  child.stderr?.pipe(log, { end: false });
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const deadline = Date.now() + 60_000;
  for (;;) {
    const ready = await fetch(`${url}/api/v1/ready`).then(
      (response) => response.ok,
      () => false,
    );
    if (ready) break;
    if (child.exitCode !== null || Date.now() > deadline) {
      throw new Error(`the service did not start:\n${await readFile(path.join(cwd, "service.log"), "utf8")}`);
    }
    await delay(20);
  }
  return {
    pid: child.pid ?? 0,
    end: async () => {
      child.kill("SIGTERM");
      const gone = await Promise.race([exited.then(() => true), delay(60_000, false, { ref: false })]);
      if (!gone) child.kill("SIGKILL");
    },
  };
}

/** Resident set of a process, bytes. */
export async function rssOf(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, "utf8");
  return Number(/VmRSS:\s+(\d+) kB/.exec(status)?.[1] ?? "0") * 1_024;
}

/** Watches the resident set of a process while `work` runs. @returns the largest seen, bytes. */
export async function peakRss(pid: number, work: () => Promise<void>): Promise<number> {
  let peak = await rssOf(pid);
  const timer = setInterval(() => {
    void rssOf(pid).then((now) => {
      peak = Math.max(peak, now);
    });
  }, 50);
  try {
    await work();
  } finally {
    clearInterval(timer);
  }
  return peak;
}

/** Processor time of a process so far, of all its threads, milliseconds. */
export async function processorMs(pid: number): Promise<number> {
  const fields = (await readFile(`/proc/${pid}/stat`, "utf8")).split(") ")[1]?.split(" ") ?? [];
  return (Number(fields[11]) + Number(fields[12])) * 10;
}
