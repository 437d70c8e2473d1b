import type { Event } from "@alcove/wire";
import type { EventSubscription } from "./event-subscription.ts";

/** An event that has just become durable. */
export interface DurableEvent {
  readonly event: Event;
  /** Whose it is; empty: nobody's. */
  readonly ownerId: string;
}

/** Events times readers that are offered in one turn of the event loop: some milliseconds. */
const offersPerTurn = 5_000;
/** Where more waits than that many turns offer, a turn offers more: it keeps up however much comes. */
const turnsBehind = 32;

interface Batch {
  readonly events: readonly DurableEvent[];
  /** Who was there when it became durable. */
  readonly readers: readonly EventSubscription[];
  next: number;
}

/**
 * Hands events to their readers, batch by batch in the order in which they became durable, and as many in one turn of
 * the event loop as others can wait for.
 */
export class EventFanout {
  readonly #subscriptions = new Set<EventSubscription>();
  /** The same as a list, until it changes. */
  #readers: readonly EventSubscription[] | undefined;
  readonly #waiting: Batch[] = [];
  /** Events times readers that wait. */
  #offers = 0;
  #served: PromiseWithResolvers<void> | undefined;

  get size(): number {
    return this.#subscriptions.size;
  }

  /** From now on it gets what becomes durable. */
  add(subscription: EventSubscription): void {
    this.#subscriptions.add(subscription);
    this.#readers = undefined;
  }

  delete(subscription: EventSubscription): void {
    this.#subscriptions.delete(subscription);
    this.#readers = undefined;
  }

  publish(events: readonly DurableEvent[]): void {
    if (this.#subscriptions.size === 0) return;
    this.#readers ??= [...this.#subscriptions];
    this.#waiting.push({ events, readers: this.#readers, next: 0 });
    this.#offers += events.length * this.#readers.length;
    if (this.#served !== undefined) return;
    this.#served = Promise.withResolvers();
    this.#serve();
  }

  /** Resolves once everything published so far was offered. */
  async served(): Promise<void> {
    await this.#served?.promise;
  }

  /** Ends every reader. */
  end(): void {
    for (const subscription of this.#subscriptions) subscription.end();
  }

  #serve(): void {
    let left = Math.max(offersPerTurn, this.#offers / turnsBehind);
    for (let batch = this.#waiting[0]; batch !== undefined && left > 0; batch = this.#waiting[0]) {
      batch.readers[batch.next++]?.offer(batch.events);
      left -= batch.events.length;
      this.#offers -= batch.events.length;
      if (batch.next >= batch.readers.length) this.#waiting.shift();
    }
    if (this.#waiting.length > 0) {
      setImmediate(() => this.#serve());
      return;
    }
    this.#served?.resolve();
    this.#served = undefined;
  }
}
