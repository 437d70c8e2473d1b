import type { Clock } from "../../ports/clock.ts";
import { TooLarge, Unavailable } from "../../ports/errors.ts";

/** An answer smaller than this is nobody's worry: there are as many as there are callers. */
export const freeBytes = 64 * 1024;

/** Memory that one answer holds, from its first bytes until its caller has taken them. */
export interface Answer {
  /** What it holds. */
  readonly bytes: number;
  /**
   * Asks for memory before it is used.
   * @param owner whose answer it is: one owner cannot have all of the budget. Empty for nobody's: then it is its caller's.
   * @param bytes all that the answer takes from now on.
   * @returns a promise only when it has to wait. It rejects with Unavailable when nothing became free in time.
   */
  grow(owner: string, bytes: number, signal: AbortSignal): Promise<void> | undefined;
  /** As `grow`, however little it is: for what is held for long, and may be many. */
  hold(owner: string, bytes: number, signal: AbortSignal): Promise<void> | undefined;
  /** Gives back what was asked for beforehand and is not used after all. */
  shrink(bytes: number): void;
}

interface Waiter {
  holding: Holding;
  bytes: number;
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
 * one that of bodies that are read. What does not fit waits, the first that fits first, and is refused when nothing became
 * free in time. An owner has at most half, and so has a caller of what is nobody's: who takes answers slowly keeps only
 * their own from getting any.
 */
export class AnswerBudget {
  readonly #totalBytes: number;
  readonly #shareBytes: number;
  readonly #waitMs: number;
  readonly #clock: Pick<Clock, "setTimer">;
  readonly #refusals: BudgetRefusals;
  readonly #held = new Map<string, number>();
  readonly #waiters = new Set<Waiter>();
  #heldBytes = 0;

  constructor(options: {
    totalBytes: number;
    waitMs: number;
    clock: Pick<Clock, "setTimer">;
    refusals?: BudgetRefusals;
  }) {
    this.#refusals = options.refusals ?? ofAnswers;
    this.#totalBytes = options.totalBytes;
    this.#shareBytes = Math.floor(options.totalBytes / 2);
    this.#waitMs = options.waitMs;
    this.#clock = options.clock;
  }

  get heldBytes(): number {
    return this.#heldBytes;
  }

  get waiting(): number {
    return this.#waiters.size;
  }

  /**
   * @param onHeld told once, when the answer begins to hold memory; `release` gives all of it back, once.
   * @param caller whose share it takes from when it is no owner's.
   */
  open(onHeld: (release: () => void) => void, caller = ""): Answer {
    return new Holding(this, onHeld, caller);
  }

  /** @returns whether there was room. */
  take(holding: Holding, bytes: number): boolean {
    const more = bytes - holding.bytes;
    if (this.#heldBytes + more > this.#totalBytes || !this.#shareHas(holding, more)) return false;
    const held = this.#held.get(holding.owner) ?? 0;
    this.#heldBytes += more;
    this.#held.set(holding.owner, held + more);
    holding.bytes = bytes;
    return true;
  }

  /** @param keep what it goes on holding. */
  give(holding: Holding, keep = 0): void {
    const less = holding.bytes - keep;
    this.#heldBytes -= less;
    const left = (this.#held.get(holding.owner) ?? 0) - less;
    if (left > 0) this.#held.set(holding.owner, left);
    else this.#held.delete(holding.owner);
    holding.bytes = keep;
    for (const waiter of this.#waiters) {
      if (waiter.holding.released || !this.take(waiter.holding, waiter.bytes)) continue;
      this.#waiters.delete(waiter);
      waiter.grant();
    }
  }

  #shareHas(holding: Holding, more: number): boolean {
    return (this.#held.get(holding.owner) ?? 0) + more <= this.#shareBytes;
  }

  /** @throws TooLarge for an answer that no share could hold. */
  check(bytes: number): void {
    if (bytes > this.#shareBytes) throw new TooLarge(this.#refusals.tooLarge(this.#shareBytes));
  }

  wait(holding: Holding, bytes: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return Promise.reject(signal.reason);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const end = () => {
      this.#waiters.delete(waiter);
      timer.cancel();
      signal.removeEventListener("abort", onAbort);
    };
    const onAbort = () => {
      end();
      reject(signal.reason);
    };
    const waiter: Waiter = {
      holding,
      bytes,
      grant: () => {
        end();
        resolve();
      },
    };
    const timer = this.#clock.setTimer(this.#waitMs, () => {
      end();
      const { full, shareFull } = this.#refusals;
      const fits = this.#shareHas(holding, bytes - holding.bytes);
      reject(new Unavailable(fits ? full : shareFull, { retryAfterS: 1 }));
    });
    signal.addEventListener("abort", onAbort, { once: true });
    this.#waiters.add(waiter);
    return promise;
  }
}

class Holding implements Answer {
  readonly #budget: AnswerBudget;
  readonly #onHeld: (release: () => void) => void;
  readonly #caller: string;
  #state: "free" | "holding" | "released" = "free";
  owner = "";
  bytes = 0;

  constructor(budget: AnswerBudget, onHeld: (release: () => void) => void, caller: string) {
    this.#budget = budget;
    this.#caller = caller;
    this.#onHeld = onHeld;
  }

  grow(owner: string, bytes: number, signal: AbortSignal): Promise<void> | undefined {
    return bytes <= freeBytes ? undefined : this.hold(owner, bytes, signal);
  }

  hold(owner: string, bytes: number, signal: AbortSignal): Promise<void> | undefined {
    if (bytes <= this.bytes || this.#state === "released") return undefined;
    this.#budget.check(bytes);
    if (this.#state === "free") {
      this.#state = "holding";
      this.owner = owner || this.#caller;
      this.#onHeld(() => this.#release());
    }
    // Who waits already is served first; an answer that holds a part may finish, which is what others wait for.
    if (this.#budget.take(this, bytes)) return undefined;
    return this.#budget.wait(this, bytes, signal);
  }

  shrink(bytes: number): void {
    if (bytes < this.bytes) this.#budget.give(this, bytes <= freeBytes ? 0 : bytes);
  }

  get released(): boolean {
    return this.#state === "released";
  }

  #release(): void {
    if (this.#state === "released") return;
    this.#state = "released";
    this.#budget.give(this);
  }
}
