import type { Asked } from "./memory-budget.ts";
import type { Share } from "./shares.ts";

/** What is smaller than this is nobody's worry: there are as many as there are callers. */
export const freeBytes = 64 * 1024;

/** Told once, when memory begins to be held; `release` gives all of it back, once. */
export type OnHeld = (release: () => void) => void;

interface Lender {
  check(bytes: number): void;
  ask(holding: Holding, asked: Asked, signal: AbortSignal): Promise<void> | undefined;
  give(holding: Holding, keep: number): void;
}

/** Memory of one thing: free while it is little, held from then on until it is released. */
export class Holding {
  readonly #lender: Lender;
  readonly #onHeld: OnHeld;
  #state: "free" | "holding" | "released" = "free";
  share: Share;
  bytes = 0;
  /** What it may come to. */
  upTo = 0;

  /** @param caller whose share it takes from; the owner in it is for what is no owner's. */
  constructor(lender: Lender, onHeld: OnHeld, caller: Share) {
    this.#lender = lender;
    this.#onHeld = onHeld;
    this.share = caller;
  }

  /**
   * Asks for memory before it is used.
   * @param owner whose it is: one owner cannot have all. Empty for nobody's: then it is its caller's.
   * @param bytes all that it takes from now on. @param upTo what it may come to.
   * @returns a promise only when it has to wait. It rejects with Unavailable when nothing became free in time.
   */
  grow(owner: string, bytes: number, signal: AbortSignal, upTo = bytes): Promise<void> | undefined {
    return bytes <= freeBytes ? undefined : this.hold(owner, bytes, signal, upTo);
  }

  /** As `grow`, however little it is: for what is held for long, and may be many. */
  hold(owner: string, bytes: number, signal: AbortSignal, most = bytes): Promise<void> | undefined {
    if (bytes <= this.bytes || this.released) return undefined;
    const upTo = Math.max(bytes, most, this.upTo);
    this.#lender.check(upTo);
    if (this.#state === "free") {
      this.#state = "holding";
      if (owner !== "") this.share = { principal: this.share.principal, owner };
      this.#onHeld(() => this.#release());
      // Its caller may be gone already: nobody would give it back.
      if (this.released) return undefined;
    }
    return this.#lender.ask(this, { bytes, upTo }, signal);
  }

  /** Gives back what was asked for beforehand and is not used after all. */
  shrink(bytes: number): void {
    if (bytes < this.bytes) this.#lender.give(this, bytes <= freeBytes ? 0 : bytes);
  }

  /** It has something to lose. */
  get begun(): boolean {
    return this.bytes > 0;
  }

  get released(): boolean {
    return this.#state === "released";
  }

  /** It holds nothing any more. */
  protected close(): void {
    this.#state = "released";
  }

  #release(): void {
    if (this.released) return;
    this.close();
    this.#lender.give(this, 0);
  }
}
