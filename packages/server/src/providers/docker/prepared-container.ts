import { constants } from "node:fs";
import { open, readFile } from "node:fs/promises";
import { orMissing } from "../../platform/missing.ts";
import {
  type NetworkMode,
  ProviderError,
  type RuntimeId,
  type RuntimeSpec,
  type SandboxId,
} from "../../ports/index.ts";
import type { HeldAgent } from "../agent/index.ts";
import { specOfNobody, type Waiting } from "../prepared/index.ts";
import type { ContainerInspection } from "./engine-shapes.ts";
import type { RuntimeRecord } from "./runtime-records.ts";

/** What of a container is chosen before it is known for whom it is. */
export interface ContainerShape {
  /** As the engine knows it. */
  image: string;
  network: NetworkMode;
  memoryMb: number;
  vcpus: number;
}

/** A container that runs and waits for its owner. */
export interface PreparedContainer extends Waiting {
  /** Of its folder; its own name ends with it, and its host name is this. */
  name: RuntimeId;
  container: { id: string; pid: number };
  socket: RuntimeRecord["socket"];
  agent: HeldAgent;
  /** Those of the engine's files that tell its host name inside. */
  files: readonly NamedFile[];
}

interface NamedFile {
  path: string;
  text: string;
}

export function shapeKey({ image, network, memoryMb, vcpus }: ContainerShape): string {
  return JSON.stringify([image, network, memoryMb, vcpus]);
}

/**
 * @param network what the request and the configuration make of it.
 * @returns undefined for what is not prepared: networks of the engine, where others find a container by its host name and the
 * machine's own; and sandboxes of a VM, whose folders are made for their user.
 */
export function shapeOf(spec: RuntimeSpec, image: string, network: string): ContainerShape | undefined {
  if (spec.slot !== undefined || (network !== "none" && network !== "outbound")) return undefined;
  return { image, network, memoryMb: spec.memoryMb, vcpus: spec.vcpus };
}

/** One of nobody. */
export function preparedSpec(name: RuntimeId, shape: ContainerShape): RuntimeSpec {
  return specOfNobody(name, { ...shape, sandboxId: name as string as SandboxId });
}

/** Files of the engine's that have its host name. @throws ProviderError where they are not seen from here. */
export async function namedFiles(
  { HostnamePath, HostsPath }: ContainerInspection,
  name: string,
): Promise<NamedFile[]> {
  const found: NamedFile[] = [];
  for (const path of [HostnamePath, HostsPath]) {
    if (!path) continue;
    const text = await orMissing(readFile(path, "utf8"), undefined);
    if (text === undefined)
      throw new ProviderError(
        `the engine's file ${path}, which tells a container its name, is not seen from here`,
      );
    if (text.includes(name)) found.push({ path, text });
  }
  return found;
}

/** Into the same files: the container has each of them mounted. */
export async function renameIn(files: readonly NamedFile[], name: string, hostname: string): Promise<void> {
  for (const { path, text } of files) {
    const file = await open(path, constants.O_WRONLY | constants.O_TRUNC | constants.O_NOFOLLOW);
    try {
      await file.writeFile(text.replaceAll(name, hostname));
    } finally {
      await file.close();
    }
  }
}
