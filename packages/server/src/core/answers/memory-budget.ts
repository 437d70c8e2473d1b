import type { Clock } from "../../ports/clock.ts";
import { TooLarge, Unavailable } from "../../ports/errors.ts";
import type { Holding } from "./holding.ts";
import { Shares } from "./shares.ts";
import { type MostWaiters, type Waiter, Waiters } from "./waiters.ts";

/** What it asks for: all that it takes from then on, and may come to. */
export interface Asked {
  readonly bytes: number;
  readonly upTo: number;
}

export interface Waiting<H extends Holding> extends Waiter, Asked {
  readonly holding: H;
  readonly sinceMs: number;
  /** It waits no longer. */
  readonly done: boolean;
  grant(): void;
  refuse(): void;
}

/** What is said of something that does not fit. */
export interface BudgetRefusals {
  tooLarge: (shareBytes: number) => string;
  /** When others have what is missing, and when the owner's own share is taken. */
  full: NoRoomWords;
  shareFull: NoRoomWords;
}

interface NoRoomWords {
  /** Who has the memory. */
  why: string;
  advice: string;
}

/** There was no memory for it in time. */
export class NoRoom extends Unavailable {
  readonly why: string;

  constructor({ why, advice }: NoRoomWords) {
    super(`${why}; ${advice}`, { retryAfterS: 1 });
    this.why = why;
  }
}

export interface BudgetOptions {
  totalBytes: number;
  waitMs: number;
  clock: Pick<Clock, "setTimer" | "monotonicMs">;
  refusals?: BudgetRefusals;
}

/**
 * Bounds the memory of things that are held for a while. A principal has at most three quarters of it, an owner half. What does
 * not fit waits; how many wait is bounded, and they are served together, once in a turn of the event loop in which something became
 * free. Who is served and what becomes of the others is the policy of each kind.
 */
export abstract class MemoryBudget<H extends Holding> {
  protected readonly shares: Shares;
  protected readonly waiters: Waiters<Waiting<H>>;
  readonly waitMs: number;
  protected readonly clock: BudgetOptions["clock"];
  readonly #refusals: BudgetRefusals;
  /** A turn in which those who wait are served. */
  #turn: NodeJS.Immediate | undefined;
  /** Something became free, and they were not served yet. */
  #freed = false;

  constructor(options: BudgetOptions & { refusals: BudgetRefusals; mostWaiters: MostWaiters }) {
    this.#refusals = options.refusals;
    this.shares = new Shares(options.totalBytes);
    this.waiters = new Waiters(options.mostWaiters);
    this.waitMs = options.waitMs;
    this.clock = options.clock;
  }

  get heldBytes(): number {
    return this.shares.all.bytes;
  }

  /** What one owner may have. */
  get ownerBytes(): number {
    return this.shares.ownerBytes;
  }

  get waiting(): number {
    return this.waiters.size;
  }

  /** Serves those who wait. */
  protected abstract serve(): void;
  /**
   * Makes room for what does not fit, and takes it.
   * @param behind others are to be served first.
   * @returns `later` when that may be possible once they are.
   */
  protected abstract makeRoom(holding: H, asked: Asked, behind: boolean): "taken" | "none" | "later";
  /** Somebody begins to wait. @returns what ends with that. */
  protected abstract began(waiter: Waiting<H>, room: "none" | "later"): () => void;

  /** Who waits already is served first. */
  ask(holding: H, asked: Asked, signal: AbortSignal): Promise<void> | undefined {
    const behind = this.#freed && this.waiters.size > 0;
    if (!behind && this.take(holding, asked)) return undefined;
    if (signal.aborted) return Promise.reject(signal.reason);
    const room = this.makeRoom(holding, asked, behind);
    if (room === "taken") return undefined;
    if (this.waiters.admits(holding)) return this.#wait(holding, asked, signal, room);
    // Nobody is refused what there is for want of a place to wait in.
    return behind && this.take(holding, asked) ? undefined : Promise.reject(this.#refusal(holding, asked));
  }

  /** @returns whether it has it now. */
  protected take(holding: H, { bytes, upTo }: Asked): boolean {
    const more = { bytes: bytes - holding.bytes, upTo: Math.max(0, upTo - holding.upTo) };
    if (!this.shares.has(holding.share, more)) return false;
    this.shares.add(holding.share, more);
    holding.bytes = bytes;
    holding.upTo += more.upTo;
    return true;
  }

  /** @param keep what it goes on holding. */
  give(holding: H, keep: number): void {
    this.drop(holding, keep);
    if (this.waiters.size > 0) this.serveSoon({ freed: true });
  }

  protected drop(holding: H, keep: number): void {
    this.shares.add(holding.share, { bytes: keep - holding.bytes, upTo: keep - holding.upTo });
    holding.bytes = keep;
    holding.upTo = keep;
  }

  protected serveSoon(options: { freed: boolean }): void {
    this.#freed ||= options.freed;
    this.#turn ??= setImmediate(() => {
      this.#turn = undefined;
      this.serveNow();
    });
  }

  protected serveNow(): void {
    this.#freed = false;
    this.serve();
  }

  /** Whether so much could ever be had. @throws TooLarge for what no share could hold. */
  check(bytes: number): void {
    const most = this.shares.ownerBytes;
    if (bytes > most) throw new TooLarge(this.#refusals.tooLarge(most));
  }

  /** Whether it is its own share, its owner's or its principal's, that has no room for it. */
  protected shareIsFull(holding: H, { bytes, upTo }: Asked): boolean {
    const { share } = holding;
    return !(
      this.shares.ownerHas(share, upTo - holding.upTo) &&
      this.shares.principalHas(share, bytes - holding.bytes)
    );
  }

  #refusal(holding: H, asked: Asked): NoRoom {
    const { full, shareFull } = this.#refusals;
    return new NoRoom(this.shareIsFull(holding, asked) ? shareFull : full);
  }

  #wait(holding: H, asked: Asked, signal: AbortSignal, room: "none" | "later"): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    let done = false;
    const end = () => {
      done = true;
      this.waiters.delete(waiter);
      ended();
      signal.removeEventListener("abort", onAbort);
    };
    const onAbort = () => {
      end();
      reject(signal.reason);
    };
    const refuse = () => {
      end();
      reject(this.#refusal(holding, asked));
    };
    const waiter: Waiting<H> = {
      ...asked,
      holding,
      holds: holding.begun,
      sinceMs: this.clock.monotonicMs(),
      get done() {
        return done;
      },
      refuse,
      displaced: refuse,
      grant: () => {
        end();
        resolve();
      },
    };
    signal.addEventListener("abort", onAbort, { once: true });
    this.waiters.add(waiter);
    const ended = this.began(waiter, room);
    return promise;
  }
}
