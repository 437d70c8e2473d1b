import { readFileSync, statSync } from "node:fs";
import type { Duplex } from "node:stream";
import type { NetworkMode, RuntimeId, RuntimeSpec, SandboxId } from "../../ports/index.ts";
import type { LaunchSpec } from "../launcher/index.ts";
import { specOfNobody, type Waiting } from "../prepared/index.ts";

/** One that waits for its owner. */
export interface PreparedSandbox extends Waiting {
  name: string;
  /** What its launch was told that no claim can change any more, as `settledBy` tells it. */
  settled: string;
  /** To the socket of its agent, which serves nobody yet: it ends with the sandbox. */
  connection: Duplex;
}

/** What of a sandbox is made before it is somebody's. Memory and processors are told in its /proc, and bound its /dev/shm. */
export interface PreparedShape {
  /** Of which its record does not name the image: nobody uses that yet, and it may go. */
  root: LaunchSpec["root"];
  network: NetworkMode;
  memoryMb: number;
  vcpus: number;
}

export function shapeKey({ root, network, memoryMb, vcpus }: PreparedShape): string {
  return JSON.stringify([root, network, memoryMb, vcpus]);
}

/** A sandbox of nobody. */
export function preparedSpec(runtimeId: RuntimeId, shape: PreparedShape): RuntimeSpec {
  return specOfNobody(runtimeId, { ...shape, sandboxId: "sb-prepared" as SandboxId, image: "" });
}

/**
 * What of a launch cannot be changed by a claim: all that it is told but for what a claim gives. So one that was made without what
 * launches of now are told, a field that came after this was written for one, is never somebody's.
 */
export function settledBy({
  dir: _dir,
  record: _record,
  hostname: _hostname,
  limits: _limits,
  ...rest
}: LaunchSpec): string {
  return JSON.stringify(rest);
}

/**
 * Which files these are and, where the machine's own programs are seen, what is mounted there. As long as a sandbox holds
 * files, no others have their numbers.
 * @returns undefined when one is gone.
 */
export function fingerprintOf(root: LaunchSpec["root"], agent: string): string | undefined {
  try {
    const files = [root.kind === "host" ? root.skeleton : root.rootfs, agent].map((path) => {
      const { dev, ino } = statSync(path);
      return `${path} ${dev} ${ino}`;
    });
    return [...files, ...(root.kind === "host" ? programMounts() : [])].join("\n");
  } catch (error) {
    if (error instanceof Error && "code" in error) return undefined;
    throw error;
  }
}

/** As `agent/alcove-launch/src/inside.rs` shows them to sandboxes of image `host`. */
const programPlaces = /^\S+ \S+ \S+ \S+ \/(usr|bin|sbin|lib|lib32|lib64|libx32|nix)(\/| )/;

/** @param line of `/proc/self/mountinfo`. */
export function isOfPrograms(line: string): boolean {
  return programPlaces.test(line);
}

/** The table of mounts as it was read last, and what of it counts: it is nearly always the same. */
let lastTable: { text: string; mounts: string[] } | undefined;

function programMounts(): string[] {
  const text = readFileSync("/proc/self/mountinfo", "utf8");
  if (lastTable?.text !== text) lastTable = { text, mounts: text.split("\n").filter(isOfPrograms) };
  return lastTable.mounts;
}
