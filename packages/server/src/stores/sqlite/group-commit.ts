import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { DiskReserve } from "../../platform/disk-reserve.ts";
import { Histogram } from "../../platform/metrics/histogram.ts";
import { StorageFull, Unavailable } from "../../ports/errors.ts";
import { isDiskFull, isUnwritable } from "./disk-errors.ts";
import { WatchedDatabase } from "./watched-database.ts";

interface Write {
  run: () => void;
  lasting: boolean;
  committed: () => void;
  failed: (error: unknown) => void;
}

/** A batch ends after so many writes, or so many milliseconds; the rest goes into the next turn of the event loop. */
const largestBatch = 512;
const longestBatchMs = 10;
const commitBoundsMs = [0.5, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000];

/**
 * Puts the writes that come within one turn of the event loop into one transaction; each resolves once that is
 * committed. A write that throws is undone alone, however many statements it is made of.
 */
export class GroupCommit {
  readonly #db: DatabaseSync;
  readonly #begin: StatementSync;
  readonly #keep: StatementSync;
  readonly #undo: StatementSync;
  readonly #nowMs: () => number;
  readonly #reserve: DiskReserve | undefined;
  #waiting: Write[] = [];
  #scheduled = false;
  #closed = false;
  #unwritable = false;
  #held = 0;
  /** Since when somebody waits for what holds commits. */
  #heldSinceMs: number | undefined;
  /** Called after each batch that was committed. */
  onCommit: (() => void) | undefined;
  /** Of each batch that was committed, from its first statement on, or from when it had to wait for what held it. */
  readonly commits = new Histogram(commitBoundsMs);

  /** @param options.reserve is given up when the disk is full, so that what ends can be written down. */
  constructor(db: DatabaseSync, options: { nowMs?: () => number; reserve?: DiskReserve | undefined } = {}) {
    this.#db = db;
    this.#reserve = options.reserve;
    this.#begin = db.prepare("SAVEPOINT one_write");
    this.#keep = db.prepare("RELEASE one_write");
    this.#undo = db.prepare("ROLLBACK TO one_write");
    this.#nowMs = options.nowMs ?? (() => performance.now());
  }

  /**
   * @param options.lasting it outlives a power cut as well: the batch waits for the disk, and so does everybody meanwhile.
   * @returns a rejection with Unavailable once it is closed.
   */
  write<T>(statements: () => T, { lasting = false } = {}): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.#closed) throw new Unavailable("the database is closed: the service stops");
      let result: T;
      this.#waiting.push({
        run: () => {
          result = statements();
        },
        lasting,
        committed: () => resolve(result),
        failed: reject,
      });
      this.#schedule();
    });
  }

  /** @throws what `refuseWhileFull` does; Unavailable when the database is damaged: what was begun would be lost with it. */
  refuseNew(): void {
    if (this.#db instanceof WatchedDatabase) this.#db.refuseDamaged();
    this.refuseWhileFull();
  }

  /** @throws StorageFull while the disk is so full that only the end of things can be written down. */
  refuseWhileFull(): void {
    if (this.#reserve?.spent !== true) return;
    throw new StorageFull(
      "the disk of the database is full; destroy sandboxes or free space, then try again",
    );
  }

  /** The last write was refused because nothing can be written. */
  get unwritable(): boolean {
    return this.#unwritable;
  }

  /** Commits nothing before this has settled, or everything with `close`: what waits stays in line. */
  holdUntil(settled: Promise<unknown>): void {
    this.#held += 1;
    const release = () => {
      this.#held -= 1;
      if (this.#waiting.length > 0) this.#schedule();
    };
    settled.then(release, release);
  }

  /** Commits everything that waits, now, and takes nothing more: the database is about to be closed. */
  close(): void {
    this.#closed = true;
    while (this.#waiting.length > 0) this.#commitBatch();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      if (this.#held > 0) {
        this.#heldSinceMs ??= this.#nowMs();
        return;
      }
      if (this.#waiting.length > 0) this.#commitBatch();
      if (this.#waiting.length > 0) this.#schedule();
    });
  }

  #commitBatch(): void {
    const taken: Write[] = [];
    const done: Write[] = [];
    const failures = new Map<Write, unknown>();
    const lasting = this.#waiting.some((write) => write.lasting);
    const begunMs = this.#heldSinceMs ?? this.#nowMs();
    this.#heldSinceMs = undefined;
    try {
      // Not within a transaction.
      if (lasting) this.#db.exec("PRAGMA synchronous = FULL");
      this.#db.exec("BEGIN IMMEDIATE");
      const startedMs = this.#nowMs();
      for (const write of this.#waiting) {
        taken.push(write);
        const failure = this.#runAlone(write);
        if (failure === undefined) done.push(write);
        else failures.set(write, failure.cause);
        if (taken.length >= largestBatch || this.#nowMs() - startedMs >= longestBatchMs) break;
      }
      this.#db.exec("COMMIT");
      this.commits.observe(this.#nowMs() - begunMs);
    } catch (error) {
      if (this.#db.isOpen && this.#db.isTransaction) this.#db.exec("ROLLBACK");
      // With the reserve given up there is room for the same writes: they stay in line.
      if (isDiskFull(error) && this.#reserve?.spend() === true) return;
      const told = toldOf(error);
      if (isUnwritable(error)) this.#unwritable = true;
      // Without a transaction nobody's turn would come: a database that cannot be written refuses all who wait.
      const refused = taken.length === 0 ? this.#waiting.splice(0) : this.#waiting.splice(0, taken.length);
      for (const write of refused) write.failed(told);
      return;
    } finally {
      if (lasting && this.#db.isOpen) this.#db.exec("PRAGMA synchronous = NORMAL");
    }
    this.#waiting.splice(0, taken.length);
    this.onCommit?.();
    if (done.length > 0) this.#unwritable = false;
    else if ([...failures.values()].some(isUnwritable)) this.#unwritable = true;
    for (const write of done) write.committed();
    for (const [write, error] of failures) write.failed(toldOf(error));
  }

  /**
   * @returns why none of its effects stand; undefined when they do.
   * @throws what ends the whole transaction, a full disk above all.
   */
  #runAlone(write: Write): { cause: unknown } | undefined {
    this.#begin.run();
    try {
      write.run();
      this.#keep.run();
      return undefined;
    } catch (error) {
      if (!this.#db.isTransaction || isDiskFull(error)) throw error;
      this.#undo.run();
      this.#keep.run();
      return { cause: error };
    }
  }
}

function toldOf(error: unknown): unknown {
  if (isDiskFull(error))
    return new StorageFull("the disk of the database is full; free space, then try again", { cause: error });
  if (isUnwritable(error))
    return new Unavailable("the database cannot be written now; its disk may be read-only or broken", {
      cause: error,
      retryAfterS: 5,
    });
  return error;
}
