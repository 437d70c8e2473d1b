import { spawn } from "node:child_process";
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { readFile } from "node:fs/promises";
import { request } from "node:http";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { inject } from "vitest";
import { makeCertificates } from "./certificates.ts";
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

/** What engine is started. */
export type EngineKind =
  | "docker"
  /** Root of its containers is an unprivileged user of the host (`userns-remap`). */
  | "remapped"
  /** The engine itself runs as a user without rights. */
  | "rootless"
  /** Podman's service, which speaks as a Docker Engine does. */
  | "podman";

/**
 * An engine of one's own, for benchmarks and for tests that stop it, or want another kind.
 * @param options.tls it is at a TCP address too, where it asks for TLS and for a certificate.
 */
export async function startEngine(
  options: { kind?: EngineKind; tls?: boolean } = {},
): Promise<OwnedEngine & { tls?: EngineTls }> {
  const { kind = "docker" } = options;
  const { dir, release } = await prepareEngineDir();
  try {
    const tls = options.tls ? await tlsAddress(`${dir}/tls`) : undefined;
    await furnish(dir, kind);
    const engine = await startIn(dir, { kind, ...(tls && { settings: tls.settings }) });
    return { ...engine, ...(tls && { tls: tls.engine }), [Symbol.asyncDispose]: release };
  } catch (error) {
    await release();
    throw error;
  }
}

/** Ranges of user ids of its own, in a mount namespace of its own: the machine's files stay as they are. */
const withRanges = 'for f in subuid subgid; do mount --bind "$0/$f" "/etc/$f"; done';
const rootlessEngine =
  'rm -f /run/docker /run/containerd; exec dockerd --config-file "$1/daemon.json" --rootless --storage-driver overlay2';

/** Each is given its folder. */
const starts: Readonly<Record<EngineKind, string>> = {
  docker: 'exec dockerd --config-file "$1/daemon.json"',
  remapped: `exec unshare --mount sh -c '${withRanges}; exec dockerd --config-file "$0/daemon.json"' "$1"`,
  rootless: `exec unshare --mount sh -c '${withRanges}; exec setpriv --reuid nobody --regid nogroup --clear-groups env -i \\
    HOME="$0/home" XDG_RUNTIME_DIR="$0/home" PATH=/usr/sbin:/usr/bin:/sbin:/bin rootlesskit --net=host \\
    --copy-up=/etc --copy-up=/run --state-dir="$0/home/rootlesskit" sh "$0/inside" "$0"' "$1"`,
  podman: `exec podman --root "$1/data" --runroot "$1/exec" --storage-driver overlay --cgroup-manager cgroupfs \\
    --events-backend file --runtime "$1/bin/runc" system service --time 0 "unix://$1/docker.sock"`,
};

/** Podman asks for more processes than it may have where it lacks CAP_SYS_RESOURCE: the runtime is told fewer. */
const fewerProcesses = `#!/bin/sh
previous=
for each; do
  [ "$previous" != --bundle ] || sed -i -E 's/("RLIMIT_NPROC","hard":)[0-9]+(,"soft":)[0-9]+/\\1 4096\\2 4096/' "$each/config.json"
  previous=$each
done
exec runc "$@"
`;

async function furnish(dir: string, kind: EngineKind): Promise<void> {
  if (kind === "docker") return;
  // Containers pass through it as users of nobody's.
  chmodSync(dir, 0o711);
  for (const file of ["subuid", "subgid"]) writeFileSync(`${dir}/${file}`, "nobody:2000000:65536\n");
  if (kind === "rootless") {
    mkdirSync(`${dir}/home`, { mode: 0o700 });
    await mustRun("chown", ["nobody:nogroup", `${dir}/home`]);
    writeFileSync(`${dir}/inside`, rootlessEngine);
  }
  if (kind === "podman") {
    mkdirSync(`${dir}/bin`);
    writeFileSync(`${dir}/bin/runc`, fewerProcesses, { mode: 0o755 });
  }
}

/** Where an engine is behind TLS, and a folder as `providers.docker.tls_dir` names one. */
export interface EngineTls {
  address: string;
  clientDir: string;
}

async function tlsAddress(dir: string): Promise<{ engine: EngineTls; settings: EngineSettings }> {
  const { server, client } = await makeCertificates(dir);
  const address = `tcp://127.0.0.1:${await freePort()}`;
  return {
    engine: { address, clientDir: client },
    settings: {
      hosts: [address],
      tlsverify: true,
      tlscacert: `${server}/ca.pem`,
      tlscert: `${server}/cert.pem`,
      tlskey: `${server}/key.pem`,
    },
  };
}

/** Nobody has it now; somebody else could take it before its program does. */
async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

async function startIn(
  dir: string,
  { kind = "docker", settings = {} }: { kind?: EngineKind; settings?: EngineSettings } = {},
): Promise<TestEngine> {
  const place = kind === "rootless" ? `${dir}/home` : dir;
  const socketPath = `${place}/docker.sock`;
  if (claim(`${dir}/started`)) {
    const remap = kind === "remapped" ? { "userns-remap": "nobody:nogroup" } : {};
    writeFileSync(`${dir}/daemon.json`, JSON.stringify(daemonSettings(place, { ...settings, ...remap })));
    writeFileSync(`${dir}/start`, starts[kind]);
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

/** Of its daemon.json; addresses beside its socket. */
type EngineSettings = { hosts?: string[]; [key: string]: unknown };

function daemonSettings(dir: string, { hosts = [], ...change }: EngineSettings): Record<string, unknown> {
  const runsc = findProgram("runsc");
  return {
    hosts: [`unix://${dir}/docker.sock`, ...hosts],
    "data-root": `${dir}/data`,
    "exec-root": `${dir}/exec`,
    pidfile: `${dir}/dockerd.pid`,
    bridge: "none",
    iptables: false,
    ...(runsc === undefined ? {} : { runtimes: { runsc: { path: runsc, runtimeArgs: ["--network=none"] } } }),
    ...change,
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
