import { createHash, timingSafeEqual } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import { DomainError } from "../ports/errors.ts";

/** Compares keys without telling by its duration how much of them agrees. */
export class KeyCheck {
  readonly #digests: readonly Buffer[];

  /** @param options.keys empty ones are left out. */
  constructor(options: { keys: readonly string[] }) {
    this.#digests = options.keys.filter((key) => key !== "").map(digest);
  }

  accepts(key: string): boolean {
    const offered = digest(key);
    let accepted = false;
    for (const known of this.#digests) if (timingSafeEqual(known, offered)) accepted = true;
    return accepted;
  }
}

function digest(key: string): Buffer {
  return createHash("sha256").update(key).digest();
}

/** @returns the keys a request offers: X-API-Key, X-Admin-API-Key, Bearer. Spec §5. */
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

/** @throws DomainError `unauthorized` unless one of the offered keys is accepted. */
export function authenticate(check: KeyCheck, headers: IncomingHttpHeaders): void {
  const offered = offeredKeys(headers);
  if (offered.some((key) => check.accepts(key))) return;
  throw new DomainError(
    "unauthorized",
    offered.length === 0
      ? "an API key is required; send it as X-API-Key or as Authorization: Bearer"
      : "the API key is not accepted",
  );
}
