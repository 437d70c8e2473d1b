import type { EventType } from "@alcove/wire";
import type { Logger } from "../../platform/logger.ts";
import { currentRequestId } from "../../platform/request-scope.ts";
import type { Clock, EmittedEvent, EventSink, NewEvent, Store, Timer } from "../../ports/index.ts";
import type { Share } from "../answers/shares.ts";
import { type DurableEvent, EventFanout } from "./event-fanout.ts";
import { type EventFilter, EventSubscription } from "./event-subscription.ts";
import { LimitReports } from "./limit-reports.ts";
import { ReaderPlaces } from "./reader-places.ts";
import { ReplayLine } from "./replay-line.ts";

/** How long an event waits for others to be written with, milliseconds. */
const commitDelayMs = 20;
const largestCommit = 500;
/** Events that may wait while the store fails; later ones are dropped and counted. */
const longestQueue = 10_000;
/** Every so many events the history is cut to its length. */
const trimEvery = 1_000;
const retryDelayMs = 1_000;
/** So many ids beyond those that are given are marked at once, and those that were given in this time, milliseconds. */
const markedAhead = 10_000;
const markEveryMs = 10_000;

/** What is known of ids apart from the store, which may be put back to what it was. */
export interface EventIdMarks {
  /** Ids up to this one may have been given by a store that is gone; 0: by this store alone. */
  readonly givenUpto: number;
  /** Ids up to this one may be given from now on. */
  mark(upto: number): Promise<void>;
}

/**
 * The durable event history. Events are written in batches off the reply path, get their ids from the store and reach
 * subscribers once written, so that no id a client has seen is ever given again: by a store that was put back to an older
 * state neither, because ids are marked elsewhere before they are given.
 */
export class EventLog implements EventSink, AsyncDisposable {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #retention: number;
  readonly #replays = new ReplayLine();
  readonly #limits: LimitReports;
  readonly #fanout = new EventFanout();
  readonly #places = new ReaderPlaces();
  readonly #pending: (EmittedEvent & NewEvent)[] = [];
  /** Highest id this process knows of. */
  #durableId: number;
  readonly #marks: EventIdMarks | undefined;
  #markedUpto = 0;
  #markedAtMs = 0;
  #timer: Timer | undefined;
  #writing: Promise<void> | undefined;
  #sinceTrim = 0;
  #dropped = 0;
  #total = 0;
  #closed = false;

  private constructor(options: EventLogOptions & { lastId: number }) {
    this.#store = options.store;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#retention = options.retention;
    this.#durableId = options.lastId;
    this.#marks = options.marks;
    this.#limits = new LimitReports({ clock: options.clock, emit: (event) => this.#queue(event) });
  }

  static async open(options: EventLogOptions): Promise<EventLog> {
    const { marks } = options;
    if (marks !== undefined) await options.store.events.passOver(marks.givenUpto);
    const log = new EventLog({ ...options, lastId: await options.store.events.lastId() });
    log.#emitUntold(await options.store.events.untold());
    return log;
  }

  /** Whoever replays what came after it misses nothing from now on. */
  get lastId(): number {
    return this.#durableId;
  }

  get subscribers(): number {
    return this.#fanout.size;
  }
  /** Events emitted since the start of this process. */
  get total(): number {
    return this.#total;
  }

  /** How many events are kept for replay. */
  historySize(): Promise<number> {
    return this.#store.events.kept();
  }

  emit(event: EmittedEvent): void {
    if (this.#closed) return;
    if (event.type === "resource.limit") this.#limits.report(ofRequest(event));
    else this.#queue(event);
  }

  #queue(event: EmittedEvent): void {
    if (this.#pending.length >= longestQueue) {
      this.#dropped++;
      return;
    }
    this.#total++;
    this.#pending.push({ ...event, timestamp: this.#clock.now() });
    if (this.#pending.length >= largestCommit) this.#write();
    else this.#arm(commitDelayMs);
  }

  /** What a process that was killed had no time to tell. */
  #emitUntold(events: readonly NewEvent[]): void {
    for (const event of events) this.#pending.push({ ...event, ownerId: event.ownerId ?? "" });
    if (events.length > 0) this.#arm(commitDelayMs);
  }

  /**
   * Replays what is kept after `afterId`, then follows. Without `afterId`, or with one never given: only follows.
   * @param filter.caller whose reader it is, where that is not its owner: replays of callers take turns, each may have so
   *   many readers, and who has most of them gives way: `onCut` is called then, as for a reader that takes nothing.
   * @throws ResourceLimit when this caller has too many; Unavailable when all together have.
   */
  subscribe(
    filter: EventFilter & {
      afterId?: number;
      withoutKeys?: boolean;
      caller?: Share;
      signal: AbortSignal;
      onCut?: () => void;
    },
  ): EventSubscription {
    const caller = filter.caller ?? { principal: filter.ownerId ?? "", owner: "" };
    const replay = filter.afterId !== undefined && filter.afterId <= this.#durableId;
    const leave = this.#places.enter(caller, () => subscription.cut());
    const subscription = new EventSubscription({
      ...filter,
      afterId: replay ? (filter.afterId ?? 0) : this.#durableId,
      replayUntil: replay ? this.#durableId : 0,
      // What waits to be written was emitted before this reader came.
      skip: replay ? 0 : this.#pending.length,
      store: this.#store.events,
      line: this.#replays,
      caller,
      clock: this.#clock,
      onEnd: () => {
        leave();
        this.#fanout.delete(subscription);
      },
    });
    if (this.#closed) subscription.end();
    else this.#fanout.add(subscription);
    return subscription;
  }

  /** Resolves when every event emitted so far is durable. @throws when the store refuses them. */
  async flush(): Promise<void> {
    while (this.#pending.length > 0 || this.#writing !== undefined) {
      const before = this.#durableId;
      await (this.#writing ?? this.#write());
      if (this.#durableId === before && this.#writing === undefined && this.#pending.length > 0) {
        throw new Error(`${this.#pending.length} events could not be written`);
      }
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#closed) return;
    this.#limits[Symbol.dispose]();
    this.#closed = true;
    try {
      await this.flush();
    } catch (err) {
      this.#logger.error({ err, dropped: this.#pending.length }, "events are lost: the store takes none");
    } finally {
      this.#timer?.cancel();
      await this.#fanout.served();
      this.#fanout.end();
    }
  }

  #arm(delayMs: number): void {
    if (this.#timer !== undefined || this.#writing !== undefined) return;
    this.#timer = this.#clock.setTimer(delayMs, () => {
      this.#timer = undefined;
      this.#write();
    });
  }

  #write(): Promise<void> {
    this.#writing ??= this.#writeBatch().finally(() => {
      this.#writing = undefined;
      if (this.#pending.length > 0) this.#arm(this.#failing ? retryDelayMs : commitDelayMs);
    });
    return this.#writing;
  }

  #failing = false;

  async #writeBatch(): Promise<void> {
    this.#timer?.cancel();
    this.#timer = undefined;
    const batch = this.#pending.slice(0, largestCommit);
    if (batch.length === 0) return;
    let firstId: number;
    await this.#mark(this.#durableId + batch.length);
    try {
      firstId = await this.#store.events.append(batch);
    } catch (error) {
      if (!this.#failing) this.#logger.error({ err: error }, "events cannot be written; trying again");
      this.#failing = true;
      return;
    }
    this.#failing = false;
    this.#pending.splice(0, batch.length);
    this.#durableId = firstId + batch.length - 1;
    if (this.#dropped > 0) {
      this.#logger.error({ dropped: this.#dropped }, "events were dropped while the store failed");
      this.#dropped = 0;
    }
    if (this.#fanout.size > 0)
      this.#fanout.publish(batch.map((event, index) => toDurable(event, firstId + index)));
    await this.#trim(batch.length);
  }

  /** Before ids up to `upto` are given. Where they cannot be marked they are given all the same. */
  async #mark(upto: number): Promise<void> {
    const nowMs = this.#clock.monotonicMs();
    if (this.#marks === undefined) return;
    if (upto <= this.#markedUpto && nowMs - this.#markedAtMs < markEveryMs) return;
    this.#markedAtMs = nowMs;
    this.#markedUpto = upto + markedAhead;
    try {
      await this.#marks.mark(this.#markedUpto);
    } catch (err) {
      this.#logger.warn({ err }, "the data directory could not be marked with the ids of events");
    }
  }

  async #trim(added: number): Promise<void> {
    this.#sinceTrim += added;
    if (this.#sinceTrim < trimEvery) return;
    this.#sinceTrim = 0;
    try {
      await this.#store.events.trim(this.#retention);
    } catch (error) {
      this.#logger.warn({ err: error }, "the event history could not be cut");
    }
  }
}

export interface EventLogOptions {
  store: Store;
  clock: Clock;
  logger: Logger;
  /** How many events are kept for replay. */
  retention: number;
  /** Absent: nobody puts the store back. */
  marks?: EventIdMarks;
}

function toDurable(emitted: EmittedEvent & NewEvent, id: number): DurableEvent {
  const { type, sandboxId, timestamp, ownerId, data } = emitted;
  const event = {
    id: String(id),
    type: type satisfies EventType,
    sandbox_id: sandboxId,
    timestamp: timestamp.toISOString(),
    ...(data === undefined ? {} : { data }),
  };
  return { event, ownerId };
}

/** Names the request that met the limit, as its answer and its lines in the log do. */
function ofRequest(event: EmittedEvent): EmittedEvent {
  const requestId = currentRequestId();
  return requestId === undefined ? event : { ...event, data: { ...event.data, request_id: requestId } };
}
