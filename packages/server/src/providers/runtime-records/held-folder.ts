import { close, fstatSync, open, type Stats, statSync } from "node:fs";
import { promisify } from "node:util";
import { Unavailable } from "../../ports/index.ts";

const opened = promisify(open);
const closed = promisify(close);

/**
 * A folder that is to stay the one it was for as long as this process lives. States: unseen, until it was there for the
 * first time; held, until this is disposed of. While it is held, a folder that is missing at its path, or another one
 * there, says nothing about what the held one has: a data directory was moved away, something was mounted over it, or
 * somebody removed it. The open descriptor keeps its inode number from being given to another folder.
 */
export class HeldFolder implements AsyncDisposable {
  readonly path: string;
  #held: Promise<number> | undefined;

  constructor(path: string) {
    this.path = path;
  }

  /**
   * Takes hold of it when it is seen for the first time. The looks are two calls that take a microsecond each, where a turn of
   * the file system's threads takes two switches of threads: each spawn, removal and list waits for this.
   * @returns false when it never was there.
   * @throws Unavailable when the one that was there is out of sight.
   */
  async inSight(): Promise<boolean> {
    const descriptor = await this.#hold();
    if (descriptor === undefined) return false;
    const held = fstatSync(descriptor);
    const found = statOrMissing(this.path);
    if (found !== undefined && found.dev === held.dev && found.ino === held.ino) return true;
    const how = found === undefined ? "is not there any more" : "is not the directory it was";
    throw new Unavailable(
      `${this.path} ${how}: its sandboxes are left alone and none is made; bring the directory back, or, if it is lost, ` +
        "restart the service, which goes on without it",
    );
  }

  /** A path that leads to the held folder wherever it is now, in this process alone; its own path until it is held. */
  async steadyPath(): Promise<string> {
    const descriptor = await this.#hold();
    return descriptor === undefined ? this.path : `/proc/self/fd/${descriptor}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const held = this.#held;
    this.#held = undefined;
    const descriptor = await held?.catch(() => undefined);
    if (descriptor !== undefined) await closed(descriptor);
  }

  async #hold(): Promise<number | undefined> {
    this.#held ??= opened(this.path, "r");
    const held = this.#held;
    try {
      return await held;
    } catch (error) {
      if (this.#held === held) this.#held = undefined;
      if (isMissing(error)) return undefined;
      throw error;
    }
  }
}

function statOrMissing(path: string): Stats | undefined {
  try {
    return statSync(path);
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw error;
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && "code" in error && (error.code === "ENOENT" || error.code === "ENOTDIR");
}
