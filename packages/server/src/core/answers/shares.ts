/** Whose memory it is: a key's, or without keys an address's; and below it the owner's it is about. */
export interface Share {
  readonly principal: string;
  readonly owner: string;
}

export function sameShare(one: Share, other: Share): boolean {
  return one.principal === other.principal && one.owner === other.owner;
}

interface Part {
  bytes: number;
  /** What all of it may come to. */
  upTo: number;
}

interface PrincipalPart {
  bytes: number;
  readonly owners: Map<string, Part>;
}

/** Who has how much of a memory, and how much each may have. */
export class Shares {
  readonly #totalBytes: number;
  readonly #principalBytes: number;
  /** What one owner may have. */
  readonly ownerBytes: number;
  readonly #principals = new Map<string, PrincipalPart>();
  #heldBytes = 0;

  constructor(totalBytes: number) {
    this.#totalBytes = totalBytes;
    this.#principalBytes = Math.floor((totalBytes / 4) * 3);
    this.ownerBytes = Math.floor(totalBytes / 2);
  }

  get heldBytes(): number {
    return this.#heldBytes;
  }

  /** An owner's part is bounded by what all it holds may come to: of many things at once some are done before others begin. */
  ownerHas({ principal, owner }: Share, upTo: number): boolean {
    return (this.#principals.get(principal)?.owners.get(owner)?.upTo ?? 0) + upTo <= this.ownerBytes;
  }

  principalHas({ principal }: Share, bytes: number): boolean {
    return this.#ofPrincipal(principal) + bytes <= this.#principalBytes;
  }

  has(bytes: number): boolean {
    return this.#heldBytes + bytes <= this.#totalBytes;
  }

  /** @param more may be less than nothing. */
  add({ principal, owner }: Share, more: { bytes: number; upTo: number }): void {
    this.#heldBytes += more.bytes;
    const part = this.#principals.get(principal) ?? { bytes: 0, owners: new Map<string, Part>() };
    const own = part.owners.get(owner) ?? { bytes: 0, upTo: 0 };
    part.bytes += more.bytes;
    own.bytes += more.bytes;
    own.upTo += more.upTo;
    if (own.upTo > 0) part.owners.set(owner, own);
    else part.owners.delete(owner);
    if (part.owners.size > 0) this.#principals.set(principal, part);
    else this.#principals.delete(principal);
  }

  /** Above 0 when the first share is the larger one. */
  compare(one: Share, other: Share): number {
    return (
      this.#ofPrincipal(one.principal) - this.#ofPrincipal(other.principal) ||
      this.#ofOwner(one) - this.#ofOwner(other)
    );
  }

  /** Whether a share is to give way to another one that takes so much more: it stays behind it with that. */
  yields(share: Share, to: Share, bytes: number): boolean {
    if (share.principal === to.principal) {
      return !sameShare(share, to) && this.#ofOwner(share) >= this.#ofOwner(to) + bytes;
    }
    return (
      this.principalHas(to, bytes) &&
      this.#ofPrincipal(share.principal) >= this.#ofPrincipal(to.principal) + bytes
    );
  }

  /** In the order in which they would be given up one by one, each time of the share that is then the largest. */
  largestFirst<T extends { readonly share: Share; readonly bytes: number }>(holdings: readonly T[]): T[] {
    const bySize = holdings.toSorted((one, other) => other.bytes - one.bytes);
    const byOwner = levels(bySize, ownerName, (share) => this.#ofOwner(share)).sort(descending);
    const ownerLevels = new Map(byOwner.map(({ holding, level }) => [holding, level]));
    return levels(
      byOwner.map(({ holding }) => holding),
      ({ principal }) => principal,
      ({ principal }) => this.#ofPrincipal(principal),
    )
      .sort(
        (one, other) =>
          descending(one, other) ||
          (ownerLevels.get(other.holding) ?? 0) - (ownerLevels.get(one.holding) ?? 0) ||
          other.holding.bytes - one.holding.bytes,
      )
      .map(({ holding }) => holding);
  }

  #ofPrincipal(principal: string): number {
    return this.#principals.get(principal)?.bytes ?? 0;
  }

  #ofOwner({ principal, owner }: Share): number {
    return this.#principals.get(principal)?.owners.get(owner)?.bytes ?? 0;
  }
}

const ownerName = ({ principal, owner }: Share) => `${principal}\0${owner}`;

interface Level<T> {
  holding: T;
  level: number;
}

function descending(one: Level<unknown>, other: Level<unknown>): number {
  return other.level - one.level;
}

/** What the part that each is of comes to when those before it are gone. */
function levels<T extends { readonly share: Share; readonly bytes: number }>(
  holdings: readonly T[],
  nameOf: (share: Share) => string,
  bytesOf: (share: Share) => number,
): Level<T>[] {
  const left = new Map<string, number>();
  return holdings.map((holding) => {
    const name = nameOf(holding.share);
    const level = left.get(name) ?? bytesOf(holding.share);
    left.set(name, level - holding.bytes);
    return { holding, level };
  });
}
