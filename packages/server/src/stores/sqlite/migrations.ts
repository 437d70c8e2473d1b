import type { DatabaseSync } from "node:sqlite";

/**
 * Numbered steps from an empty database to the newest shape; step n brings `user_version` to n. A released step is
 * never changed: what comes later is a new step.
 */
export const migrations: readonly string[] = [
  `
  CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    runtime_id TEXT NOT NULL,
    state TEXT NOT NULL,
    provider TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    image TEXT NOT NULL,
    memory_mb INTEGER NOT NULL,
    vcpus INTEGER NOT NULL,
    owner_id TEXT NOT NULL,
    metadata TEXT NOT NULL,
    env TEXT NOT NULL,
    user TEXT,
    workdir TEXT,
    network TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    destroyed_at INTEGER,
    destroy_requested INTEGER NOT NULL,
    error TEXT
  ) STRICT;
  CREATE INDEX sandboxes_newest ON sandboxes (created_at DESC, id DESC);
  CREATE INDEX sandboxes_live ON sandboxes (created_at DESC, id DESC) WHERE state <> 'destroyed';
  CREATE INDEX sandboxes_active ON sandboxes (owner_id) WHERE state IN ('creating', 'running', 'unhealthy');
  CREATE INDEX sandboxes_destroyed ON sandboxes (destroyed_at) WHERE state = 'destroyed';

  CREATE TABLE idempotency (
    owner_id TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (owner_id, key)
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX idempotency_sandbox ON idempotency (sandbox_id);
  CREATE INDEX idempotency_expiry ON idempotency (expires_at);

  CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    type TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    timestamp INTEGER NOT NULL,
    data TEXT
  ) STRICT;
  `,
];

/** Brings the database to the newest shape, each step in a transaction of its own. */
export function migrate(
  db: DatabaseSync,
  options: { path: string; steps?: readonly string[] } = { path: "" },
): void {
  const steps = options.steps ?? migrations;
  const current = Number(db.prepare("PRAGMA user_version").get()?.user_version ?? 0);
  if (current > steps.length) {
    throw new Error(
      `the database ${options.path} has version ${current}, this release knows versions up to ${steps.length}: ` +
        "start a newer release of alcove, or give it another database",
    );
  }
  for (let version = current + 1; version <= steps.length; version++) {
    db.exec("BEGIN IMMEDIATE");
    try {
      db.exec(steps[version - 1] ?? "");
      db.exec(`PRAGMA user_version = ${version}`);
      db.exec("COMMIT");
    } catch (error) {
      db.exec("ROLLBACK");
      throw new Error(`the database ${options.path} could not be brought to version ${version}`, {
        cause: error,
      });
    }
  }
}
