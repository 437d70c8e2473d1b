import type { Logger } from "../../platform/logger.ts";
import { sumOf } from "../../platform/sum-of.ts";
import type { GuardState, RuntimeId } from "../../ports/index.ts";
import { logStop, RepeatedLook } from "../guards/index.ts";
import type { MachineMemory } from "./uncounted-memory.ts";
import type { UsualMemory } from "./usual-memory.ts";

const pauseMs = 500;
/** While it has grown and no sandbox is to blame. */
const longPauseMs = 2_000;
/** After a look in vain, as many times as long as it took: a quarter of a processor at most. */
const pausesOfLook = 3;
/**
 * After so many in vain the next ones come ever later, up to a minute, while no more has grown: sandboxes may stand still for each, and
 * what has grown may be the machine's own, for good.
 */
const eagerLooks = 8;
const longestRestMs = 60_000;
/** Less than this is no reason to end anybody; where /proc/zoneinfo is hidden, what processors keep of free pages is part of it. */
const leastMb = 256;
/** So much less there is at least, so soon, after who had it was stopped: what sandboxes and the machine take beside comes and goes. */
const leastFreedMb = 16;
/** The same, of what may be in use. */
const helpfulShare = 1 / 16;
const freedWithinMs = 10_000;
/** Of what may be in use: when it has grown by so much more, another one is stopped although the last was to no avail. */
const furtherShare = 1 / 8;
/** Growth that nobody is to blame for is told again after so long: whoever looks must not have to go back weeks in the log. */
const tellAgainMs = 3_600_000;
/** What is destroyed meanwhile gives its memory back only as it ends: so long nobody else answers for it. */
const leavesWithinMs = 2_000;
/** Where too much has grown for long, they are waited for again after so long. */
const leavesAgainMs = 60_000;
/** A least that is lower by so much is written down. */
const worthWritingMb = 16;

interface UncountedGuardOptions {
  maxPercent: number;
  /** What it is called in figures. */
  name: GuardState["guard"];
  /** How the reason begins that a runtime is stopped for. */
  stops: string;
  /** What it is blind for when the machine's memory cannot be looked at. */
  of: string;
  logger: Logger;
  running: () => Iterable<RuntimeId>;
  /** Not among those any more, and still there. */
  destroying: () => Iterable<RuntimeId>;
  /** The most that each of them holds and nobody counts, bytes; asked for when too much has grown, and again when that was in vain. */
  holdings: (
    runtimes: readonly RuntimeId[],
    grownBytes: number,
    inVain: number,
  ) => Promise<ReadonlyMap<RuntimeId, number>>;
  memory: () => Promise<MachineMemory>;
  /** What of it is counted for sandboxes all the same, bytes. */
  counted: () => Promise<number>;
  /** The least of that, where `counted` can be more than there is. */
  leastCounted?: () => Promise<number>;
  /** Called while no sandbox has much of it: what `counted` has to tell from what sandboxes have is seen then. */
  seeOthers?: () => Promise<void>;
  /** What an earlier process of the service knew. */
  usual: UsualMemory;
  sandboxOf: (runtimeId: RuntimeId) => string | undefined;
  /** Empty or undefined: nobody's. */
  ownerOf: (runtimeId: RuntimeId) => string | undefined;
  stop: (runtimeId: RuntimeId, reason: string) => Promise<void>;
}

/**
 * The kernel has memory for sandboxes that it counts for nobody: what bytes in sockets hold, lists, locks. So the guard watches what
 * the machine uses of such a kind, beside what is counted in control groups of theirs; when that has grown by `maxPercent` of the
 * machine's memory, and what sandboxes hold can be half of it, it ends one sandbox at a look: of the owner whose sandboxes can
 * hold most, the one that can hold most. What one can hold is more than what it holds: where it is not less afterwards, the next
 * one is ended only once more has grown. Looks only while there are runtimes.
 */
export class UncountedGuard implements AsyncDisposable {
  readonly #options: UncountedGuardOptions;
  readonly #repeated: RepeatedLook;
  /** The least that was uncounted since the machine was started, as far as the service has seen it, MB. */
  #usualMb: number | undefined;
  #writtenMb = Number.POSITIVE_INFINITY;
  /** Looks in a row that found no sandbox to blame. */
  #inVain = 0;
  /** How many there were since it has grown, and when the next one is to be, unless more has. */
  #rest: { grownMb: number; looks: number; untilMs: number } | undefined;
  /** Since one of those, until somebody is to blame or it is over. */
  #blamesNobody = false;
  /** When that was told last. */
  #toldMs: number | undefined;
  /** When somebody was first waited for that is being destroyed, since too much has grown. */
  #leavesSinceMs: number | undefined;
  /** The last one that was stopped, until that has helped. */
  #stopped: { grownMb: number; atMs: number; told: boolean } | undefined;

  constructor(options: UncountedGuardOptions) {
    this.#options = options;
    this.#repeated = new RepeatedLook({
      look: () => this.look(),
      wanted: () => this.#anyRunning,
      firstPauseMs: pauseMs,
      failedPauseMs: longPauseMs,
      blind: `the machine's memory cannot be looked at, so that no sandbox is stopped for ${options.of}`,
      logger: options.logger,
    });
  }

  /** Does nothing when it runs already, or when nothing is to be guarded. */
  start(): void {
    if (this.#options.maxPercent > 0) this.#repeated.start();
  }

  /** None where nothing is to be guarded. Does no I/O. */
  get states(): GuardState[] {
    if (this.#options.maxPercent === 0) return [];
    const isOver = this.#blamesNobody || this.#stopped?.told === true;
    return [{ guard: this.#options.name, helpless: this.#repeated.isBlind || (isOver && this.#anyRunning) }];
  }

  /** Sees what is usual before there is a runtime that could change it. */
  async begin(): Promise<void> {
    if (this.#options.maxPercent === 0 || this.#usualMb !== undefined) return;
    await this.seeOthers();
    // Whoever cannot see it now does so at its first look.
    await this.#see().catch(() => undefined);
  }

  /** Sees what others have, while nothing runs: also while the first one is made, in which there is nothing of anybody yet. @returns whether it did. */
  async seeOthers(): Promise<boolean> {
    const { maxPercent, seeOthers } = this.#options;
    if (maxPercent === 0 || this.#anyRunning || seeOthers === undefined) return false;
    await seeOthers();
    return true;
  }

  /** One look; stops a runtime when it has to. @returns when to look again, milliseconds. */
  async look(): Promise<number> {
    const { maxPercent } = this.#options;
    const { totalMb, uncountedMb, usualMb } = await this.#see();
    const mostMb = Math.max((totalMb * maxPercent) / 100, leastMb);
    let grownMb = uncountedMb - usualMb;
    // Somebody's within limits of their own; whose sockets are full otherwise is not to answer for it.
    if (grownMb > mostMb) grownMb -= await this.#countedMb();
    else if (grownMb <= mostMb / 2) await this.#options.seeOthers?.();
    if (grownMb <= mostMb) {
      this.#inVain = 0;
      this.#rest = undefined;
      this.#leavesSinceMs = undefined;
      // What goes up and down about the most that may be is no help of whoever was stopped, and not over.
      if (grownMb <= mostMb * (1 - furtherShare)) {
        this.#stopped = undefined;
        this.#blamesNobody = false;
        this.#tellUsual(grownMb);
      }
      return pauseMs;
    }
    if (this.#waitsForMore(grownMb, mostMb) || this.#someoneLeaves()) return pauseMs;
    if (this.#rests(grownMb, mostMb)) return longPauseMs;
    const beganMs = performance.now();
    const holdings = await this.#options.holdings(
      [...this.#options.running()],
      grownMb * 2 ** 20,
      this.#inVain,
    );
    const worst = this.#worst(holdings);
    const grown = `${Math.round(grownMb)} MB of the machine's memory are in use and counted for nobody`;
    if (worst === undefined || sumOf(holdings.values()) / 2 ** 20 < grownMb / 2) {
      this.#blamesNobody = true;
      this.#tellUncounted(grown, { uncountedMb, usualMb });
      this.#inVain++;
      this.#restAfter(grownMb, mostMb);
      return Math.max(longPauseMs, pausesOfLook * (performance.now() - beganMs));
    }
    if (performance.now() - beganMs > longPauseMs && !(await this.#isStillMore(mostMb))) return pauseMs;
    this.#blamesNobody = false;
    await this.#end(worst[0], worst[1] / 2 ** 20, grown);
    this.#stopped = { grownMb, atMs: performance.now(), told: false };
    return pauseMs;
  }

  #tellUncounted(grown: string, seen: { uncountedMb: number; usualMb: number }): void {
    const nowMs = performance.now();
    if (this.#toldMs !== undefined && nowMs - this.#toldMs < tellAgainMs) return;
    this.#toldMs = nowMs;
    const { logger, of } = this.#options;
    const figures = { uncounted_mb: Math.round(seen.uncountedMb), usual_mb: Math.round(seen.usualMb) };
    logger.warn({ event: "memory.uncounted", ...figures }, `${grown}, and no sandbox is to blame (${of})`);
  }

  #tellUsual(grownMb: number): void {
    if (this.#toldMs === undefined) return;
    this.#toldMs = undefined;
    const { logger, of } = this.#options;
    logger.info(
      { event: "memory.usual", grown_mb: Math.round(grownMb) },
      `the machine's memory that is counted for nobody is within its bounds again (${of})`,
    );
  }

  #restAfter(grownMb: number, mostMb: number): void {
    const before = this.#rest;
    const goesOn = before !== undefined && grownMb <= before.grownMb + mostMb * furtherShare;
    const looks = goesOn ? before.looks + 1 : 1;
    const restMs = Math.min(longPauseMs * 2 ** (looks - eagerLooks), longestRestMs);
    this.#rest = {
      grownMb: goesOn ? before.grownMb : grownMb,
      looks,
      untilMs: performance.now() + restMs,
    };
  }

  #rests(grownMb: number, mostMb: number): boolean {
    if (this.#rest === undefined || grownMb > this.#rest.grownMb + mostMb * furtherShare) return false;
    return performance.now() < this.#rest.untilMs;
  }

  /** After a look that took long. */
  async #isStillMore(mostMb: number): Promise<boolean> {
    const { uncountedMb, usualMb } = await this.#see();
    return uncountedMb - usualMb - (await this.#countedMb()) > mostMb;
  }

  /** Not for longer, whoever destroys one after the other. */
  #someoneLeaves(): boolean {
    if ([...this.#options.destroying()].length === 0) return false;
    const nowMs = performance.now();
    this.#leavesSinceMs ??= nowMs;
    if (nowMs - this.#leavesSinceMs > leavesAgainMs) this.#leavesSinceMs = nowMs;
    return nowMs - this.#leavesSinceMs < leavesWithinMs;
  }

  #waitsForMore(grownMb: number, mostMb: number): boolean {
    const stopped = this.#stopped;
    if (stopped === undefined) return false;
    const isSoon = performance.now() - stopped.atMs < freedWithinMs;
    const freedMb = Math.max(leastFreedMb, mostMb * helpfulShare);
    const helped = isSoon && grownMb < stopped.grownMb - freedMb;
    if (helped || grownMb > stopped.grownMb + mostMb * furtherShare) {
      this.#stopped = undefined;
      return false;
    }
    if (!isSoon && !stopped.told)
      this.#options.logger.warn(
        { event: "memory.uncounted", grown_mb: Math.round(grownMb) },
        `the machine uses no less memory since the last sandbox was stopped for ${this.#options.of}; another one is stopped only once it uses more`,
      );
    stopped.told ||= !isSoon;
    return true;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#repeated[Symbol.asyncDispose]();
  }

  get #anyRunning(): boolean {
    return [...this.#options.running()].length > 0;
  }

  async #end(runtimeId: RuntimeId, holdsMb: number, grown: string): Promise<void> {
    const { logger, sandboxOf, ownerOf, stop, stops, maxPercent } = this.#options;
    const reason =
      `${stops}can hold up to ${Math.round(holdsMb)} MB, and ${grown}, more than ` +
      `the ${maxPercent} % of providers.native.max_uncounted_percent`;
    const sandboxId = sandboxOf(runtimeId);
    const ownerId = ownerOf(runtimeId);
    const told = {
      ...(sandboxId === undefined ? {} : { sandbox_id: sandboxId }),
      ...(ownerId ? { owner_id: ownerId } : {}),
      runtime_id: runtimeId,
      reason,
    };
    const beganMs = performance.now();
    try {
      await stop(runtimeId, reason);
    } catch (error) {
      logStop(logger, told, { beganMs, error });
      throw error;
    }
    logStop(logger, told, { beganMs });
  }

  async #see(): Promise<MachineMemory & { usualMb: number }> {
    const seen = await this.#options.memory();
    const atStart = this.#usualMb ?? (await this.#usualAtStart(seen.uncountedMb));
    const usualMb = Math.min(this.#usualMb ?? atStart, seen.uncountedMb);
    this.#usualMb = usualMb;
    await this.#remember(usualMb);
    return { ...seen, usualMb };
  }

  /** What sandboxes hold when the service starts is taken for usual only when nobody remembers better. */
  async #usualAtStart(uncountedMb: number): Promise<number> {
    const { usual, counted, leastCounted = counted } = this.#options;
    const remembered = await usual.read();
    this.#writtenMb = remembered ?? this.#writtenMb;
    return remembered ?? Math.max(0, uncountedMb - (await leastCounted()) / 2 ** 20);
  }

  async #remember(mb: number): Promise<void> {
    if (mb > this.#writtenMb - worthWritingMb) return;
    try {
      await this.#options.usual.write(mb);
      this.#writtenMb = mb;
    } catch {
      // Until then the next start takes what there is by then for usual; it is tried again at the next look.
    }
  }

  /** Who spreads over many sandboxes answers for all of them; nobody's stand for themselves. */
  #worst(holdings: ReadonlyMap<RuntimeId, number>): [RuntimeId, number] | undefined {
    const ofOwner = new Map<string, number>();
    const whose = (id: RuntimeId) => this.#options.ownerOf(id) || `\n${id}`;
    for (const [id, bytes] of holdings) ofOwner.set(whose(id), (ofOwner.get(whose(id)) ?? 0) + bytes);
    const ownersSum = (id: RuntimeId) => ofOwner.get(whose(id)) ?? 0;
    return [...holdings].sort(([a, held], [b, other]) => ownersSum(b) - ownersSum(a) || other - held)[0];
  }

  async #countedMb(): Promise<number> {
    return (await this.#options.counted()) / 2 ** 20;
  }
}
