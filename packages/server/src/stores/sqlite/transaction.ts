import type { DatabaseSync } from "node:sqlite";

/** Runs `body` in one write transaction; whatever it throws undoes it. Synchronous, so nothing comes in between. */
export function inTransaction<T>(db: DatabaseSync, body: () => T): T {
  db.exec("BEGIN IMMEDIATE");
  try {
    const result = body();
    db.exec("COMMIT");
    return result;
  } catch (error) {
    if (db.isTransaction) db.exec("ROLLBACK");
    throw error;
  }
}
