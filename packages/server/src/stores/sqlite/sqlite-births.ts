import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { Birth } from "../../ports/store.ts";

/** The table `runs`: how many sandboxes each run of the service has made. A row for each run that made one, kept for good. */
export class SqliteBirths {
  readonly #next: StatementSync;
  readonly #count: StatementSync;
  readonly #last: StatementSync;

  constructor(db: DatabaseSync) {
    this.#next = db.prepare(`
      INSERT INTO runs (id, sandboxes) VALUES (?, 1)
      ON CONFLICT (id) DO UPDATE SET sandboxes = sandboxes + 1
      RETURNING sandboxes AS number`);
    this.#count = db.prepare(`
      INSERT INTO runs (id, sandboxes) VALUES (?, ?)
      ON CONFLICT (id) DO UPDATE SET sandboxes = max(sandboxes, excluded.sandboxes)`);
    this.#last = db.prepare("SELECT sandboxes AS number FROM runs WHERE id = ?");
  }

  /** Part of a transaction of the caller's. */
  next(run: string): Birth {
    const { number } = this.#next.get(run) as { number: number };
    return { run, number };
  }

  /** Likewise. */
  count({ run, number }: Birth): void {
    this.#count.run(run, number);
  }

  last(run: string): number {
    return (this.#last.get(run) as { number: number } | undefined)?.number ?? 0;
  }
}
