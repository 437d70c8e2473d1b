export const keyScopes = ["read", "write", "admin"] as const;
/** What a key may be used for: to look, to change, to administer. */
export type KeyScope = (typeof keyScopes)[number];

/** What logs and the audit history call those who came with no key of a name of its own. */
export const principalNames = {
  clientKey: "api_key",
  adminKey: "admin_api_key",
  anonymous: "anonymous",
  local: "local",
} as const;
/** No key may be named so. */
export const reservedKeyNames: readonly string[] = Object.values(principalNames);

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
