import { Readable } from "node:stream";
import { afterAll, afterEach, beforeAll } from "vitest";
import { randomIds } from "../../src/platform/random-ids.ts";
import type { RuntimeId, SandboxOperations } from "../../src/ports/index.ts";
import type { NativeProvider, NativeProviderConfig } from "../../src/providers/native/index.ts";
import { attackProbe, runScript } from "./attack-probe.ts";
import { type NativeHome, nativeHome, testImage } from "./native.ts";

/** Where the program of attempts is in each sandbox. */
export const probePath = "/tmp/probe";

export interface ProbedSandbox {
  runtimeId: RuntimeId;
  operations: SandboxOperations;
  /** Takes as much as it gets of something and keeps it. @returns how much that was. */
  take(what: string, number: number): Promise<number>;
}

export interface ProbedSandboxes {
  readonly provider: NativeProvider;
  spawn(change?: { image?: string; memoryMb?: number }): Promise<ProbedSandbox>;
}

/**
 * A `native` provider for the tests of one suite, with sandboxes that hold the program of attempts. They end with the
 * test that made them, the provider with the suite.
 */
export function probedSandboxes(options: {
  memoryMb: number;
  vcpus?: number;
  config?: Partial<NativeProviderConfig>;
  /** For each operation. */
  patienceMs: number;
}): ProbedSandboxes {
  const { vcpus = 1, patienceMs } = options;
  const soon = () => ({ signal: AbortSignal.timeout(patienceMs) });
  let home: NativeHome;
  let provider: NativeProvider;
  let probe: Buffer;
  const made: RuntimeId[] = [];

  beforeAll(async () => {
    probe = await attackProbe();
    home = await nativeHome();
    provider = home.open(options.config);
  }, 120_000);

  afterEach(async () => {
    await Promise.all(made.splice(0).map((runtimeId) => provider.destroy(runtimeId, soon())));
  });

  afterAll(async () => {
    await provider[Symbol.asyncDispose]();
    await home.remove();
  });

  return {
    get provider() {
      return provider;
    },
    spawn: async ({ image = testImage, memoryMb = options.memoryMb } = {}) => {
      const runtimeId = randomIds.runtimeId();
      made.push(runtimeId);
      const sandboxId = randomIds.sandboxId();
      await provider.spawn(
        { runtimeId, sandboxId, image, memoryMb, vcpus, env: {}, expiresInMs: 600_000, metadata: {} },
        soon(),
      );
      const operations = provider.sandbox(runtimeId);
      await operations.files.write(probePath, Readable.from([probe]), { ...soon(), mode: 0o755 });
      return {
        runtimeId,
        operations,
        take: async (what, number) => {
          const out = `/tmp/${what}`;
          const script = `rm -f ${out}; ${probePath} ${what} ${number} 300 > ${out} 2>&1 & while [ ! -s ${out} ]; do sleep 0.1; done; cat ${out}`;
          return Number((await runScript(operations, script, { timeoutMs: patienceMs })).output);
        },
      };
    },
  };
}
