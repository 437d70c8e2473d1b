import { randomFillSync } from "node:crypto";
import { rmSync, statSync } from "node:fs";
import { open, rename, rm } from "node:fs/promises";
import path from "node:path";
import { freeBytes } from "./free-space.ts";

const fileName = "reserve";
const usualBytes = 16 * 1_048_576;
const pieceBytes = 64 * 1_024;
const retryMs = 10_000;

interface Warnings {
  warn(fields: object, message: string): void;
}

/**
 * Space that is set aside while there is some, so that a full disk can be emptied: given up, it lets the end of things be
 * written down. States: kept (the file is there, with a third of what is free where that is less than usual), lacking
 * (there was no room for one), spent (given up; nothing new is begun) until a quarter of the usual size is free beside
 * what was given up.
 */
export class DiskReserve implements AsyncDisposable {
  readonly #directory: string;
  readonly #file: string;
  readonly #bytes: number;
  readonly #logger: Warnings | undefined;
  #timer: NodeJS.Timeout | undefined;
  #spent = false;
  #gaveUpBytes = 0;
  #told: string | undefined;
  #filling: Promise<void> = Promise.resolve();

  /** @param options.logger is told when there is less than usual, and when it is given up. */
  constructor(options: { directory: string; bytes?: number; logger?: Warnings }) {
    this.#directory = options.directory;
    this.#file = path.join(options.directory, fileName);
    this.#bytes = options.bytes ?? usualBytes;
    this.#logger = options.logger;
  }

  /** The disk was full, and still nearly is. */
  get spent(): boolean {
    return this.#spent;
  }

  /** Sets the space aside, as much as there is room for; tried again until it is as large as usual. */
  async keep(): Promise<void> {
    clearTimeout(this.#timer);
    this.#filling = this.#keep().catch(() => this.#tryLater());
    await this.#filling;
  }

  /** Gives the space up. @returns whether there was any. */
  spend(): boolean {
    const keptBytes = sizeOf(this.#file);
    if (!this.#spent || keptBytes > 0) this.#gaveUpBytes = keptBytes;
    if (!this.#spent) this.#tell("the disk of the database is full: spawns are refused");
    this.#spent = true;
    rmSync(this.#file, { force: true });
    this.#tryLater();
    return keptBytes > 0;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearTimeout(this.#timer);
    await this.#filling;
    clearTimeout(this.#timer);
  }

  async #keep(): Promise<void> {
    const free = freeBytes(this.#directory);
    if (this.#spent && free < this.#gaveUpBytes + this.#bytes / 4) return this.#tryLater();
    this.#spent = false;
    const kept = sizeOf(this.#file);
    const wanted = reserveFor({ free, kept, usual: this.#bytes });
    if (wanted > kept) await this.#fill(wanted);
    if (wanted === this.#bytes) {
      this.#told = undefined;
      return;
    }
    this.#tell(lackOf({ free, kept: wanted, usual: this.#bytes }));
    this.#tryLater();
  }

  async #fill(bytes: number): Promise<void> {
    const draft = `${this.#file}.draft`;
    try {
      await using handle = await open(draft, "w", 0o600);
      // Zeros may take no space at all. One buffer: what is filled at a start stays with the process for long.
      const piece = Buffer.allocUnsafeSlow(pieceBytes);
      for (let left = bytes; left > 0; left -= pieceBytes)
        await handle.writeFile(randomFillSync(piece).subarray(0, left));
    } catch (error) {
      await rm(draft, { force: true });
      throw error;
    }
    // What the disk lacked meanwhile is this very space.
    if (this.#spent) rmSync(draft, { force: true });
    else await rename(draft, this.#file);
  }

  /** Once for each change. */
  #tell(message: string): void {
    const kind = message.replace(/[\d.]+/g, "");
    if (this.#told === kind) return;
    this.#told = kind;
    this.#logger?.warn({ directory: this.#directory }, message);
  }

  #tryLater(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.keep(), retryMs);
    this.#timer.unref();
  }
}

/**
 * How much to set aside: what is there, or the usual size where three times that is free, otherwise a third of what is
 * free; 0 where that is next to nothing.
 */
function reserveFor({ free, kept, usual }: { free: number; kept: number; usual: number }): number {
  if (kept >= usual || free >= usual * 3) return Math.max(kept, usual);
  if (kept > 0) return kept;
  const third = Math.floor(free / 3);
  return third < usual / 16 ? 0 : third;
}

function lackOf({ free, kept, usual }: { free: number; kept: number; usual: number }): string {
  const little = `only ${mib(free)} MiB are free on the disk of the database`;
  return kept === 0
    ? `${little}, too little to set a reserve of ${mib(usual)} MiB aside: once it is full, not even the end of a sandbox ` +
        "is written down, and the service does not start again; free space"
    : `${little}: ${mib(kept)} MiB are set aside for when it is full instead of ${mib(usual)}; free space`;
}

/** What a service in this directory would lack. @returns undefined when it has, or would have, a whole reserve. */
export function lackOfReserve(directory: string): string | undefined {
  const free = freeBytes(directory);
  const kept = sizeOf(path.join(directory, fileName));
  const wanted = reserveFor({ free, kept, usual: usualBytes });
  return wanted >= usualBytes ? undefined : lackOf({ free, kept: wanted, usual: usualBytes });
}

function sizeOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

function mib(bytes: number): string {
  return (bytes / 1_048_576).toFixed(bytes < 10 * 1_048_576 ? 1 : 0);
}
