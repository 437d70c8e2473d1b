import { createHmac, timingSafeEqual } from "node:crypto";
import type { Clock } from "../../ports/clock.ts";

/** A port of a sandbox. */
export interface PreviewTarget {
  readonly sandboxId: string;
  readonly port: number;
}

/** A link is traded for a cookie: neither does the other's work. */
export type PassKind = "link" | "cookie";

const passPattern = /^([0-9a-z]{1,9})\.([A-Za-z0-9_-]{43})$/;

/**
 * Passes to one port of one sandbox until a moment, signed with the installation's secret: nothing is kept of them, so they
 * outlive a restart. docs/api/previews.md, Links.
 */
export class PreviewLinks {
  readonly #secret: Buffer;
  readonly #clock: Pick<Clock, "now">;

  constructor(options: { secret: Buffer; clock: Pick<Clock, "now"> }) {
    this.#secret = options.secret;
    this.#clock = options.clock;
  }

  /** @param expiresAt whole seconds count. */
  sign(kind: PassKind, target: PreviewTarget, expiresAt: Date): string {
    const until = Math.floor(expiresAt.getTime() / 1_000).toString(36);
    return `${until}.${this.#mac(kind, target, until).toString("base64url")}`;
  }

  /** @returns when a pass ends; undefined when it is not one for this port of this sandbox, or has ended. */
  verify(kind: PassKind, target: PreviewTarget, pass: string): Date | undefined {
    const [, until = "", signature = ""] = passPattern.exec(pass) ?? [];
    if (until === "") return undefined;
    if (!timingSafeEqual(this.#mac(kind, target, until), Buffer.from(signature, "base64url")))
      return undefined;
    const expiresAt = new Date(Number.parseInt(until, 36) * 1_000);
    return expiresAt > this.#clock.now() ? expiresAt : undefined;
  }

  #mac(kind: PassKind, { sandboxId, port }: PreviewTarget, until: string): Buffer {
    return createHmac("sha256", this.#secret)
      .update(`alcove-preview-1\n${kind}\n${sandboxId}\n${port}\n${until}`)
      .digest();
  }
}
