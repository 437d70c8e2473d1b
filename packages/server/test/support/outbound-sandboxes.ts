import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import { vi } from "vitest";
import { randomIds } from "../../src/platform/random-ids.ts";
import type { RuntimeId, RuntimeSpec, SandboxOperations } from "../../src/ports/index.ts";
import type { NativeProvider } from "../../src/providers/native/index.ts";
import { runScript } from "./attack-probe.ts";

const soon = (ms = 15_000) => ({ signal: AbortSignal.timeout(ms) });

export interface OutboundSandbox {
  readonly runtimeId: RuntimeId;
  readonly operations: SandboxOperations;
  /** @returns what it said on both streams. */
  run(script: string, options?: { timeoutMs?: number }): Promise<string>;
  write(path: string, contents: Buffer): Promise<void>;
}

/** Sandboxes of image `host`, which end together. */
export class OutboundSandboxes {
  readonly #provider: () => NativeProvider;
  readonly #made = new Set<RuntimeId>();

  /** @param provider the one there is now. */
  constructor(provider: () => NativeProvider) {
    this.#provider = provider;
  }

  async spawn(change: Partial<RuntimeSpec> = {}): Promise<OutboundSandbox> {
    const runtimeId = randomIds.runtimeId();
    const spec = { image: "host", memoryMb: 256, vcpus: 1, env: {}, expiresInMs: 600_000, metadata: {} };
    this.#made.add(runtimeId);
    const provider = this.#provider();
    await provider.spawn({ runtimeId, sandboxId: randomIds.sandboxId(), ...spec, ...change }, soon());
    return outboundSandbox(provider, runtimeId);
  }

  async destroyAll(): Promise<void> {
    const made = [...this.#made];
    this.#made.clear();
    await Promise.all(made.map((runtimeId) => this.#provider().destroy(runtimeId, soon())));
  }
}

export function outboundSandbox(provider: NativeProvider, runtimeId: RuntimeId): OutboundSandbox {
  const operations = provider.sandbox(runtimeId);
  return {
    runtimeId,
    operations,
    run: async (script, change = {}) => (await runScript(operations, script, change)).output,
    write: async (path, contents) => {
      await operations.files.write(path, Readable.from([contents]), { ...soon(), mode: 0o644 });
    },
  };
}

export interface NetworkProcess {
  pid: number;
  name: string;
  /** Of /proc/<pid>/status. */
  status: Record<string, string>;
}

/** The relay of a runtime and its helper, the helper once it runs; nothing for a runtime without a network. */
export async function networkProcesses(
  dataDir: string,
  runtimeId: RuntimeId,
  provider = "native",
): Promise<NetworkProcess[]> {
  const path = join(dataDir, "runtimes", provider, runtimeId, "network.json");
  const record = await readFile(path, "utf8").then(JSON.parse, () => undefined);
  if (record === undefined) return [];
  if (!(await lives(record.pid))) return [];
  return vi.waitFor(
    async () => {
      const relay = await look(record.pid);
      if (relay?.status.Seccomp !== "2") throw new Error(`relay ${record.pid} has all its rights`);
      for (const pid of await childrenOf(record.pid)) {
        const helper = await look(pid);
        if (helper?.name === "slirp4netns" && helper.status.Seccomp === "2") return [relay, helper];
      }
      throw new Error(`relay ${record.pid} has no helper yet`);
    },
    { timeout: 5_000, interval: 10 },
  );
}

export async function lives(pid: number): Promise<boolean> {
  const found = await look(pid);
  return found !== undefined && !found.status.State?.startsWith("Z");
}

async function look(pid: number): Promise<NetworkProcess | undefined> {
  const text = await readFile(`/proc/${pid}/status`, "utf8").catch(() => undefined);
  if (text === undefined) return undefined;
  const fields = text.split("\n").map((line) => line.split(":\t"));
  const status: Record<string, string> = Object.fromEntries(
    fields.map(([name, value]) => [name, value ?? ""]),
  );
  return { pid, name: status.Name ?? "", status };
}

async function childrenOf(pid: number): Promise<number[]> {
  const threads = await readdir(`/proc/${pid}/task`).catch(() => []);
  const lists = await Promise.all(
    threads.map((thread) => readFile(`/proc/${pid}/task/${thread}/children`, "utf8").catch(() => "")),
  );
  return lists.join(" ").split(" ").filter(Boolean).map(Number);
}
