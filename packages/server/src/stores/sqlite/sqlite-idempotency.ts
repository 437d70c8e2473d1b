import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { SandboxId } from "../../ports/ids.ts";
import type { IdempotencyStore } from "../../ports/store.ts";
import type { GroupCommit } from "./group-commit.ts";

/** The table `idempotency`. */
export class SqliteIdempotency implements IdempotencyStore {
  readonly #commit: GroupCommit;
  readonly #select: StatementSync;
  readonly #put: StatementSync;
  readonly #release: StatementSync;
  readonly #purge: StatementSync;

  constructor(db: DatabaseSync, commit: GroupCommit) {
    this.#commit = commit;
    this.#select = db.prepare(
      "SELECT body_hash, sandbox_id FROM idempotency WHERE owner_id = ? AND key = ? AND expires_at > ?",
    );
    this.#put = db.prepare(
      "INSERT OR REPLACE INTO idempotency (owner_id, key, body_hash, sandbox_id, expires_at) VALUES (?, ?, ?, ?, ?)",
    );
    this.#release = db.prepare("DELETE FROM idempotency WHERE owner_id = ? AND key = ? AND sandbox_id = ?");
    this.#purge = db.prepare("DELETE FROM idempotency WHERE expires_at <= ?");
  }

  claim(entry: Parameters<IdempotencyStore["claim"]>[0]): ReturnType<IdempotencyStore["claim"]> {
    return this.#commit.write(() => {
      const held = this.#select.get(entry.ownerId, entry.key, entry.now.getTime()) as
        | { body_hash: string; sandbox_id: string }
        | undefined;
      if (held !== undefined) {
        return { claimed: false, bodyHash: held.body_hash, sandboxId: held.sandbox_id as SandboxId };
      }
      this.#put.run(entry.ownerId, entry.key, entry.bodyHash, entry.sandboxId, entry.expiresAt.getTime());
      return { claimed: true };
    });
  }

  async release(entry: { ownerId: string; key: string; sandboxId: SandboxId }): Promise<void> {
    await this.#commit.write(() => this.#release.run(entry.ownerId, entry.key, entry.sandboxId));
  }

  async purge(before: Date): Promise<number> {
    return Number((await this.#commit.write(() => this.#purge.run(before.getTime()))).changes);
  }
}
