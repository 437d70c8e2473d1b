import { networkModes } from "@alcove/wire";
import { BadRequest, type RuntimeSpec } from "../../ports/index.ts";
import { bootArguments } from "./boot-arguments.ts";
import type { FirecrackerConfig } from "./firecracker-config.ts";
import type { Tap } from "./tap-pool.ts";

/** What a Linux of today needs to start anything at all. */
const leastMemoryMb = 64;
const mostVcpus = 32;
/** What every machine of a snapshot is called; its own name is given to it when it is restored. */
const snapshotHostname = "sandbox";

export interface MachineSettings {
  kernel: string;
  initrd: string | undefined;
  bootArguments: string;
  memoryMb: number;
  vcpus: number;
  tap: Tap | undefined;
  /** 0: no limit. */
  networkMbit: number;
  diskRateMb: number;
}

/** @throws BadRequest for what no machine can be. */
export function refuseMachine(spec: RuntimeSpec, { hasTaps }: { hasTaps: boolean }): void {
  const widest = hasTaps ? "outbound" : "none";
  const wanted = spec.network ?? widest;
  if (networkModes.indexOf(wanted) > networkModes.indexOf(widest))
    throw new BadRequest(
      `network "${wanted}" is not allowed here; ${widest === "none" ? "providers.firecracker.network is empty" : 'microVMs have "none" or "outbound"'}`,
    );
  if (spec.memoryMb < leastMemoryMb)
    throw new BadRequest(
      `memory_mb ${spec.memoryMb} is too little for a microVM, whose kernel needs some of it: ask for ${leastMemoryMb} or more`,
    );
  if (wholeVcpus(spec) > mostVcpus)
    throw new BadRequest(
      `vcpus ${spec.vcpus} is too many: a microVM of Firecracker has ${mostVcpus} at most`,
    );
}

/** What a machine is told of itself before it starts. */
export function settingsOf(
  spec: RuntimeSpec,
  { config, tap }: { config: FirecrackerConfig; tap: Tap | undefined },
): MachineSettings {
  const { kernelPath, initrdPath, networkMbit, diskRateMb } = config;
  const network = tap === undefined ? {} : { network: tap.guest };
  return {
    kernel: kernelPath,
    initrd: initrdPath || undefined,
    bootArguments: argumentsOf(config, { hostname: spec.sandboxId, ...network }),
    memoryMb: spec.memoryMb,
    vcpus: wholeVcpus(spec),
    tap,
    networkMbit,
    diskRateMb,
  };
}

/** Of the machine that a snapshot is made of, for all that are like this one. */
export function snapshotSettings(settings: MachineSettings, config: FirecrackerConfig): MachineSettings {
  return { ...settings, bootArguments: argumentsOf(config, { hostname: snapshotHostname }) };
}

function argumentsOf(config: FirecrackerConfig, given: { hostname: string; network?: Tap["guest"] }): string {
  return bootArguments({ ...given, pids: config.pidsLimit, pci: false });
}

function wholeVcpus({ vcpus }: RuntimeSpec): number {
  return Math.max(1, Math.ceil(vcpus));
}
