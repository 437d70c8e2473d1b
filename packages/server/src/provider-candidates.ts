import { access } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import type { Config } from "./config/config.ts";
import { type Isolation, type ProviderName, providerIsolation, providerNames } from "./config/providers.ts";
import { pullLimits } from "./images.ts";
import type { Logger } from "./platform/logger.ts";
import type { Clock, ImageStore, RuntimeProvider } from "./ports/index.ts";
import { CustomProvider } from "./providers/custom/index.ts";
import { DockerProvider } from "./providers/docker/index.ts";
import { E2bProvider } from "./providers/e2b/index.ts";
import { FirecrackerProvider } from "./providers/firecracker/index.ts";
import { MockProvider } from "./providers/mock/index.ts";
import { NativeProvider } from "./providers/native/index.ts";
import { ProotProvider } from "./providers/proot/index.ts";

/** Where `scripts/build-agent.mjs` puts what it builds. */
const builtBinaries = fileURLToPath(new URL("../../../agent/dist/", import.meta.url));
export const agentBinary = path.join(builtBinaries, "alcove-agent");

export interface CandidateOptions {
  config: Config;
  instanceId: string;
  /** Signs what the labels of runtimes say that somebody else keeps. */
  noteKey: Uint8Array;
  images: ImageStore;
  logger: Logger;
  clock: Clock;
}

/** A provider that could run sandboxes here, or why it cannot even be tried. */
export type Candidate = {
  name: ProviderName;
  isolation: Isolation;
  /** true: asked for; undefined: taken when it works; false: not asked for. */
  enabled: boolean | undefined;
} & ({ provider: RuntimeProvider } | { missing: string });

/**
 * Every provider, in the order `auto` prefers them. Opening one starts nothing. docs/architecture.md.
 * The agent is built with the rest of the project; without it only those work that run nothing here.
 */
export async function providerCandidates(options: CandidateOptions): Promise<Candidate[]> {
  const { config, instanceId, noteKey, images, logger, clock } = options;
  const { dataDir, providers } = config;
  const launchBinary = path.join(builtBinaries, "alcove-launch");
  const missing = await unbuilt([agentBinary, launchBinary]);
  const common = { dataDir, instanceId, agentBinary, ringBytes: config.exec.ringBytes };
  const open = {
    firecracker: () =>
      new FirecrackerProvider({
        ...common,
        config: providers.firecracker,
        images,
        logger: logger.child({ provider: "firecracker" }),
      }),
    native: () =>
      new NativeProvider({
        ...common,
        config: providers.native,
        launcherBinary: launchBinary,
        images,
        logger: logger.child({ provider: "native" }),
      }),
    docker: () =>
      new DockerProvider({
        ...common,
        config: providers.docker,
        launcherBinary: launchBinary,
        pullPolicy: config.images.pullPolicy,
        allowedRegistries: config.images.allowedRegistries,
        pulls: pullLimits(config),
        aliases: config.images.aliases,
        clock,
        logger: logger.child({ provider: "docker" }),
      }),
    e2b: () =>
      new E2bProvider({
        config: providers.e2b,
        instanceId,
        noteKey,
        ringBytes: config.exec.ringBytes,
        clock,
        logger: logger.child({ provider: "e2b" }),
      }),
    custom: () =>
      new CustomProvider({
        config: providers.custom,
        instanceId,
        noteKey,
        ringBytes: config.exec.ringBytes,
        clock,
        logger: logger.child({ provider: "custom" }),
      }),
    proot: () =>
      new ProotProvider({
        ...common,
        config: providers.proot,
        images,
        logger: logger.child({ provider: "proot" }),
      }),
    mock: () =>
      new MockProvider({ config: providers.mock, logger: logger.child({ provider: "mock" }), clock }),
  } satisfies Record<ProviderName, () => RuntimeProvider>;
  return providerNames.map((name) => {
    const isolation = providerIsolation[name];
    return {
      name,
      isolation,
      enabled: providers.default === name || providers[name].enabled,
      ...(missing === undefined || !needsAgent(isolation) ? { provider: open[name]() } : { missing }),
    };
  });
}

function needsAgent(isolation: Isolation): boolean {
  return isolation !== "simulated" && isolation !== "hosted";
}

async function unbuilt(binaries: readonly string[]): Promise<string | undefined> {
  for (const binary of binaries) {
    const there = await access(binary).then(
      () => true,
      () => false,
    );
    if (!there)
      return `${path.basename(binary)} is not built; build it with: node scripts/build-agent.mjs (needs cargo). In a package it is a file that got lost: install the package again`;
  }
  return undefined;
}
