import { statSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { Worker } from "node:worker_threads";
import { outsideRequests } from "../../platform/request-scope.ts";
import type { GroupCommit } from "./group-commit.ts";
import type { WatchedDatabase } from "./watched-database.ts";

/**
 * What is written is brought into the database so long after it: what changes again and again meanwhile is brought once. The next write
 * after that begins the log anew, for which SQLite syncs its head on the thread of the service: a caller's wait for the disk.
 */
const pauseMs = 2_000;
/** A log longer than this is used from its beginning again before more is written. SQLite begins anew only when all of it was brought over. */
export const mostLogBytes = 16 << 20;
/** While a round goes on, commits wait for its end once the log is longer by this: the disk is slower than they are. */
const mostMeanwhileBytes = 3 * mostLogBytes;
/** A disk that takes longer is told of, and keeps nobody waiting any more: a service that answers nothing is worse than a long log. */
const patienceMs = 5_000;
/** SQLite's own: after so many pages the connection that writes makes the checkpoint itself. */
const ownAutocheckpoint = 1_000;
/** With the thread at work none: a log that grows while the disk is slow would have everybody wait for that disk between two rounds. */
const noAutocheckpoint = 0;
/** So long a stop waits for what is left of the log; the next start brings over the rest. The process itself ends only with the call that waits for the disk. */
const endMs = 10_000;

/** `left`: how many pages of the log are not in the database yet. */
type Round = { left: number } | { error: string; errcode: unknown };

interface Log {
  warn(fields: object, message: string): void;
  info(fields: object, message: string): void;
}

/**
 * Brings what was committed from the log into the database on a thread with a connection of its own, so that nobody waits for the syncs
 * of the disk that this takes. Durability is that of the connection that writes.
 *
 * At rest until a commit; waiting for `pauseMs`; at work, one round after the other until nothing new was committed. A thread that fails
 * is not started again: the name may stand for another file by then, and the connection that writes goes back to doing it itself.
 */
export class LogCheckpoints implements AsyncDisposable {
  readonly #db: WatchedDatabase;
  readonly #file: string;
  readonly #commit: GroupCommit;
  readonly #logger: Log;
  readonly #worker: Worker;
  readonly #ended: Promise<void>;
  #answered: ((round: Round | undefined) => void) | undefined;
  #timer: NodeJS.Timeout | undefined;
  #working: Promise<void> | undefined;
  #more = false;
  #gone = false;
  #closed = false;
  #holdAboveBytes = mostLogBytes;
  #told: string | undefined;

  /** @param options.file of the database, which `db` has open. */
  constructor(options: { db: WatchedDatabase; file: string; commit: GroupCommit; logger: Log }) {
    this.#db = options.db;
    this.#file = options.file;
    this.#commit = options.commit;
    this.#logger = options.logger;
    this.#worker = new Worker(new URL("./checkpoint-thread.cjs", import.meta.url), {
      workerData: { url: pathToFileURL(options.file).href },
      env: {},
      execArgv: [],
      name: "checkpoints",
      resourceLimits: { maxYoungGenerationSizeMb: 1, maxOldGenerationSizeMb: 16 },
    });
    this.#worker.on("message", (round: Round) => this.#answer(round));
    this.#worker.on("error", (error: Error) => this.#lose(error.message));
    this.#ended = new Promise((resolve) => {
      this.#worker.on("exit", () => {
        this.#lose("it ended");
        resolve();
      });
    });
    this.#worker.unref();
    this.#leaveToWriter(false);
    // Whoever's commit it was, what is done about the log is done for nobody.
    this.#commit.onCommit = () => outsideRequests(() => this.#note());
  }

  /** Everything that was committed until now is in the database when this resolves, unless somebody reads what was before. */
  async settle(): Promise<void> {
    await this.#working;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#work();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#commit.onCommit = undefined;
    if (this.#gone) return;
    this.#worker.postMessage("close");
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, endMs);
    await Promise.race([this.#ended, late]);
    clearTimeout(timer);
    this.#leaveToWriter(true);
  }

  #note(): void {
    this.#more = true;
    const bytes = this.#logBytes();
    if (this.#working !== undefined) {
      if (bytes > this.#holdAboveBytes + mostMeanwhileBytes) this.#hold(this.#working);
      return;
    }
    if (bytes > this.#holdAboveBytes) {
      clearTimeout(this.#timer);
      this.#timer = undefined;
      void this.#work();
      return;
    }
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      void this.#work();
    }, pauseMs).unref();
  }

  #work(): Promise<void> {
    this.#working ??= this.#rounds().finally(() => {
      this.#working = undefined;
      if (this.#more && !this.#closed && !this.#gone) this.#note();
    });
    return this.#working;
  }

  async #rounds(): Promise<void> {
    this.#more = false;
    const first = await this.#round();
    // Whoever read what was before has ended.
    if (first?.left === 0) this.#holdAboveBytes = mostLogBytes;
    const bytes = this.#logBytes();
    if (bytes <= this.#holdAboveBytes) return;
    // The most was brought over while others wrote; what came meanwhile is little, and they wait for that.
    const rest = this.#round();
    this.#hold(rest);
    const last = await rest;
    // Somebody reads what was before, or the disk takes no more: waiting again and again would change nothing.
    this.#holdAboveBytes = last?.left === 0 ? mostLogBytes : bytes + mostLogBytes;
  }

  /** Commits wait for this, but not for a disk that does not answer: the log may grow by as much again then. */
  #hold(work: Promise<unknown>): void {
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(() => {
      this.#holdAboveBytes = this.#logBytes();
      resolve();
    }, patienceMs);
    void work.finally(() => {
      clearTimeout(timer);
      resolve();
    });
    this.#commit.holdUntil(promise);
  }

  /** Does not fail. @returns undefined when it has failed. */
  async #round(): Promise<{ left: number } | undefined> {
    if (this.#gone || this.#closed) return undefined;
    const { promise, resolve } = Promise.withResolvers<Round | undefined>();
    this.#answered = resolve;
    this.#worker.postMessage("checkpoint");
    // Commits may wait for it, which nothing else might keep the process alive for.
    this.#worker.ref();
    const slow = setTimeout(() => {
      if (!this.#closed) this.#tell(`the disk has not answered for ${patienceMs / 1_000} s`);
    }, patienceMs).unref();
    const round = await promise;
    clearTimeout(slow);
    this.#worker.unref();
    if (round === undefined) return undefined;
    if (!("error" in round)) {
      this.#tell(undefined);
      return round;
    }
    this.#db.noteDamage(Object.assign(new Error(round.error), { errcode: round.errcode }));
    this.#tell(round.error);
    return undefined;
  }

  #answer(round: Round | undefined): void {
    const answered = this.#answered;
    this.#answered = undefined;
    answered?.(round);
  }

  #lose(why: string): void {
    if (this.#gone) return;
    this.#gone = true;
    this.#commit.onCommit = undefined;
    if (!this.#closed) {
      this.#leaveToWriter(true);
      const message =
        "the thread that brings the log into the database has ended: requests wait for that from now on";
      this.#logger.warn({ event: "checkpoints.ended", reason: why }, message);
    }
    this.#answer(undefined);
  }

  #tell(failure: string | undefined): void {
    if (failure === this.#told) return;
    this.#told = failure;
    if (failure === undefined)
      this.#logger.info({ event: "checkpoints.resumed" }, "the log is brought into the database again");
    else
      this.#logger.warn(
        { event: "checkpoints.failed", reason: failure },
        "the log cannot be brought into the database now; it grows meanwhile",
      );
  }

  #leaveToWriter(alone: boolean): void {
    if (!this.#db.isOpen) return;
    this.#db.exec(`PRAGMA wal_autocheckpoint = ${alone ? ownAutocheckpoint : noAutocheckpoint}`);
  }

  #logBytes(): number {
    try {
      return statSync(`${this.#file}-wal`, { throwIfNoEntry: false })?.size ?? 0;
    } catch {
      // A right that was taken away, say: SQLite has the file open and goes on. A length that is not known holds nobody.
      return 0;
    }
  }
}
