import { outsideRequests } from "../../platform/request-scope.ts";
import { sumOf } from "../../platform/sum-of.ts";
import type { MadeAhead } from "../../ports/index.ts";

/** One that waits for its owner. */
export interface Waiting {
  /** What it was made of: whatever changes since makes it useless. */
  madeOf: string;
  /** Aborts when it ends by itself. */
  ended: AbortSignal;
}

/** Who makes them and takes them away. */
export interface PreparedSite<Shape, One extends Waiting> {
  /** @returns undefined where this shape cannot be prepared. */
  make(shape: Shape): Promise<One | undefined>;
  /** Does not fail. */
  discard(waiting: One): Promise<void>;
  /** Whether somebody waits for the machine: nothing is made meanwhile. */
  isBusy(): boolean;
  onFailure(error: unknown): void;
  /** So many that waited are being removed for somebody who found no room. */
  onGaveWay(count: number, why: unknown): void;
}

interface Shelf<Shape, One> {
  shape: Shape;
  waiting: One[];
  /** In a row. */
  failures: number;
  pausedUntilMs: number;
  /** When those that waited ended by themselves, of late. */
  lostMs: number[];
}

const mostOf = {
  /** For which sandboxes are prepared. */
  shapes: 3,
  /** Spawns that say which these are. */
  recent: 16,
  /** That end by themselves within `pauseMs` and are made again at once. A launcher takes all of them along, and another one may. */
  lost: (count: number) => 3 * count,
} as const;

/** Nobody wanted anything for so long: what is made then takes no processor from who waits. */
const quietMs = 50;
/** After a failure: what was missing, room on the disk for one, may be there again. Twice as long after each further one. */
const pauseMs = 10_000;
const mostDoublings = 4;

/**
 * Prepared sandboxes, as many of each shape as configured, of the shapes that are wanted most. States of one: being made
 * (`#making`), waiting (on its shelf), and from then on somebody else's: `take` gives it away once, whatever becomes of it, and
 * what is discarded is `site`'s to remove. A process that dies leaves directories, which the next start removes.
 */
export class PreparedStock<Shape, One extends Waiting> implements AsyncDisposable {
  readonly #count: number;
  readonly #site: PreparedSite<Shape, One>;
  readonly #keyOf: (shape: Shape) => string;
  /** By key, the shape that was wanted last at the end. */
  readonly #shelves = new Map<string, Shelf<Shape, One>>();
  /** Keys of what was wanted, the last one at the end. */
  readonly #recent: string[] = [];
  readonly #discarding = new Set<Promise<void>>();
  #making: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  readonly #became = { claimed: 0, cold: 0, failed: 0, gaveWay: 0 };
  #gaveWayMs = Number.NEGATIVE_INFINITY;
  /** Of all shapes, those that are wanted meanwhile too. */
  #pausedUntilMs = 0;
  #closed = false;

  /** @param options.keyOf the same for shapes that are one. */
  constructor(options: {
    count: number;
    keyOf: (shape: Shape) => string;
    site: PreparedSite<Shape, One>;
  }) {
    this.#count = options.count;
    this.#keyOf = options.keyOf;
    this.#site = options.site;
  }

  get figures(): MadeAhead | undefined {
    if (this.#count === 0) return undefined;
    const waiting = sumOf([...this.#shelves.values()].map((shelf) => shelf.waiting.length));
    return { waiting, ...this.#became };
  }

  /** A spawn has one, or is made without: who took one and could do nothing with it says `cold`. */
  became(what: "claimed" | "cold"): void {
    this.#became[what] += 1;
  }

  /** Whether one waits, made of what there is now or not. */
  has(shape: Shape): boolean {
    return (this.#shelves.get(this.#keyOf(shape))?.waiting.length ?? 0) > 0;
  }

  /**
   * One that is made of what there is now, if there is one; the shape is one that is wanted from now on.
   * @param madeOf what one would be made of now.
   */
  take(shape: Shape, madeOf: () => string | undefined): One | undefined {
    if (this.#count === 0 || this.#closed) return undefined;
    const shelf = this.#want(shape);
    if (shelf === undefined) return undefined;
    const present = shelf.waiting.length === 0 ? undefined : madeOf();
    for (;;) {
      const found = shelf.waiting.shift();
      if (found === undefined || found.madeOf === present) return found;
      this.#discard(found);
    }
  }

  /** Prepares sandboxes of a shape once nothing else waits. @returns undefined while others are wanted more. */
  #want(shape: Shape): Shelf<Shape, One> | undefined {
    const key = this.#keyOf(shape);
    this.#recent.push(key);
    if (this.#recent.length > mostOf.recent) this.#recent.shift();
    const known = this.#shelves.get(key);
    if (known === undefined && !this.#makePlace(key)) return undefined;
    const shelf = known ?? { shape, waiting: [], failures: 0, pausedUntilMs: 0, lostMs: [] };
    this.#shelves.delete(key);
    this.#shelves.set(key, shelf);
    this.later();
    return shelf;
  }

  /** Whoever spawns of many shapes by turns would else have each one's made and thrown away, and find none. */
  #makePlace(key: string): boolean {
    if (this.#shelves.size < mostOf.shapes) return true;
    const times = (one: string) => this.#recent.filter((wanted) => wanted === one).length;
    const shelves = [...this.#shelves].map(([one, shelf]) => ({ one, shelf, times: times(one) }));
    // Of several the one that was wanted longest ago.
    const least = shelves.reduce((found, next) => (next.times < found.times ? next : found));
    if (times(key) < 2 || times(key) <= 2 * least.times) return false;
    this.#clear(least.one, least.shelf);
    return true;
  }

  /** Something came to its end: what was taken is made again when nothing else comes. */
  later(waitMs = quietMs): void {
    if (this.#closed || this.#count === 0) return;
    clearTimeout(this.#timer);
    // Armed at the end of somebody's spawn, and nothing of that: its request is answered by then.
    this.#timer = outsideRequests(() => setTimeout(() => this.#refill(), waitMs));
    // What is made ahead keeps no process alive.
    this.#timer.unref();
  }

  /**
   * Somebody lacks what they may hold: all that wait are gone then, and none is made for a while.
   * @param sinceMs when the room was sought, by `performance.now()`.
   * @param why what they met.
   * @returns whether there is more room than there was then.
   */
  async giveWay(sinceMs: number, why: unknown): Promise<boolean> {
    await this.#making;
    const nowMs = performance.now();
    this.#pausedUntilMs = nowMs + pauseMs;
    const all = [...this.#shelves.values()].flatMap(({ waiting }) => waiting.splice(0));
    for (const waiting of all) this.#discard(waiting);
    this.#became.gaveWay += all.length;
    if (all.length > 0) this.#site.onGaveWay(all.length, why);
    if (this.#discarding.size > 0) this.#gaveWayMs = nowMs;
    this.later(pauseMs);
    await Promise.all(this.#discarding);
    return this.#gaveWayMs >= sinceMs;
  }

  /** All that wait have ended. */
  lose(): void {
    for (const shelf of this.#shelves.values())
      for (const waiting of shelf.waiting.splice(0)) this.#discard(waiting);
    this.later();
  }

  #refill(): void {
    // Whoever is busy calls `later` at the end.
    if (this.#closed || this.#making !== undefined || this.#site.isBusy()) return;
    const nowMs = performance.now();
    if (this.#pausedUntilMs > nowMs) {
      this.later(this.#pausedUntilMs - nowMs);
      return;
    }
    const lacking = [...this.#shelves.values()]
      .reverse()
      .filter(({ waiting }) => waiting.length < this.#count);
    // One that cannot be made keeps no other from being made.
    const shelf = lacking.find(({ pausedUntilMs }) => pausedUntilMs <= nowMs);
    if (shelf === undefined) {
      const pausesMs = lacking.map(({ pausedUntilMs }) => pausedUntilMs - nowMs);
      if (pausesMs.length > 0) this.later(Math.min(...pausesMs));
      return;
    }
    this.#making = this.#make(shelf).finally(() => {
      this.#making = undefined;
      this.later();
    });
  }

  async #make(shelf: Shelf<Shape, One>): Promise<void> {
    try {
      const made = await this.#site.make(shelf.shape);
      if (made === undefined) {
        this.#clear(this.#keyOf(shelf.shape), shelf);
        return;
      }
      shelf.failures = 0;
      const isWanted = this.#shelves.get(this.#keyOf(shelf.shape)) === shelf && !this.#closed;
      if (!isWanted) this.#discard(made);
      else if (made.ended.aborted) {
        // Sooner than it could wait.
        this.#discard(made);
        this.#noteLoss(shelf);
      } else {
        shelf.waiting.push(made);
        made.ended.addEventListener("abort", () => this.#lost(shelf, made), { once: true });
      }
    } catch (error) {
      this.#failed(shelf, error);
    }
  }

  #failed(shelf: Shelf<Shape, One>, error: unknown): void {
    shelf.pausedUntilMs = performance.now() + pauseMs * 2 ** Math.min(shelf.failures, mostDoublings);
    shelf.failures += 1;
    this.#became.failed += 1;
    this.#site.onFailure(error);
  }

  /** Of those that wait; whoever took one sees for itself. */
  #lost(shelf: Shelf<Shape, One>, waiting: One): void {
    const place = shelf.waiting.indexOf(waiting);
    if (place < 0) return;
    shelf.waiting.splice(place, 1);
    this.#discard(waiting);
    this.#noteLoss(shelf);
    this.later();
  }

  /** What ends as soon as it is made would else be made for ever. */
  #noteLoss(shelf: Shelf<Shape, One>): void {
    const nowMs = performance.now();
    shelf.lostMs = [...shelf.lostMs.filter((ms) => nowMs - ms < pauseMs), nowMs];
    if (shelf.lostMs.length <= mostOf.lost(this.#count)) return;
    const count = shelf.lostMs.length;
    shelf.lostMs = [];
    this.#failed(shelf, new Error(`${count} that waited ended by themselves within ${pauseMs / 1_000} s`));
  }

  #clear(key: string, shelf: Shelf<Shape, One>): void {
    this.#shelves.delete(key);
    for (const waiting of shelf.waiting.splice(0)) this.#discard(waiting);
  }

  #discard(waiting: One): void {
    const work = this.#site.discard(waiting).finally(() => this.#discarding.delete(work));
    this.#discarding.add(work);
  }

  /** All that wait are gone then. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    await this.#making;
    for (const [key, shelf] of this.#shelves) this.#clear(key, shelf);
    await Promise.all(this.#discarding);
  }
}
