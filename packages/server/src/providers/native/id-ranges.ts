import { Unavailable } from "../../ports/index.ts";
import type { RangeLink } from "../launcher/index.ts";
import type { RangeClaims } from "./range-claims.ts";

/** Ids of one sandbox. */
export const idsPerSandbox = 65_536;
/** systemd's convention leaves 1879048192 to 2147483647 to such ranges: these are used first. */
const conventional = 4_096;
/** Claims that one launch tries in vain before it gives up: each is some calls to the file system. */
const mostTries = 64;
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
  /** Whose a range was and whose it was to be: either may have what runs under its ids. */
  readonly #doubted = new Map<number, readonly [string, string]>();
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
  async take(runtimeId: string): Promise<number> {
    const held = this.#indexes.get(runtimeId);
    if (held !== undefined) return this.#first(held);
    const index = await this.#takeFree(runtimeId);
    if (index === undefined)
      throw new Unavailable(
        `all ${this.#count} id ranges from ${this.#base} on are in use; destroy a sandbox`,
      );
    return this.#first(index);
  }

  /** Notes a range found in a record. */
  async restore(base: number, runtimeId: string): Promise<void> {
    const index = (base - this.#base) / idsPerSandbox;
    if (!Number.isInteger(index)) return;
    this.#hold(index, runtimeId);
    await this.#claims?.claim(base, runtimeId);
  }

  /** Whether a runtime has a range already. */
  has(runtimeId: string): boolean {
    return this.#indexes.has(runtimeId);
  }

  /** The range of one is the other's from now on, which has none. @returns what is to tell that to other services; null: nothing. */
  give(from: string, to: string): RangeLink | null {
    const index = this.#indexes.get(from);
    if (index === undefined) return null;
    this.#indexes.delete(from);
    this.#hold(index, to);
    return this.#claims?.linkOf(this.#first(index), to) ?? null;
  }

  /**
   * It came to nothing: other services may have been told of the gift, or not, or be about to be, and what runs may be the one's
   * still or the other's by now. So both have the range, until both have released it.
   */
  doubt(from: string, to: string): void {
    const index = this.#indexes.get(to);
    if (index === undefined) return;
    this.#indexes.set(from, index);
    this.#doubted.set(index, [from, to]);
  }

  /** Frees whatever this runtime holds, and nobody else does. */
  async release(runtimeId: string): Promise<void> {
    const index = this.#indexes.get(runtimeId);
    if (index === undefined) return;
    const former = this.#doubted.get(index)?.find((name) => name !== runtimeId);
    if (former !== undefined && this.#indexes.get(former) === index) {
      this.#indexes.delete(runtimeId);
      this.#holders.set(index, former);
      return;
    }
    try {
      await this.#claims?.release(this.#first(index), runtimeId, { former });
    } finally {
      this.#doubted.delete(index);
      this.#indexes.delete(runtimeId);
      if (this.#holders.get(index) === runtimeId) this.#holders.delete(index);
    }
  }

  /** One that was never claimed costs one look; where claims are met, they are listed once, and stale ones are tried last. */
  async #takeFree(runtimeId: string): Promise<number | undefined> {
    const next = this.#nextFree(() => true);
    if (next === undefined || (await this.#claimed(next, runtimeId))) return next;
    const listed = (await this.#claims?.listed()) ?? new Set();
    for (const fits of [(base: number) => !listed.has(base), (base: number) => listed.has(base)]) {
      const met = new Set<number>();
      while (met.size < mostTries) {
        const index = this.#nextFree((base) => fits(base) && !met.has(base));
        if (index === undefined) break;
        if (await this.#claimed(index, runtimeId)) return index;
        met.add(this.#first(index));
      }
    }
    return undefined;
  }

  /** Held here while it is claimed, so that no other launch of this service claims it too. */
  async #claimed(index: number, runtimeId: string): Promise<boolean> {
    this.#hold(index, runtimeId);
    let claimed = false;
    try {
      claimed = (await this.#claims?.claim(this.#first(index), runtimeId)) ?? true;
    } finally {
      if (!claimed) {
        this.#holders.delete(index);
        this.#indexes.delete(runtimeId);
      }
    }
    return claimed;
  }

  #nextFree(fits: (base: number) => boolean): number | undefined {
    const free = (index: number) => !this.#holders.has(index) && fits(this.#first(index));
    const usual = Math.min(conventional, this.#count);
    for (let tried = 0; tried < usual; tried += 1) {
      const index = this.#next;
      this.#next = (index + 1) % usual;
      if (free(index)) return index;
    }
    for (let index = usual; index < this.#count; index += 1) if (free(index)) return index;
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
