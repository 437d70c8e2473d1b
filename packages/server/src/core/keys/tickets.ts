import { hash, randomBytes } from "node:crypto";
import type { Clock } from "../../ports/clock.ts";
import { ResourceLimit } from "../../ports/errors.ts";
import type { Principal } from "./principal.ts";

interface Ticket {
  readonly principal: Principal;
  readonly sandboxId: string;
  readonly untilMs: number;
}

export const ticketLifetimeMs = 60_000;
const mostOfOne = 1_000;

/**
 * Lets a browser in, which cannot send a key with a WebSocket: one ticket for one sandbox and one use within a minute.
 * Kept as hashes, in memory alone. docs/api/authentication.md, Tickets.
 */
export class Tickets {
  readonly #clock: Pick<Clock, "monotonicMs" | "now">;
  /** The oldest first. */
  readonly #tickets = new Map<string, Ticket>();
  readonly #perName = new Map<string, number>();

  constructor(options: { clock: Pick<Clock, "monotonicMs" | "now"> }) {
    this.#clock = options.clock;
  }

  get size(): number {
    return this.#tickets.size;
  }

  /** @throws ResourceLimit when this key has too many that nobody used. */
  issue(principal: Principal, sandboxId: string): { ticket: string; expiresAt: Date } {
    this.#forgetOld();
    const held = this.#perName.get(principal.name) ?? 0;
    if (held >= mostOfOne)
      throw new ResourceLimit(
        `key "${principal.name}" has ${mostOfOne} tickets that were not used; use them, or wait a minute`,
        {
          retryAfterS: ticketLifetimeMs / 1_000,
        },
      );
    const ticket = randomBytes(24).toString("base64url");
    this.#tickets.set(hashed(ticket), {
      principal,
      sandboxId,
      untilMs: this.#clock.monotonicMs() + ticketLifetimeMs,
    });
    this.#perName.set(principal.name, held + 1);
    return { ticket, expiresAt: new Date(this.#clock.now().getTime() + ticketLifetimeMs) };
  }

  /** Takes a ticket, also when it is for another sandbox. @returns who was given it; undefined when it is not accepted. */
  redeem(ticket: string, sandboxId: string): Principal | undefined {
    this.#forgetOld();
    const key = hashed(ticket);
    const found = this.#tickets.get(key);
    if (found === undefined) return undefined;
    this.#forget(key, found);
    return found.sandboxId === sandboxId ? found.principal : undefined;
  }

  #forgetOld(): void {
    const nowMs = this.#clock.monotonicMs();
    for (const [key, ticket] of this.#tickets) {
      if (ticket.untilMs > nowMs) return;
      this.#forget(key, ticket);
    }
  }

  #forget(key: string, { principal: { name } }: Ticket): void {
    this.#tickets.delete(key);
    const left = (this.#perName.get(name) ?? 1) - 1;
    if (left > 0) this.#perName.set(name, left);
    else this.#perName.delete(name);
  }
}

function hashed(ticket: string): string {
  return hash("sha256", ticket, "base64");
}
