import { execFile } from "node:child_process";
import { stat, statfs } from "node:fs/promises";
import { basename, join } from "node:path";
import { promisify } from "node:util";
import type { Logger } from "../../platform/logger.ts";
import { type RuntimeId, StorageFull } from "../../ports/index.ts";
import { RepeatedLook } from "./repeated-look.ts";

/** While there is plenty of space. */
const longestPauseMs = 5_000;
const shortestPauseMs = 250;
/** What disks here take at most, MB a millisecond: how soon space could be short. */
const fastestMbPerMs = 1;
/** Below so many times the mark the guard watches who grows. */
const watchFrom = 4;
const measureMs = 20_000;
/** Less than this is no reason to stop anybody: a layer that nothing was written to takes a few. */
const leastMb = 16;
const leastGrowthMb = 1;
const fewestInodes = 10_000;
/** While there is plenty, a look serves the spawns of so long. */
const freshMs = 1_000;

interface Space {
  freeMb: number;
  /** undefined: this file system counts none. */
  freeInodes: number | undefined;
}

/**
 * Keeps `minFreeMb` free on the file system of the runtimes. Below that spawns are refused and one writer at a look is
 * stopped: who grew most since the look before, or else the largest; who wrote nothing is never stopped. Images give way
 * earlier. The nearer the mark, the more often it looks. Looks only while there are runtimes.
 */
export class DiskGuard implements AsyncDisposable {
  readonly #root: string;
  readonly #minFreeMb: number;
  readonly #logger: Logger;
  readonly #running: () => Iterable<RuntimeId>;
  readonly #path: (runtimeId: RuntimeId) => string;
  readonly #sandboxOf: (runtimeId: RuntimeId) => string | undefined;
  readonly #stop: (runtimeId: RuntimeId, reason: string) => Promise<void>;
  readonly #space: () => Promise<Space>;
  #seen: { space: Space; atMs: number } | undefined;
  /** What runtimes had written at the last look, MB. */
  #before = new Map<RuntimeId, number>();
  #blamedNobody = false;
  readonly #repeated: RepeatedLook;

  constructor(options: {
    root: string;
    minFreeMb: number;
    logger: Logger;
    running: () => Iterable<RuntimeId>;
    path: (runtimeId: RuntimeId) => string;
    /** For the log. */
    sandboxOf?: (runtimeId: RuntimeId) => string | undefined;
    stop: (runtimeId: RuntimeId, reason: string) => Promise<void>;
    /** For tests. */
    space?: () => Promise<Space>;
  }) {
    this.#root = options.root;
    this.#minFreeMb = options.minFreeMb;
    this.#logger = options.logger;
    this.#running = options.running;
    this.#path = options.path;
    this.#sandboxOf = options.sandboxOf ?? (() => undefined);
    this.#stop = options.stop;
    this.#space = options.space ?? (() => spaceOf(options.root));
    this.#repeated = new RepeatedLook({
      look: () => this.look(),
      wanted: () => [...this.#running()].length > 0,
      firstPauseMs: shortestPauseMs,
      failedPauseMs: longestPauseMs,
      blind:
        "free disk space cannot be looked at, so that no sandbox is stopped for it; is data_dir there and mounted?",
      logger: options.logger,
    });
  }

  /** Does nothing when it runs already, or when no space has to be kept free. */
  start(): void {
    if (this.#minFreeMb > 0) this.#repeated.start();
  }

  /** @throws StorageFull below the mark: a sandbox made now would be stopped soon. */
  async refuseWhenShort(): Promise<void> {
    if (this.#minFreeMb === 0) return;
    if (this.#sawPlenty()) return;
    const short = this.#shortage(await this.#see());
    if (short === undefined) return;
    throw new StorageFull(
      `no sandbox can be made: ${short}; destroy sandboxes, remove images, or free space on the disk of data_dir`,
    );
  }

  /** One look; stops a runtime when space is short. @returns when to look again, milliseconds. */
  async look(): Promise<number> {
    const runtimes = [...this.#running()];
    const space = await this.#see();
    const short = this.#shortage(space);
    if (runtimes.length === 0 || (short === undefined && space.freeMb >= this.#minFreeMb * watchFrom)) {
      this.#before.clear();
      this.#blamedNobody = false;
      return longestPauseMs;
    }
    const inodes = space.freeMb >= this.#minFreeMb && short !== undefined;
    const now = await this.#measure(runtimes, { inodes });
    const before = this.#before;
    this.#before = now;
    if (short === undefined) {
      this.#blamedNobody = false;
      const pauseMs = (space.freeMb - this.#minFreeMb) / fastestMbPerMs;
      return Math.min(Math.max(pauseMs, shortestPauseMs), longestPauseMs);
    }
    const writer = worst(now, before, { inodes });
    if (writer === undefined) {
      if (!this.#blamedNobody) this.#logger.error(`${short}, and no sandbox is to blame`);
      this.#blamedNobody = true;
      return longestPauseMs;
    }
    const wrote = inodes ? `made ${writer.size} files` : `written ${Math.round(writer.size)} MB`;
    const reason = `stopped: it had ${wrote} and ${short}`;
    const sandboxId = this.#sandboxOf(writer.runtimeId);
    this.#logger.warn(
      {
        event: "sandbox.stop",
        outcome: "ok",
        ...(sandboxId === undefined ? {} : { sandbox_id: sandboxId }),
        runtime_id: writer.runtimeId,
        reason,
      },
      "a sandbox was stopped because disk space is short",
    );
    this.#before.delete(writer.runtimeId);
    await this.#stop(writer.runtimeId, reason);
    return shortestPauseMs;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#repeated[Symbol.asyncDispose]();
  }

  async #see(): Promise<Space> {
    const space = await this.#space();
    this.#seen = { space, atMs: performance.now() };
    return space;
  }

  #sawPlenty(): boolean {
    if (this.#seen === undefined || performance.now() - this.#seen.atMs >= freshMs) return false;
    const { freeMb, freeInodes } = this.#seen.space;
    const manyInodes = freeInodes === undefined || freeInodes >= fewestInodes * watchFrom;
    return freeMb >= this.#minFreeMb * watchFrom && manyInodes;
  }

  #shortage({ freeMb, freeInodes }: Space): string | undefined {
    if (freeMb < this.#minFreeMb)
      return `${Math.round(freeMb)} MB were free below data_dir, less than the ${this.#minFreeMb} MB of providers.native.min_free_mb`;
    if (freeInodes !== undefined && freeInodes < fewestInodes)
      return `${freeInodes} inodes were free below data_dir, less than ${fewestInodes}`;
    return undefined;
  }

  /** A layer with a file system of its own is one file, whose blocks say it all; others are added up. */
  async #measure(
    runtimes: readonly RuntimeId[],
    { inodes }: { inodes: boolean },
  ): Promise<Map<RuntimeId, number>> {
    const sizes = new Map<RuntimeId, number>();
    const others: RuntimeId[] = [];
    for (const runtimeId of runtimes) {
      const image = await stat(join(this.#path(runtimeId), "disk.img")).catch(() => undefined);
      if (image === undefined) others.push(runtimeId);
      else if (!inodes) sizes.set(runtimeId, (image.blocks * 512) / 1024 ** 2);
    }
    if (others.length === 0) return sizes;
    const byName = new Map(others.map((id) => [id as string, id]));
    for (const line of await diskUsage(
      others.map((id) => this.#path(id)),
      { inodes },
    )) {
      const [count = "", path = ""] = line.split("\t");
      const runtimeId = byName.get(basename(path));
      if (runtimeId !== undefined) sizes.set(runtimeId, inodes ? Number(count) : Number(count) / 1024);
    }
    return sizes;
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

async function spaceOf(root: string): Promise<Space> {
  const { bavail, bsize, files, ffree } = await statfs(root);
  return { freeMb: (bavail * bsize) / 1024 ** 2, freeInodes: files > 0 ? ffree : undefined };
}

/** `du` names what it cannot read or what went away and exits with 1; what it printed still counts. */
async function diskUsage(paths: readonly string[], { inodes }: { inodes: boolean }): Promise<string[]> {
  const work = promisify(execFile)("du", [inodes ? "--inodes" : "-k", "-sx", "--", ...paths], {
    timeout: measureMs,
    maxBuffer: 16 << 20,
  });
  const { stdout } = await work.catch((error: unknown) => {
    if (error instanceof Error && "stdout" in error) return { stdout: String(error.stdout) };
    throw error;
  });
  return stdout.split("\n").filter((line) => line !== "");
}
