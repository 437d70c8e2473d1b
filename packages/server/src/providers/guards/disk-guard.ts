import type { Logger } from "../../platform/logger.ts";
import { guardStops, type RuntimeId, StorageFull } from "../../ports/index.ts";
import type { DiskSpace } from "./disk-space.ts";
import { RepeatedLook } from "./repeated-look.ts";

/** While there is plenty of space. */
const longestPauseMs = 5_000;
const shortestPauseMs = 250;
/** What disks here take at most, MB a millisecond: how soon space could be short. */
const fastestMbPerMs = 1;
/** Below so many times the mark the guard watches who grows. */
const watchFrom = 4;
/** Less than this is no reason to stop anybody: a layer that nothing was written to takes a few. */
const leastMb = 16;
const leastGrowthMb = 1;
const fewestInodes = 10_000;
/** While there is plenty, a look serves the spawns of so long. */
const freshMs = 1_000;
/** Sizes that only a limit asks for are measured for at most one part in so many of the time. */
const measuringShare = 20;

interface Sizes {
  sizes: ReadonlyMap<RuntimeId, number>;
  inodes: boolean;
}
const noSizes: Sizes = { sizes: new Map(), inodes: false };

export interface DiskGuardOptions {
  minFreeMb: number;
  /** What one runtime may have written, where nothing else bounds it; 0: anything. */
  limitMb?: number;
  /** For messages: where space is kept free, such as `below data_dir`, and the keys of the two numbers. */
  says: { where: string; minFree: string; limit?: string };
  logger: Logger;
  running: () => Iterable<RuntimeId>;
  /** undefined: what is free cannot be seen, and no space is kept free. */
  space: () => Promise<DiskSpace | undefined>;
  /**
   * What runtimes have written, MB, or how many files they have made; without those that cannot be measured. `short`: a writer
   * has to be found, now or soon; else the limit alone is kept.
   */
  measure: (
    runtimes: readonly RuntimeId[],
    what: { inodes: boolean; short: boolean },
  ) => Promise<ReadonlyMap<RuntimeId, number>>;
  /** For the log. */
  sandboxOf?: (runtimeId: RuntimeId) => string | undefined;
  /** Resolves when what it had written is gone. */
  stop: (runtimeId: RuntimeId, reason: string) => Promise<void>;
}

/**
 * Keeps `minFreeMb` free on the file system of the runtimes. Below that spawns are refused and one writer at a look is
 * stopped: who grew most since the look before, or else the largest; who wrote nothing is never stopped. Images give way
 * earlier. The nearer the mark, the more often it looks. Who wrote more than `limitMb` is stopped at any time. Looks only
 * while there are runtimes.
 */
export class DiskGuard implements AsyncDisposable {
  readonly #options: DiskGuardOptions;
  readonly #minFreeMb: number;
  readonly #limitMb: number;
  #seen: { space: DiskSpace | undefined; atMs: number } | undefined;
  /** What runtimes had written at the last look, MB, or how many files they had made. */
  #before = noSizes;
  #blamedNobody = false;
  /** What runtimes had written when that was last found out, MB: one whose files take too long to count is held to it. */
  #known = new Map<RuntimeId, number>();
  /** How often the count ended at a runtime. Those that are slow to count come last, behind all that are not. */
  #slow = new Map<RuntimeId, number>();
  readonly #repeated: RepeatedLook;

  constructor(options: DiskGuardOptions) {
    this.#options = options;
    this.#minFreeMb = options.minFreeMb;
    this.#limitMb = options.limitMb ?? 0;
    this.#repeated = new RepeatedLook({
      look: () => this.look(),
      wanted: () => [...options.running()].length > 0,
      firstPauseMs: shortestPauseMs,
      failedPauseMs: longestPauseMs,
      blind: `what is free ${options.says.where}, or who wrote it, cannot be looked at, so that no sandbox is stopped for it`,
      logger: options.logger,
    });
  }

  /** Does nothing when it runs already, or when there is nothing to keep. */
  start(): void {
    if (this.#minFreeMb > 0 || this.#limitMb > 0) this.#repeated.start();
  }

  /** @throws StorageFull below the mark: a sandbox made now would be stopped soon. */
  async refuseWhenShort(): Promise<void> {
    if (this.#minFreeMb === 0) return;
    if (this.#sawPlenty()) return;
    const short = this.#shortage(await this.#see());
    if (short === undefined) return;
    throw new StorageFull(
      `no sandbox can be made: ${short}; destroy sandboxes, remove images, or free space ${this.#options.says.where}`,
    );
  }

  /** One look; stops a runtime when space is short, and all that are above the limit. @returns when to look again, milliseconds. */
  async look(): Promise<number> {
    const runtimes = [...this.#options.running()];
    const space = await this.#see();
    const short = this.#shortage(space);
    const near = space !== undefined && space.freeMb < this.#minFreeMb * watchFrom;
    if (runtimes.length === 0 || (short === undefined && !near && this.#limitMb === 0)) {
      this.#before = noSizes;
      this.#blamedNobody = false;
      return longestPauseMs;
    }
    const inodes = short !== undefined && space !== undefined && space.freeMb >= this.#minFreeMb;
    const beganMs = performance.now();
    const now = await this.#measure(runtimes, { inodes, short: near || short !== undefined });
    const restMs = (performance.now() - beganMs) * measuringShare;
    const before = this.#before.inodes === inodes ? this.#before.sizes : new Map();
    this.#before = { sizes: now, inodes };
    if (!inodes && (await this.#stopAboveLimit(now))) return shortestPauseMs;
    if (short === undefined) {
      this.#blamedNobody = false;
      if (!near) return Math.max(longestPauseMs, restMs);
      const pauseMs = (space.freeMb - this.#minFreeMb) / fastestMbPerMs;
      return Math.min(Math.max(pauseMs, shortestPauseMs), longestPauseMs);
    }
    const writer = worst(now, before, { inodes });
    if (writer === undefined) {
      if (!this.#blamedNobody) this.#options.logger.error(`${short}, and no sandbox is to blame`);
      this.#blamedNobody = true;
      return longestPauseMs;
    }
    const wrote = inodes ? `made ${writer.size} files` : `written ${Math.round(writer.size)} MB`;
    await this.#stop(writer.runtimeId, `${guardStops.disk}${wrote} and ${short}`);
    return shortestPauseMs;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#repeated[Symbol.asyncDispose]();
  }

  async #measure(
    runtimes: readonly RuntimeId[],
    what: { inodes: boolean; short: boolean },
  ): Promise<ReadonlyMap<RuntimeId, number>> {
    const ids = new Set(runtimes);
    for (const kept of [this.#known, this.#slow])
      for (const id of kept.keys()) if (!ids.has(id)) kept.delete(id);
    const slowness = (id: RuntimeId) => this.#slow.get(id) ?? 0;
    const ordered = runtimes.toSorted((a, b) => slowness(a) - slowness(b));
    const found = await this.#options.measure(ordered, what);
    const endedAt = ordered.find((id) => !found.has(id));
    if (endedAt !== undefined) this.#slow.set(endedAt, slowness(endedAt) + 1);
    if (what.inodes) return found;
    for (const [id, size] of found) this.#known.set(id, size);
    return new Map(this.#known);
  }

  /** @returns whether there were any. */
  async #stopAboveLimit(sizes: ReadonlyMap<RuntimeId, number>): Promise<boolean> {
    if (this.#limitMb === 0) return false;
    const above = [...sizes].filter(([, size]) => size > this.#limitMb);
    for (const [runtimeId, size] of above) {
      const limit = `${this.#limitMb} MB of ${this.#options.says.limit}`;
      await this.#stop(runtimeId, `${guardStops.disk}written ${Math.round(size)} MB, more than the ${limit}`);
    }
    return above.length > 0;
  }

  async #stop(runtimeId: RuntimeId, reason: string): Promise<void> {
    const sandboxId = this.#options.sandboxOf?.(runtimeId);
    this.#options.logger.warn(
      {
        event: "sandbox.stop",
        outcome: "ok",
        ...(sandboxId === undefined ? {} : { sandbox_id: sandboxId }),
        runtime_id: runtimeId,
        reason,
      },
      "a sandbox was stopped for what it had written to the disk",
    );
    await this.#options.stop(runtimeId, reason);
  }

  async #see(): Promise<DiskSpace | undefined> {
    const space = this.#minFreeMb === 0 ? undefined : await this.#options.space();
    this.#seen = { space, atMs: performance.now() };
    return space;
  }

  #sawPlenty(): boolean {
    if (this.#seen === undefined || performance.now() - this.#seen.atMs >= freshMs) return false;
    if (this.#seen.space === undefined) return true;
    const { freeMb, freeInodes } = this.#seen.space;
    const manyInodes = freeInodes === undefined || freeInodes >= fewestInodes * watchFrom;
    return freeMb >= this.#minFreeMb * watchFrom && manyInodes;
  }

  #shortage(space: DiskSpace | undefined): string | undefined {
    if (space === undefined) return undefined;
    const { freeMb, freeInodes } = space;
    const { where, minFree } = this.#options.says;
    if (freeMb < this.#minFreeMb)
      return `${Math.round(freeMb)} MB were free ${where}, less than the ${this.#minFreeMb} MB of ${minFree}`;
    if (freeInodes !== undefined && freeInodes < fewestInodes)
      return `${freeInodes} inodes were free ${where}, less than ${fewestInodes}`;
    return undefined;
  }
}

/** Who grew most, or else who is largest; nobody who wrote next to nothing. */
function worst(
  now: ReadonlyMap<RuntimeId, number>,
  before: ReadonlyMap<RuntimeId, number>,
  { inodes }: { inodes: boolean },
): { runtimeId: RuntimeId; size: number } | undefined {
  const least = inodes ? 1_000 : leastMb;
  const writers = [...now].filter(([, size]) => size >= least);
  const growth = ([runtimeId, size]: [RuntimeId, number]) => size - (before.get(runtimeId) ?? size);
  const grew = writers
    .filter((writer) => growth(writer) >= leastGrowthMb)
    .sort((a, b) => growth(b) - growth(a));
  const [first] = grew.length > 0 ? grew : writers.sort(([, a], [, b]) => b - a);
  return first === undefined ? undefined : { runtimeId: first[0], size: first[1] };
}
