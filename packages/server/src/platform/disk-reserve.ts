import { randomFillSync } from "node:crypto";
import { renameSync, rmSync, statSync, truncateSync } from "node:fs";
import { open, rm } from "node:fs/promises";
import path from "node:path";
import { freeBytes } from "./free-space.ts";
import { outsideRequests } from "./request-scope.ts";

const fileName = "reserve";
/** As large as what was given up, and without any of its space: a file of holes. */
const spentName = "reserve.spent";
/** What is set aside where there is room. */
export const usualBytes = 16 * 1_048_576;
const pieceBytes = 64 * 1_024;
const retryMs = 10_000;

interface Warnings {
  warn(fields: object, message: string): void;
}

/**
 * Space that is set aside while there is some, so that a full disk can be emptied: given up, it lets the end of things be
 * written down. States: kept (the file is there, with a third of what is free where that is less than usual, and grows with
 * it), lacking (there was no room for one), spent (given up; nothing new is begun) until a quarter of the usual size is free
 * beside what was given up, which is then taken back. A file remembers that over restarts: each would otherwise give away
 * most of what the one before it had.
 */
export class DiskReserve implements AsyncDisposable {
  readonly #directory: string;
  readonly #file: string;
  readonly #spentFile: string;
  readonly #bytes: number;
  readonly #logger: Warnings | undefined;
  #timer: NodeJS.Timeout | undefined;
  #spent = false;
  #gaveUpBytes = 0;
  /** It was wanted since the filling of a new one began. */
  #wanted = false;
  #told: string | undefined;
  #filling: Promise<void> = Promise.resolve();

  /** @param options.logger is told when there is less than usual, and when it is given up. */
  constructor(options: { directory: string; bytes?: number; logger?: Warnings }) {
    this.#directory = options.directory;
    this.#file = path.join(options.directory, fileName);
    this.#spentFile = path.join(options.directory, spentName);
    this.#bytes = options.bytes ?? usualBytes;
    this.#logger = options.logger;
    this.#gaveUpBytes = spentBytes(options.directory);
    if (this.#gaveUpBytes === 0) return;
    this.#spent = true;
    // A process that died while it gave this up may have left it whole.
    this.#giveUp(this.#spentFile);
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
    this.#wanted = true;
    const keptBytes = sizeOf(this.#file);
    if (!this.#spent || keptBytes > 0) this.#gaveUpBytes = keptBytes;
    if (!this.#spent) this.#tell("the disk of the database is full: spawns are refused");
    this.#spent = true;
    if (keptBytes > 0) this.#giveUp(this.#file);
    this.#tryLater();
    return keptBytes > 0;
  }

  /** The file keeps its size and none of its space: without it a restart would begin new things with what the old ones need. */
  #giveUp(file: string): void {
    try {
      renameSync(file, this.#spentFile);
      truncateSync(this.#spentFile, 0);
      truncateSync(this.#spentFile, this.#gaveUpBytes);
    } catch (err) {
      // No room for the name, or a file system without holes: the space is what counts.
      rmSync(file, { force: true });
      rmSync(this.#spentFile, { force: true });
      const directory = this.#directory;
      this.#logger?.warn({ directory, err }, "a restart will not know what of the disk was given up");
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearTimeout(this.#timer);
    await this.#filling;
    clearTimeout(this.#timer);
  }

  async #keep(): Promise<void> {
    const free = freeBytes(this.#directory);
    if (this.#spent && free < neededBytes(this.#gaveUpBytes, this.#bytes)) {
      this.#tell(spentTold({ free, gaveUp: this.#gaveUpBytes, usual: this.#bytes }));
      return this.#tryLater();
    }
    const kept = sizeOf(this.#file);
    const wanted = Math.max(this.#gaveUpBytes, reserveFor({ free, kept, usual: this.#bytes }));
    this.#wanted = false;
    if (wanted > kept) await this.#fill(wanted);
    if (this.#wanted) return this.#tryLater();
    this.#spent = false;
    this.#gaveUpBytes = 0;
    rmSync(this.#spentFile, { force: true });
    if (wanted >= this.#bytes) {
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
    if (this.#wanted) rmSync(draft, { force: true });
    else renameSync(draft, this.#file);
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
    // Wanted within a request, often: what comes of it later is nobody's.
    this.#timer = outsideRequests(() => setTimeout(() => void this.keep(), retryMs));
    this.#timer.unref();
  }
}

/**
 * How much to set aside: the usual size where three times that is free, otherwise a third of what is free beside what is
 * there, and never less than is there; 0 where that is next to nothing. Grows in steps, each of which writes it anew.
 */
function reserveFor({ free, kept, usual }: { free: number; kept: number; usual: number }): number {
  if (kept >= usual || free >= usual * 3) return Math.max(kept, usual);
  const third = Math.min(usual, Math.floor((free + kept) / 3));
  return third < kept + usual / 16 ? kept : third;
}

function neededBytes(gaveUp: number, usual: number): number {
  return gaveUp + usual / 4;
}

function spentTold({ free, gaveUp, usual }: { free: number; gaveUp: number; usual: number }): string {
  return (
    `only ${mib(free)} MiB are free on the disk of the database, and the ${mib(gaveUp)} MiB that were set aside are given up: ` +
    `spawns are refused until ${mib(neededBytes(gaveUp, usual))} MiB are free; destroy sandboxes or free space`
  );
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
  const gaveUp = spentBytes(directory);
  if (gaveUp > 0 && free < neededBytes(gaveUp, usualBytes))
    return spentTold({ free, gaveUp, usual: usualBytes });
  const kept = sizeOf(path.join(directory, fileName));
  const wanted = Math.max(gaveUp, reserveFor({ free, kept, usual: usualBytes }));
  return wanted >= usualBytes ? undefined : lackOf({ free, kept: wanted, usual: usualBytes });
}

/** What a reserve may have left in a directory. */
export function reserveFiles(directory: string): string[] {
  return [fileName, `${fileName}.draft`, spentName].map((name) => path.join(directory, name));
}

/** What was given up and not taken back. */
function spentBytes(directory: string): number {
  return sizeOf(path.join(directory, spentName));
}

function sizeOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

function mib(bytes: number): string {
  return (bytes / 1_048_576).toFixed(bytes < 10 * 1_048_576 ? 1 : 0);
}
