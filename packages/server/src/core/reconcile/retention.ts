import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { Clock, Store } from "../../ports/index.ts";
import type { AuditLog } from "../audit/audit-log.ts";

export interface RetentionOptions {
  store: Pick<Store, "idempotency" | "sandboxes" | "events">;
  audit: Pick<AuditLog, "forgetOld">;
  clock: Clock;
  logger: Logger;
  /** How long destroyed sandboxes are remembered. */
  retentionMs: number;
  /** How many of them at most. */
  maxDestroyed: number;
  /** How long events are kept. */
  eventsMaxAgeMs: number;
}

/** What is old and left after this time is forgotten by the next pass, so that each kind has its time in every one. */
const longestMs = 5_000;

/** Forgets what is kept for a time or up to a number: destroyed sandboxes, idempotency keys, events, audit records. */
export class Retention {
  readonly #options: RetentionOptions;

  constructor(options: RetentionOptions) {
    this.#options = options;
  }

  /** @returns whether nothing old is left; false when there was more of some kind than the time allowed. Never throws. */
  async pass(closing: AbortSignal): Promise<boolean> {
    const { store, audit, clock, retentionMs, maxDestroyed, eventsMaxAgeMs } = this.#options;
    const now = clock.now().getTime();
    const kinds: [string, (signal: AbortSignal) => Promise<unknown>][] = [
      ["idempotency keys", (signal) => store.idempotency.purge(new Date(now), { signal })],
      [
        "sandboxes",
        (signal) =>
          store.sandboxes.purge({ before: new Date(now - retentionMs), keep: maxDestroyed, signal }),
      ],
      ["events", (signal) => store.events.purge({ before: new Date(now - eventsMaxAgeMs), signal })],
      ["records of the audit history", (signal) => audit.forgetOld({ signal })],
    ];
    let isDone = true;
    for (const [kind, forget] of kinds) isDone = (await this.#forget(kind, forget, closing)) && isDone;
    return isDone;
  }

  async #forget(
    kind: string,
    forget: (signal: AbortSignal) => Promise<unknown>,
    closing: AbortSignal,
  ): Promise<boolean> {
    using time = deadlineAfter(longestMs, closing);
    try {
      await forget(time.signal);
      return true;
    } catch (error) {
      if (time.signal.aborted) return false;
      this.#options.logger.warn({ err: error }, `old ${kind} could not be forgotten`);
      // Nothing comes of haste with a store that fails.
      return true;
    }
  }
}
