import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { Birth, Reservation } from "../../ports/store.ts";

/** The table `runs`: how many sandboxes each run of the service has made. A row for each run that made one, kept for good. */
export class SqliteBirths {
  readonly #count: StatementSync;
  readonly #last: StatementSync;

  constructor(db: DatabaseSync) {
    this.#count = db.prepare(`
      INSERT INTO runs (id, sandboxes) VALUES (:run, coalesce(:number, 1))
      ON CONFLICT (id) DO UPDATE SET sandboxes = max(sandboxes, coalesce(:number, sandboxes + 1))
      RETURNING sandboxes AS number`);
    this.#last = db.prepare("SELECT sandboxes AS number FROM runs WHERE id = ?");
  }

  /** Part of a transaction of the caller's. */
  count({ run, number }: NonNullable<Reservation["birth"]>): Birth {
    const counted = this.#count.get({ run, number: number ?? null }) as { number: number };
    return { run, number: number ?? counted.number };
  }

  last(run: string): number {
    return (this.#last.get(run) as { number: number } | undefined)?.number ?? 0;
  }
}
