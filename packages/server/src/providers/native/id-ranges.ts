import { Unavailable } from "../../ports/index.ts";

/** Ids of one sandbox. */
export const idsPerSandbox = 65_536;
/** systemd's convention leaves 1879048192 to 2147483647 to such ranges. */
const rangeCount = 4_096;

/**
 * Gives every runtime host ids of its own. A range is taken before the launch, written into the runtime's record, and
 * free again when the runtime has been destroyed.
 */
export class IdRanges {
  readonly #base: number;
  readonly #holders = new Map<number, string>();
  #next: number;

  /** @param offset where to begin, so that services beside this one rarely meet. */
  constructor(options: { base: number; offset: number }) {
    this.#base = options.base;
    this.#next = options.offset % rangeCount;
  }

  /** A runtime keeps the range it has. @throws Unavailable when all are taken. */
  take(runtimeId: string): number {
    for (const [index, holder] of this.#holders)
      if (holder === runtimeId) return this.#base + index * idsPerSandbox;
    for (let tried = 0; tried < rangeCount; tried += 1) {
      const index = this.#next;
      this.#next = (index + 1) % rangeCount;
      if (this.#holders.has(index)) continue;
      this.#holders.set(index, runtimeId);
      return this.#base + index * idsPerSandbox;
    }
    throw new Unavailable(`all ${rangeCount} id ranges from ${this.#base} on are in use; destroy a sandbox`);
  }

  /** Notes a range found in a record. */
  restore(base: number, runtimeId: string): void {
    const index = (base - this.#base) / idsPerSandbox;
    if (Number.isInteger(index)) this.#holders.set(index, runtimeId);
  }

  /** Frees whatever this runtime holds. */
  release(runtimeId: string): void {
    for (const [index, holder] of this.#holders) if (holder === runtimeId) this.#holders.delete(index);
  }
}
