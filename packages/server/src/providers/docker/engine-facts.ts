import { arch, platform } from "node:os";
import { basename } from "node:path";
import type { DockerConfig } from "../../config/config.ts";
import { isEngineNetwork, kernelSharingRuntimes } from "../../config/providers.ts";
import { enoughEpollWatches } from "../../platform/epoll-watches.ts";
import { ownFilter } from "./container-spec.ts";
import type { EngineAddress } from "./engine-address.ts";
import type { EngineInfo } from "./engine-shapes.ts";

/** The first version whose own seccomp profile keeps io_uring from containers. */
const firstWithoutIoUring = 25;

/** Names of processor architectures: the engine's to Node's. */
const architectures: Readonly<Record<string, string>> = {
  x86_64: "x64",
  amd64: "x64",
  aarch64: "arm64",
  arm64: "arm64",
};

/** gVisor, by the name of its program or shim. */
const gvisorPrograms: ReadonlySet<string> = new Set(["runsc", "io.containerd.runsc.v1"]);

/** How the agent can be reached on this engine, and why. */
export function chooseTransport(
  config: DockerConfig,
  address: EngineAddress,
  info: EngineInfo,
): { transport: "socket" | "stdio"; why: string } {
  if (config.agentTransport !== "auto") {
    return { transport: config.agentTransport, why: "providers.docker.agent_transport" };
  }
  const stdio = (why: string) => ({ transport: "stdio" as const, why });
  const elsewhere = machineOfItsOwn(address, info);
  if (elsewhere !== undefined) return stdio(elsewhere);
  if (mapsIds(info)) return stdio("the engine maps user ids");
  // A bound unix socket works only where the kernel is shared.
  if (!sharesKernel(config, info)) return stdio(`sockets do not cross into ${runtimeName(config, info)}`);
  return { transport: "socket", why: "engine and runtime share this machine's files and kernel" };
}

/** Whether the engine is no root of its machine: its containers are processes of a user namespace and count in no group of the service's. */
export function isRootless(info: EngineInfo): boolean {
  return (info.SecurityOptions ?? []).some((option) => option.includes("name=rootless"));
}

/** Whether root of a container is another user of the engine's machine: with userns-remap, and rootless. */
export function mapsIds(info: EngineInfo): boolean {
  return (info.SecurityOptions ?? []).some((option) => /name=(userns|rootless)/.test(option));
}

/** Whether an engine's files are this machine's, as far as can be told. */
export function sharesMachine(address: EngineAddress, info: EngineInfo): boolean {
  return machineOfItsOwn(address, info) === undefined;
}

function machineOfItsOwn(address: EngineAddress, info: EngineInfo): string | undefined {
  if (address.kind === "tcp") return "the engine is reached over TCP";
  if (platform() !== "linux") return `the engine runs in a machine of its own on ${platform()}`;
  if (/docker desktop/i.test(info.OperatingSystem ?? ""))
    return "Docker Desktop runs in a machine of its own";
  return undefined;
}

/** The runtime in use: the configured one, else the engine's default. */
export function runtimeName(config: DockerConfig, info: EngineInfo): string {
  return config.runtime || info.DefaultRuntime || "runc";
}

/** Whether processes of its containers are processes of the kernel that the engine runs on. */
export function sharesKernel(config: DockerConfig, info: EngineInfo): boolean {
  return kernelSharingRuntimes.has(runtimeProgram(runtimeName(config, info), info));
}

/** @returns its program, or the kind of its shim, whatever the engine's configuration calls it. */
function runtimeProgram(name: string, info: EngineInfo): string {
  const { path, runtimeType, options } = Object(info.Runtimes?.[name]) as Record<string, unknown>;
  // runc's shim runs whatever program its options name.
  const { BinaryName: program } = Object(options) as Record<string, unknown>;
  const said = [path, program, runtimeType].find((each) => typeof each === "string" && each !== "");
  return basename(String(said ?? name));
}

/** Whether its containers run on gVisor's kernel. @param info unset: as far as the configuration tells. */
export function runsOnGvisor(config: DockerConfig, info: EngineInfo | undefined): boolean {
  const program = info === undefined ? config.runtime : runtimeProgram(runtimeName(config, info), info);
  return gvisorPrograms.has(program);
}

/** Why sandboxes cannot run on an engine that answers; undefined when they can. */
export function unfitBecause(config: DockerConfig, info: EngineInfo): string | undefined {
  if (info.OSType && info.OSType !== "linux")
    return `it runs ${info.OSType} containers; switch it to Linux containers`;
  const architecture = architectures[info.Architecture ?? ""] ?? info.Architecture;
  if (architecture && architecture !== arch()) {
    return `its processors are ${info.Architecture} and the agent was built for ${arch()}`;
  }
  // A dot: the name of a containerd shim, which the engine finds by itself.
  if (
    config.runtime !== "" &&
    !config.runtime.includes(".") &&
    info.Runtimes?.[config.runtime] === undefined
  ) {
    const known = Object.keys(info.Runtimes ?? {}).join(", ");
    return (
      `it has no runtime ${JSON.stringify(config.runtime)} (providers.docker.runtime); it has ${known}; ` +
      "add it to /etc/docker/daemon.json and restart dockerd"
    );
  }
  return undefined;
}

/** Whether Podman's service answers, whose versions are not Docker's. */
export function isPodman(info: EngineInfo): boolean {
  return (info.BuildahVersion ?? "") !== "";
}

/**
 * Why no containers are prepared on an engine: becoming somebody's takes their host name, the engine's files and the agent's
 * socket, all of them on this machine and within reach of root.
 */
export function unpreparedBecause(
  config: DockerConfig,
  address: EngineAddress,
  info: EngineInfo,
): string | undefined {
  if (process.getuid?.() !== 0) return "the service does not run as root";
  if (!sharesMachine(address, info) || !sharesKernel(config, info))
    return "the engine's containers are not processes of this machine";
  if (isPodman(info)) return "the engine is Podman";
  if (mapsIds(info)) return "the engine maps user ids";
  if (chooseTransport(config, address, info).transport !== "socket")
    return "providers.docker.agent_transport is stdio";
  return undefined;
}

/** What is weaker on this engine than it should be. */
export function engineNotes(config: DockerConfig, info: EngineInfo): string[] {
  const notes: string[] = [];
  // The agent's own filter refuses io_uring, an operator's profile is the last word.
  const ofTheEngine = config.seccompProfile === "" && !ownFilter(config);
  if (info.MemoryLimit === false) notes.push("the engine cannot limit memory here");
  else if (info.SwapLimit === false)
    notes.push("the engine cannot limit swap here: a sandbox may swap beyond its memory");
  if (info.PidsLimit === false) notes.push("the engine cannot limit the number of processes here");
  if (info.CpuCfsQuota === false) notes.push("the engine cannot limit processor time here");
  if (!(info.SecurityOptions ?? []).some((option) => option.includes("name=seccomp"))) {
    notes.push("the engine has no seccomp: every system call is allowed");
  } else if (ofTheEngine && isPodman(info)) {
    notes.push(
      "whether sandboxes may use io_uring is for Podman's seccomp profile to say (seccomp.json of containers-common); " +
        "forbid it in providers.docker.seccomp_profile",
    );
  } else if (ofTheEngine && Number.parseInt(info.ServerVersion, 10) < firstWithoutIoUring) {
    notes.push(
      `engine ${info.ServerVersion} lets sandboxes use io_uring; upgrade it to ${firstWithoutIoUring}, ` +
        "or forbid it in providers.docker.seccomp_profile",
    );
  }
  // Podman's containers need no service.
  if (info.LiveRestoreEnabled === false && !isPodman(info))
    notes.push(
      'a restart of the engine ends every sandbox on it: "live-restore": true in /etc/docker/daemon.json keeps them running',
    );
  if (sharesKernel(config, info))
    notes.push(
      `sandboxes share ${mapsIds(info) ? "user ids with each other" : "the host's user ids"}, and with them what the kernel counts for each: inotify instances, ` +
        "pending signals, pages of pipes, watches of epoll; a runtime with a kernel of each sandbox's own (runsc, kata) or native keep them apart",
    );
  if (config.networkMode === "host") notes.push("sandboxes share the engine's network");
  else if (isEngineNetwork(config.networkMode))
    notes.push(
      `sandboxes on the engine's network "${config.networkMode}" reach private, link-local and metadata addresses`,
    );
  return notes;
}

/** What the machine should have more of, because sandboxes have it from the same tables as its own users. */
export async function watchNotes(
  config: DockerConfig,
  info: EngineInfo,
  address: EngineAddress,
  enough = enoughEpollWatches,
): Promise<string[]> {
  if (!sharesKernel(config, info) || !sharesMachine(address, info)) return [];
  const wanted = await enough();
  if (wanted === undefined) return [];
  const whom = mapsIds(info)
    ? "programs of the same user in other sandboxes fail"
    : "this service ends and others of the same user fail, the engine's among them";
  return [
    `sandboxes can take all watches of epoll that a user of the machine may have, without which ${whom}: sysctl fs.epoll.max_user_watches=${wanted}`,
  ];
}
