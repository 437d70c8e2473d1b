import { Unavailable } from "../../ports/index.ts";
import type { RangeClaims } from "./range-claims.ts";

/** Ids of one sandbox. */
export const idsPerSandbox = 65_536;
/** systemd's convention leaves 1879048192 to 2147483647 to such ranges: these are used first. */
const conventional = 4_096;
/** The last range stays free: its last id means "none". */
const idsEnd = 0xffff_0000;

/**
 * Gives every runtime host ids of its own. A range is taken before the launch, written into the runtime's record, and
 * free again when the runtime has been destroyed.
 */
export class IdRanges {
  readonly #base: number;
  readonly #count: number;
  readonly #claims: RangeClaims | undefined;
  readonly #holders = new Map<number, string>();
  readonly #indexes = new Map<string, number>();
  #next: number;

  /**
   * @param offset where to begin, so that services beside this one rarely meet.
   * @param claims what services of this machine tell each other; undefined: they do not.
   */
  constructor(options: { base: number; offset: number; claims?: RangeClaims | undefined }) {
    this.#base = options.base;
    this.#count = Math.floor((idsEnd - options.base) / idsPerSandbox);
    this.#claims = options.claims;
    this.#next = options.offset % Math.min(conventional, this.#count);
  }

  /** A runtime keeps the range it has. @throws Unavailable when all are taken. */
  take(runtimeId: string): number {
    const held = this.#indexes.get(runtimeId);
    if (held !== undefined) return this.#first(held);
    const index = this.#free(runtimeId);
    if (index === undefined)
      throw new Unavailable(
        `all ${this.#count} id ranges from ${this.#base} on are in use; destroy a sandbox`,
      );
    this.#hold(index, runtimeId);
    return this.#first(index);
  }

  /** Notes a range found in a record. */
  restore(base: number, runtimeId: string): void {
    const index = (base - this.#base) / idsPerSandbox;
    if (!Number.isInteger(index)) return;
    this.#hold(index, runtimeId);
    this.#claims?.claim(base, runtimeId);
  }

  /** Frees whatever this runtime holds. */
  release(runtimeId: string): void {
    const index = this.#indexes.get(runtimeId);
    if (index === undefined) return;
    this.#indexes.delete(runtimeId);
    if (this.#holders.get(index) === runtimeId) this.#holders.delete(index);
    this.#claims?.release(this.#first(index), runtimeId);
  }

  #free(runtimeId: string): number | undefined {
    const fits = (index: number) =>
      !this.#holders.has(index) && (this.#claims?.claim(this.#first(index), runtimeId) ?? true);
    const usual = Math.min(conventional, this.#count);
    for (let tried = 0; tried < usual; tried += 1) {
      const index = this.#next;
      this.#next = (index + 1) % usual;
      if (fits(index)) return index;
    }
    for (let index = usual; index < this.#count; index += 1) if (fits(index)) return index;
    return undefined;
  }

  #hold(index: number, runtimeId: string): void {
    this.#holders.set(index, runtimeId);
    this.#indexes.set(runtimeId, index);
  }

  #first(index: number): number {
    return this.#base + index * idsPerSandbox;
  }
}
