import { access } from "node:fs/promises";
import { join } from "node:path";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import type { Logger } from "../../platform/logger.ts";
import { type GuardState, guardStops, type RuntimeId } from "../../ports/index.ts";
import type { Cgroups } from "./cgroups.ts";
import { type Holder, kernelHoldings } from "./kernel-holdings.ts";
import { mostInGroups, readKernelMemory } from "./kernel-memory.ts";
import { OutOfSight } from "./out-of-sight.ts";
import type { RuntimeDirectories } from "./runtime-directories.ts";
import { socketHoldings } from "./socket-holdings.ts";
import type { StandingStill } from "./standing-still.ts";
import { UncountedGuard } from "./uncounted-guard.ts";
import { type MachineMemory, readMachineMemory } from "./uncounted-memory.ts";

const parallelLooks = 16;
/** What others have is as good as seen for so long: to see it takes time of whoever waits for a launch. */
const seenLastsMs = 250;

/** What the guards of memory that is counted for nobody look at. */
export interface GuardedRuntimes {
  maxPercent: number;
  logger: Logger;
  directories: RuntimeDirectories;
  running: () => Iterable<RuntimeId>;
  destroying: () => Iterable<RuntimeId>;
  sandboxOf: (runtimeId: RuntimeId) => string | undefined;
  ownerOf: (runtimeId: RuntimeId) => string | undefined;
  /** Its root below what it has written. */
  lowerOf: (runtimeId: RuntimeId) => string;
  /** Undefined where it has no groups. */
  stillOf: (runtimeId: RuntimeId) => StandingStill | undefined;
  /** Nothing where no groups tell: what is in use is then taken for counted for nobody. */
  cgroups: () => Promise<Cgroups | undefined>;
  stop: (runtimeId: RuntimeId, reason: string) => Promise<void>;
  /** For tests: of what nothing explains. */
  machineMemory?: () => Promise<MachineMemory>;
}

/** Of what bytes in sockets hold, and of what the kernel keeps for sandboxes beside. */
export class MemoryGuards implements AsyncDisposable {
  readonly #guards: readonly UncountedGuard[];
  #seenMs = Number.NEGATIVE_INFINITY;

  constructor(options: GuardedRuntimes) {
    const { directories, cgroups } = options;
    const counted = (look: (groups: Cgroups) => Promise<number>) => async () => {
      const groups = await cgroups();
      return groups === undefined ? 0 : look(groups).catch(ofNothing);
    };
    const outOfSight = new OutOfSight();
    this.#guards = [
      new UncountedGuard({
        ...options,
        name: "memory",
        stops: guardStops.memory,
        of: "what its sockets hold",
        memory: options.machineMemory ?? readMachineMemory,
        counted: counted((groups) => groups.countedMemory()),
        seeOthers: async () => (await cgroups())?.seeNobodysMemory(),
        usual: directories.usualMemory("memory"),
        holdings: (runtimes) => heldInSockets(directories, runtimes),
      }),
      new UncountedGuard({
        ...options,
        name: "kernel_memory",
        stops: guardStops.kernelMemory,
        of: "what the kernel keeps for it",
        memory: readKernelMemory,
        counted: counted(async (groups) =>
          groups.version === 1
            ? Math.min(await groups.countedKernelMemory(), (await mostInGroups()) ?? Number.POSITIVE_INFINITY)
            : groups.countedKernelMemory(),
        ),
        // With v1 more is in it than what is looked at: what is usual would be too little for as long as the machine runs.
        leastCounted: counted(async (groups) => (groups.version === 1 ? 0 : groups.countedKernelMemory())),
        usual: directories.usualMemory("kernel-memory"),
        holdings: async (runtimes, grownBytes, inVain) =>
          kernelHoldings(await holdersOf(options, runtimes), grownBytes, inVain, outOfSight),
      }),
    ];
  }

  start(): void {
    for (const guard of this.#guards) guard.start();
  }

  get states(): GuardState[] {
    return this.#guards.flatMap((guard) => guard.states);
  }

  /** Sees what is usual, before there is a runtime that could change it. */
  async begin(): Promise<void> {
    await Promise.all(this.#guards.map((guard) => guard.begin()));
  }

  /** Sees what others have, if nothing runs and it was not seen just now, once what was begun before has been handed on. Does not fail. */
  seeOthersSoon(): void {
    if (performance.now() - this.#seenMs < seenLastsMs) return;
    setImmediate(() => {
      for (const guard of this.#guards)
        guard.seeOthers().then(
          (seen) => {
            if (seen) this.#seenMs = performance.now();
          },
          () => undefined,
        );
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#guards.map((guard) => guard[Symbol.asyncDispose]()));
  }
}

/** Where the kernel does not tell it nothing is counted; what cannot be read at the moment would be taken for nobody's, and ends the look. */
function ofNothing(error: unknown): number {
  if (error instanceof Error && "code" in error && error.code === "ENOENT") return 0;
  throw error;
}

async function heldInSockets(
  directories: RuntimeDirectories,
  runtimes: readonly RuntimeId[],
): Promise<Map<RuntimeId, number>> {
  const found = new Map<RuntimeId, number>();
  await boundedParallel(runtimes, parallelLooks, async (runtimeId) => {
    const pid = await firstProcess(directories, runtimeId);
    found.set(runtimeId, pid === undefined ? 0 : await socketHoldings(pid));
  });
  return found;
}

async function holdersOf(
  { directories, lowerOf, stillOf }: GuardedRuntimes,
  runtimes: readonly RuntimeId[],
): Promise<Holder[]> {
  const found: Holder[] = [];
  await boundedParallel(runtimes, parallelLooks, async (runtimeId) => {
    const pid = await firstProcess(directories, runtimeId);
    if (pid === undefined) return;
    const image = access(join(directories.path(runtimeId), "disk.img"));
    const hasDisk = await image.then(
      () => true,
      () => false,
    );
    found.push({ runtimeId, pid, lower: lowerOf(runtimeId), hasDisk, still: stillOf(runtimeId) });
  });
  return found;
}

/** A record that cannot be read leaves out its own sandbox, and does not blind the guards for all others. */
function firstProcess(directories: RuntimeDirectories, runtimeId: RuntimeId): Promise<number | undefined> {
  return directories.livingProcess(runtimeId).catch(() => undefined);
}
