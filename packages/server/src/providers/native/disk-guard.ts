import { execFile } from "node:child_process";
import { statfs } from "node:fs/promises";
import { basename } from "node:path";
import { promisify } from "node:util";
import type { Logger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";

const lookEveryMs = 5_000;
const measureMs = 20_000;

/**
 * Keeps `minFreeMb` free on the file system of the runtimes: below that the largest writer is stopped, one at a look.
 * Looks only while there are runtimes.
 */
export class DiskGuard implements AsyncDisposable {
  readonly #root: string;
  readonly #minFreeMb: number;
  readonly #logger: Logger;
  readonly #running: () => Iterable<RuntimeId>;
  readonly #path: (runtimeId: RuntimeId) => string;
  readonly #stop: (runtimeId: RuntimeId, reason: string) => Promise<void>;
  #timer: NodeJS.Timeout | undefined;
  #looking: Promise<void> | undefined;

  constructor(options: {
    root: string;
    minFreeMb: number;
    logger: Logger;
    running: () => Iterable<RuntimeId>;
    path: (runtimeId: RuntimeId) => string;
    stop: (runtimeId: RuntimeId, reason: string) => Promise<void>;
  }) {
    this.#root = options.root;
    this.#minFreeMb = options.minFreeMb;
    this.#logger = options.logger;
    this.#running = options.running;
    this.#path = options.path;
    this.#stop = options.stop;
  }

  /** Does nothing when it runs already, or when no space has to be kept free. */
  start(): void {
    if (this.#timer !== undefined || this.#minFreeMb === 0) return;
    this.#timer = setInterval(() => {
      this.#looking ??= this.look()
        .catch((error: unknown) =>
          this.#logger.warn({ err: error }, "free disk space could not be looked at"),
        )
        .finally(() => {
          this.#looking = undefined;
        });
    }, lookEveryMs);
    this.#timer.unref();
  }

  /** One look; stops a runtime when space is short. */
  async look(): Promise<void> {
    const runtimes = [...this.#running()];
    if (runtimes.length === 0) return;
    const { bavail, bsize } = await statfs(this.#root);
    const freeMb = (bavail * bsize) / 1024 ** 2;
    if (freeMb >= this.#minFreeMb) return;
    const largest = await this.#largest(runtimes);
    if (largest === undefined) return;
    const reason =
      `stopped: it had written ${largest.mb} MB and ${Math.round(freeMb)} MB were free below data_dir, ` +
      `less than the ${this.#minFreeMb} MB of providers.native.min_free_mb`;
    this.#logger.warn({ runtime_id: largest.runtimeId, free_mb: Math.round(freeMb) }, reason);
    await this.#stop(largest.runtimeId, reason);
  }

  async #largest(runtimes: readonly RuntimeId[]): Promise<{ runtimeId: RuntimeId; mb: number } | undefined> {
    const paths = runtimes.map((runtimeId) => this.#path(runtimeId));
    const lines = await diskUsage(paths);
    let largest: { runtimeId: RuntimeId; mb: number } | undefined;
    for (const line of lines) {
      const [kilobytes = "", path = ""] = line.split("\t");
      const mb = Math.round(Number(kilobytes) / 1024);
      const runtimeId = runtimes.find((id) => id === basename(path));
      if (runtimeId !== undefined && mb >= (largest?.mb ?? 0)) largest = { runtimeId, mb };
    }
    return largest;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    this.#timer = undefined;
    await this.#looking;
  }
}

/** `du` names what it cannot read or what went away and exits with 1; what it printed still counts. */
async function diskUsage(paths: readonly string[]): Promise<string[]> {
  const work = promisify(execFile)("du", ["-skx", "--", ...paths], {
    timeout: measureMs,
    maxBuffer: 16 << 20,
  });
  const { stdout } = await work.catch((error: unknown) => {
    if (error instanceof Error && "stdout" in error) return { stdout: String(error.stdout) };
    throw error;
  });
  return stdout.split("\n").filter((line) => line !== "");
}
