import { formatDuration } from "@alcove/wire";
import { CallerGone, ShuttingDown } from "../../platform/deadline.ts";
import {
  type Clock,
  type DomainError,
  deniesAll,
  type EventSink,
  isOfOwner,
  ResourceLimit,
  type Timer,
  Unavailable,
} from "../../ports/index.ts";
import type { ReserveOutcome } from "../../ports/store.ts";
import { ownerData } from "../events/owner-data.ts";
import { capacityRetryS } from "./capacity-retry.ts";
import { QueueStats } from "./queue-stats.ts";

/** What an attempt came to; one whose key another spawn holds throws instead. */
export type ReserveResult = Exclude<ReserveOutcome, { reason: "claimed" }>;
export type ReserveDenied = Extract<ReserveResult, { admitted: false }>;

export interface SpawnQueueOptions {
  clock: Clock;
  events: EventSink;
  /** As they stand now; spawns that wait already keep their time. */
  rules: () => {
    overflow: "reject" | "queue";
    /** The same where the pool is full. */
    poolOverflow: "reject" | "queue";
    timeoutMs: number;
    /** How many spawns may wait at once. */
    maxWaiting: number;
  };
  /** Words for a denial. */
  denied: (ownerId: string, result: ReserveDenied) => DomainError;
}

/**
 * One spawn on its way to a reservation. It is `arriving` until its first attempt was denied, then `waiting`, and
 * leaves when it is admitted, refused, timed out or its caller goes away.
 */
interface Entry {
  readonly ownerId: string;
  readonly sandboxId: string;
  readonly attempt: () => Promise<ReserveResult>;
  readonly admit: () => void;
  readonly refuse: (reason: unknown) => void;
  phase: "arriving" | "waiting" | "left";
  /** Its attempt is under way: what wants it to leave has to wait for the outcome. */
  attempting: boolean;
  leaving: (() => void) | undefined;
  timer: Timer | undefined;
  /** What of its time it had waited before it came here. */
  readonly waitedMs: number;
  waitingSinceMs: number;
}

/**
 * Reserves capacity for spawns. With overflow `reject` a denial fails at once. With `queue` it waits, first in first
 * out per owner and round-robin between owners, for `capacityFreed()`; one attempt runs at a time. Nobody overtakes within
 * an owner; of other owners those pass who ask for less than there is left. docs/api/sandboxes.md.
 */
export class SpawnQueue {
  readonly #options: SpawnQueueOptions;
  /** Owners in the order of their next turn. An owner without entries has no line. */
  readonly #lines = new Map<string, Entry[]>();
  /**
   * Why the first of an owner's has to wait: for what the owner itself, or somebody in the pool, gives back; or else, `until`
   * anybody has given something back.
   */
  readonly #blocked = new Map<string, { denial: CapacityDenied; until: number | undefined }>();
  /** How often capacity was given back. */
  #freed = 0;
  #waiting = 0;
  /** How many of each owner wait: one has half of the places at most. */
  readonly #waitingOf = new Map<string, number>();
  #pumping = false;
  #pumpAgain = false;
  #closed = false;
  readonly stats = new QueueStats();

  constructor(options: SpawnQueueOptions) {
    this.#options = options;
  }

  /** Spawns waiting now. */
  get depth(): number {
    return this.#waiting;
  }

  /** Whether one more spawn of this owner could wait now. @param ownerId empty: nobody's, who have no share. */
  hasPlace(ownerId: string): boolean {
    return this.#options.rules().timeoutMs > 0 && this.#fullFor(ownerId) === undefined;
  }

  /**
   * Resolves once `attempt` has reserved; the caller then owns the reservation.
   * @throws ResourceLimit when there is no capacity, in time or at all; the signal's reason; Unavailable at shutdown.
   */
  async admit(request: {
    ownerId: string;
    sandboxId: string;
    attempt: () => Promise<ReserveResult>;
    /** What an attempt would be denied for now. Whoever arrives behind others may not try yet, and is refused at once all the same. */
    look: () => Promise<ReserveDenied | undefined>;
    signal: AbortSignal;
    /** What of its time it has waited already, elsewhere. */
    waitedMs?: number;
  }): Promise<void> {
    request.signal.throwIfAborted();
    if (this.#closed) throw shuttingDown();
    const { overflow, poolOverflow } = this.#options.rules();
    if (overflow === "reject" && poolOverflow === "reject") {
      const result = await request.attempt();
      if (!result.admitted) throw this.#options.denied(request.ownerId, result);
      return;
    }
    if (this.#lines.size === 0) {
      // Nobody waits, so nobody is overtaken but by a spawn of the same turn of the event loop.
      const result = await request.attempt();
      if (result.admitted) return;
      if (!this.#waits(result)) throw this.#options.denied(request.ownerId, result);
    } else {
      const seen = await request.look();
      if (seen !== undefined && !this.#waits(seen)) throw this.#options.denied(request.ownerId, seen);
    }
    request.signal.throwIfAborted();
    if (this.#closed) throw shuttingDown();
    await this.#enqueue(request);
  }

  /**
   * Somebody gave capacity back, or limits changed.
   * @param ownerId who, when it was an owner; those who wait for what another owner has are not asked again.
   */
  capacityFreed(ownerId?: string): void {
    this.#freed++;
    if (ownerId === undefined) this.#blocked.clear();
    else this.#unblock(ownerId);
    if (this.#lines.size > 0) this.#pump();
  }

  /** A slot of the pool is as good for one owner as for another. */
  #unblock(ownerId: string): void {
    for (const [owner, { denial }] of this.#blocked)
      if (owner === ownerId || denial.reason === "pool_full") this.#blocked.delete(owner);
  }

  /** Refuses everybody who waits. */
  close(): void {
    this.#closed = true;
    for (const line of [...this.#lines.values()])
      for (const entry of [...line]) this.#leave(entry, shuttingDown(), "shutdown");
  }

  #enqueue(request: Parameters<SpawnQueue["admit"]>[0]): Promise<void> {
    return new Promise<void>((resolve, reject) => {
      const onAbort = () => this.#leave(entry, request.signal.reason, outcomeOf(request.signal.reason));
      const settle = () => request.signal.removeEventListener("abort", onAbort);
      const entry: Entry = {
        ownerId: request.ownerId,
        sandboxId: request.sandboxId,
        attempt: request.attempt,
        admit: () => {
          settle();
          resolve();
        },
        refuse: (reason) => {
          settle();
          reject(reason);
        },
        phase: "arriving",
        attempting: false,
        leaving: undefined,
        timer: undefined,
        waitedMs: request.waitedMs ?? 0,
        waitingSinceMs: 0,
      };
      request.signal.addEventListener("abort", onAbort, { once: true });
      const line = this.#lines.get(entry.ownerId);
      if (line === undefined) this.#lines.set(entry.ownerId, [entry]);
      else line.push(entry);
      this.#pump();
    });
  }

  #pump(): void {
    if (this.#pumping) {
      this.#pumpAgain = true;
      return;
    }
    this.#pumping = true;
    void this.#pumpUntilQuiet();
  }

  async #pumpUntilQuiet(): Promise<void> {
    do {
      this.#pumpAgain = false;
      await this.#round();
    } while (this.#pumpAgain);
    this.#pumping = false;
  }

  /** Gives every owner its turns until capacity or the spawns that fit run out. */
  async #round(): Promise<void> {
    // An owner that was served goes to the end of the lines, and comes up again.
    for (const ownerId of this.#lines.keys()) {
      const denial = this.#denialOf(ownerId) ?? (await this.#turn(ownerId));
      if (denial === undefined) continue;
      if (deniesAll(denial.reason)) {
        for (const owner of this.#lines.keys()) this.#settle(owner, this.#denialOf(owner) ?? denial);
        return;
      }
      this.#settle(ownerId, denial);
    }
  }

  /** Serves the first of an owner's that can be. @returns why the first of them has to wait. */
  async #turn(ownerId: string): Promise<CapacityDenied | undefined> {
    for (;;) {
      const entry = this.#lines.get(ownerId)?.[0];
      if (entry === undefined) return undefined;
      const freed = this.#freed;
      const result = await this.#attempt(entry);
      if (result === undefined) continue;
      if (result.admitted) {
        this.#rotate(ownerId);
        return undefined;
      }
      if (!this.#waits(result)) {
        this.#leave(entry, this.#options.denied(ownerId, result), "refused");
        continue;
      }
      // What was given back meanwhile may be what it waits for.
      const stays = freed === this.#freed && this.#lines.get(ownerId)?.[0] === entry;
      if (stays)
        this.#blocked.set(ownerId, { denial: result, until: heldBack(result.reason) ? undefined : freed });
      return result;
    }
  }

  /** @returns why an owner's first would be denied again. */
  #denialOf(ownerId: string): CapacityDenied | undefined {
    const known = this.#blocked.get(ownerId);
    if (known === undefined) return undefined;
    return known.until === undefined || known.until === this.#freed ? known.denial : undefined;
  }

  /** @returns undefined when the entry left or failed on the way. */
  async #attempt(entry: Entry): Promise<ReserveResult | undefined> {
    entry.attempting = true;
    try {
      const result = await entry.attempt();
      entry.attempting = false;
      if (result.admitted) {
        // An entry that wanted to leave meanwhile still owns a reservation: its caller sees the aborted signal and
        // gives it back.
        const waited = entry.phase === "waiting";
        this.#remove(entry);
        if (waited) this.#recordDequeued(entry);
        entry.admit();
        return result;
      }
      if (entry.leaving === undefined) return result;
      entry.leaving();
      return undefined;
    } catch (error) {
      entry.attempting = false;
      this.#leave(entry, error, "refused");
      return undefined;
    }
  }

  /** Those of an owner that have just arrived and were not admitted begin to wait, or are refused when too many do. */
  #settle(ownerId: string, denial: CapacityDenied): void {
    for (const entry of [...(this.#lines.get(ownerId) ?? [])]) {
      if (entry.phase !== "arriving") continue;
      const { clock } = this.#options;
      const { timeoutMs } = this.#options.rules();
      if (timeoutMs <= 0) {
        this.#leave(entry, this.#options.denied(ownerId, denial), "refused");
        continue;
      }
      const leftMs = timeoutMs - entry.waitedMs;
      if (leftMs <= 0) {
        this.#leave(entry, this.#inVain(entry, denial, entry.waitedMs), "timeout");
        continue;
      }
      const who = this.#fullFor(ownerId);
      if (who !== undefined) {
        const { message } = this.#options.denied(ownerId, denial);
        const details = { reason: denial.reason, queue: "full" };
        const words = `${message}, and ${who} wait already`;
        this.#leave(entry, new ResourceLimit(words, { details, retryAfterS: capacityRetryS }), "refused");
        continue;
      }
      entry.phase = "waiting";
      entry.waitingSinceMs = clock.monotonicMs();
      this.#waiting++;
      this.#waitingOf.set(ownerId, (this.#waitingOf.get(ownerId) ?? 0) + 1);
      this.stats.queuedTotal++;
      entry.timer = clock.setTimer(leftMs, () => this.#timeOut(entry, denial, leftMs));
      this.#emit("spawn.queued", entry, { reason: denial.reason, depth: this.#waiting });
    }
  }

  /** @returns who has all the places that this owner's spawns may have; undefined: there is one. */
  #fullFor(ownerId: string): string | undefined {
    const { maxWaiting } = this.#options.rules();
    const most = Math.ceil(maxWaiting / 2);
    if (ownerId !== "" && (this.#waitingOf.get(ownerId) ?? 0) >= most) return `${most} spawns of this owner`;
    return this.#waiting >= maxWaiting ? `${maxWaiting} spawns` : undefined;
  }

  #timeOut(entry: Entry, denial: CapacityDenied, waitedMs: number): void {
    if (entry.phase === "left") return;
    if (entry.attempting) {
      entry.leaving ??= () => this.#timeOut(entry, denial, waitedMs);
      return;
    }
    this.stats.timeouts++;
    this.#emit("spawn.queue_timeout", entry, { waited_ms: waitedMs });
    this.#leave(entry, this.#inVain(entry, denial, entry.waitedMs + waitedMs), "timeout");
  }

  #inVain(entry: Entry, denial: CapacityDenied, waited: number): ResourceLimit {
    const waitedMs = Math.round(waited);
    const words = this.#options.denied(entry.ownerId, denial).message;
    return new ResourceLimit(`the spawn waited ${formatDuration(waitedMs)} for capacity in vain: ${words}`, {
      details: { reason: denial.reason, queue: "timeout", waited_ms: waitedMs },
      retryAfterS: capacityRetryS,
    });
  }

  /** Whether time can help, and waiting is asked for. */
  #waits(denial: ReserveDenied): denial is CapacityDenied {
    if (denial.reason === "name_taken" || denial.reason === "slot_elsewhere" || denial.hopeless) return false;
    const { overflow, poolOverflow } = this.#options.rules();
    return (denial.reason === "pool_full" ? poolOverflow : overflow) === "queue";
  }

  #leave(entry: Entry, reason: unknown, outcome: Outcome): void {
    if (entry.phase === "left") return;
    if (entry.attempting) {
      entry.leaving ??= () => this.#leave(entry, reason, outcome);
      return;
    }
    if (entry.phase === "waiting" && outcome !== "timeout")
      this.#emit("spawn.left", entry, { outcome, waited_ms: this.#waitedMs(entry) });
    const wasFirst = this.#lines.get(entry.ownerId)?.[0] === entry;
    this.#remove(entry);
    entry.refuse(reason);
    if (!wasFirst || this.#closed || this.#lines.size === 0) return;
    // What is behind it may be smaller, and those of other owners too.
    this.#blocked.delete(entry.ownerId);
    this.#pump();
  }

  #remove(entry: Entry): void {
    if (entry.phase === "waiting") this.#countOut(entry.ownerId);
    entry.timer?.cancel();
    const line = this.#lines.get(entry.ownerId);
    const index = line?.indexOf(entry) ?? -1;
    if (line !== undefined && index >= 0) line.splice(index, 1);
    if (line?.length === 0) {
      this.#lines.delete(entry.ownerId);
      this.#blocked.delete(entry.ownerId);
    }
    if (entry.phase === "waiting") this.#recordWait(entry);
    entry.phase = "left";
  }

  #countOut(ownerId: string): void {
    this.#waiting--;
    const left = (this.#waitingOf.get(ownerId) ?? 1) - 1;
    if (left > 0) this.#waitingOf.set(ownerId, left);
    else this.#waitingOf.delete(ownerId);
  }

  #recordWait(entry: Entry): void {
    this.stats.waited(this.#options.clock.monotonicMs() - entry.waitingSinceMs);
  }

  #recordDequeued(entry: Entry): void {
    this.stats.dequeuedTotal++;
    this.#emit("spawn.dequeued", entry, { waited_ms: this.#waitedMs(entry) });
  }

  #waitedMs(entry: Entry): number {
    return Math.round(this.#options.clock.monotonicMs() - entry.waitingSinceMs);
  }

  /** The owner that was served goes to the end. */
  #rotate(ownerId: string): void {
    const line = this.#lines.get(ownerId);
    if (line === undefined) return;
    this.#lines.delete(ownerId);
    this.#lines.set(ownerId, line);
  }

  #emit(
    type: "spawn.queued" | "spawn.dequeued" | "spawn.queue_timeout" | "spawn.left",
    entry: Entry,
    data: Record<string, unknown>,
  ): void {
    const { ownerId, sandboxId } = entry;
    const owner = ownerData(ownerId);
    this.#options.events.emit({ type, sandboxId, ownerId, data: { ...owner, ...data } });
  }
}

/** How a spawn ends that is not admitted. docs/api/events.md, `spawn.left`; `spawn.queue_timeout` tells of a timeout. */
type Outcome = "left" | "cancelled" | "refused" | "shutdown" | "timeout";

function outcomeOf(reason: unknown): Outcome {
  if (reason instanceof CallerGone) return "left";
  return reason instanceof ShuttingDown ? "shutdown" : "cancelled";
}

type CapacityDenied = Exclude<ReserveDenied, { reason: "name_taken" | "slot_elsewhere" }>;

/** Whether only what the owner gives back, or a place in the pool, helps: other things that are given back need not be tried. */
function heldBack(reason: CapacityDenied["reason"]): boolean {
  return isOfOwner(reason) || reason === "pool_full";
}

function shuttingDown(): Unavailable {
  return new Unavailable("the service is shutting down; try again", { retryAfterS: 1 });
}
