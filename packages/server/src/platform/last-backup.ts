import { randomUUID } from "node:crypto";
import { readFile, rename, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import type { Clock } from "../ports/clock.ts";

const fileName = "last-backup.json";
const lookEveryMs = 15_000;

/** Leaves in a data directory when it was backed up last, readable by a service that runs as somebody else. */
export async function noteBackup(dataDir: string, at: Date): Promise<void> {
  const draft = path.join(dataDir, `.${fileName}.${randomUUID()}`);
  try {
    await writeFile(draft, `${JSON.stringify({ at: at.toISOString() })}\n`, { mode: 0o644, flag: "wx" });
    await rename(draft, path.join(dataDir, fileName));
  } catch (error) {
    await rm(draft, { force: true });
    throw error;
  }
}

/** A copy has what its original noted, and no backup of its own. */
export async function forgetBackup(dataDir: string): Promise<void> {
  await rm(path.join(dataDir, fileName), { force: true });
}

/**
 * When a data directory was backed up last. Who asks often (`at`) does not wait for the disk, which is looked at behind the answer;
 * who asks now and then (`look`) is told what is there.
 */
export class LastBackup {
  readonly #file: string;
  readonly #clock: Pick<Clock, "monotonicMs">;
  #at: Date | undefined;
  #lookedMs: number;
  #looking: Promise<Date | undefined> | undefined;

  /** @returns once it has been looked at for the first time. */
  static async open(dataDir: string, clock: Pick<Clock, "monotonicMs">): Promise<LastBackup> {
    const last = new LastBackup(dataDir, clock);
    await last.look();
    return last;
  }

  private constructor(dataDir: string, clock: Pick<Clock, "monotonicMs">) {
    this.#file = path.join(dataDir, fileName);
    this.#clock = clock;
    this.#lookedMs = clock.monotonicMs();
  }

  /** undefined: never, as far as this directory says. */
  get at(): Date | undefined {
    if (this.#clock.monotonicMs() - this.#lookedMs >= lookEveryMs) void this.look();
    return this.#at;
  }

  /** As `at`, as of now. Takes as long as the disk does, of which it keeps one question at a time; does not fail. */
  look(): Promise<Date | undefined> {
    this.#looking ??= this.#look().finally(() => {
      this.#looking = undefined;
    });
    return this.#looking;
  }

  async #look(): Promise<Date | undefined> {
    try {
      const { at } = JSON.parse(await readFile(this.#file, "utf8")) as { at?: unknown };
      const found = new Date(typeof at === "string" ? at : Number.NaN);
      this.#at = Number.isNaN(found.getTime()) ? undefined : found;
    } catch {
      // There is none, or it says nothing.
      this.#at = undefined;
    } finally {
      this.#lookedMs = this.#clock.monotonicMs();
    }
    return this.#at;
  }
}
