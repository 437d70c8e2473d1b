import { readdirSync, readFileSync } from "node:fs";
import { open, readdir, readFile } from "node:fs/promises";
import type { Clock, Timer } from "../ports/clock.ts";
import type { Logger } from "./logger.ts";
import { isOutOfDescriptors } from "./momentary.ts";

const lookMs = 5_000;
const quietMs = 60_000;
const figuresMs = 15_000;
const ownDescriptors = "/proc/self/fd";

/** How many descriptors this process may have open; infinity where that cannot be read. */
export async function descriptorLimit(): Promise<number> {
  return limitIn(await readFile("/proc/self/limits", "utf8").catch(() => ""));
}

function limitIn(limits: string): number {
  return Number(/^Max open files +(\d+)/m.exec(limits)?.[1] ?? Number.POSITIVE_INFINITY);
}

/** How many descriptors this process has open, looked at every 15 seconds: there may be many thousands. */
export class DescriptorFigures implements Disposable {
  readonly #clock: Pick<Clock, "setTimer">;
  #open: number;
  readonly #most: number;
  #timer: Timer | undefined;
  #closed = false;

  constructor(options: { clock: Pick<Clock, "setTimer"> }) {
    this.#clock = options.clock;
    this.#open = orWithout(() => readdirSync(ownDescriptors).length, 0);
    this.#most = limitIn(orWithout(() => readFileSync("/proc/self/limits", "utf8"), ""));
    this.#lookLater();
  }

  /** `open`: 0 where that cannot be read; `most`: infinity then. */
  get all(): { open: number; most: number } {
    return { open: this.#open, most: this.#most };
  }

  [Symbol.dispose](): void {
    this.#closed = true;
    this.#timer?.cancel();
  }

  #lookLater(): void {
    if (!this.#closed) this.#timer = this.#clock.setTimer(figuresMs, () => void this.#look());
  }

  async #look(): Promise<void> {
    this.#open = await readdir(ownDescriptors).then(
      ({ length }) => length,
      () => this.#open,
    );
    this.#lookLater();
  }
}

/** Only Linux has these files. */
function orWithout<T>(read: () => T, without: T): T {
  try {
    return read();
  } catch {
    return without;
  }
}

/** @returns why the connections that are allowed can never be there; undefined when they can, or have no limit. */
export function tooFewDescriptors(given: { limit: number; maxConnections: number }): string | undefined {
  const { limit, maxConnections } = given;
  if (maxConnections === 0 || limit >= maxConnections) return undefined;
  return `server.max_connections is ${maxConnections}, but this process may have no more than ${limit} descriptors open: LimitNOFILE= in the unit or ulimit -n raises that`;
}

/**
 * Tells, once a minute, while there are no descriptors left. Connections are then closed as soon as they are made, and
 * nothing else tells: the listener does not learn of them.
 */
export class DescriptorWatch implements Disposable {
  readonly #logger: Logger;
  readonly #clock: Clock;
  readonly #tryOpen: () => Promise<void>;
  #timer: Timer | undefined;
  #toldMs = Number.NEGATIVE_INFINITY;
  #closed = false;

  constructor(options: { logger: Logger; clock: Clock; tryOpen?: () => Promise<void> }) {
    this.#logger = options.logger;
    this.#clock = options.clock;
    this.#tryOpen = options.tryOpen ?? openAnything;
    this.#lookLater();
  }

  [Symbol.dispose](): void {
    this.#closed = true;
    this.#timer?.cancel();
  }

  #lookLater(): void {
    if (!this.#closed) this.#timer = this.#clock.setTimer(lookMs, () => void this.#look());
  }

  async #look(): Promise<void> {
    try {
      await this.#tryOpen();
    } catch (error) {
      if (isOutOfDescriptors(error)) this.#tell((error as NodeJS.ErrnoException).code);
    }
    this.#lookLater();
  }

  #tell(code: string | undefined): void {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#toldMs < quietMs) return;
    this.#toldMs = nowMs;
    this.#logger.warn(
      { code },
      "no descriptor is left: connections are closed as they come; raise LimitNOFILE= in the unit or ulimit -n, or lower server.max_connections",
    );
  }
}

async function openAnything(): Promise<void> {
  await using _ = await open("/dev/null");
}
