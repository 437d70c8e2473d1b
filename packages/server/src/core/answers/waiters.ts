import type { Part, Share, Shares } from "./shares.ts";

/** How many wait at a time that hold nothing yet: of one owner's share, of one principal, and in all. */
export interface MostWaiters {
  ofOwner: number;
  ofPrincipal: number;
  inAll: number;
}

export interface Waiter {
  readonly holding: { readonly share: Share };
  /** It held something when it came. */
  readonly holds: boolean;
  /** Somebody of a smaller share waits in its place. */
  displaced(): void;
}

/**
 * Those who wait, by principal and owner, each owner's in the order in which they came. Where there are as many as there may
 * be, somebody of whom fewer wait takes the place of the newest of those of whom most do. Who holds something has a place of
 * its own: memory bounds how many those are, and others wait for its end.
 */
export class Waiters<T extends Waiter> {
  readonly #most: MostWaiters;
  /** Whose turn it is next comes first. */
  readonly #ofPrincipals = new Map<string, OfPrincipal<T>>();
  /** Those that hold nothing. */
  #counted = 0;
  #size = 0;

  constructor(most: MostWaiters) {
    this.#most = most;
  }

  get size(): number {
    return this.#size;
  }

  /** Those of principals in turn, and of the owners of each. @param alone who of a part they are, if not everybody. */
  inTurn(shares: Shares, alone?: (part: Part) => Iterable<T> | undefined): T[] {
    return this.#groups(shares, alone).flatMap(({ owners }) => owners.flatMap(({ waiters }) => [...waiters]));
  }

  /** The smallest principal's first, and of each those of its smallest owner. */
  smallestFirst(shares: Shares, alone?: (part: Part) => Iterable<T> | undefined): T[] {
    return this.#groups(shares, alone)
      .sort(ascending)
      .flatMap(({ owners }) => owners.sort(ascending).flatMap(({ waiters }) => [...waiters]));
  }

  #groups(shares: Shares, alone: (part: Part) => Iterable<T> | undefined = () => undefined) {
    const aloneOf = (part: Part | undefined) => (part === undefined ? undefined : alone(part));
    const single = (waiters: Iterable<T>) => ({ owners: [{ waiters, bytes: 0 }], bytes: 0 });
    const one = alone(shares.all);
    if (one !== undefined) return [single(one)];
    return [...this.#ofPrincipals].map(([principal, { owners }]) => {
      const part = shares.all.parts.get(principal);
      const bytes = part?.bytes ?? 0;
      const ofPrincipal = aloneOf(part);
      if (ofPrincipal !== undefined) return { ...single(ofPrincipal), bytes };
      const ofOwners = [...owners].map(([owner, { waiters }]) => {
        const own = part?.parts.get(owner);
        return { waiters: aloneOf(own) ?? waiters, bytes: own?.bytes ?? 0 };
      });
      return { owners: ofOwners, bytes };
    });
  }

  /** It had its turn: its principal and owner are last from now on. */
  hadTurn({ holding: { share } }: T): void {
    const own = this.#ofPrincipals.get(share.principal);
    const ofOwner = own?.owners.get(share.owner);
    if (own === undefined || ofOwner === undefined) return;
    moveLast(own.owners, share.owner, ofOwner);
    moveLast(this.#ofPrincipals, share.principal, own);
  }

  /** @returns whether there is a place for one more. */
  admits({ share, begun }: { readonly share: Share; readonly begun: boolean }): boolean {
    if (begun) return true;
    const own = this.#ofPrincipals.get(share.principal);
    const ofOwner = own?.owners.get(share.owner)?.counted ?? 0;
    if (ofOwner >= this.#most.ofOwner) return false;
    const ofPrincipal = own?.counted ?? 0;
    if (own !== undefined && ofPrincipal >= this.#most.ofPrincipal) return displaceOne(own, ofOwner + 1);
    if (this.#counted < this.#most.inAll) return true;
    const most = largest(this.#ofPrincipals.values(), ofPrincipal + 1);
    return most !== undefined && displaceOne(most, 0);
  }

  add(waiter: T): void {
    const { principal, owner } = waiter.holding.share;
    const own = this.#ofPrincipals.get(principal) ?? { counted: 0, owners: new Map<string, OfOwner<T>>() };
    const ofOwner = own.owners.get(owner) ?? { counted: 0, waiters: new Set<T>() };
    ofOwner.waiters.add(waiter);
    own.owners.set(owner, ofOwner);
    this.#ofPrincipals.set(principal, own);
    this.#size++;
    this.#count(waiter, own, ofOwner, 1);
  }

  delete(waiter: T): void {
    const { principal, owner } = waiter.holding.share;
    const own = this.#ofPrincipals.get(principal);
    const ofOwner = own?.owners.get(owner);
    if (own === undefined || ofOwner?.waiters.delete(waiter) !== true) return;
    this.#size--;
    this.#count(waiter, own, ofOwner, -1);
    if (ofOwner.waiters.size === 0) own.owners.delete(owner);
    if (own.owners.size === 0) this.#ofPrincipals.delete(principal);
  }

  #count({ holds }: T, own: OfPrincipal<T>, ofOwner: OfOwner<T>, more: 1 | -1): void {
    if (holds) return;
    ofOwner.counted += more;
    own.counted += more;
    this.#counted += more;
  }
}

interface OfOwner<T> {
  counted: number;
  readonly waiters: Set<T>;
}

interface OfPrincipal<T> {
  counted: number;
  readonly owners: Map<string, OfOwner<T>>;
}

function largest<G extends { readonly counted: number }>(groups: Iterable<G>, than: number): G | undefined {
  let most: G | undefined;
  for (const one of groups) if (one.counted > (most?.counted ?? than)) most = one;
  return most;
}

/** The newest of the owner of whom most wait, when those are more than so many. */
function displaceOne<T extends Waiter>({ owners }: OfPrincipal<T>, than: number): boolean {
  const most = largest(owners.values(), than);
  const newest = [...(most?.waiters ?? [])].findLast(({ holds }) => !holds);
  newest?.displaced();
  return newest !== undefined;
}

function moveLast<V>(map: Map<string, V>, name: string, value: V): void {
  map.delete(name);
  map.set(name, value);
}

function ascending(one: { bytes: number }, other: { bytes: number }): number {
  return one.bytes - other.bytes;
}
