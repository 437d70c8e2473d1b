import type { DockerConfig } from "../../config/config.ts";
import type { PoolSlot, RuntimeSpec } from "../../ports/index.ts";
import { hiddenPaths, readOnlyPaths } from "./hidden-paths.ts";
import { runtimeLabels } from "./labels.ts";
import { engineNetwork, networkFor } from "./network-mode.ts";

/** Where the agent is inside. A mount point, so that no command can rename it or put something in its place. */
export const agentFolder = "/.alcove";
export const agentProgram = `${agentFolder}/alcove-agent`;
/** Where its socket is; a mount of its own, closed to every command. */
export const socketFolder = `${agentFolder}/run`;
export const agentSocket = `${socketFolder}/agent.sock`;

/**
 * Owner of the socket's folder: a user that is nobody on the host and in no image. Commands run as root without
 * DAC_OVERRIDE or as users of the image, so none may enter a folder of this user's with mode 0700.
 */
export const socketFolderUid = 1_879_000_001;
/** The same where the engine maps user ids, usually 65,536 of them: the agent's own, as which no command may run. */
export const mappedSocketFolderUid = 65_533;

/** What the agent needs to run commands as users and own their files; commands themselves start with none. */
const agentCapabilities = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"];

/** Of each process, as with `native`. Engines allow a million, which nobody could look through. */
const openFiles = 4_096;
/** Of each process, as with `native`: pages of images are locked without being counted for who locks them. */
const lockedBytes = 65_536;

/** Threads of gVisor's own that one of a sandbox's processes may take: the engine's limit counts these, and gVisor dies of it. */
const gvisorThreads = 8;

const cpuPeriodUs = 100_000;
const bytesPerMb = 1024 * 1024;

/** How the agent gets into a container. */
export interface AgentMounts {
  mounts: readonly Record<string, unknown>[];
  tmpfs: Readonly<Record<string, string>>;
  /** What a container with network `outbound` mounts beside that. */
  outboundMounts?: readonly Record<string, unknown>[];
}

/** The engine's order for a sandbox's container: hardened by default, opened only by the operator's configuration. */
export function containerSpec(options: {
  instanceId: string;
  runtime: RuntimeSpec;
  image: string;
  config: DockerConfig;
  agent: AgentMounts;
  /** A profile's text or `unconfined`; absent: the engine's default. */
  seccomp: string | undefined;
  /** For the engine's storage driver; absent: what it does by itself. */
  storage?: Readonly<Record<string, string>> | undefined;
  /** Of the engine's machine. */
  processors: number;
  /** Whether its kernel is gVisor's. */
  onGvisor: boolean;
}): Record<string, unknown> {
  const { runtime, config, agent } = options;
  const memory = runtime.memoryMb * bytesPerMb;
  const network = networkFor(config.networkMode, runtime.network);
  return {
    Image: options.image,
    // The image's own ENTRYPOINT, CMD and HEALTHCHECK are not run.
    Entrypoint: [
      ...[agentProgram, "serve", "--socket", agentSocket, "--close-folder"],
      ...(ownFilter(config)
        ? ["--filter", "--datagram-sockets", String(datagramSockets(runtime.memoryMb))]
        : []),
      ...(namespacesAllowed(options) ? ["--namespaces"] : []),
    ],
    Cmd: [],
    Healthcheck: { Test: ["NONE"] },
    User: "0:0",
    WorkingDir: "/",
    Hostname: runtime.sandboxId,
    Tty: false,
    OpenStdin: false,
    AttachStdout: false,
    AttachStderr: false,
    Labels: runtimeLabels(options.instanceId, runtime),
    HostConfig: {
      CapDrop: config.droppedCaps,
      CapAdd: [...new Set([...agentCapabilities, ...config.addedCaps.map(bareCapability)])],
      SecurityOpt: [
        "no-new-privileges",
        ...(options.seccomp === undefined ? [] : [`seccomp=${options.seccomp}`]),
      ],
      Privileged: false,
      MaskedPaths: hiddenPaths(options.processors),
      ReadonlyPaths: readOnlyPaths,
      Memory: memory,
      // Equal to Memory: no swap on top.
      MemorySwap: memory,
      // A quota rather than NanoCpus, which engines refuse above the machine's number of processors.
      CpuPeriod: cpuPeriodUs,
      CpuQuota: runtime.vcpus * cpuPeriodUs,
      PidsLimit: config.pidsLimit * (options.onGvisor ? gvisorThreads : 1),
      Ulimits: [
        // With 1, unlike 0, the kernel starts no handler of the host for a dump.
        { Name: "core", Soft: 1, Hard: 1 },
        { Name: "nofile", Soft: openFiles, Hard: openFiles },
        { Name: "memlock", Soft: lockedBytes, Hard: lockedBytes },
      ],
      ...engineNetwork(network),
      IpcMode: "private",
      CgroupnsMode: "private",
      ReadonlyRootfs: config.readOnlyRootfs,
      Mounts: [...agent.mounts, ...((network === "outbound" && agent.outboundMounts) || [])],
      Tmpfs: { ...writableFolders(config, runtime.slot), ...tmpfsMounts(config.tmpfs), ...agent.tmpfs },
      LogConfig: { Type: "json-file", Config: { "max-size": "1m", "max-file": "1" } },
      RestartPolicy: { Name: "no" },
      AutoRemove: false,
      Init: false,
      ...(options.storage === undefined ? {} : { StorageOpt: options.storage }),
      ...(config.runtime === "" ? {} : { Runtime: config.runtime }),
    },
  };
}

/**
 * Whether the agent refuses what engines allow although it reaches the whole machine: kernel AIO, flushing every disk,
 * rare socket protocols, io_uring. An operator's own profile is the last word, and kernels of a sandbox's own need none.
 */
export function ownFilter(config: DockerConfig): boolean {
  return config.seccompProfile === "" && ["", "runc", "crun"].includes(config.runtime);
}

/** They are what the capability is for, which engines allow with it; those of a kernel of its own are not the machine's. */
function namespacesAllowed({ config, onGvisor }: { config: DockerConfig; onGvisor: boolean }): boolean {
  const added = config.addedCaps.map(bareCapability);
  return onGvisor || added.includes("SYS_ADMIN") || added.includes("ALL");
}

/**
 * How many sockets for datagrams a sandbox has at most: what can wait in them unfinished, 544 KB each, is counted for nobody
 * and is then about an eighth of its memory, or 34 MB. The same number as that of the launcher.
 */
function datagramSockets(memoryMb: number): number {
  return Math.max(Math.floor(memoryMb / 4), 64);
}

/** Capability as the engine spells it: without CAP_. */
function bareCapability(name: string): string {
  return name.toUpperCase().replace(/^CAP_/, "");
}

/** Capabilities of every command, as the agent spells them. */
export function commandCapabilities(config: DockerConfig): string[] {
  return config.addedCaps.map((name) => `CAP_${bareCapability(name)}`);
}

/** With a read-only image these stay writable; what they hold counts as the sandbox's memory. */
function writableFolders(config: DockerConfig, slot: PoolSlot | undefined): Record<string, string> {
  if (!config.readOnlyRootfs) return {};
  return {
    "/tmp": "mode=1777,exec",
    "/run": "mode=0755",
    "/workspace": slot === undefined ? "mode=0755,exec" : `mode=0700,exec,uid=${slot.uid},gid=${slot.uid}`,
  };
}

/** `/path` or `/path:options`. */
function tmpfsMounts(entries: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    entries.map((entry) => {
      const at = entry.indexOf(":");
      return at === -1 ? [entry, ""] : [entry.slice(0, at), entry.slice(at + 1)];
    }),
  );
}
