import { ResourceLimit, Unavailable } from "../../ports/index.ts";
import type { Share } from "../answers/shares.ts";

/** Readers of one principal, and of all. What each event costs grows with them. */
export const mostReadersOfOne = 500;
export const mostReaders = 2_000;

/** How a reader is ended for another one. */
type GiveWay = () => void;
/** Readers by owner; who came last stands last. */
type Owners = Map<string, Set<GiveWay>>;

/**
 * Who reads events, and who may besides. A key or an address has a bounded part of the places, whatever owners it names;
 * where none are left, the largest part gives way to smaller ones, and within a key or address its largest owner's does.
 */
export class ReaderPlaces {
  /** By principal. */
  readonly #readers = new Map<string, Owners>();
  #size = 0;

  /**
   * Takes a place.
   * @returns how it leaves.
   * @throws ResourceLimit when its principal has too many; Unavailable when all together have.
   */
  enter({ principal, owner }: Share, giveWay: GiveWay): () => void {
    this.#makeRoom({ principal, owner });
    const owners = this.#owners(principal);
    const own = owners.get(owner) ?? new Set();
    this.#readers.set(principal, owners.set(owner, own.add(giveWay)));
    this.#size++;
    return () => this.#leave({ principal, owner }, giveWay);
  }

  #leave({ principal, owner }: Share, giveWay: GiveWay): void {
    const owners = this.#readers.get(principal);
    const own = owners?.get(owner);
    if (own?.delete(giveWay) !== true) return;
    this.#size--;
    if (own.size === 0) owners?.delete(owner);
    if (owners?.size === 0) this.#readers.delete(principal);
  }

  #makeRoom(share: Share): void {
    const readers = sizeOf(this.#owners(share.principal));
    const full = readers >= mostReadersOfOne;
    if (!full && this.#size < mostReaders) return;
    const last = this.#whoGivesWayTo(share);
    if (last !== undefined) last();
    else if (full)
      throw new ResourceLimit(
        `${mostReadersOfOne} readers of events of this key, address or owner are connected already, which is as many as it may have; close some, or let one reader serve many`,
      );
    else
      throw new Unavailable(`${mostReaders} readers of events are connected already; try again later`, {
        retryAfterS: 10,
      });
  }

  /** Who came last of the largest owner of the largest principal, or of its own one where that has as many itself. */
  #whoGivesWayTo({ principal, owner }: Share): GiveWay | undefined {
    const own = this.#owners(principal);
    const largest = largestOf(this.#readers.values(), sizeOf) ?? own;
    if (yields(sizeOf(largest), sizeOf(own))) return lastOf(largestOwner(largest));
    const noisy = largestOwner(own);
    return yields(noisy.size, own.get(owner)?.size ?? 0) ? lastOf(noisy) : undefined;
  }

  #owners(principal: string): Owners {
    return this.#readers.get(principal) ?? new Map();
  }
}

/** Whether so many give way to so many and one more: they are no fewer even then, so that nobody takes turns at a place. */
function yields(many: number, few: number): boolean {
  return many - 1 >= few + 1;
}

function lastOf(readers: ReadonlySet<GiveWay>): GiveWay | undefined {
  return [...readers].at(-1);
}

function largestOwner(owners: Owners): ReadonlySet<GiveWay> {
  return largestOf(owners.values(), ({ size }) => size) ?? new Set();
}

function sizeOf(owners: Owners): number {
  let size = 0;
  for (const readers of owners.values()) size += readers.size;
  return size;
}

function largestOf<T>(all: Iterable<T>, size: (one: T) => number): T | undefined {
  let largest: T | undefined;
  for (const one of all) if (largest === undefined || size(one) > size(largest)) largest = one;
  return largest;
}
