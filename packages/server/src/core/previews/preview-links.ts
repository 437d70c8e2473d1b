import { createHmac, timingSafeEqual } from "node:crypto";
import type { Clock } from "../../ports/clock.ts";
import type { Principal } from "../keys/principal.ts";
import type { LinkIssuers } from "./link-issuers.ts";

/** A port of a sandbox. */
export interface PreviewTarget {
  readonly sandboxId: string;
  readonly port: number;
}

/** A link is traded for a cookie: neither does the other's work. */
export type PassKind = "link" | "cookie";

const passPattern = /^([0-9a-z]{1,9})\.([A-Za-z0-9_-]{16})\.([A-Za-z0-9_-]{43})$/;

/** What a pass is good for. */
export interface VerifiedPass {
  readonly until: Date;
  /** Who made it; null: somebody without a key. */
  readonly issuer: Principal | null;
}

/**
 * Passes to one port of one sandbox until a moment, signed with the installation's secret: nothing is kept of them, so they
 * outlive a restart; they end with the key that made them. docs/api/previews.md, Who may see one.
 */
export class PreviewLinks {
  readonly #secret: Buffer;
  readonly #issuers: Pick<LinkIssuers, "tagOf" | "find">;
  readonly #clock: Pick<Clock, "now">;

  constructor(options: {
    secret: Buffer;
    issuers: Pick<LinkIssuers, "tagOf" | "find">;
    clock: Pick<Clock, "now">;
  }) {
    this.#secret = options.secret;
    this.#issuers = options.issuers;
    this.#clock = options.clock;
  }

  /** @param options.issuer null: as `VerifiedPass`. @param options.until whole seconds count. */
  sign(kind: PassKind, target: PreviewTarget, { issuer, until }: VerifiedPass): string {
    const claims = `${Math.floor(until.getTime() / 1_000).toString(36)}.${this.#issuers.tagOf(issuer)}`;
    return `${claims}.${this.#mac(kind, target, claims).toString("base64url")}`;
  }

  /** @returns undefined when a pass is not one for this port of this sandbox, or it or the key that made it has ended. */
  verify(kind: PassKind, target: PreviewTarget, pass: string): VerifiedPass | undefined {
    const [, seconds = "", tag = "", signature = ""] = passPattern.exec(pass) ?? [];
    if (seconds === "") return undefined;
    if (!timingSafeEqual(this.#mac(kind, target, `${seconds}.${tag}`), Buffer.from(signature, "base64url")))
      return undefined;
    const until = new Date(Number.parseInt(seconds, 36) * 1_000);
    const issuer = this.#issuers.find(tag);
    return until > this.#clock.now() && issuer !== undefined ? { until, issuer } : undefined;
  }

  #mac(kind: PassKind, { sandboxId, port }: PreviewTarget, claims: string): Buffer {
    return createHmac("sha256", this.#secret)
      .update(`alcove-preview-2\n${kind}\n${sandboxId}\n${port}\n${claims}`)
      .digest();
  }
}
