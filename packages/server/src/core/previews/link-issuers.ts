import { createHmac } from "node:crypto";
import type { KeyScope } from "@alcove/wire";
import type { KeyRing } from "../keys/key-ring.ts";
import type { Principal } from "../keys/principal.ts";

/** What a key must be good for to make links, and as long as they are to be accepted. */
export const linkScope: KeyScope = "write";
const tagBytes = 12;

/**
 * Who made a link, in a word of sixteen letters that tells nobody which key it was: a link ends with its key, and one that was
 * made without keys when the service has some.
 */
export class LinkIssuers {
  readonly #secret: Buffer;
  readonly #keys: Pick<KeyRing, "identityOf" | "identities" | "holds">;
  readonly #authEnabled: boolean;
  #byTag: Map<string, Principal> | undefined;

  constructor(options: {
    secret: Buffer;
    keys: Pick<KeyRing, "identityOf" | "identities" | "holds" | "onChange">;
    authEnabled: boolean;
  }) {
    this.#secret = options.secret;
    this.#keys = options.keys;
    this.#authEnabled = options.authEnabled;
    options.keys.onChange(() => {
      this.#byTag = undefined;
    });
  }

  /** @param principal null: who had no key. */
  tagOf(principal: Principal | null): string {
    return this.#tag((principal && this.#keys.identityOf(principal)) ?? "");
  }

  /** @returns who made it; null: somebody without a key, where none is needed; undefined: nobody who might do so now. */
  find(tag: string): Principal | null | undefined {
    if (!this.#authEnabled && tag === this.#tag("")) return null;
    this.#byTag ??= new Map(
      [...this.#keys.identities()].map(([identity, principal]) => [this.#tag(identity), principal]),
    );
    const principal = this.#byTag.get(tag);
    return principal !== undefined && this.#keys.holds(principal, linkScope) ? principal : undefined;
  }

  #tag(identity: string): string {
    return createHmac("sha256", this.#secret)
      .update(`alcove-preview-issuer\n${identity}`)
      .digest()
      .subarray(0, tagBytes)
      .toString("base64url");
  }
}
