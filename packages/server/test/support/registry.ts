import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { TestEngine } from "./docker-engine.ts";
import { findProgram, mustRun } from "./programs.ts";

/** An image registry on loopback, which engines and skopeo take without TLS. */
export interface TestRegistry extends AsyncDisposable {
  /** `127.0.0.1:port`. */
  address: string;
  /** Copies an image of an engine to `<address>/<name>`. @returns that name. */
  push(engine: TestEngine, image: string, name: string): Promise<string>;
}

const startTimeoutMs = 15_000;

/** Debian's docker-registry, with a folder of its own. */
export async function startRegistry(): Promise<TestRegistry> {
  const dir = await mkdtemp(join(tmpdir(), "alcove-registry-"));
  const config = `version: 0.1
log: { formatter: json }
storage: { filesystem: { rootdirectory: ${dir}/data } }
http: { addr: "127.0.0.1:0" }
`;
  await writeFile(`${dir}/config.yml`, config);
  const registry = spawn(
    findProgram("docker-registry") ?? "docker-registry",
    ["serve", `${dir}/config.yml`],
    {
      stdio: ["ignore", "ignore", "pipe"],
    },
  );
  const close = async () => {
    await stop(registry);
    await rm(dir, { recursive: true, force: true });
  };
  try {
    const address = await listeningAddress(registry);
    return {
      address,
      push: async (engine, image, name) => {
        const target = `${address}/${name}`;
        const args = ["--insecure-policy", "copy", "--quiet", "--src-daemon-host", engine.socket];
        const copy = [...args, "--dest-tls-verify=false", `docker-daemon:${image}`, `docker://${target}`];
        await mustRun("skopeo", copy);
        return target;
      },
      [Symbol.asyncDispose]: close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** The registry chooses a free port and says which in its log. */
async function listeningAddress(registry: ChildProcess): Promise<string> {
  if (registry.stderr === null) throw new Error("the registry was started without a log");
  const lines = createInterface({ input: registry.stderr });
  const heard: string[] = [];
  const deadline = AbortSignal.timeout(startTimeoutMs);
  deadline.addEventListener("abort", () => lines.close());
  for await (const line of lines) {
    heard.push(line);
    const address = /listening on (127\.0\.0\.1:\d+)/.exec(line)?.[1];
    if (address === undefined) continue;
    registry.stderr.resume();
    return address;
  }
  throw new Error(
    `docker-registry did not listen within ${startTimeoutMs} ms: ${heard.slice(-5).join("\n")}`,
  );
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
}
