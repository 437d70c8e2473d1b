import type { KeyScope } from "@alcove/wire";

/** A key that was made by the service. The key itself is kept nowhere. */
export interface KeyRow {
  /** Unique, for logs and for revoking. */
  name: string;
  /** SHA-256 of the key, hexadecimal. */
  hash: string;
  /** Empty: everybody's. */
  ownerId: string;
  scopes: readonly KeyScope[];
  createdAt: Date;
  expiresAt: Date | null;
  lastUsedAt: Date | null;
}

export interface KeyStore {
  /** @returns false, and changes nothing, when the name is taken. */
  create(key: KeyRow): Promise<boolean>;
  /** By name. */
  list(): Promise<KeyRow[]>;
  /** @returns whether there was one. */
  remove(name: string): Promise<boolean>;
  /** Moves the time of last use forward, never back. */
  used(uses: readonly { name: string; at: Date }[]): Promise<void>;
}
