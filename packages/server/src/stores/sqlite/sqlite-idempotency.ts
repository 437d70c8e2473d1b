import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { SandboxId } from "../../ports/ids.ts";
import type { IdempotencyClaim, IdempotencyStore, SandboxRow } from "../../ports/store.ts";
import type { GroupCommit } from "./group-commit.ts";
import { pauseAfter, slice } from "./slices.ts";

interface Held {
  bodyHash: string;
  sandboxId: SandboxId;
}

/** The table `idempotency`. */
export class SqliteIdempotency implements IdempotencyStore {
  readonly #commit: GroupCommit;
  readonly #select: StatementSync;
  readonly #put: StatementSync;
  readonly #release: StatementSync;
  readonly #releaseAll: StatementSync;
  readonly #leadsTo: StatementSync;
  readonly #purge: StatementSync;

  constructor(db: DatabaseSync, commit: GroupCommit) {
    this.#commit = commit;
    this.#select = prepareSelect(db);
    this.#put = db.prepare(
      "INSERT OR REPLACE INTO idempotency (owner_id, key, body_hash, sandbox_id, expires_at) VALUES (?, ?, ?, ?, ?)",
    );
    this.#release = db.prepare("DELETE FROM idempotency WHERE owner_id = ? AND key = ? AND sandbox_id = ?");
    this.#releaseAll = db.prepare("DELETE FROM idempotency WHERE sandbox_id = ?");
    this.#leadsTo = db.prepare("SELECT 1 FROM idempotency WHERE sandbox_id = ?");
    this.#purge = preparePurge(db);
  }

  async find(wanted: Parameters<IdempotencyStore["find"]>[0]): Promise<Held | undefined> {
    return this.held(wanted.ownerId, wanted.key, wanted.now);
  }

  async release(entry: { ownerId: string; key: string; sandboxId: SandboxId }): Promise<void> {
    await this.#commit.write(() => this.#release.run(entry.ownerId, entry.key, entry.sandboxId));
  }

  async purge(before: Date, options: { signal?: AbortSignal } = {}): Promise<number> {
    let purged = 0;
    for (;;) {
      options.signal?.throwIfAborted();
      const startedMs = performance.now();
      const { changes } = await this.#commit.write(() => this.#purge.run(before.getTime(), slice));
      purged += Number(changes);
      if (Number(changes) < slice) return purged;
      await pauseAfter(startedMs);
    }
  }

  /** Within a transaction of the caller's, as are the next three. */
  held(ownerId: string, key: string, now: Date): Held | undefined {
    return this.#select.get(ownerId, key, now.getTime()) as Held | undefined;
  }

  claim(row: SandboxRow, { key, bodyHash, expiresAt }: IdempotencyClaim): void {
    this.#put.run(row.ownerId, key, bodyHash, row.id, expiresAt.getTime());
  }

  releaseAll(id: string): void {
    this.#releaseAll.run(id);
  }

  leadsTo(id: string): boolean {
    return this.#leadsTo.get(id) !== undefined;
  }
}

function prepareSelect(db: DatabaseSync): StatementSync {
  return db.prepare(`
    SELECT body_hash AS bodyHash, sandbox_id AS sandboxId FROM idempotency
    WHERE owner_id = ? AND key = ? AND expires_at > ?
      AND EXISTS (SELECT 1 FROM sandboxes WHERE sandboxes.id = idempotency.sandbox_id)`);
}

function preparePurge(db: DatabaseSync): StatementSync {
  return db.prepare(`
    DELETE FROM idempotency WHERE (owner_id, key) IN (
      SELECT owner_id, key FROM idempotency WHERE expires_at <= ? LIMIT ?)`);
}
