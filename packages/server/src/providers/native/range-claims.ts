import { mkdirSync, symlinkSync } from "node:fs";
import { lstat, readdir, readlink, rename, stat, unlink } from "node:fs/promises";
import { join } from "node:path";
import type { RangeLink } from "../launcher/index.ts";

/** Where services of one machine tell each other which ranges they use. Emptied with every start of the machine. */
export const machineClaims = "/run/alcove/id-ranges";
/** A claim comes before its runtime's directory: for so long it counts without one. */
const graceMs = 60_000;

/**
 * A link for each range in use, named by its first id and leading to the runtime's directory: two services, each with a
 * data directory of its own, then never map two sandboxes to the same users. A link that leads nowhere is nobody's.
 */
export class RangeClaims {
  readonly #dir: string;
  readonly #runtimes: string;

  private constructor(dir: string, runtimes: string) {
    this.#dir = dir;
    this.#runtimes = runtimes;
  }

  /** @returns undefined where no claims can be kept; ranges then differ by where services begin. */
  static open(options: { dir: string; runtimes: string }): RangeClaims | undefined {
    try {
      mkdirSync(options.dir, { recursive: true, mode: 0o700 });
      return new RangeClaims(options.dir, options.runtimes);
    } catch (error) {
      if (error instanceof Error && "code" in error) return undefined;
      throw error;
    }
  }

  /** @returns the first ids of all ranges that are claimed, by whomever, or were. */
  async listed(): Promise<ReadonlySet<number>> {
    const names = await readdir(this.#dir).catch(() => []);
    return new Set(names.map(Number).filter(Number.isInteger));
  }

  /** The first try, which is nearly always the last, waits for no turn of the file system's threads: it is a call of microseconds.
   *  @returns false when another service's runtime has the range. */
  async claim(base: number, runtimeId: string): Promise<boolean> {
    const path = join(this.#dir, String(base));
    const target = join(this.#runtimes, runtimeId);
    for (let tried = 0; tried < 3; tried += 1) {
      if (this.#link(target, path)) return true;
      if ((await linkTarget(path)) === target) return true;
      if (await isHeld(path)) return false;
      await this.#setAside(path);
    }
    return false;
  }

  /** What makes a claim of this service another runtime's: who makes that runtime does it, before its directory is there. */
  linkOf(base: number, runtimeId: string): RangeLink {
    return { link: join(this.#dir, String(base)), target: join(this.#runtimes, runtimeId) };
  }

  /** @param former whose it may be still, where what `linkOf` is for came to nothing; what that left goes too. */
  async release(
    base: number,
    runtimeId: string,
    { former }: { former?: string | undefined } = {},
  ): Promise<void> {
    const path = join(this.#dir, String(base));
    const target = await linkTarget(path);
    const own = [runtimeId, former].some(
      (name) => name !== undefined && target === join(this.#runtimes, name),
    );
    if (!own) return;
    // First: while the claim is there nobody else makes another of the range.
    if (former !== undefined) await unless("ENOENT", unlink(`${path}.new`));
    await unless("ENOENT", unlink(path));
  }

  /** @returns false when there is one. */
  #link(target: string, path: string): boolean {
    try {
      return linked(target, path);
    } catch (error) {
      if (!hasCode(error, "ENOENT")) throw error;
      // Whatever empties /run may have taken the folder away while the service ran.
      mkdirSync(this.#dir, { recursive: true, mode: 0o700 });
      return linked(target, path);
    }
  }

  /** Takes a stale claim away; one that another service made in its place meanwhile is put back. */
  async #setAside(path: string): Promise<void> {
    const aside = `${path}.${process.pid}`;
    if (!(await unless("ENOENT", rename(path, aside)))) return;
    if (await isHeld(aside)) await rename(aside, path);
    else await unlink(aside);
  }
}

/** @returns false when there is one. */
function linked(target: string, path: string): boolean {
  try {
    symlinkSync(target, path);
    return true;
  } catch (error) {
    if (hasCode(error, "EEXIST")) return false;
    throw error;
  }
}

async function isHeld(path: string): Promise<boolean> {
  let madeAt = 0;
  const there = await unless(
    "ENOENT",
    lstat(path).then(({ mtimeMs }) => {
      madeAt = mtimeMs;
    }),
  );
  if (!there) return false;
  return Date.now() - madeAt < graceMs || (await unless("ENOENT", stat(path)));
}

async function linkTarget(path: string): Promise<string | undefined> {
  try {
    return await readlink(path);
  } catch (error) {
    if (hasCode(error, "ENOENT")) return undefined;
    throw error;
  }
}

/** @returns false when it fails with the code that is expected; rejects with anything else. */
async function unless(expected: string, action: Promise<unknown>): Promise<boolean> {
  try {
    await action;
    return true;
  } catch (error) {
    if (hasCode(error, expected)) return false;
    throw error;
  }
}

function hasCode(error: unknown, code: string): boolean {
  return error instanceof Error && "code" in error && error.code === code;
}
