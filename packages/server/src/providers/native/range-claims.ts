import {
  existsSync,
  lstatSync,
  mkdirSync,
  readlinkSync,
  renameSync,
  statSync,
  symlinkSync,
  unlinkSync,
} from "node:fs";
import { join } from "node:path";

/** Where services of one machine tell each other which ranges they use. Emptied with every start of the machine. */
export const machineClaims = "/run/alcove/id-ranges";
/** A claim comes before its runtime's directory: for so long it counts without one. */
const graceMs = 60_000;

/**
 * A link for each range in use, named by its first id and leading to the runtime's directory: two services, each with a
 * data directory of its own, then never map two sandboxes to the same users. A link that leads nowhere is nobody's. The
 * calls are synchronous because each is one step on a file system in memory.
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

  /** @returns false when another service's runtime has the range. */
  claim(base: number, runtimeId: string): boolean {
    const path = join(this.#dir, String(base));
    const target = join(this.#runtimes, runtimeId);
    for (let tried = 0; tried < 3; tried += 1) {
      // Whatever empties /run may have taken the folder away while the service ran.
      if (!existsSync(this.#dir)) mkdirSync(this.#dir, { recursive: true, mode: 0o700 });
      if (succeeds(() => symlinkSync(target, path), "EEXIST")) return true;
      if (linkTarget(path) === target) return true;
      if (isHeld(path)) return false;
      this.#setAside(path);
    }
    return false;
  }

  release(base: number, runtimeId: string): void {
    const path = join(this.#dir, String(base));
    if (linkTarget(path) === join(this.#runtimes, runtimeId)) succeeds(() => unlinkSync(path), "ENOENT");
  }

  /** Takes a stale claim away; one that another service made in its place meanwhile is put back. */
  #setAside(path: string): void {
    const aside = `${path}.${process.pid}`;
    if (!succeeds(() => renameSync(path, aside), "ENOENT")) return;
    if (isHeld(aside)) renameSync(aside, path);
    else unlinkSync(aside);
  }
}

function isHeld(path: string): boolean {
  let madeAt = 0;
  const there = succeeds(() => {
    madeAt = lstatSync(path).mtimeMs;
  }, "ENOENT");
  if (!there) return false;
  return Date.now() - madeAt < graceMs || succeeds(() => statSync(path), "ENOENT");
}

function linkTarget(path: string): string | undefined {
  let target: string | undefined;
  succeeds(() => {
    target = readlinkSync(path);
  }, "ENOENT");
  return target;
}

/** @returns false when it fails with the code that is expected; @throws anything else. */
function succeeds(action: () => unknown, expected: string): boolean {
  try {
    action();
    return true;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === expected) return false;
    throw error;
  }
}
