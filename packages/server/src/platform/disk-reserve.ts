import { randomFillSync } from "node:crypto";
import { existsSync, rmSync, statfsSync } from "node:fs";
import { open, rename, rm } from "node:fs/promises";
import path from "node:path";

const fileName = "reserve";
const usualBytes = 16 * 1_048_576;
const pieceBytes = 64 * 1_024;
const retryMs = 10_000;

/**
 * Space that is set aside while there is some, so that a full disk can be emptied: given up, it lets the end of things be
 * written down. States: kept (the file is there), spent (given up; nothing new is begun), kept again once three times
 * its size is free.
 */
export class DiskReserve implements AsyncDisposable {
  readonly #file: string;
  readonly #bytes: number;
  #timer: NodeJS.Timeout | undefined;
  #spent = false;
  #filling: Promise<void> = Promise.resolve();

  constructor(options: { directory: string; bytes?: number }) {
    this.#file = path.join(options.directory, fileName);
    this.#bytes = options.bytes ?? usualBytes;
  }

  /** The disk was full, and still nearly is. */
  get spent(): boolean {
    return this.#spent;
  }

  /** Sets the space aside, when there is enough; tried again and again otherwise. */
  async keep(): Promise<void> {
    if (existsSync(this.#file)) return;
    this.#filling = this.#fill().catch(() => this.#tryLater());
    await this.#filling;
  }

  /** Gives the space up. @returns whether there was any. */
  spend(): boolean {
    this.#spent = true;
    const there = existsSync(this.#file);
    rmSync(this.#file, { force: true });
    this.#tryLater();
    return there;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearTimeout(this.#timer);
    await this.#filling;
    clearTimeout(this.#timer);
  }

  async #fill(): Promise<void> {
    const { bavail, bsize } = statfsSync(path.dirname(this.#file));
    if (bavail * bsize < this.#bytes * 3) return this.#tryLater();
    const draft = `${this.#file}.draft`;
    try {
      await using handle = await open(draft, "w", 0o600);
      // Zeros may take no space at all. One buffer: what is filled at a start stays with the process for long.
      const piece = Buffer.allocUnsafeSlow(pieceBytes);
      for (let left = this.#bytes; left > 0; left -= pieceBytes)
        await handle.writeFile(randomFillSync(piece).subarray(0, left));
    } catch (error) {
      await rm(draft, { force: true });
      throw error;
    }
    await rename(draft, this.#file);
    this.#spent = false;
  }

  #tryLater(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.keep(), retryMs);
    this.#timer.unref();
  }
}
