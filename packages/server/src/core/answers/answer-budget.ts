import type { Timer } from "../../ports/clock.ts";
import { Holding, type OnHeld } from "./holding.ts";
import {
  type Asked,
  type BudgetOptions,
  type BudgetRefusals,
  MemoryBudget,
  type Waiting,
} from "./memory-budget.ts";
import type { Part, Share } from "./shares.ts";
import { type SmallAnswers, SmallFirst } from "./small-answers.ts";
import type { MostWaiters } from "./waiters.ts";

/** Who has the turn to finish and asks for nothing for so long loses it. */
export const quietMs = 1_000;

/** More than commands that one key runs at once: each has begun, and would lose what it has written. */
export const mostAnswersWaiting: MostWaiters = { ofOwner: 1_024, ofPrincipal: 2_048, inAll: 4_096 };

/** Memory that one answer holds, from its first bytes until its caller has taken them. */
export type Answer = Pick<Holding, "bytes" | "shrink"> & {
  grow(owner: string, bytes: number, signal: AbortSignal): Promise<void> | undefined;
};

const advice = "try again, ask for less, or use a stream";

const refusals: BudgetRefusals = {
  tooLarge: (bytes) => `the answer would take more than ${bytes} bytes; ask for a part of it`,
  full: { why: "answers that others are taking fill the memory there is for them", advice },
  shareFull: { why: "answers that you are taking fill your share of the memory there is for them", advice },
};

/**
 * Bounds the memory of all answers that are put together before they are sent: listings, paths, buffered output. They grow
 * while they hold a part, and none is ended for another one, so that many which each wait for their next part could keep
 * each other from ever ending. Therefore the last slice of every part of the memory (an owner's, a principal's, all of it), as large as
 * the largest answer, is only for who has the turn to finish there: it gives all back when it ends, and the next one has the turn.
 * Who has the turn of a part has those of all parts below it. Elsewhere the smallest share is served first; turns go round.
 *
 * An answer that stays quiet loses the turn and keeps what it has. So that this cannot lock out others there are two slices of
 * all the memory; the very last one is for principals of whom nobody did that, while another's answer has.
 *
 * Small answers have memory of their own beside all this, so that those who stay quiet keep nobody from them: SmallAnswers.
 *
 * A waiter is refused when nothing has moved for `waitMs` in the part in which it finds no room. Of those that hold something
 * only the newest is, and the next one when that has freed nothing for anybody.
 * docs/decisions/shared-use.md says what that leaves to whom.
 */
export class AnswerBudget extends MemoryBudget<AnswerHolding> {
  readonly #largestBytes: number;
  /** What is small has memory of its own, and has none of this before that is full. */
  readonly #small: SmallAnswers | undefined;
  readonly #turns = new Map<Part, AnswerHolding>();
  /** Those that lost the turn of all memory, and hold what they took. */
  readonly #quiet = new Set<AnswerHolding>();
  readonly #movedMs = new WeakMap<Part, number>();
  #tick: Timer | undefined;
  /** The last one that was refused while it held something, until others were looked at again. */
  #refused: Waiting<AnswerHolding> | undefined;

  /** @param options.largestBytes of an answer that grows in steps; a larger one has no turn where others hold anything. */
  constructor(
    options: BudgetOptions & { largestBytes?: number; mostWaiters?: MostWaiters; small?: SmallAnswers },
  ) {
    super({ refusals, mostWaiters: mostAnswersWaiting, ...options });
    this.#small = options.small;
    this.#largestBytes = options.largestBytes ?? 0;
  }

  open(onHeld: OnHeld, caller: Share = { principal: "", owner: "" }): Answer {
    const small = this.#small;
    if (small === undefined) return new AnswerHolding(this, onHeld, caller);
    const { principal } = caller;
    return new SmallFirst({
      small,
      principal,
      onHeld,
      larger: (whenHeld, smallBytes) => new AnswerHolding(this, whenHeld, caller, smallBytes),
    });
  }

  override ask(holding: AnswerHolding, asked: Asked, signal: AbortSignal): Promise<void> | undefined {
    holding.askedMs = this.clock.monotonicMs();
    if (this.waiters.size === 0) this.#passTurns();
    return super.ask(holding, asked, signal);
  }

  protected override makeRoom(): "none" {
    return "none";
  }

  protected override take(holding: AnswerHolding, asked: Asked, turns: "new" | "own" = "new"): boolean {
    if (this.#blockedAt(holding, asked.bytes, turns) !== undefined) return false;
    const needed = this.#turnsNeeded(this.shares.partsOf(holding.share), asked.bytes - holding.bytes);
    if (holding.bytes === 0) holding.heldSinceMs = this.clock.monotonicMs();
    if (!super.take(holding, asked)) return false;
    const parts = this.shares.partsOf(holding.share);
    for (const part of parts.slice(0, needed)) this.#turns.set(part, holding);
    this.#moved(parts);
    return true;
  }

  /** A share is full too for those without the turn there, when somebody else has it and only the last slice is left. */
  protected override shareIsFull(holding: AnswerHolding, asked: Asked): boolean {
    const part = this.#blockedAt(holding, asked.bytes, "new");
    return (part !== undefined && part !== this.shares.all) || super.shareIsFull(holding, asked);
  }

  protected override drop(holding: AnswerHolding, keep: number): void {
    const parts = this.shares.partsOf(holding.share);
    super.drop(holding, keep);
    // Else each refusal would put off the next one for as long, also where it makes room for nobody.
    if (holding !== this.#refused?.holding) this.#moved(parts);
    if (keep > 0) return;
    this.#quiet.delete(holding);
    for (const part of parts) if (this.#turns.get(part) === holding) this.#turns.delete(part);
  }

  protected override began(waiter: Waiting<AnswerHolding>): () => void {
    const { holding } = waiter;
    holding.waiting = waiter;
    this.#watch();
    return () => {
      holding.waiting = undefined;
      holding.askedMs = this.clock.monotonicMs();
      if (this.waiters.size > 0) return;
      this.#tick?.cancel();
      this.#tick = undefined;
    };
  }

  /** Who needs no other turn, the smallest share first; then one after the other who can have one. */
  protected override serve(): void {
    this.#passTurns();
    const alone = (part: Part) => this.#alone(part);
    for (const waiter of this.waiters.smallestFirst(this.shares, alone)) this.#serveOne(waiter, "own");
    for (const waiter of this.waiters.inTurn(this.shares, alone)) this.#serveOne(waiter, "new");
    if (this.#refused?.holding.released) this.#refuseOverdue();
  }

  #serveOne(waiter: Waiting<AnswerHolding>, turns: "new" | "own"): void {
    if (waiter.done || waiter.holding.released || !this.take(waiter.holding, waiter, turns)) return;
    if (turns === "new") this.waiters.hadTurn(waiter);
    waiter.grant();
  }

  /** Who has the turn of a part, when nobody else can get anything of it; none while that one does not wait. */
  #alone(part: Part): Waiting<AnswerHolding>[] | undefined {
    const slices = part === this.shares.all ? 2 : 1;
    const holding = this.#turns.get(part);
    if (holding === undefined || part.free > slices * this.#largestBytes) return undefined;
    return holding.waiting === undefined ? [] : [holding.waiting];
  }

  /** Of how many parts, its owner's first, it needs the turn to have so much more. */
  #turnsNeeded(parts: readonly Part[], more: number): number {
    let needed = parts.length;
    for (; needed > 0; needed--) {
      const slices = needed === parts.length ? 2 : 1;
      const part = parts[needed - 1];
      if (part !== undefined && part.free - more < slices * this.#largestBytes) break;
    }
    return needed;
  }

  /** The first part that keeps it from having so much: there is not as much, or somebody else has the turn. */
  #blockedAt(holding: AnswerHolding, bytes: number, turns: "new" | "own"): Part | undefined {
    const parts = this.shares.partsOf(holding.share);
    const needed = this.#turnsNeeded(parts, bytes - holding.bytes);
    const ofAll = needed === parts.length;
    // Who could not finish with the turn of all the memory would keep it from every other principal.
    const more = (ofAll ? Math.max(bytes, this.#largestBytes) : bytes) - holding.bytes;
    let index = 0;
    for (const part of parts) {
      if (part.free < more) return part;
      if (index++ >= needed) continue;
      const whose = this.#turns.get(part);
      if (whose === holding) continue;
      if (whose !== undefined || turns === "own") return part;
      if (bytes > this.#largestBytes && part.bytes > holding.bytes) return part;
    }
    return ofAll && this.shares.all.free - more < this.#left(holding) ? this.shares.all : undefined;
  }

  /** Where it finds no room, or who has the turn there and waits as well, and so on: each is a part above the last one. */
  #stuckAt(waiter: Waiting<AnswerHolding>, above = 2): Part | undefined {
    const part = this.#blockedAt(waiter.holding, waiter.bytes, "new");
    const before = part && this.#turns.get(part)?.waiting;
    if (before === undefined || before === waiter || above === 0) return part;
    return this.#stuckAt(before, above - 1) ?? part;
  }

  /** What it must leave of all the memory though it has the turn. */
  #left({ share: { principal } }: AnswerHolding): number {
    if (this.#quiet.size === 0) return this.#largestBytes;
    for (const { share } of this.#quiet) if (share.principal === principal) return this.#largestBytes;
    return 0;
  }

  #passTurns(): void {
    const nowMs = this.clock.monotonicMs();
    for (const [part, holding] of this.#turns) {
      if (holding.waiting !== undefined || nowMs - holding.askedMs < quietMs) continue;
      this.#turns.delete(part);
      if (part === this.shares.all) this.#quiet.add(holding);
    }
  }

  #moved(parts: readonly Part[]): void {
    for (const part of parts) this.#movedMs.set(part, this.clock.monotonicMs());
  }

  /** While somebody waits: who has the turn may have become quiet, and nothing may move. */
  #watch(): void {
    this.#tick ??= this.clock.setTimer(Math.min(quietMs, this.waitMs), () => {
      this.#tick = undefined;
      this.serveNow();
      this.#refuseOverdue();
      if (this.waiters.size > 0) this.#watch();
    });
  }

  #refuseOverdue(): void {
    const nowMs = this.clock.monotonicMs();
    const newest = new Map<Part, Waiting<AnswerHolding>>();
    let stuck: Part | undefined;
    for (const waiter of this.waiters.inTurn(this.shares)) {
      const blockedAt = this.#stuckAt(waiter);
      if (blockedAt === undefined) continue;
      const movedMs = Math.max(waiter.sinceMs, this.#movedMs.get(blockedAt) ?? 0);
      const overdue = nowMs - movedMs >= this.waitMs;
      if (overdue && !waiter.holds) waiter.refuse();
      if (!waiter.holds) continue;
      if (overdue) stuck = blockedAt;
      const { heldSinceMs } = waiter.holding;
      if (heldSinceMs >= (newest.get(blockedAt)?.holding.heldSinceMs ?? 0)) newest.set(blockedAt, waiter);
    }
    const victim = stuck && newest.get(stuck);
    this.#refused = victim;
    victim?.refuse();
  }
}

class AnswerHolding extends Holding {
  waiting: Waiting<AnswerHolding> | undefined;
  /** When it last asked for more, or got it. */
  askedMs = 0;
  heldSinceMs = 0;
  /** What it holds as a small one, until it has found room as a larger one. */
  readonly #smallBytes: () => number;

  constructor(budget: AnswerBudget, onHeld: OnHeld, caller: Share, smallBytes = () => 0) {
    super(budget, onHeld, caller);
    this.#smallBytes = smallBytes;
  }

  override get begun(): boolean {
    return super.begun || this.#smallBytes() > 0;
  }
}
