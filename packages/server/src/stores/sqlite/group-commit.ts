import type { DatabaseSync, StatementSync } from "node:sqlite";

interface Write {
  run: () => void;
  committed: () => void;
  failed: (error: unknown) => void;
}

/** A batch ends after so many writes, or so many milliseconds; the rest goes into the next turn of the event loop. */
const largestBatch = 512;
const longestBatchMs = 10;

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
  #waiting: Write[] = [];
  #scheduled = false;

  constructor(db: DatabaseSync, options: { nowMs?: () => number } = {}) {
    this.#db = db;
    this.#begin = db.prepare("SAVEPOINT one_write");
    this.#keep = db.prepare("RELEASE one_write");
    this.#undo = db.prepare("ROLLBACK TO one_write");
    this.#nowMs = options.nowMs ?? (() => performance.now());
  }

  write<T>(statements: () => T): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      let result: T;
      this.#waiting.push({
        run: () => {
          result = statements();
        },
        committed: () => resolve(result),
        failed: reject,
      });
      this.#schedule();
    });
  }

  /** Commits everything that waits, now. */
  flush(): void {
    while (this.#waiting.length > 0) this.#commitBatch();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      if (this.#waiting.length > 0) this.#commitBatch();
      if (this.#waiting.length > 0) this.#schedule();
    });
  }

  #commitBatch(): void {
    const taken: Write[] = [];
    const done: Write[] = [];
    try {
      this.#db.exec("BEGIN IMMEDIATE");
      const startedMs = this.#nowMs();
      for (const write of this.#waiting) {
        taken.push(write);
        if (this.#runAlone(write)) done.push(write);
        if (taken.length >= largestBatch || this.#nowMs() - startedMs >= longestBatchMs) break;
      }
      this.#db.exec("COMMIT");
    } catch (error) {
      if (this.#db.isTransaction) this.#db.exec("ROLLBACK");
      // Without a transaction nobody's turn would come: a database that cannot be written refuses all who wait.
      const refused = taken.length === 0 ? this.#waiting.splice(0) : this.#waiting.splice(0, taken.length);
      for (const write of refused) write.failed(error);
      return;
    }
    this.#waiting.splice(0, taken.length);
    for (const write of done) write.committed();
  }

  /** @returns whether its effects stand. @throws when its failure ended the whole transaction, as a full disk may. */
  #runAlone(write: Write): boolean {
    this.#begin.run();
    try {
      write.run();
      this.#keep.run();
      return true;
    } catch (error) {
      write.failed(error);
      if (!this.#db.isTransaction) throw error;
      this.#undo.run();
      this.#keep.run();
      return false;
    }
  }
}
