import { ignoreOutcome } from "../../platform/abortable.ts";
import type { Logger } from "../../platform/logger.ts";
import { type GuardState, guardStops, type RuntimeId, StorageFull } from "../../ports/index.ts";
import type { DiskSpace } from "./disk-space.ts";
import { GrowthWindow } from "./growth-window.ts";
import { RepeatedLook } from "./repeated-look.ts";
import { logStop } from "./stop-log.ts";

/** While there is plenty of space. */
const longestPauseMs = 5_000;
const shortestPauseMs = 250;
/** Removing many files takes long, and others write on meanwhile. */
const stopWaitMs = 2_000;
/** While space is short and nobody is to blame. */
const puzzledPauseMs = 1_000;
/** What disks here take at most, MB a millisecond: how soon space could be short. */
const fastestMbPerMs = 1;
/** Below so many times the mark the guard watches who grows. */
const watchFrom = 4;
/** Less than this is no reason to stop anybody: a layer that nothing was written to takes a few. */
const leastMb = 16;
const leastFiles = 1_000;
const fewestInodes = 10_000;
/** While there is plenty, a look serves the spawns of so long. */
const freshMs = 1_000;
/** Sizes that only a limit asks for are measured for at most one part in so many of the time. */
const measuringShare = 20;

interface Measured {
  sizes: ReadonlyMap<RuntimeId, number>;
  /** Whose count did not end in time: `sizes` has what was known before, if anything. */
  missing: ReadonlySet<RuntimeId>;
}

export interface DiskGuardOptions {
  minFreeMb: number;
  /** What one runtime may have written, where nothing else bounds it; 0: anything. */
  limitMb?: number;
  /** For messages: where space is kept free, such as `below data_dir`, and the keys of the two numbers. */
  says: { where: string; minFree: string; limit?: string };
  logger: Logger;
  running: () => Iterable<RuntimeId>;
  /** Those that are being destroyed, by whomever: what they had written comes back. They may be among `running`. */
  destroying?: () => Iterable<RuntimeId>;
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
  /** For the log; empty or undefined: nobody's. */
  ownerOf?: (runtimeId: RuntimeId) => string | undefined;
  /** Ends it at once; resolves when what it had written is gone. */
  stop: (runtimeId: RuntimeId, reason: string) => Promise<void>;
  /** For tests: how long a look waits for one that is stopped, milliseconds. */
  stopWaitMs?: number;
}

/**
 * Keeps `minFreeMb` free on the file system of the runtimes. Below that spawns are refused and one writer at a look is
 * stopped: who grew most of late, as far as what grew explains what was lost; or else the largest of those whose files took
 * too long to count. Where neither is to be found nobody is stopped: what fills the disk is none of the runtimes, or hidden,
 * and those at rest do not pay for it. Of inodes, which are not counted before they are short, the first look stops who has
 * most. Who wrote nothing is never stopped. Images give way earlier. The nearer the mark, the more often it looks. Who wrote
 * more than `limitMb` is stopped at any time. Looks only while there are runtimes.
 */
export class DiskGuard implements AsyncDisposable {
  readonly #options: DiskGuardOptions;
  readonly #minFreeMb: number;
  readonly #limitMb: number;
  #seen: { space: DiskSpace | undefined; atMs: number } | undefined;
  readonly #window = new GrowthWindow();
  /** Those whose stop is under way, and what they had. */
  readonly #leaving = new Map<RuntimeId, { size: number; inodes: boolean; gone: Promise<void> }>();
  /** Those that others destroy, and what they were known to have written, MB. */
  readonly #destroyed = new Map<RuntimeId, number>();
  #blamedNobody = false;
  /** That space is short and nobody to blame stands in the log, and not yet that there is enough again. */
  #toldShort = false;
  /** What runtimes had written when that was last found out, MB: one whose files take too long to count is held to it. */
  #known = new Map<RuntimeId, number>();
  /** How often a runtime took too long to count. Those that are slow to count come last, behind all that are not. */
  #slow = new Map<RuntimeId, number>();
  readonly #repeated: RepeatedLook;

  constructor(options: DiskGuardOptions) {
    this.#options = options;
    this.#minFreeMb = options.minFreeMb;
    this.#limitMb = options.limitMb ?? 0;
    this.#repeated = new RepeatedLook({
      look: () => this.look(),
      // One that is being destroyed runs on when that fails.
      wanted: () => this.#anyThere,
      firstPauseMs: shortestPauseMs,
      failedPauseMs: longestPauseMs,
      blind: `what is free ${options.says.where}, or who wrote it, cannot be looked at, so that no sandbox is stopped for it`,
      logger: options.logger,
    });
  }

  /** Does nothing when it runs already, or when there is nothing to keep. */
  start(): void {
    if (this.#isOn) this.#repeated.start();
  }

  /** None where there is nothing to keep. Does no I/O. */
  get states(): GuardState[] {
    if (!this.#isOn) return [];
    const helpless = this.#repeated.isBlind || (this.#blamedNobody && this.#anyThere);
    return [{ guard: "disk", helpless }];
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
    this.#followDestroyed();
    const runtimes = [...this.#options.running()].filter(
      (id) => !this.#leaving.has(id) && !this.#destroyed.has(id),
    );
    const space = await this.#see();
    const short = this.#shortage(space);
    if (short === undefined && space !== undefined) this.#tellEnough(space);
    const near = space !== undefined && space.freeMb < this.#minFreeMb * watchFrom;
    if (runtimes.length === 0 || (short === undefined && !near && this.#limitMb === 0)) {
      this.#window.reset();
      this.#blamedNobody = false;
      return runtimes.length === 0 ? longestPauseMs : this.#untilNear(space);
    }
    const inodes = short !== undefined && space !== undefined && space.freeMb >= this.#minFreeMb;
    const beganMs = performance.now();
    const measured = await this.#measure(runtimes, { inodes, short: near || short !== undefined });
    const restMs = (performance.now() - beganMs) * measuringShare;
    // What was lost before space came near the mark says nothing of who takes the rest.
    if (short === undefined && !near) this.#window.reset();
    const free = (inodes ? space?.freeInodes : space?.freeMb) ?? Number.POSITIVE_INFINITY;
    const { sizes } = measured;
    const coming = this.#coming({ inodes });
    const unit = inodes ? "inodes" : "mb";
    const grew = this.#window.add({ unit, free: free + coming, running: runtimes, sizes });
    if (!inodes && (await this.#stopAboveLimit(sizes))) return shortestPauseMs;
    if (short === undefined) {
      this.#blamedNobody = false;
      if (!near) return Math.max(this.#untilNear(space), restMs);
      const pauseMs = (space.freeMb - this.#minFreeMb) / fastestMbPerMs;
      return Math.min(Math.max(pauseMs, shortestPauseMs), longestPauseMs);
    }
    const mark = inodes ? fewestInodes : this.#minFreeMb;
    const back = coming + (inodes ? 0 : sum(this.#destroyed.values()));
    // With half of the mark used up nobody relies on what is still being removed.
    if (back > 0 && free >= mark / 2 && free + back >= mark) return shortestPauseMs;
    const writer = writerOf(measured, grew, { inodes });
    if (writer === undefined) {
      if (grew === undefined) return shortestPauseMs;
      // What that gives back is not known before it is gone.
      const underWay = this.#leaving.size > 0;
      if (!this.#blamedNobody && !underWay) {
        this.#toldShort = true;
        this.#options.logger.error(
          `${short}, and what sandboxes are seen to write does not explain it: none is stopped, and none can be made`,
        );
      }
      this.#blamedNobody ||= !underWay;
      return puzzledPauseMs;
    }
    this.#blamedNobody = false;
    const wrote = inodes ? `made ${writer.size} files` : `written ${Math.round(writer.size)} MB`;
    const counted = measured.missing.has(writer.runtimeId) ? " when that was last counted in time" : "";
    await this.#stop(writer.runtimeId, `${guardStops.disk}${wrote}${counted} and ${short}`, {
      ...writer,
      inodes,
    });
    return shortestPauseMs;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#repeated[Symbol.asyncDispose]();
    await Promise.allSettled([...this.#leaving.values()].map(({ gone }) => gone));
  }

  get #isOn(): boolean {
    return this.#minFreeMb > 0 || this.#limitMb > 0;
  }

  get #anyThere(): boolean {
    return [...this.#options.running(), ...(this.#options.destroying?.() ?? [])].length > 0;
  }

  /** Who writes fastest is seen when half of what lies between `watchFrom` and the mark is left: who grew later is known then. */
  #untilNear(space: DiskSpace | undefined): number {
    if (space === undefined) return longestPauseMs;
    const pauseMs = (space.freeMb - (this.#minFreeMb * (watchFrom + 1)) / 2) / fastestMbPerMs;
    return Math.min(Math.max(pauseMs, shortestPauseMs), longestPauseMs);
  }

  /** What those whose stop is under way give back, MB or files. */
  #coming({ inodes }: { inodes: boolean }): number {
    const alike = [...this.#leaving.values()].filter((leaving) => leaving.inodes === inodes);
    return sum(alike.map(({ size }) => size));
  }

  #followDestroyed(): void {
    const destroying = new Set(this.#options.destroying?.());
    for (const id of this.#destroyed.keys()) if (!destroying.has(id)) this.#destroyed.delete(id);
    for (const id of destroying)
      if (!this.#leaving.has(id) && !this.#destroyed.has(id))
        this.#destroyed.set(id, this.#known.get(id) ?? 0);
  }

  async #measure(
    runtimes: readonly RuntimeId[],
    what: { inodes: boolean; short: boolean },
  ): Promise<Measured> {
    const ids = new Set(runtimes);
    for (const kept of [this.#known, this.#slow])
      for (const id of kept.keys()) if (!ids.has(id)) kept.delete(id);
    const slowness = (id: RuntimeId) => this.#slow.get(id) ?? 0;
    const ordered = runtimes.toSorted((a, b) => slowness(a) - slowness(b));
    const found = await this.#options.measure(ordered, what);
    const lastFound = ordered.findLastIndex((id) => found.has(id));
    const firstMissing = ordered.findIndex((id) => !found.has(id));
    // Of those behind the last that was counted only the first is known to have had its turn.
    for (const [index, id] of ordered.entries())
      if (!found.has(id) && (index < lastFound || index === firstMissing))
        this.#slow.set(id, slowness(id) + 1);
    const missing = new Set(runtimes.filter((id) => !found.has(id) && this.#slow.has(id)));
    if (what.inodes) return { sizes: found, missing };
    for (const [id, size] of found) this.#known.set(id, size);
    return { sizes: new Map(this.#known), missing };
  }

  /** @returns whether there were any. */
  async #stopAboveLimit(sizes: ReadonlyMap<RuntimeId, number>): Promise<boolean> {
    if (this.#limitMb === 0) return false;
    const above = [...sizes].filter(([, size]) => size > this.#limitMb);
    const limit = `${this.#limitMb} MB of ${this.#options.says.limit}`;
    const stops = above.map(([runtimeId, size]) =>
      this.#stop(runtimeId, `${guardStops.disk}written ${Math.round(size)} MB, more than the ${limit}`, {
        size,
        inodes: false,
      }),
    );
    const failed = (await Promise.allSettled(stops)).find(({ status }) => status === "rejected");
    if (failed?.status === "rejected") throw failed.reason;
    return above.length > 0;
  }

  /** Does not wait for long. @throws what made the stop fail meanwhile; later that is logged. */
  async #stop(runtimeId: RuntimeId, reason: string, had: { size: number; inodes: boolean }): Promise<void> {
    // Since the look began somebody may have asked for its end.
    if (new Set(this.#options.destroying?.()).has(runtimeId)) return;
    const sandboxId = this.#options.sandboxOf?.(runtimeId);
    const ownerId = this.#options.ownerOf?.(runtimeId);
    const { logger } = this.#options;
    const whose = {
      ...(sandboxId === undefined ? {} : { sandbox_id: sandboxId }),
      ...(ownerId ? { owner_id: ownerId } : {}),
      runtime_id: runtimeId,
    };
    logger.warn({ ...whose, reason }, "a sandbox is being stopped for what it has written to the disk");
    const beganMs = performance.now();
    const stopped = this.#options.stop(runtimeId, reason).then(
      () => logStop(logger, { ...whose, reason }, { beganMs }),
      (error: unknown) => {
        logStop(logger, { ...whose, reason }, { beganMs, error });
        throw error;
      },
    );
    const gone = stopped.finally(() => this.#leaving.delete(runtimeId));
    this.#leaving.set(runtimeId, { size: had.size, inodes: had.inodes, gone });
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<"late">((resolve) => {
      timer = setTimeout(resolve, this.#options.stopWaitMs ?? stopWaitMs, "late");
    });
    const first = await Promise.race([gone, late]).finally(() => clearTimeout(timer));
    if (first !== "late") return;
    void gone
      // It has been logged.
      .catch(ignoreOutcome)
      // What came back of it was counted as free before.
      .finally(() => this.#window.reset());
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

  #tellEnough({ freeMb }: DiskSpace): void {
    if (!this.#toldShort) return;
    this.#toldShort = false;
    this.#options.logger.info(
      { event: "disk.enough", free_mb: Math.floor(freeMb) },
      `${Math.floor(freeMb)} MB are free ${this.#options.says.where}: sandboxes can be made again`,
    );
  }

  #shortage(space: DiskSpace | undefined): string | undefined {
    if (space === undefined) return undefined;
    const { freeMb, freeInodes } = space;
    const { where, minFree } = this.#options.says;
    if (freeMb < this.#minFreeMb)
      return `${Math.floor(freeMb)} MB were free ${where}, less than the ${this.#minFreeMb} MB of ${minFree}`;
    if (freeInodes !== undefined && freeInodes < fewestInodes)
      return `${freeInodes} inodes were free ${where}, less than ${fewestInodes}`;
    return undefined;
  }
}

function sum(sizes: Iterable<number>): number {
  return [...sizes].reduce((all, size) => all + size, 0);
}

/** @param grew most first; undefined: not known yet. */
function writerOf(
  { sizes, missing }: Measured,
  grew: readonly RuntimeId[] | undefined,
  { inodes }: { inodes: boolean },
): { runtimeId: RuntimeId; size: number } | undefined {
  const sizeOf = (id: RuntimeId) => sizes.get(id) ?? 0;
  const largestFirst = [...sizes.keys()].sort((a, b) => sizeOf(b) - sizeOf(a));
  const suspects =
    grew === undefined
      ? largestFirst.filter(() => inodes)
      : [...grew, ...largestFirst.filter((id) => missing.has(id))];
  const runtimeId = suspects.find((id) => sizeOf(id) >= (inodes ? leastFiles : leastMb));
  return runtimeId === undefined ? undefined : { runtimeId, size: sizeOf(runtimeId) };
}
