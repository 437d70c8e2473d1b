import type { Event, EventType } from "@alcove/wire";
import type { Clock } from "../../ports/clock.ts";
import type { EventPage, EventStore } from "../../ports/store.ts";
import type { Share } from "../answers/shares.ts";
import type { DurableEvent } from "./event-fanout.ts";
import type { ReplayLine } from "./replay-line.ts";

export interface EventFilter {
  /** Absent: every type. */
  types?: readonly EventType[];
  /** Absent: every sandbox. */
  sandboxId?: string;
  /** Absent: everybody's; else what is this owner's alone. */
  ownerId?: string;
}

/** Who may list keys may know of them. */
const ofKeys: ReadonlySet<EventType> = new Set(["key.created", "key.revoked"]);

interface Dropped extends Pick<Event, "id" | "timestamp"> {
  data: { dropped: number; at_most?: true };
}

/** Events that may wait for a slow reader; what comes beyond that is counted, and told in its place. */
const longestBacklog = 1_000;
/** Events that are replayed in one turn of the event loop. */
const replayPage = 100;
/** Events that a reader is handed at once. */
const largestPiece = 100;
/** How long a reader that misses events may take nothing before it is cut off, milliseconds. */
export const longestStallMs = 10_000;

/**
 * One reader of the event log. It replays the history up to where it joined, then hands out what was offered since.
 * A reader that falls behind gets one event `events.dropped` in place of what it missed, with the id of the last of it.
 * It ends when its signal aborts, when the log closes, when its reader has taken nothing for too long, or when it gives
 * way to another: a reader that was cut off comes back with the last id it saw.
 */
export class EventSubscription implements AsyncIterable<Event> {
  readonly #filter: EventFilter;
  readonly #withoutKeys: boolean;
  readonly #store: EventStore;
  readonly #line: ReplayLine;
  readonly #caller: Share;
  readonly #signal: AbortSignal;
  readonly #onEnd: () => void;
  readonly #onCut: (() => void) | undefined;
  readonly #replayUntil: number;
  readonly #endNow = () => this.end();
  #afterId: number;
  /** Up to this id it knows what it missed. */
  #toldUpto: number;
  readonly #fromTheBeginning: boolean;
  #skip: number;
  #backlog: Event[] = [];
  /** What came while the backlog was full. */
  #dropped: Dropped | undefined;
  readonly #clock: Pick<Clock, "monotonicMs" | "now">;
  /** When its reader last took something. */
  #takenAtMs: number;
  #ended = false;
  #wake: (() => void) | undefined;

  constructor(
    options: EventFilter & {
      /** What happens to keys is not for this reader. */
      withoutKeys?: boolean | undefined;
      afterId: number;
      /** Highest id the replay must reach; 0: no replay. */
      replayUntil: number;
      /** So many of the events offered first came before this reader. */
      skip: number;
      signal: AbortSignal;
      store: EventStore;
      line: ReplayLine;
      /** Whose turn in the line it takes. */
      caller: Share;
      clock: Pick<Clock, "monotonicMs" | "now">;
      onEnd: () => void;
      /** Its reader is cut off: whatever it waits for is in vain. */
      onCut?: (() => void) | undefined;
    },
  ) {
    this.#filter = {
      ...(options.types === undefined ? {} : { types: options.types }),
      ...(options.sandboxId === undefined ? {} : { sandboxId: options.sandboxId }),
      ...(options.ownerId === undefined ? {} : { ownerId: options.ownerId }),
    };
    this.#withoutKeys = options.withoutKeys ?? false;
    this.#afterId = options.afterId;
    this.#toldUpto = options.afterId;
    this.#fromTheBeginning = options.afterId === 0;
    this.#skip = options.skip;
    this.#replayUntil = options.replayUntil;
    this.#signal = options.signal;
    this.#store = options.store;
    this.#line = options.line;
    this.#caller = options.caller;
    this.#clock = options.clock;
    this.#takenAtMs = options.clock.monotonicMs();
    this.#onEnd = options.onEnd;
    this.#onCut = options.onCut;
    if (options.signal.aborted) queueMicrotask(this.#endNow);
    else options.signal.addEventListener("abort", this.#endNow, { once: true });
  }

  /** Takes events that have just become durable. */
  offer(events: readonly DurableEvent[]): void {
    const skipped = Math.min(this.#skip, events.length);
    this.#skip -= skipped;
    if (this.#ended) return;
    for (let index = skipped; index < events.length; index++) {
      const { event, ownerId } = events[index] as DurableEvent;
      if (!this.#wants(event, ownerId)) continue;
      if (this.#dropped === undefined && this.#backlog.length < longestBacklog) this.#backlog.push(event);
      else {
        const { id, timestamp } = event;
        this.#dropped = { id, timestamp, data: { dropped: (this.#dropped?.data.dropped ?? 0) + 1 } };
      }
    }
    if (this.#dropped !== undefined && this.#clock.monotonicMs() - this.#takenAtMs >= longestStallMs) {
      this.cut();
    } else if (this.#backlog.length > 0) this.#wake?.();
  }

  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#signal.removeEventListener("abort", this.#endNow);
    this.#onEnd();
    this.#wake?.();
  }

  /** Ends it, and its reader gets nothing more of what waits for it. */
  cut(): void {
    if (this.#ended) return;
    this.end();
    this.#backlog = [];
    this.#dropped = undefined;
    this.#onCut?.();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event> {
    for await (const piece of this.pieces()) yield* piece;
  }

  /** The same events, some at once. They are shared with other readers. */
  async *pieces(): AsyncGenerator<readonly Event[]> {
    try {
      yield* this.#replay();
      while (!this.#ended) {
        const waiting = this.#dropped === undefined ? this.#backlog : [...this.#backlog, told(this.#dropped)];
        this.#backlog = [];
        this.#dropped = undefined;
        // Until now there was nothing more to take.
        this.#takenAtMs = this.#clock.monotonicMs();
        // What became durable while it replayed may be among them again.
        const after = this.#afterId;
        const fresh = waiting.filter(({ id }) => Number(id) > after);
        for (let from = 0; from < fresh.length; from += largestPiece) {
          const piece = fresh.slice(from, from + largestPiece);
          this.#afterId = Number(piece.at(-1)?.id);
          yield piece;
          this.#takenAtMs = this.#clock.monotonicMs();
          if (this.#ended) return;
        }
        if (this.#backlog.length === 0 && !this.#ended) await this.#somethingNew();
      }
    } finally {
      this.end();
    }
  }

  async *#replay(): AsyncGenerator<readonly Event[]> {
    while (this.#afterId < this.#replayUntil && !this.#ended) {
      await this.#line.turn(this.#caller);
      if (this.#ended) return;
      // Until now it was not this reader that others waited for.
      this.#takenAtMs = this.#clock.monotonicMs();
      const page = this.#upToWhereItJoined(
        await this.#store.list({ ...this.#filter, afterId: this.#afterId, limit: replayPage }),
      );
      // They are no gap to who may not know of them.
      const events = this.#withGap(page).filter(({ type }) => this.#mayKnow(type));
      if (events.length > 0) {
        this.#afterId = Number(events.at(-1)?.id);
        yield events;
        this.#takenAtMs = this.#clock.monotonicMs();
        if (this.#ended) return;
      }
      if (page.reached === undefined) return;
      this.#afterId = page.reached;
    }
  }

  /** What came since is offered. */
  #upToWhereItJoined({ events, reached, forgotten }: EventPage): EventPage {
    return {
      events: events.filter(({ id }) => Number(id) <= this.#replayUntil),
      reached: reached !== undefined && reached < this.#replayUntil ? reached : undefined,
      forgotten: { ...forgotten, upto: Math.min(forgotten.upto, this.#replayUntil) },
    };
  }

  /** Tells of what is kept no more, where the last of it is missing. Whoever asks from the beginning asks for what is kept. */
  #withGap(page: EventPage): readonly Event[] {
    if (this.#fromTheBeginning) return page.events;
    const { types, sandboxId, ownerId } = this.#filter;
    const all = types === undefined && sandboxId === undefined && ownerId === undefined;
    return all ? this.#withCountedGap(page) : this.#withGapAtMost(page);
  }

  /** Ids follow one another, so a reader of everything sees what is missing, and is told once for a page. */
  #withCountedGap({ events, reached, forgotten }: EventPage): readonly Event[] {
    let count = 0;
    let atMost = false as boolean;
    let at = 0;
    let before = this.#afterId;
    const missingBefore = (id: number, index: number) => {
      if (id > before + 1) {
        at = index;
        atMost ||= before < (forgotten.passedOverUpto ?? 0);
      }
      count += id - before - 1;
      before = id;
    };
    for (const [index, { id }] of events.entries()) missingBefore(Number(id), index);
    if (reached === undefined && before < this.#replayUntil)
      missingBefore(this.#replayUntil + 1, events.length);
    if (count === 0) return events;
    const upto = Number(events[at]?.id ?? this.#replayUntil + 1) - 1;
    return this.#toldAt(events, at, upto, { dropped: count, ...(atMost && { at_most: true }) });
  }

  /** How much of what is missing the others would have wanted, nobody knows. */
  #withGapAtMost({ events, reached, forgotten: { upto, atMost } }: EventPage): readonly Event[] {
    if (upto <= this.#afterId || (reached !== undefined && reached < upto)) return events;
    const at = events.filter(({ id }) => Number(id) <= upto).length;
    const dropped = Math.min(atMost, upto - this.#toldUpto);
    this.#toldUpto = upto;
    return this.#toldAt(events, at, upto, { dropped, at_most: true });
  }

  #toldAt(events: readonly Event[], at: number, upto: number, data: Dropped["data"]): readonly Event[] {
    const timestamp = events[at]?.timestamp ?? this.#clock.now().toISOString();
    return events.toSpliced(at, 0, told({ id: String(upto), timestamp, data }));
  }

  #wants(event: Event, owner: string): boolean {
    const { types, sandboxId, ownerId } = this.#filter;
    if (ownerId !== undefined && owner !== ownerId) return false;
    if (!this.#mayKnow(event.type)) return false;
    if (types !== undefined && !types.includes(event.type)) return false;
    return sandboxId === undefined || event.sandbox_id === sandboxId;
  }

  #mayKnow(type: EventType): boolean {
    return !this.#withoutKeys || !ofKeys.has(type);
  }

  async #somethingNew(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    this.#wake = undefined;
  }
}

/** Stands for what was dropped. Whoever comes back with its id goes on behind that. */
function told({ id, timestamp, data }: Dropped): Event {
  return { id, type: "events.dropped", sandbox_id: "", timestamp, data };
}
