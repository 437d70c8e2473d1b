/** Whose memory it is: a key's, or without keys an address's; and below it the owner's it is about. */
export interface Share {
  readonly principal: string;
  readonly owner: string;
}

export function sameShare(one: Share, other: Share): boolean {
  return one.principal === other.principal && one.owner === other.owner;
}

/** An owner's part of the memory, a principal's, or all of it. */
export class Part {
  bytes = 0;
  /** What all of it may come to. */
  upTo = 0;
  /** What it may have. */
  readonly most: number;
  readonly parts = new Map<string, Part>();

  constructor(most: number) {
    this.most = most;
  }

  get free(): number {
    return this.most - this.bytes;
  }
}

/** Who has how much of a memory, and how much each may have. */
export class Shares {
  readonly all: Part;
  readonly #nothing: { readonly owner: Part; readonly principal: Part };
  /** What one owner may have. */
  readonly ownerBytes: number;

  constructor(totalBytes: number) {
    this.all = new Part(totalBytes);
    this.ownerBytes = Math.floor(totalBytes / 2);
    this.#nothing = {
      owner: new Part(this.ownerBytes),
      principal: new Part(Math.floor((totalBytes / 4) * 3)),
    };
  }

  /** The parts that a share takes from, its owner's first. */
  partsOf({ principal, owner }: Share): readonly [owner: Part, principal: Part, all: Part] {
    const ofPrincipal = this.all.parts.get(principal) ?? this.#nothing.principal;
    return [ofPrincipal.parts.get(owner) ?? this.#nothing.owner, ofPrincipal, this.all];
  }

  /** Whether all that a share takes from have room for so much more. */
  has(share: Share, more: { bytes: number; upTo: number }): boolean {
    return this.ownerHas(share, more.upTo) && this.fits(share, more.bytes);
  }

  /** An owner's part is bounded by what all it holds may come to: of many things at once some are done before others begin. */
  ownerHas(share: Share, upTo: number): boolean {
    const [own] = this.partsOf(share);
    return own.upTo + upTo <= own.most;
  }

  principalHas(share: Share, bytes: number): boolean {
    return bytes <= this.partsOf(share)[1].free;
  }

  fits(share: Share, bytes: number): boolean {
    return bytes <= this.all.free && this.principalHas(share, bytes);
  }

  /** @param more may be less than nothing. */
  add({ principal, owner }: Share, more: { bytes: number; upTo: number }): void {
    const { all } = this;
    const ofPrincipal = all.parts.get(principal) ?? new Part(this.#nothing.principal.most);
    const own = ofPrincipal.parts.get(owner) ?? new Part(this.ownerBytes);
    for (const part of [own, ofPrincipal, all]) {
      part.bytes += more.bytes;
      part.upTo += more.upTo;
    }
    keep(ofPrincipal.parts, owner, own);
    keep(all.parts, principal, ofPrincipal);
  }

  /** Whether a share is to give way to another one that takes so much more: it stays behind it with that. */
  yields(share: Share, to: Share, bytes: number): boolean {
    const [own, ofPrincipal] = this.partsOf(share);
    const [toOwn, toPrincipal] = this.partsOf(to);
    if (share.principal === to.principal) {
      return !sameShare(share, to) && own.bytes >= toOwn.bytes + bytes;
    }
    return this.principalHas(to, bytes) && ofPrincipal.bytes >= toPrincipal.bytes + bytes;
  }

  /** In the order in which they would be given up one by one, each time of the share that is then the largest. */
  largestFirst<T extends { readonly share: Share; readonly bytes: number }>(holdings: readonly T[]): T[] {
    const bySize = holdings.toSorted((one, other) => other.bytes - one.bytes);
    const byOwner = levels(bySize, ownerName, (share) => this.partsOf(share)[0].bytes).sort(descending);
    const ownerLevels = new Map(byOwner.map(({ holding, level }) => [holding, level]));
    return levels(
      byOwner.map(({ holding }) => holding),
      ({ principal }) => principal,
      (share) => this.partsOf(share)[1].bytes,
    )
      .sort(
        (one, other) =>
          descending(one, other) ||
          (ownerLevels.get(other.holding) ?? 0) - (ownerLevels.get(one.holding) ?? 0) ||
          other.holding.bytes - one.holding.bytes,
      )
      .map(({ holding }) => holding);
  }
}

function keep(parts: Map<string, Part>, name: string, part: Part): void {
  if (part.upTo > 0) parts.set(name, part);
  else parts.delete(name);
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
