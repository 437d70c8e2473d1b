import type { Clock } from "../../ports/clock.ts";
import { TooLarge, Unavailable } from "../../ports/errors.ts";
import { type Share, Shares, sameShare } from "./shares.ts";
import { type Waiter, Waiters } from "./waiters.ts";

/** An answer smaller than this is nobody's worry: there are as many as there are callers. */
export const freeBytes = 64 * 1024;

/** What has held memory for so long gives way to smaller shares that wait for it. */
export const unhurriedMs = 5_000;

/** Of all that is held it is looked for room so often in one turn, and so many are told in one that they gave way. */
const looksPerTurn = 16;
const endsPerTurn = 64;

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

interface Waiting extends Waiter {
  readonly holding: Holding;
  readonly bytes: number;
  readonly upTo: number;
  /** It waits no longer. */
  done: boolean;
  /** Room is to be made for it, if larger shares can give way. */
  due: boolean;
  grant(): void;
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
 * largest share with what it asks for does not wait for that: what that share has held for long is ended, if it can be and
 * if that is enough. How many wait is bounded, and they are served together, in turns that are short however many they are.
 * docs/decisions/shared-use.md says what that leaves to whom.
 */
export class AnswerBudget {
  readonly #shares: Shares;
  readonly #waitMs: number;
  readonly #clock: Pick<Clock, "setTimer" | "monotonicMs">;
  readonly #refusals: BudgetRefusals;
  readonly #waiters = new Waiters<Waiting>();
  /** Those that hold something and can be ended. */
  readonly #endable = new Set<Holding>();
  /** Those that gave way and are to be told. */
  #ending: Holding[] = [];
  /** A turn in which those who wait are served. */
  #turn: NodeJS.Immediate | undefined;
  /** Something became free, and they were not served yet. */
  #freed = false;
  #looks = 0;
  #ends = 0;

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

  /** Who waits already is served first; an answer that holds a part may finish, which is what others wait for. */
  ask(
    holding: Holding,
    asked: { bytes: number; upTo: number; signal: AbortSignal },
  ): Promise<void> | undefined {
    const { bytes, upTo } = asked;
    const behind = this.#freed && this.#waiters.size > 0;
    if (!behind && this.#take(holding, bytes, upTo)) return undefined;
    if (asked.signal.aborted) return Promise.reject(asked.signal.reason);
    if (!this.#waiters.admits(holding.share)) return Promise.reject(this.#refusal(holding, bytes, upTo));
    const due = behind || this.#looks >= looksPerTurn;
    if (!due && this.#makeRoom(holding, bytes, upTo)) return undefined;
    return this.#wait(holding, asked, due);
  }

  #take(holding: Holding, bytes: number, upTo: number): boolean {
    const { share } = holding;
    const more = { bytes: bytes - holding.bytes, upTo: Math.max(0, upTo - holding.upTo) };
    if (!this.#fits(share, more.bytes) || !this.#shares.ownerHas(share, more.upTo)) return false;
    this.#shares.add(share, more);
    holding.bytes = bytes;
    holding.upTo += more.upTo;
    if (holding.canEnd) this.#endable.add(holding);
    return true;
  }

  #fits(share: Share, bytes: number): boolean {
    return this.#shares.has(bytes) && this.#shares.principalHas(share, bytes);
  }

  /** @param keep what it goes on holding. */
  give(holding: Holding, keep = 0): void {
    this.#drop(holding, keep);
    if (this.#waiters.size === 0) return;
    this.#freed = true;
    this.#turnSoon();
  }

  #drop(holding: Holding, keep: number): void {
    this.#shares.add(holding.share, { bytes: keep - holding.bytes, upTo: keep - holding.upTo });
    holding.bytes = keep;
    holding.upTo = keep;
    if (keep === 0) this.#endable.delete(holding);
  }

  #turnSoon(): void {
    this.#turn ??= setImmediate(() => {
      this.#turn = undefined;
      this.#serve();
    });
  }

  /** Those who fit, the smallest share first; then room is made for those for whom it is time. */
  #serve(): void {
    this.#freed = false;
    this.#looks = 0;
    this.#ends = 0;
    this.#endSome();
    const waiters = this.#waiters
      .all()
      .sort((one, other) => this.#shares.compare(one.holding.share, other.holding.share));
    for (const waiter of waiters) {
      if (waiter.done || waiter.holding.released) continue;
      if (this.#take(waiter.holding, waiter.bytes, waiter.upTo)) waiter.grant();
    }
    for (const waiter of waiters) {
      if (waiter.done || !waiter.due) continue;
      if (this.#looks >= looksPerTurn) {
        this.#turnSoon();
        break;
      }
      waiter.due = false;
      if (this.#makeRoom(waiter.holding, waiter.bytes, waiter.upTo)) waiter.grant();
    }
  }

  /** Whether it can be ended has changed. */
  endable(holding: Holding): void {
    if (holding.canEnd && holding.bytes > 0) this.#endable.add(holding);
    else this.#endable.delete(holding);
    holding.endableFromMs = this.#clock.monotonicMs() + unhurriedMs;
  }

  /** Ends what larger shares have held for long, when that makes room. @returns whether there is, and it was taken. */
  #makeRoom(to: Holding, bytes: number, upTo: number): boolean {
    if (to.released) return false;
    if (this.#endable.size === 0) return this.#take(to, bytes, upTo);
    this.#looks++;
    this.#turnSoon();
    const dropped: { holding: Holding; bytes: number; upTo: number }[] = [];
    const drop = (holding: Holding) => {
      dropped.push({ holding, bytes: holding.bytes, upTo: holding.upTo });
      this.#drop(holding, 0);
    };
    this.#yield(to, { bytes: bytes - to.bytes, upTo: Math.max(0, upTo - to.upTo) }, drop);
    if (!this.#take(to, bytes, upTo)) {
      for (const { holding, ...had } of dropped) {
        this.#shares.add(holding.share, had);
        Object.assign(holding, had);
        this.#endable.add(holding);
      }
      return false;
    }
    for (const { holding } of dropped) {
      holding.giveWay();
      this.#ending.push(holding);
    }
    // Of what gave way a part may be left for others.
    this.#freed ||= dropped.length > 0;
    this.#endSome();
    return true;
  }

  #yield(to: Holding, more: { bytes: number; upTo: number }, drop: (holding: Holding) => void): void {
    const nowMs = this.#clock.monotonicMs();
    const shares = this.#shares;
    const due = [...this.#endable].filter((holding) => holding !== to && holding.endableFromMs <= nowMs);
    // In an owner's own share only what has not come gives way, to what is less: it keeps that from nobody but the owner.
    const own = shares.ownerHas(to.share, more.upTo)
      ? []
      : due
          .filter((holding) => sameShare(holding.share, to.share) && holding.outstanding > more.upTo)
          .sort((one, other) => other.outstanding - one.outstanding);
    for (const holding of own) {
      if (shares.ownerHas(to.share, more.upTo)) break;
      drop(holding);
    }
    if (!shares.ownerHas(to.share, more.upTo)) return;
    const yields = (holding: Holding) =>
      holding.bytes > 0 && shares.yields(holding.share, to.share, more.bytes);
    // Others may yield only when what is of the same principal has.
    while (!this.#fits(to.share, more.bytes)) {
      const yielding = due.filter(yields);
      if (yielding.length === 0) return;
      for (const holding of shares.largestFirst(yielding)) {
        if (this.#fits(to.share, more.bytes)) return;
        if (yields(holding)) drop(holding);
      }
    }
  }

  /** What it takes to answer them is bounded in a turn. */
  #endSome(): void {
    const now = this.#ending.splice(0, endsPerTurn - this.#ends);
    this.#ends += now.length;
    if (this.#ending.length > 0) this.#turnSoon();
    for (const holding of now) holding.end();
  }

  /** @throws TooLarge for an answer that no share could hold. */
  check(bytes: number): void {
    const most = this.#shares.ownerBytes;
    if (bytes > most) throw new TooLarge(this.#refusals.tooLarge(most));
  }

  #refusal(holding: Holding, bytes: number, upTo: number): Unavailable {
    const { full, shareFull } = this.#refusals;
    const { share } = holding;
    const fits =
      this.#shares.ownerHas(share, upTo - holding.upTo) &&
      this.#shares.principalHas(share, bytes - holding.bytes);
    return new Unavailable(fits ? full : shareFull, { retryAfterS: 1 });
  }

  #wait(
    holding: Holding,
    asked: { bytes: number; upTo: number; signal: AbortSignal },
    due: boolean,
  ): Promise<void> {
    const { bytes, upTo, signal } = asked;
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const end = () => {
      waiter.done = true;
      this.#waiters.delete(waiter);
      timer.cancel();
      again.cancel();
      signal.removeEventListener("abort", onAbort);
    };
    const onAbort = () => {
      end();
      reject(signal.reason);
    };
    const refuse = () => {
      end();
      reject(this.#refusal(holding, bytes, upTo));
    };
    const waiter: Waiting = {
      share: holding.share,
      holding,
      bytes,
      upTo,
      done: false,
      due,
      displaced: refuse,
      grant: () => {
        end();
        resolve();
      },
    };
    const timer = this.#clock.setTimer(this.#waitMs, refuse);
    // What was held before this waited, and still is, has been held for long by then.
    const again = this.#clock.setTimer(Math.min(unhurriedMs, this.#waitMs), () => {
      waiter.due = true;
      this.#turnSoon();
    });
    signal.addEventListener("abort", onAbort, { once: true });
    this.#waiters.add(waiter);
    if (due) this.#turnSoon();
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
      // Its caller may be gone already: nobody would give it back.
      if (this.released) return undefined;
    }
    return this.#budget.ask(this, { bytes, upTo, signal });
  }

  shrink(bytes: number): void {
    if (bytes < this.bytes) this.#budget.give(this, bytes <= freeBytes ? 0 : bytes);
  }

  endsBy(end: (() => void) | undefined): void {
    if (this.#state === "released") return;
    this.#end = end;
    this.#budget.endable(this);
  }

  get canEnd(): boolean {
    return this.#end !== undefined;
  }

  /** It holds nothing any more; `end` tells it. */
  giveWay(): void {
    this.#state = "released";
  }

  end(): void {
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
    this.#end = undefined;
    this.#budget.give(this);
  }
}
