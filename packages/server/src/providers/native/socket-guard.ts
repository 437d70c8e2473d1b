import { boundedParallel } from "../../platform/bounded-parallel.ts";
import type { Logger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";
import { RepeatedLook } from "./repeated-look.ts";
import type { MachineMemory } from "./uncounted-memory.ts";

const pauseMs = 500;
/** While it has grown and no sandbox is to blame. */
const longPauseMs = 2_000;
/** Less than this is no reason to end anybody; where /proc/zoneinfo is hidden, what processors keep of free pages is part of it. */
const leastMb = 256;
const parallelLooks = 16;

interface SocketGuardOptions {
  maxPercent: number;
  logger: Logger;
  running: () => Iterable<RuntimeId>;
  /** The most that a runtime's sockets hold and nobody counts, bytes. */
  holdings: (runtimeId: RuntimeId) => Promise<number>;
  memory: () => Promise<MachineMemory>;
  /** What of it is counted for sandboxes all the same, bytes. */
  counted: () => Promise<number>;
  sandboxOf: (runtimeId: RuntimeId) => string | undefined;
  stop: (runtimeId: RuntimeId, reason: string) => Promise<void>;
}

/**
 * Bytes that wait in sockets hold more memory than the kernel counts for whom they are. So the guard watches what the machine
 * uses and nothing explains, no control group of theirs either; when that has grown by `maxPercent` of the machine's memory, and the sockets of sandboxes can
 * hold half of it, it ends one sandbox at a look: the one whose sockets can hold most. Looks only while there are runtimes.
 */
export class SocketGuard implements AsyncDisposable {
  readonly #options: SocketGuardOptions;
  readonly #repeated: RepeatedLook;
  /** The least that was uncounted, less what sandboxes may have held already, MB. */
  #usualMb: number | undefined;
  #blamedNobody = false;

  constructor(options: SocketGuardOptions) {
    this.#options = options;
    this.#repeated = new RepeatedLook({
      look: () => this.look(),
      wanted: () => [...options.running()].length > 0,
      firstPauseMs: pauseMs,
      failedPauseMs: longPauseMs,
      blind:
        "the machine's memory cannot be looked at, so that no sandbox is stopped for what its sockets hold",
      logger: options.logger,
    });
  }

  /** Does nothing when it runs already, or when nothing is to be guarded. */
  start(): void {
    if (this.#options.maxPercent > 0) this.#repeated.start();
  }

  /** One look; stops a runtime when it has to. @returns when to look again, milliseconds. */
  async look(): Promise<number> {
    const { maxPercent, memory } = this.#options;
    const { totalMb, uncountedMb } = await memory();
    // What an earlier process of the service let them hold is none of the machine's usual.
    this.#usualMb ??= Math.max(
      0,
      uncountedMb - (await this.#countedMb()) - sumOf(await this.#holdings()) / 2 ** 20,
    );
    this.#usualMb = Math.min(this.#usualMb, uncountedMb);
    const mostMb = Math.max((totalMb * maxPercent) / 100, leastMb);
    let grownMb = uncountedMb - this.#usualMb;
    // Somebody's within limits of their own; whose sockets are full otherwise is not to answer for it.
    if (grownMb > mostMb) grownMb -= await this.#countedMb();
    if (grownMb <= mostMb) {
      this.#blamedNobody = false;
      return pauseMs;
    }
    const holdings = await this.#holdings();
    const [worst] = [...holdings].sort(([, a], [, b]) => b - a);
    const grown = `${Math.round(grownMb)} MB of the machine's memory are in use and counted for nobody`;
    if (worst === undefined || sumOf(holdings) / 2 ** 20 < grownMb / 2) {
      if (!this.#blamedNobody)
        this.#options.logger.warn(
          { uncounted_mb: Math.round(uncountedMb), usual_mb: Math.round(this.#usualMb) },
          `${grown}, and no sandbox is to blame`,
        );
      this.#blamedNobody = true;
      return longPauseMs;
    }
    await this.#end(worst[0], worst[1] / 2 ** 20, grown);
    return pauseMs;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#repeated[Symbol.asyncDispose]();
  }

  async #end(runtimeId: RuntimeId, holdsMb: number, grown: string): Promise<void> {
    const { logger, sandboxOf, stop, maxPercent } = this.#options;
    const reason =
      `stopped: what waits in its sockets can hold up to ${Math.round(holdsMb)} MB, and ${grown}, more than ` +
      `the ${maxPercent} % of providers.native.max_uncounted_percent`;
    const sandboxId = sandboxOf(runtimeId);
    logger.warn(
      {
        event: "sandbox.stop",
        outcome: "ok",
        ...(sandboxId === undefined ? {} : { sandbox_id: sandboxId }),
        runtime_id: runtimeId,
        reason,
      },
      "a sandbox was stopped because its sockets hold the machine's memory",
    );
    await stop(runtimeId, reason);
  }

  async #countedMb(): Promise<number> {
    return (await this.#options.counted()) / 2 ** 20;
  }

  async #holdings(): Promise<Map<RuntimeId, number>> {
    const found = new Map<RuntimeId, number>();
    await boundedParallel([...this.#options.running()], parallelLooks, async (runtimeId) => {
      found.set(runtimeId, await this.#options.holdings(runtimeId));
    });
    return found;
  }
}

function sumOf(holdings: ReadonlyMap<RuntimeId, number>): number {
  return [...holdings.values()].reduce((sum, bytes) => sum + bytes, 0);
}
