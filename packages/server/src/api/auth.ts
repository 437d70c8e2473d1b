import { createHash, timingSafeEqual } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import { DomainError } from "../ports/errors.ts";
import { type KeyScope, keyScopes } from "../ports/key-store.ts";

/** Who asks. */
export interface Principal {
  /** For the log: which key, or why none was needed. */
  readonly name: string;
  /** Whose sandboxes it is confined to; undefined: everybody's. */
  readonly ownerId: string | undefined;
  readonly scopes: ReadonlySet<KeyScope>;
}

const principal = (name: string, ...scopes: KeyScope[]): Principal => ({
  name,
  ownerId: undefined,
  scopes: new Set(scopes),
});

/** Somebody on a route that needs no key. */
export const anybody: Principal = principal("anybody");
/** Whoever reaches a service without keys may do everything. */
export const localUser: Principal = principal("local", ...keyScopes);

declare module "fastify" {
  interface FastifyRequest {
    principal: Principal;
  }
}

/** Compares keys without telling by its duration how much of them agrees. */
export class KeyCheck {
  readonly #known: readonly { digest: Buffer; principal: Principal }[];

  /** Empty keys are left out. Without a key of its own, administration takes the client key unless told otherwise. */
  constructor(keys: { apiKey: string; adminApiKey: string; adminFallbackEnabled: boolean }) {
    const fallsBack = keys.adminApiKey === "" && keys.adminFallbackEnabled;
    const clientScopes = fallsBack ? keyScopes : (["read", "write"] as const);
    this.#known = [
      { key: keys.apiKey, principal: principal("api_key", ...clientScopes) },
      { key: keys.adminApiKey, principal: principal("admin_api_key", ...keyScopes) },
    ]
      .filter(({ key }) => key !== "")
      .map(({ key, principal }) => ({ digest: digest(key), principal }));
  }

  /** Whether it was this check that told who asks, and no earlier one. */
  knows(principal: Principal): boolean {
    return this.#known.some((known) => known.principal === principal);
  }

  /** @returns who has this key; the last that is known by it when keys are the same. */
  principalOf(key: string): Principal | undefined {
    const offered = digest(key);
    let found: Principal | undefined;
    for (const known of this.#known) if (timingSafeEqual(known.digest, offered)) found = known.principal;
    return found;
  }
}

function digest(key: string): Buffer {
  return createHash("sha256").update(key).digest();
}

/** @returns the keys a request offers: X-API-Key, X-Admin-API-Key, Bearer. docs/api/README.md. */
export function offeredKeys(headers: IncomingHttpHeaders): string[] {
  const offered: string[] = [];
  for (const name of ["x-api-key", "x-admin-api-key"]) {
    const value = headers[name];
    if (typeof value === "string" && value !== "") offered.push(value);
  }
  const bearer = /^bearer +(\S+) *$/i.exec(headers.authorization ?? "")?.[1];
  if (bearer !== undefined) offered.push(bearer);
  return offered;
}

/** @returns who asks. @throws DomainError `unauthorized` unless one of the offered keys is known. */
export function authenticate(check: KeyCheck, headers: IncomingHttpHeaders): Principal {
  const offered = offeredKeys(headers);
  const known = offered.flatMap((key) => check.principalOf(key) ?? []);
  // Who sends a client key and an admin key means the one that allows more.
  const found = known.find(({ scopes }) => scopes.has("admin")) ?? known[0];
  if (found !== undefined) return found;
  throw new DomainError(
    "unauthorized",
    offered.length === 0
      ? "an API key is required; send it as X-API-Key or as Authorization: Bearer"
      : "the API key is not accepted",
  );
}
