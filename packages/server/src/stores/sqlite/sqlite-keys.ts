import type { DatabaseSync, StatementSync } from "node:sqlite";
import { keyScopes } from "@alcove/wire";
import type { KeyRow, KeyStore } from "../../ports/key-store.ts";
import type { GroupCommit } from "./group-commit.ts";

interface KeyRecord {
  name: string;
  hash: string;
  owner_id: string;
  scopes: string;
  created_at: number;
  expires_at: number | null;
  last_used_at: number | null;
}

/** A key that was revoked stays so, and one that was handed out is known, after a power cut too. */
const lasting = { lasting: true };

/** The table `api_keys`. */
export class SqliteKeys implements KeyStore {
  readonly #commit: GroupCommit;
  readonly #create: StatementSync;
  readonly #list: StatementSync;
  readonly #remove: StatementSync;
  readonly #used: StatementSync;

  constructor(db: DatabaseSync, commit: GroupCommit) {
    this.#commit = commit;
    this.#create = db.prepare(`
      INSERT INTO api_keys (name, hash, owner_id, scopes, created_at, expires_at, last_used_at)
      VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING`);
    this.#list = db.prepare("SELECT * FROM api_keys ORDER BY name");
    this.#remove = db.prepare("DELETE FROM api_keys WHERE name = ?");
    this.#used = db.prepare(
      "UPDATE api_keys SET last_used_at = max(coalesce(last_used_at, 0), ?) WHERE name = ?",
    );
  }

  async create(key: KeyRow): Promise<boolean> {
    const { changes } = await this.#commit.write(() => {
      this.#commit.refuseNew();
      return this.#create.run(
        key.name,
        key.hash,
        key.ownerId,
        key.scopes.join(","),
        key.createdAt.getTime(),
        key.expiresAt?.getTime() ?? null,
        key.lastUsedAt?.getTime() ?? null,
      );
    }, lasting);
    return changes > 0;
  }

  async list(): Promise<KeyRow[]> {
    return (this.#list.all() as unknown as KeyRecord[]).map(fromRecord);
  }

  async remove(name: string): Promise<boolean> {
    const { changes } = await this.#commit.write(() => this.#remove.run(name), lasting);
    return changes > 0;
  }

  async used(uses: readonly { name: string; at: Date }[]): Promise<void> {
    await this.#commit.write(() => {
      for (const { name, at } of uses) this.#used.run(at.getTime(), name);
    });
  }
}

function fromRecord(record: KeyRecord): KeyRow {
  const scopes = record.scopes.split(",");
  return {
    name: record.name,
    hash: record.hash,
    ownerId: record.owner_id,
    scopes: keyScopes.filter((scope) => scopes.includes(scope)),
    createdAt: new Date(record.created_at),
    expiresAt: record.expires_at === null ? null : new Date(record.expires_at),
    lastUsedAt: record.last_used_at === null ? null : new Date(record.last_used_at),
  };
}
