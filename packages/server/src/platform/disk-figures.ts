import type { StatsFs } from "node:fs";
import { statfs } from "node:fs/promises";
import type { Clock, Timer } from "../ports/clock.ts";

export interface DiskFigure {
  readonly name: string;
  /** What the user of this process may still write. */
  readonly freeBytes: number;
  readonly sizeBytes: number;
  /** Files that may still be made; undefined where the file system has no such bound. */
  readonly freeInodes: number | undefined;
}

type Room = Pick<StatsFs, "bavail" | "blocks" | "bsize" | "ffree" | "files">;

const lookEveryMs = 15_000;

/**
 * How much room there is where the service writes: looked at now and then until it is disposed, because a file system that
 * hangs must hold up nobody who asks. One that cannot be looked at is left out.
 */
export class DiskFigures implements Disposable {
  readonly #folders: Readonly<Record<string, string>>;
  readonly #clock: Clock;
  readonly #statfs: (folder: string) => Promise<Room>;
  readonly #found = new Map<string, DiskFigure>();
  readonly #pending = new Set<string>();
  #timer: Timer | undefined;

  /** @param options.folders by the name they are told under. */
  constructor(options: {
    folders: Readonly<Record<string, string>>;
    clock: Clock;
    statfs?: (folder: string) => Promise<Room>;
  }) {
    this.#folders = options.folders;
    this.#statfs = options.statfs ?? ((folder) => statfs(folder));
    this.#clock = options.clock;
    this.#lookAtAll();
  }

  get all(): DiskFigure[] {
    return [...this.#found.values()];
  }

  [Symbol.dispose](): void {
    this.#timer?.cancel();
  }

  #lookAtAll(): void {
    for (const name of Object.keys(this.#folders)) if (!this.#pending.has(name)) void this.#look(name);
    this.#timer = this.#clock.setTimer(lookEveryMs, () => this.#lookAtAll());
  }

  async #look(name: string): Promise<void> {
    this.#pending.add(name);
    try {
      const { bavail, blocks, bsize, ffree, files } = await this.#statfs(this.#folders[name] ?? "");
      const freeInodes = files > 0 ? ffree : undefined;
      this.#found.set(name, { name, freeBytes: bavail * bsize, sizeBytes: blocks * bsize, freeInodes });
    } catch {
      // Not there: nothing is known of it any more.
      this.#found.delete(name);
    } finally {
      this.#pending.delete(name);
    }
  }
}
