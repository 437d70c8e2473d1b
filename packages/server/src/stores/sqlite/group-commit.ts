import type { DatabaseSync } from "node:sqlite";

interface Write {
  run: () => void;
  committed: () => void;
  failed: (error: unknown) => void;
}

/** Writes in one transaction at most; the rest goes into the next. */
const largestBatch = 512;

/**
 * Puts the writes that come within one turn of the event loop into one transaction; each resolves once that is
 * committed. A write that throws is undone alone: its last statement must be the only one that changes anything, so
 * that SQLite's own statement rollback is enough.
 */
export class GroupCommit {
  readonly #db: DatabaseSync;
  #waiting: Write[] = [];
  #scheduled = false;

  constructor(db: DatabaseSync) {
    this.#db = db;
  }

  write<T>(statement: () => T): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      let result: T;
      this.#waiting.push({
        run: () => {
          result = statement();
        },
        committed: () => resolve(result),
        failed: reject,
      });
      if (this.#scheduled) return;
      this.#scheduled = true;
      setImmediate(() => this.flush());
    });
  }

  /** Commits what waits, now. */
  flush(): void {
    this.#scheduled = false;
    while (this.#waiting.length > 0) this.#commit(this.#waiting.splice(0, largestBatch));
  }

  #commit(batch: readonly Write[]): void {
    const done: Write[] = [];
    try {
      this.#db.exec("BEGIN IMMEDIATE");
      for (const write of batch) {
        try {
          write.run();
          done.push(write);
        } catch (error) {
          write.failed(error);
          // Some failures, a full disk among them, end the whole transaction.
          if (!this.#db.isTransaction) throw error;
        }
      }
      this.#db.exec("COMMIT");
    } catch (error) {
      if (this.#db.isTransaction) this.#db.exec("ROLLBACK");
      for (const write of batch) write.failed(error);
      return;
    }
    for (const write of done) write.committed();
  }
}
