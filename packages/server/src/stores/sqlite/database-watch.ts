import { stat } from "node:fs/promises";
import type { GroupCommit } from "./group-commit.ts";
import { damagedToAll } from "./watched-database.ts";

const pauseMs = 10_000;

interface Log {
  error(fields: object, message: string): void;
  info(fields: object, message: string): void;
}

/**
 * Whether what is written arrives in the database: a write now and then finds out that it cannot be written, and that it
 * can again; that it is damaged it is told by whatever met that; the names of its files are looked at, because what is removed or replaced under an open connection takes
 * everything without an error.
 */
export class DatabaseWatch implements AsyncDisposable {
  readonly #files: ReadonlyMap<string, string>;
  readonly #commit: Pick<GroupCommit, "unwritable">;
  readonly #damage: () => string | undefined;
  readonly #write: () => Promise<void>;
  readonly #logger: Log;
  #missing: string | undefined;
  #told: string | undefined;
  #timer: NodeJS.Timeout | undefined;
  #looking: Promise<void> = Promise.resolve();
  #closed = false;

  /**
   * @param options.files those that are open: path to `identityOf` it. @param options.damage names the file and the way out.
   * @param options.write anything, not rejecting.
   */
  constructor(options: {
    files: ReadonlyMap<string, string>;
    commit: Pick<GroupCommit, "unwritable">;
    damage: () => string | undefined;
    write: () => Promise<void>;
    logger: Log;
  }) {
    this.#files = options.files;
    this.#commit = options.commit;
    this.#damage = options.damage;
    this.#write = options.write;
    this.#logger = options.logger;
    this.#tell();
    this.#later();
  }

  /** Why nothing that is written now would last. */
  get refusal(): string | undefined {
    // Who asks for readiness has no key: the path stands in the log.
    if (this.#missing !== undefined)
      return "a file of the database was removed or replaced; the log says more";
    if (this.#damage() !== undefined) return damagedToAll;
    return this.#commit.unwritable
      ? "the database cannot be written; its disk may be read-only or broken"
      : undefined;
  }

  /** Looks now. */
  async look(): Promise<void> {
    await this.#write();
    let missing: string | undefined;
    for (const [file, identity] of this.#files) {
      const found = await identityOf(file);
      if (found === identity || missing !== undefined) continue;
      missing =
        `${file} was ${found === undefined ? "removed" : "replaced"} under the running service: what is written is lost ` +
        "with its end. Put that very file back, or restart the service with a backup: sandboxes that run are taken in " +
        "again from their records, quotas, templates and keys only from the backup";
    }
    this.#missing = missing;
    this.#tell();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    await this.#looking;
  }

  #tell(): void {
    const message = this.#missing ?? this.#damage() ?? this.refusal;
    if (message === this.#told) return;
    this.#told = message;
    if (message !== undefined) this.#logger.error({}, message);
    else this.#logger.info({}, "what is written arrives in the database again");
  }

  #later(): void {
    this.#timer = setTimeout(() => {
      this.#looking = this.look()
        .catch((error: unknown) => this.#logger.error({ err: error }, "the database could not be looked at"))
        .finally(() => {
          if (!this.#closed) this.#later();
        });
    }, pauseMs);
    this.#timer.unref();
  }
}

/** Which file a name stands for now. @returns undefined when it stands for none. */
export async function identityOf(file: string): Promise<string | undefined> {
  try {
    const { dev, ino } = await stat(file, { bigint: true });
    return `${dev}:${ino}`;
  } catch (error) {
    if (error instanceof Error && "code" in error && (error.code === "ENOENT" || error.code === "ENOTDIR"))
      return undefined;
    throw error;
  }
}
