import { Holding, type OnHeld } from "./holding.ts";
import {
  type Asked,
  type BudgetOptions,
  type BudgetRefusals,
  MemoryBudget,
  type Waiting,
} from "./memory-budget.ts";
import { type Share, sameShare } from "./shares.ts";
import type { MostWaiters } from "./waiters.ts";

/** What has held memory for so long gives way to smaller shares that wait for it. */
export const unhurriedMs = 5_000;

export const mostBodiesWaiting: MostWaiters = { ofOwner: 128, ofPrincipal: 256, inAll: 1_024 };

/** Of all that is held it is looked for room so often in one turn, and so many are told in one that they gave way. */
const looksPerTurn = 16;
const endsPerTurn = 64;

/**
 * Bounds the memory of bodies, which come as slowly as their senders like, and of what is kept of them. A body is charged as it
 * comes; what may still come counts against its owner alone. What does not fit waits, the smallest share first, and is
 * refused when it found no room in time. Whoever waits and would not be larger than the largest share with what it asks for does not
 * wait for that: what that share has held for long is ended, if it can be and if that is enough.
 * docs/decisions/shared-use.md says what that leaves to whom.
 */
export class BodyBudget extends MemoryBudget<Body> {
  /** Those that hold something and can be ended. */
  readonly #endable = new Set<Body>();
  /** Those that gave way and are to be told. */
  #ending: Body[] = [];
  /** Those for whom it is time to make room. */
  readonly #due = new Set<Waiting<Body>>();
  /** Those that have waited as long as what is held for long. */
  readonly #waitedLong = new Set<Waiting<Body>>();
  #looks = 0;
  #ends = 0;

  constructor(options: BudgetOptions & { refusals: BudgetRefusals }) {
    super({ ...options, mostWaiters: mostBodiesWaiting });
  }

  open(onHeld: OnHeld, caller: Share): Body {
    return new Body(this, onHeld, caller);
  }

  /** Whether it can be ended has changed. */
  endable(body: Body): void {
    if (body.canEnd && body.bytes > 0) this.#endable.add(body);
    else this.#endable.delete(body);
    body.endableFromMs = this.clock.monotonicMs() + unhurriedMs;
  }

  protected override take(body: Body, asked: Asked): boolean {
    const begins = body.bytes === 0;
    if (!super.take(body, asked)) return false;
    if (begins) body.heldSinceMs = this.clock.monotonicMs();
    if (body.canEnd) this.#endable.add(body);
    return true;
  }

  protected override drop(body: Body, keep: number): void {
    super.drop(body, keep);
    if (keep === 0) this.#endable.delete(body);
  }

  protected override began(waiter: Waiting<Body>, room: "none" | "later"): () => void {
    const dueNow = () => {
      this.#due.add(waiter);
      this.serveSoon({ freed: false });
    };
    const timer = this.clock.setTimer(this.waitMs, () => waiter.refuse());
    // What was held before this waited, and still is, has been held for long by then.
    const again = this.clock.setTimer(Math.min(unhurriedMs, this.waitMs), () => {
      this.#waitedLong.add(waiter);
      dueNow();
    });
    if (room === "later") dueNow();
    return () => {
      timer.cancel();
      again.cancel();
      this.#due.delete(waiter);
      this.#waitedLong.delete(waiter);
    };
  }

  /** Those who fit, the smallest share first; then room is made for those for whom it is time. */
  protected override serve(): void {
    this.#looks = 0;
    this.#ends = 0;
    this.#endSome();
    const waiters = this.waiters.smallestFirst(this.shares);
    for (const waiter of waiters) {
      if (!waiter.done && !waiter.holding.released && this.take(waiter.holding, waiter)) waiter.grant();
    }
    for (const waiter of waiters) {
      if (!this.#due.has(waiter)) continue;
      if (this.#looks >= looksPerTurn) {
        this.serveSoon({ freed: false });
        break;
      }
      this.#due.delete(waiter);
      if (this.#takeOfLarger(waiter.holding, waiter, { waitedLong: this.#waitedLong.has(waiter) }))
        waiter.grant();
    }
  }

  protected override makeRoom(body: Body, asked: Asked, behind: boolean): "taken" | "none" | "later" {
    if (behind || this.#looks >= looksPerTurn) return "later";
    return this.#takeOfLarger(body, asked) ? "taken" : "none";
  }

  /**
   * Ends what larger shares have held for long, when that makes room.
   * @param options.waitedLong what has not held it for long may be ended as well. @returns whether there is room, and it was taken.
   */
  #takeOfLarger(to: Body, asked: Asked, options = { waitedLong: false }): boolean {
    if (to.released) return false;
    if (this.#endable.size === 0) return this.take(to, asked);
    this.#looks++;
    this.serveSoon({ freed: false });
    const dropped: { body: Body; bytes: number; upTo: number }[] = [];
    const drop = (body: Body) => {
      dropped.push({ body, bytes: body.bytes, upTo: body.upTo });
      this.drop(body, 0);
    };
    const more = { bytes: asked.bytes - to.bytes, upTo: Math.max(0, asked.upTo - to.upTo) };
    this.#yield(to, { ...more, ...options }, drop);
    if (!this.take(to, asked)) {
      for (const { body, ...had } of dropped) {
        this.shares.add(body.share, had);
        Object.assign(body, had);
        this.#endable.add(body);
      }
      return false;
    }
    for (const { body } of dropped) {
      body.giveWay();
      this.#ending.push(body);
    }
    // Of what gave way a part may be left for others.
    this.serveSoon({ freed: dropped.length > 0 });
    this.#endSome();
    return true;
  }

  #yield(
    to: Body,
    more: { bytes: number; upTo: number; waitedLong: boolean },
    drop: (body: Body) => void,
  ): void {
    const nowMs = this.clock.monotonicMs();
    const due = [...this.#endable].filter((body) => body !== to && body.endableFromMs <= nowMs);
    // In an owner's own share only what has not come gives way, to what is less: it keeps that from nobody but the owner.
    const own = this.shares.ownerHas(to.share, more.upTo)
      ? []
      : due
          .filter((body) => sameShare(body.share, to.share) && body.outstanding > more.upTo)
          .sort((one, other) => other.outstanding - one.outstanding);
    for (const body of own) {
      if (this.shares.ownerHas(to.share, more.upTo)) break;
      drop(body);
    }
    if (!this.shares.ownerHas(to.share, more.upTo)) return;
    // What was given its memory just now had no time to come: it gives way only to who has waited as long, where nothing else
    // is enough. Where memory changes hands all the time nothing has been held for long.
    this.#yieldOf(
      due.filter(({ heldSinceMs }) => heldSinceMs + unhurriedMs <= nowMs),
      to,
      more.bytes,
      drop,
    );
    if (more.waitedLong) this.#yieldOf(due, to, more.bytes, drop);
  }

  #yieldOf(due: readonly Body[], to: Body, bytes: number, drop: (body: Body) => void): void {
    const yields = (body: Body) => body.bytes > 0 && this.shares.yields(body.share, to.share, bytes);
    // Others may yield only when what is of the same principal has.
    while (!this.shares.fits(to.share, bytes)) {
      const yielding = due.filter(yields);
      if (yielding.length === 0) return;
      for (const body of this.shares.largestFirst(yielding)) {
        if (this.shares.fits(to.share, bytes)) return;
        if (yields(body)) drop(body);
      }
    }
  }

  /** What it takes to answer them is bounded in a turn. */
  #endSome(): void {
    const now = this.#ending.splice(0, endsPerTurn - this.#ends);
    this.#ends += now.length;
    if (this.#ending.length > 0) this.serveSoon({ freed: false });
    for (const body of now) body.end();
  }
}

/** Memory of a body, or of what is kept of it. */
export class Body extends Holding {
  readonly #budget: BodyBudget;
  #end: (() => void) | undefined;
  endableFromMs = 0;
  heldSinceMs = 0;

  constructor(budget: BodyBudget, onHeld: OnHeld, caller: Share) {
    super(budget, onHeld, caller);
    this.#budget = budget;
  }

  /**
   * From now on it can be ended: when it lasts while a smaller share waits for memory, it holds nothing any more and
   * `end` is called, once. Undefined: it cannot, from now on.
   */
  endsBy(end: (() => void) | undefined): void {
    if (this.released) return;
    this.#end = end;
    this.#budget.endable(this);
  }

  get canEnd(): boolean {
    return this.#end !== undefined;
  }

  /** What has not come of what it may come to. */
  get outstanding(): number {
    return this.upTo - this.bytes;
  }

  /** It holds nothing any more; `end` tells it. */
  giveWay(): void {
    super.close();
  }

  end(): void {
    this.#end?.();
  }

  protected override close(): void {
    super.close();
    this.#end = undefined;
  }
}
