import { randomBytes } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { DockerConfig } from "../../src/config/config.ts";
import { type Logger, silentLogger } from "../../src/platform/logger.ts";
import { randomIds } from "../../src/platform/random-ids.ts";
import { systemClock } from "../../src/platform/system-clock.ts";
import type { RuntimeSpec } from "../../src/ports/index.ts";
import { DockerProvider } from "../../src/providers/docker/index.ts";
import { agentBinary } from "./agent-binary.ts";
import type { TestEngine } from "./docker-engine.ts";
import { busyboxImage, importBusybox } from "./tiny-images.ts";

/** The configuration's defaults, for an engine of the tests. */
export function dockerConfig(
  engine: Pick<TestEngine, "socket">,
  change: Partial<DockerConfig> = {},
): DockerConfig {
  return {
    enabled: undefined,
    defaultImage: busyboxImage,
    socket: engine.socket,
    tlsDir: "",
    runtime: "",
    networkMode: "none",
    networkAllow: [],
    networkConnections: 512,
    networkMbit: 200,
    seccompProfile: "",
    readOnlyRootfs: false,
    pidsLimit: 512,
    diskMb: 10_240,
    minFreeMb: 1_024,
    user: "",
    droppedCaps: ["ALL"],
    addedCaps: [],
    tmpfs: [],
    agentTransport: "auto",
    prepared: 0,
    ...change,
  };
}

/** A small sandbox of the tiny image, with ids of its own. */
export function containerOf(change: Partial<RuntimeSpec> = {}): RuntimeSpec {
  return {
    runtimeId: randomIds.runtimeId(),
    sandboxId: randomIds.sandboxId(),
    image: busyboxImage,
    memoryMb: 128,
    vcpus: 1,
    env: {},
    expiresInMs: 600_000,
    metadata: {},
    ...change,
  };
}

export interface DockerUnderTest {
  provider: DockerProvider;
  image: string;
  dataDir: string;
  instanceId: string;
  /** Another provider on the same state, as the next start of the service makes it. */
  restart(): Promise<DockerProvider>;
  /** Closes what was opened, and removes the folder. Sandboxes are the caller's to destroy. */
  close(): Promise<void>;
}

/** A provider with the tiny image, a data folder and an instance id of its own. */
export async function openDocker(
  engine: TestEngine,
  options: {
    config?: Partial<DockerConfig>;
    pullPolicy?: "missing" | "never";
    allowedRegistries?: readonly string[];
    logger?: Logger;
    instanceId?: string;
    /** Of another one, on whose state this is opened; unset: its own. */
    dataDir?: string;
    agentBinary?: string;
    launcher?: string;
    /** One that the engine has; unset: the tiny one, which is imported anew. */
    image?: string;
  } = {},
): Promise<DockerUnderTest> {
  const image = options.image ?? (await importBusybox(engine));
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), "alcove-docker-")));
  const instanceId = options.instanceId ?? randomBytes(8).toString("hex");
  const opened: DockerProvider[] = [];
  const open = () => {
    const provider = new DockerProvider({
      config: dockerConfig(engine, { defaultImage: image, ...options.config }),
      dataDir,
      instanceId,
      agentBinary: options.agentBinary ?? agentBinary("alcove-agent"),
      launcherBinary: options.launcher ?? agentBinary("alcove-launch"),
      pullPolicy: options.pullPolicy ?? "never",
      ...(options.allowedRegistries === undefined ? {} : { allowedRegistries: options.allowedRegistries }),
      logger: options.logger ?? silentLogger,
      clock: systemClock,
    });
    opened.push(provider);
    return provider;
  };
  return {
    provider: open(),
    image,
    dataDir,
    instanceId,
    restart: async () => open(),
    close: async () => {
      for (const provider of opened) await provider[Symbol.asyncDispose]();
      await rm(dataDir, { recursive: true, force: true });
    },
  };
}
