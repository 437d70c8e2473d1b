import type { Clock } from "../../ports/clock.ts";
import { TooLarge, Unavailable } from "../../ports/errors.ts";
import { type Share, Shares, sameShare } from "./shares.ts";

/** An answer smaller than this is nobody's worry: there are as many as there are callers. */
export const freeBytes = 64 * 1024;

/** What has held memory for so long gives way to smaller shares that wait for it. */
export const unhurriedMs = 5_000;

/** Memory that one answer holds, from its first bytes until its caller has taken them. */
export interface Answer {
  /** What it holds. */
  readonly bytes: number;
  /**
   * Asks for memory before it is used.
   * @param owner whose answer it is: one owner cannot have all of the budget. Empty for nobody's: then it is its caller's.
   * @param bytes all that the answer takes from now on.
   * @param upTo what it may come to.
   * @returns a promise only when it has to wait. It rejects with Unavailable when nothing became free in time.
   */
  grow(owner: string, bytes: number, signal: AbortSignal, upTo?: number): Promise<void> | undefined;
  /** As `grow`, however little it is: for what is held for long, and may be many. */
  hold(owner: string, bytes: number, signal: AbortSignal, upTo?: number): Promise<void> | undefined;
  /** Gives back what was asked for beforehand and is not used after all. */
  shrink(bytes: number): void;
  /**
   * From now on it can be ended: when it lasts while a smaller share waits for memory, it holds nothing any more and
   * `end` is called, once. Undefined: it cannot, from now on.
   */
  endsBy(end: (() => void) | undefined): void;
}

interface Waiter {
  holding: Holding;
  bytes: number;
  upTo: number;
  grant: () => void;
}

/** What is said of something that does not fit. */
export interface BudgetRefusals {
  tooLarge: (shareBytes: number) => string;
  /** When others have what is missing, and when the owner's own share is taken. */
  full: string;
  shareFull: string;
}

const ofAnswers: BudgetRefusals = {
  tooLarge: (bytes) => `the answer would take more than ${bytes} bytes; ask for a part of it`,
  full: "answers that others are taking fill the memory there is for them; try again, ask for less, or use a stream",
  shareFull:
    "answers that you are taking fill your share of the memory there is for them; try again, ask for less, or use a stream",
};

/**
 * Bounds the memory of all answers that are put together before they are sent: listings, paths, buffered output; another
 * one that of bodies that are read. What does not fit waits, the smallest share first, and is refused when nothing became
 * free in time. A principal has at most three quarters, an owner half. Whoever waits and would not be larger than the
 * largest share with what it asks for does not wait for that: what that share has held for long is ended, if it can be.
 * docs/decisions/shared-use.md says what that leaves to whom.
 */
export class AnswerBudget {
  readonly #shares: Shares;
  readonly #waitMs: number;
  readonly #clock: Pick<Clock, "setTimer" | "monotonicMs">;
  readonly #refusals: BudgetRefusals;
  readonly #waiters = new Set<Waiter>();
  /** Those that can be ended. */
  readonly #endable = new Set<Holding>();

  constructor(options: {
    totalBytes: number;
    waitMs: number;
    clock: Pick<Clock, "setTimer" | "monotonicMs">;
    refusals?: BudgetRefusals;
  }) {
    this.#refusals = options.refusals ?? ofAnswers;
    this.#shares = new Shares(options.totalBytes);
    this.#waitMs = options.waitMs;
    this.#clock = options.clock;
  }

  get heldBytes(): number {
    return this.#shares.heldBytes;
  }

  get waiting(): number {
    return this.#waiters.size;
  }

  /**
   * @param onHeld told once, when the answer begins to hold memory; `release` gives all of it back, once.
   * @param caller whose share it takes from; the owner in it is for what is no owner's.
   */
  open(onHeld: (release: () => void) => void, caller: Share = { principal: "", owner: "" }): Answer {
    return new Holding(this, onHeld, caller);
  }

  /** @returns whether there was room. */
  take(holding: Holding, bytes: number, upTo: number): boolean {
    const { share } = holding;
    const more = { bytes: bytes - holding.bytes, upTo: Math.max(0, upTo - holding.upTo) };
    const shares = this.#shares;
    if (!shares.has(more.bytes) || !shares.principalHas(share, more.bytes)) return false;
    if (!shares.ownerHas(share, more.upTo)) return false;
    shares.add(share, more);
    holding.bytes = bytes;
    holding.upTo += more.upTo;
    return true;
  }

  /** @param keep what it goes on holding. */
  give(holding: Holding, keep = 0): void {
    this.#drop(holding, keep);
    this.#serve();
  }

  #drop(holding: Holding, keep: number): void {
    this.#shares.add(holding.share, { bytes: keep - holding.bytes, upTo: keep - holding.upTo });
    holding.bytes = keep;
    holding.upTo = keep;
  }

  #serve(): void {
    if (this.#waiters.size === 0) return;
    const waiters = [...this.#waiters].sort((one, other) =>
      this.#shares.compare(one.holding.share, other.holding.share),
    );
    for (const waiter of waiters) {
      if (!this.#waiters.has(waiter)) continue;
      if (waiter.holding.released || !this.take(waiter.holding, waiter.bytes, waiter.upTo)) continue;
      waiter.grant();
    }
  }

  /** @param end undefined: it is not to be ended. */
  endable(holding: Holding, end: (() => void) | undefined): void {
    if (end === undefined) this.#endable.delete(holding);
    else this.#endable.add(holding);
    holding.endableFromMs = this.#clock.monotonicMs() + unhurriedMs;
  }

  /** Ends what larger shares have held for long, until there is room. @returns whether there is, and it was taken. */
  makeRoom(holding: Holding, bytes: number, upTo: number): boolean {
    if (holding.released) return false;
    let ended = false;
    let taken = this.take(holding, bytes, upTo);
    while (!taken) {
      const largest = this.#largestThatYields(holding, bytes - holding.bytes, upTo - holding.upTo);
      if (largest === undefined) break;
      ended = true;
      this.#endable.delete(largest);
      this.#drop(largest, 0);
      taken = this.take(holding, bytes, upTo);
      largest.end();
    }
    if (ended) this.#serve();
    return taken;
  }

  #largestThatYields(to: Holding, bytes: number, upTo: number): Holding | undefined {
    const nowMs = this.#clock.monotonicMs();
    const shares = this.#shares;
    // In an owner's own share only what has not come gives way, to what is less: it keeps that from nobody but the owner.
    const outstanding = !shares.ownerHas(to.share, upTo);
    let largest: Holding | undefined;
    for (const holding of this.#endable) {
      if (holding.bytes === 0 || holding.endableFromMs > nowMs) continue;
      if (outstanding) {
        if (!sameShare(holding.share, to.share) || holding.outstanding <= upTo) continue;
        if (largest === undefined || holding.outstanding > largest.outstanding) largest = holding;
        continue;
      }
      if (!shares.yields(holding.share, to.share, bytes)) continue;
      const more =
        largest === undefined
          ? 1
          : shares.compare(holding.share, largest.share) || holding.bytes - largest.bytes;
      if (more > 0) largest = holding;
    }
    return largest;
  }

  /** @throws TooLarge for an answer that no share could hold. */
  check(bytes: number): void {
    const most = this.#shares.ownerBytes;
    if (bytes > most) throw new TooLarge(this.#refusals.tooLarge(most));
  }

  wait(holding: Holding, asked: { bytes: number; upTo: number; signal: AbortSignal }): Promise<void> {
    const { bytes, upTo, signal } = asked;
    if (signal.aborted) return Promise.reject(signal.reason);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const end = () => {
      this.#waiters.delete(waiter);
      timer.cancel();
      again.cancel();
      signal.removeEventListener("abort", onAbort);
    };
    const onAbort = () => {
      end();
      reject(signal.reason);
    };
    const waiter: Waiter = {
      holding,
      bytes,
      upTo,
      grant: () => {
        end();
        resolve();
      },
    };
    const timer = this.#clock.setTimer(this.#waitMs, () => {
      end();
      const { full, shareFull } = this.#refusals;
      const fits =
        this.#shares.ownerHas(holding.share, upTo - holding.upTo) &&
        this.#shares.principalHas(holding.share, bytes - holding.bytes);
      reject(new Unavailable(fits ? full : shareFull, { retryAfterS: 1 }));
    });
    // What was held before this waited, and still is, has been held for long by then.
    const again = this.#clock.setTimer(Math.min(unhurriedMs, this.#waitMs), () => {
      if (this.makeRoom(holding, bytes, upTo)) waiter.grant();
    });
    signal.addEventListener("abort", onAbort, { once: true });
    this.#waiters.add(waiter);
    return promise;
  }
}

class Holding implements Answer {
  readonly #budget: AnswerBudget;
  readonly #onHeld: (release: () => void) => void;
  #state: "free" | "holding" | "released" = "free";
  #end: (() => void) | undefined;
  share: Share;
  bytes = 0;
  /** What it may come to. */
  upTo = 0;
  endableFromMs = 0;

  constructor(budget: AnswerBudget, onHeld: (release: () => void) => void, caller: Share) {
    this.#budget = budget;
    this.#onHeld = onHeld;
    this.share = caller;
  }

  grow(owner: string, bytes: number, signal: AbortSignal, upTo = bytes): Promise<void> | undefined {
    return bytes <= freeBytes ? undefined : this.hold(owner, bytes, signal, upTo);
  }

  hold(owner: string, bytes: number, signal: AbortSignal, most = bytes): Promise<void> | undefined {
    if (bytes <= this.bytes || this.#state === "released") return undefined;
    const upTo = Math.max(bytes, most, this.upTo);
    this.#budget.check(upTo);
    if (this.#state === "free") {
      this.#state = "holding";
      if (owner !== "") this.share = { principal: this.share.principal, owner };
      this.#onHeld(() => this.#release());
    }
    // Who waits already is served first; an answer that holds a part may finish, which is what others wait for.
    if (this.#budget.makeRoom(this, bytes, upTo)) return undefined;
    return this.#budget.wait(this, { bytes, upTo, signal });
  }

  shrink(bytes: number): void {
    if (bytes < this.bytes) this.#budget.give(this, bytes <= freeBytes ? 0 : bytes);
  }

  endsBy(end: (() => void) | undefined): void {
    if (this.#state === "released") return;
    this.#end = end;
    this.#budget.endable(this, end);
  }

  /** It gives way. */
  end(): void {
    this.#state = "released";
    this.#end?.();
  }

  /** What has not come of what it may come to. */
  get outstanding(): number {
    return this.upTo - this.bytes;
  }

  get released(): boolean {
    return this.#state === "released";
  }

  #release(): void {
    if (this.#state === "released") return;
    this.#state = "released";
    this.#budget.endable(this, undefined);
    this.#budget.give(this);
  }
}
