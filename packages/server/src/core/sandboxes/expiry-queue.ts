import type { Clock, Timer } from "../../ports/clock.ts";
import type { SandboxId } from "../../ports/ids.ts";

interface Deadline {
  id: SandboxId;
  atMs: number;
}

/** An expiry is an instant of the machine's clock, which may be set; timers do not see that before they fire. */
export const longestLookMs = 10_000;

/** The clock was set, or the machine slept, when it parts by this much from the time that timers go by. */
const jumpMs = 5_000;

/** The clock was set, or the machine slept; backwards, by less than nothing. */
export interface ClockJump {
  byMs: number;
  /** How many come due by that alone. */
  due: number;
}

/** So many come due in one turn of the event loop; the others in the next. */
const duePerTurn = 500;

/**
 * When sandboxes expire: a heap of deadlines behind one armed timer. A deadline that was moved or dropped stays in
 * the heap until its time comes or such leftovers outnumber the rest.
 */
export class ExpiryQueue implements Disposable {
  readonly #clock: Clock;
  readonly #onDue: (id: SandboxId) => void;
  readonly #onJump: (jump: ClockJump) => void;
  /** The two clocks when they were looked at last. */
  #seen = { wallMs: 0, monotonicMs: 0 };
  readonly #current = new Map<SandboxId, Deadline>();
  #heap: Deadline[] = [];
  #timer: Timer | undefined;
  #armedForMs = Number.POSITIVE_INFINITY;
  #closed = false;

  constructor(options: {
    clock: Clock;
    onDue: (id: SandboxId) => void;
    onJump?: (jump: ClockJump) => void;
  }) {
    this.#clock = options.clock;
    this.#onJump = options.onJump ?? (() => undefined);
    this.#onDue = options.onDue;
  }

  /** Sets or moves a deadline. */
  set(id: SandboxId, at: Date): void {
    if (this.#closed) return;
    const deadline: Deadline = { id, atMs: at.getTime() };
    this.#current.set(id, deadline);
    push(this.#heap, deadline);
    if (this.#heap.length > 64 && this.#heap.length > 2 * this.#current.size) this.#compact();
    this.#arm();
  }

  delete(id: SandboxId): void {
    this.#current.delete(id);
  }

  get size(): number {
    return this.#current.size;
  }

  [Symbol.dispose](): void {
    this.#closed = true;
    this.#timer?.cancel();
    this.#heap = [];
    this.#current.clear();
  }

  #arm(): void {
    const first = this.#heap[0];
    if (first === undefined || first.atMs >= this.#armedForMs) return;
    // While there was nothing to wait for, nobody looked.
    if (this.#timer === undefined && this.#armedForMs === Number.POSITIVE_INFINITY) this.#see();
    this.#timer?.cancel();
    const nowMs = this.#clock.now().getTime();
    const delayMs = Math.min(Math.max(0, first.atMs - nowMs), longestLookMs);
    this.#armedForMs = nowMs + delayMs;
    this.#timer = this.#clock.setTimer(delayMs, () => this.#fire());
  }

  #fire(): void {
    this.#armedForMs = Number.POSITIVE_INFINITY;
    this.#timer = undefined;
    const nowMs = this.#clock.now().getTime();
    this.#tellJump();
    for (let taken = 0; taken < duePerTurn; taken++) {
      const first = this.#heap[0];
      if (first === undefined || first.atMs > nowMs) break;
      pop(this.#heap);
      if (this.#current.get(first.id) !== first) continue;
      this.#current.delete(first.id);
      this.#onDue(first.id);
    }
    this.#arm();
  }

  #see(): { wallMs: number; monotonicMs: number } {
    const before = this.#seen;
    this.#seen = { wallMs: this.#clock.now().getTime(), monotonicMs: this.#clock.monotonicMs() };
    return before;
  }

  #tellJump(): void {
    const before = this.#see();
    const nowMs = this.#seen.wallMs;
    const byMs = nowMs - before.wallMs - (this.#seen.monotonicMs - before.monotonicMs);
    if (Math.abs(byMs) < jumpMs) return;
    let due = 0;
    for (const { atMs } of this.#current.values()) if (atMs <= nowMs && atMs > nowMs - byMs) due++;
    this.#onJump({ byMs: Math.round(byMs), due });
  }

  #compact(): void {
    this.#heap = [];
    for (const deadline of this.#current.values()) push(this.#heap, deadline);
  }
}

function push(heap: Deadline[], deadline: Deadline): void {
  let index = heap.push(deadline) - 1;
  while (index > 0) {
    const parent = (index - 1) >> 1;
    const above = heap[parent] as Deadline;
    if (above.atMs <= deadline.atMs) break;
    heap[index] = above;
    index = parent;
  }
  heap[index] = deadline;
}

function pop(heap: Deadline[]): void {
  const last = heap.pop();
  if (last === undefined || heap.length === 0) return;
  let index = 0;
  for (;;) {
    const left = 2 * index + 1;
    if (left >= heap.length) break;
    const right = left + 1;
    const smaller =
      right < heap.length && (heap[right] as Deadline).atMs < (heap[left] as Deadline).atMs ? right : left;
    const below = heap[smaller] as Deadline;
    if (below.atMs >= last.atMs) break;
    heap[index] = below;
    index = smaller;
  }
  heap[index] = last;
}
