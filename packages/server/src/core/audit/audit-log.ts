import type { Logger } from "../../platform/logger.ts";
import {
  type AuditFilter,
  type AuditRow,
  type AuditSearch,
  type AuditStore,
  type Clock,
  StorageFull,
} from "../../ports/index.ts";
import { anybody } from "../keys/principal.ts";

/** Longest texts that are kept, characters; what is beyond is cut. An owner's path is within its bound however it is encoded. */
const longest = {
  path: 2_048,
  /** Where nothing came of it: whoever may do nothing takes little space. */
  refusedPath: 256,
  userAgent: 256,
  remoteAddr: 64,
  actor: 256,
  method: 32,
  requestId: 128,
} as const;

/** Nobody, or nobody who may, or nothing that is there. */
const refusals = [401, 403, 404];
/** Of a call whose caller left before it was answered. */
export const goneStatus = 499;
/** Nothing was done: the service stops, or cannot write it down. */
const unavailableStatus = 503;
/** Strangers' calls, and others' that were refused, have this part of the history: they push out no other record. */
const strangersPart = 0.1;

/** What is known of a call when it is answered. */
export interface AuditedCall extends Omit<AuditRow, "id" | "createdAt"> {
  /** Its caller has the scope for administration. */
  mayAdminister: boolean;
}

/** The history of what administrators did and others tried. docs/api/admin.md. */
export class AuditLog implements Disposable {
  readonly #store: AuditStore;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #retention: { ageMs: number; count: number };
  /** Refused calls that are in no record because the disk is full. */
  #unrecorded = 0;
  #missing = 0;
  /** How many of them the log tells next; ten times as many each time, so that a kill takes little of the count along. */
  #tellAt = 1;

  constructor(options: {
    store: AuditStore;
    clock: Clock;
    logger: Logger;
    retention: { ageMs: number; count: number };
  }) {
    this.#store = options.store;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#retention = options.retention;
  }

  /**
   * Resolves when the record is durable. Never rejects: the call is done by then, and to answer that it failed would be
   * wrong. What the store does not take is in the log instead.
   */
  async record({ mayAdminister, ...call }: AuditedCall): Promise<void> {
    const stranger = !mayAdminister && (call.actor === anybody.name || changedNothing(call.status));
    const refused = stranger || refusals.includes(call.status);
    const bounded = {
      ...call,
      actor: plain(call.actor, longest.actor),
      method: plain(call.method, longest.method),
      path: plain(call.path, refused ? longest.refusedPath : longest.path),
      requestId: plain(call.requestId, longest.requestId),
      remoteAddr: plain(call.remoteAddr, longest.remoteAddr),
      userAgent: plain(call.userAgent, longest.userAgent),
    };
    try {
      const createdAt = this.#clock.now();
      await this.#store.append(
        { ...bounded, createdAt },
        { refused, ...(stranger && { ofStrangers: this.#ofStrangers }) },
      );
      if (refused) this.#tellUnrecorded();
    } catch (err) {
      this.#missing += 1;
      if (refused && err instanceof StorageFull) {
        this.#count();
        return;
      }
      const { actor, method, path, status, requestId, remoteAddr, userAgent } = bounded;
      this.#logger.error(
        {
          err,
          event: "audit.lost",
          principal: actor,
          method,
          path,
          status,
          request_id: requestId,
          remote_addr: remoteAddr,
          user_agent: userAgent,
        },
        "a call could not be written to the audit history; this line stands for it",
      );
    }
  }

  /** Calls since the start that are not in the history: counted while the disk was full, or lines of the log stand for them. */
  get missing(): number {
    return this.#missing;
  }

  get #ofStrangers(): number {
    return Math.floor(this.#retention.count * strangersPart);
  }

  /** The service stops; what could not be written down is told a last time. */
  [Symbol.dispose](): void {
    if (this.#unrecorded === 0) return;
    this.#logger.warn(
      { event: "audit.suspended", calls: this.#unrecorded },
      "the service stops, and so many refused calls are not in the audit history, because the disk of the database is full",
    );
    this.#unrecorded = 0;
  }

  #count(): void {
    this.#unrecorded += 1;
    if (this.#unrecorded < this.#tellAt) return;
    this.#tellAt *= 10;
    this.#logger.warn(
      { event: "audit.suspended", calls: this.#unrecorded },
      "the disk of the database is full: refused calls are counted and no longer written to the audit history",
    );
  }

  #tellUnrecorded(): void {
    if (this.#unrecorded === 0) return;
    this.#logger.warn(
      { event: "audit.resumed", calls: this.#unrecorded },
      "so many refused calls are not in the audit history, because the disk of the database was full",
    );
    this.#unrecorded = 0;
    this.#tellAt = 1;
  }

  /** Newest first. */
  async list(filter: AuditFilter, search: AuditSearch): Promise<AuditRow[]> {
    return this.#store.list(filter, search);
  }

  /** Forgets what is older or more than is to be kept. */
  async forgetOld(options: { signal: AbortSignal }): Promise<void> {
    const { ageMs, count } = this.#retention;
    const before = new Date(Math.max(0, this.#clock.now().getTime() - ageMs));
    await this.#store.purge({ before, keep: count, ofStrangers: this.#ofStrangers, signal: options.signal });
  }
}

/** It was refused; of a call whose caller left, nobody knows. */
function changedNothing(status: number): boolean {
  return (status >= 400 && status < goneStatus) || status === unavailableStatus;
}

/** Callers choose some of these texts, and terminals show them. */
function plain(text: string, most: number): string {
  return text.slice(0, most).replaceAll(/\p{Cc}/gu, " ");
}
