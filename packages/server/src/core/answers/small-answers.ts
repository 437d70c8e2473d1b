import { freeBytes, type OnHeld } from "./holding.ts";

/** What a small answer becomes that finds no room among the small ones. */
interface Larger {
  readonly bytes: number;
  grow(owner: string, bytes: number, signal: AbortSignal): Promise<void> | undefined;
  shrink(bytes: number): void;
}

/**
 * Memory for small answers alone, beside that for all: commands that have written much and stay quiet for ever keep nobody from a
 * small one. Nobody waits here. A principal has what is free, a quarter of all left out, and while any is free it finds
 * a thirty-second: so whatever some have, others find some.
 */
export class SmallAnswers {
  readonly #totalBytes: number;
  readonly #largestBytes: number;
  readonly #ofPrincipals = new Map<string, number>();
  #heldBytes = 0;

  /** @param options.largestBytes of an answer that is small. */
  constructor(options: { totalBytes: number; largestBytes: number }) {
    this.#totalBytes = options.totalBytes;
    this.#largestBytes = options.largestBytes;
  }

  get heldBytes(): number {
    return this.#heldBytes;
  }

  /** Has an answer grow from so many bytes. @returns whether it may. */
  take(principal: string, from: number, bytes: number): boolean {
    const more = bytes - from;
    const own = (this.#ofPrincipals.get(principal) ?? 0) + more;
    const free = this.#totalBytes - this.#heldBytes - more;
    const most = Math.max(this.#totalBytes / 32, free - this.#totalBytes / 4);
    if (bytes > this.#largestBytes || free < 0 || own > most) return false;
    this.#add(principal, more);
    return true;
  }

  give(principal: string, bytes: number): void {
    this.#add(principal, -bytes);
  }

  #add(principal: string, more: number): void {
    this.#heldBytes += more;
    const own = (this.#ofPrincipals.get(principal) ?? 0) + more;
    if (own > 0) this.#ofPrincipals.set(principal, own);
    else this.#ofPrincipals.delete(principal);
  }
}

/** An answer that is among the small ones until it outgrows them, or finds no room there. */
export class SmallFirst implements Larger {
  readonly #small: SmallAnswers;
  readonly #principal: string;
  readonly #onHeld: OnHeld;
  readonly #larger: Larger;
  #releaseLarger: (() => void) | undefined;
  #bytes = 0;
  #told = false;
  #released = false;

  /** @param options.larger what it is once it is larger; `small` says how much it holds until then. */
  constructor(options: {
    small: SmallAnswers;
    principal: string;
    onHeld: OnHeld;
    larger: (onHeld: OnHeld, small: () => number) => Larger;
  }) {
    this.#small = options.small;
    this.#principal = options.principal;
    this.#onHeld = options.onHeld;
    const onHeld: OnHeld = (release) => {
      this.#releaseLarger = release;
      this.#tell();
      // Told before, its caller may be gone by now.
      if (this.#released) release();
    };
    this.#larger = options.larger(onHeld, () => this.#bytes);
  }

  get bytes(): number {
    return Math.max(this.#bytes, this.#larger.bytes);
  }

  grow(owner: string, bytes: number, signal: AbortSignal): Promise<void> | undefined {
    if (bytes <= freeBytes || bytes <= this.bytes || this.#released) return undefined;
    if (this.#larger.bytes === 0 && this.#small.take(this.#principal, this.#bytes, bytes)) {
      this.#bytes = bytes;
      this.#tell();
      return undefined;
    }
    const waits = this.#larger.grow(owner, bytes, signal);
    if (waits !== undefined) return waits.then(() => this.#giveSmall(0));
    this.#giveSmall(0);
    return undefined;
  }

  shrink(bytes: number): void {
    this.#larger.shrink(bytes);
    if (bytes < this.#bytes) this.#giveSmall(bytes <= freeBytes ? 0 : bytes);
  }

  #giveSmall(keep: number): void {
    this.#small.give(this.#principal, this.#bytes - keep);
    this.#bytes = keep;
  }

  #tell(): void {
    if (this.#told) return;
    this.#told = true;
    this.#onHeld(() => {
      this.#released = true;
      this.#giveSmall(0);
      this.#releaseLarger?.();
    });
  }
}
