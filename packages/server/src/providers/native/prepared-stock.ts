import type { Duplex } from "node:stream";
import { mostOf, type PreparedShape, shapeKey } from "./prepared-shape.ts";

/** One that waits for its owner. */
export interface Waiting {
  name: string;
  /** What it was made of, as `fingerprintOf` tells it: whatever changes since makes it useless. */
  madeOf: string;
  /** To the socket of its agent, which does not run yet: it ends with the sandbox. */
  connection: Duplex;
}

/** Who makes them and takes them away. */
export interface PreparedSite {
  /** @returns undefined where this shape cannot be prepared. */
  make(shape: PreparedShape): Promise<Waiting | undefined>;
  /** Does not fail. */
  discard(waiting: Waiting): Promise<void>;
  /** Whether somebody waits for the machine: nothing is made meanwhile. */
  isBusy(): boolean;
  onFailure(error: unknown): void;
}

interface Shelf {
  shape: PreparedShape;
  waiting: Waiting[];
  /** In a row. */
  failures: number;
  pausedUntilMs: number;
}

/** Nobody wanted anything for so long: what is made then takes no processor from who waits. */
const quietMs = 50;
/** After a failure: what was missing, room on the disk for one, may be there again. Twice as long after each further one. */
const pauseMs = 10_000;
const mostDoublings = 4;

/**
 * Prepared sandboxes, as many of each shape as configured, of the shapes that were wanted last. States of one: being made
 * (`#making`), waiting (on its shelf), and from then on somebody else's: `take` gives it away once, whatever becomes of it, and
 * what is discarded is `site`'s to remove. A process that dies leaves directories, which the next start removes.
 */
export class PreparedStock implements AsyncDisposable {
  readonly #count: number;
  readonly #site: PreparedSite;
  /** By key, the shape that was wanted last at the end. */
  readonly #shelves = new Map<string, Shelf>();
  readonly #discarding = new Set<Promise<void>>();
  #making: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: { count: number; site: PreparedSite }) {
    this.#count = options.count;
    this.#site = options.site;
  }

  /**
   * One that is made of what there is now, if there is one; the shape is one that is wanted from now on.
   * @param madeOf what one would be made of now.
   */
  take(shape: PreparedShape, madeOf: () => string | undefined): Waiting | undefined {
    if (this.#count === 0 || this.#closed) return undefined;
    const shelf = this.want(shape);
    const present = shelf.waiting.length === 0 ? undefined : madeOf();
    for (;;) {
      const found = shelf.waiting.shift();
      if (found === undefined || found.madeOf === present) return found;
      this.#discard(found);
    }
  }

  /** Prepares sandboxes of a shape once nothing else waits. */
  want(shape: PreparedShape): Shelf {
    const key = shapeKey(shape);
    const shelf = this.#shelves.get(key) ?? { shape, waiting: [], failures: 0, pausedUntilMs: 0 };
    this.#shelves.delete(key);
    this.#shelves.set(key, shelf);
    const [oldest] = this.#shelves;
    if (this.#shelves.size > mostOf.shapes && oldest !== undefined) this.#clear(...oldest);
    this.later();
    return shelf;
  }

  /** Something came to its end: what was taken is made again when nothing else comes. */
  later(waitMs = quietMs): void {
    if (this.#closed || this.#count === 0) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#refill(), waitMs);
    // What is made ahead keeps no process alive.
    this.#timer.unref();
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

  async #make(shelf: Shelf): Promise<void> {
    try {
      const made = await this.#site.make(shelf.shape);
      if (made === undefined) {
        this.#clear(shapeKey(shelf.shape), shelf);
        return;
      }
      shelf.failures = 0;
      const isWanted = this.#shelves.get(shapeKey(shelf.shape)) === shelf && !this.#closed;
      if (!isWanted || made.connection.destroyed) this.#discard(made);
      else {
        shelf.waiting.push(made);
        made.connection.once("close", () => this.#lost(shelf, made));
      }
    } catch (error) {
      shelf.pausedUntilMs = performance.now() + pauseMs * 2 ** Math.min(shelf.failures, mostDoublings);
      shelf.failures += 1;
      this.#site.onFailure(error);
    }
  }

  /** Of those that wait; whoever took one sees for itself. */
  #lost(shelf: Shelf, waiting: Waiting): void {
    const place = shelf.waiting.indexOf(waiting);
    if (place < 0) return;
    shelf.waiting.splice(place, 1);
    this.#discard(waiting);
    this.later();
  }

  #clear(key: string, shelf: Shelf): void {
    this.#shelves.delete(key);
    for (const waiting of shelf.waiting.splice(0)) this.#discard(waiting);
  }

  #discard(waiting: Waiting): void {
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
