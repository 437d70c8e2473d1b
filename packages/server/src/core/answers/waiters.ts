import type { Share } from "./shares.ts";

/** How many wait at a time: of one owner's share, of one principal, and in all. */
export const mostWaiters = { ofOwner: 128, ofPrincipal: 256, inAll: 1_024 };

export interface Waiter {
  readonly share: Share;
  /** Somebody of a smaller share waits in its place. */
  displaced(): void;
}

/**
 * Those who wait. Where there are as many as there may be, somebody of whom fewer wait takes the place of the newest of
 * those of whom most do.
 */
export class Waiters<T extends Waiter> {
  readonly #ofPrincipals = new Map<string, Set<T>>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  all(): T[] {
    return [...this.#ofPrincipals.values()].flatMap((waiters) => [...waiters]);
  }

  /** @returns whether there is a place for one more of a share. */
  admits({ principal, owner }: Share): boolean {
    const own = this.#ofPrincipals.get(principal) ?? new Set<T>();
    let ofOwner = 0;
    for (const waiter of own) if (waiter.share.owner === owner) ofOwner++;
    if (ofOwner >= mostWaiters.ofOwner) return false;
    if (own.size >= mostWaiters.ofPrincipal) return displaceOne(own, ofOwner + 1);
    if (this.#size < mostWaiters.inAll) return true;
    let most = own;
    for (const waiters of this.#ofPrincipals.values()) if (waiters.size > most.size) most = waiters;
    return most.size > own.size + 1 && displaceOne(most, 0);
  }

  add(waiter: T): void {
    const { principal } = waiter.share;
    const own = this.#ofPrincipals.get(principal) ?? new Set<T>();
    own.add(waiter);
    this.#ofPrincipals.set(principal, own);
    this.#size++;
  }

  delete(waiter: T): void {
    const own = this.#ofPrincipals.get(waiter.share.principal);
    if (own?.delete(waiter) !== true) return;
    this.#size--;
    if (own.size === 0) this.#ofPrincipals.delete(waiter.share.principal);
  }
}

/** The newest of the owner of whom most wait, when those are more than so many. */
function displaceOne(waiters: ReadonlySet<Waiter>, than: number): boolean {
  const owners = new Map<string, { count: number; newest: Waiter }>();
  for (const waiter of waiters) {
    const { owner } = waiter.share;
    owners.set(owner, { count: (owners.get(owner)?.count ?? 0) + 1, newest: waiter });
  }
  let most: { count: number; newest: Waiter } | undefined;
  for (const one of owners.values()) if (one.count > (most?.count ?? than)) most = one;
  most?.newest.displaced();
  return most !== undefined;
}
