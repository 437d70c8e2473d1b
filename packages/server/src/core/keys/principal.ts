import { type KeyScope, keyScopes, principalNames } from "@alcove/wire";

/** Who asks. */
export interface Principal {
  /** For the log and the audit history: which key, or why none was needed. */
  readonly name: string;
  /** Whose things it is confined to; undefined: everybody's. */
  readonly ownerId: string | undefined;
  readonly scopes: ReadonlySet<KeyScope>;
}

/** Somebody on a route that needs no key. */
export const anybody: Principal = { name: principalNames.anonymous, ownerId: undefined, scopes: new Set() };
/** Whoever reaches a service without keys may do everything. */
export const localUser: Principal = {
  name: principalNames.local,
  ownerId: undefined,
  scopes: new Set(keyScopes),
};
