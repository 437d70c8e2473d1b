import { Unavailable } from "../../ports/errors.ts";
import type { Operation } from "./operation.ts";

/** Those who wait, in their order; what is called for one when there is a place. */
type Line = Map<Operation, () => void>;
/** As long as nobody waited: thousands of sandboxes have eight lines each, and few ever need one. */
const nobody: ReadonlyMap<Operation, () => void> = new Map();

interface Taken {
  all: number;
  followers: number;
}

/** An owner who has fewer may have what is kept from those who have more. */
const few = 64;

/** Whether who has so many may have one more. */
function hasPlace(own: number, { most, taken }: { most: number; taken: number }): boolean {
  const free = most - taken;
  return free > 0 && own < Math.max(Math.min(few, most / 8), free - most / 4);
}

/**
 * Counts what the sandboxes of all owners hold of a table that they share. An owner may have what is free, a quarter of the
 * table left out, as in SharedPlaces: what one takes leaves some to others.
 */
export class SharedTable {
  readonly #what: string;
  readonly #most: number;
  #taken = 0;
  /** Of those who hold any. */
  readonly #owners = new Map<string, number>();

  /** @param options.what they are, in the plural; told to who is refused. */
  constructor(options: { what: string; most: number }) {
    this.#what = options.what;
    this.#most = options.most;
  }

  /** @returns how to give it back, once. @throws Unavailable when there is none for this owner. */
  take(owner: string): () => void {
    const own = this.#owners.get(owner) ?? 0;
    if (!hasPlace(own, { most: this.#most, taken: this.#taken })) {
      throw new Unavailable(
        `the sandboxes of this owner have ${own} ${this.#what}, and all sandboxes ${this.#taken} of ${this.#most}; end those that are not needed, or try again`,
        { retryAfterS: 1 },
      );
    }
    this.#add(owner, 1);
    return () => this.#add(owner, -1);
  }

  #add(owner: string, change: 1 | -1): void {
    this.#taken += change;
    const own = (this.#owners.get(owner) ?? 0) + change;
    if (own > 0) this.#owners.set(owner, own);
    else this.#owners.delete(owner);
  }
}

/**
 * Counts operations over all agents of this process, and of these the followers: each holds a connection, which is a
 * descriptor and buffers of this process, and there may be thousands of sandboxes. An owner's sandboxes may have as many
 * places as are still free, a quarter of all left out: that is for owners who have few. So whatever some have, others find
 * some. Nobody waits here, and nobody who has a place loses it; one whose connection broke comes again for its own.
 */
export class SharedPlaces {
  readonly most: number;
  readonly mostFollowers: number;
  readonly #taken: Taken = { all: 0, followers: 0 };
  /** Of those who have any; the sandboxes that are nobody's are together one owner's. */
  readonly #owners = new Map<string, Taken>();

  constructor(options: { most: number; mostFollowers: number }) {
    this.most = options.most;
    this.mostFollowers = options.mostFollowers;
  }

  /** @returns why there is no place; undefined: there is one. Who comes again has one wherever any is free. */
  refusal(
    owner: string,
    { follower, again }: Pick<Operation, "follower" | "again">,
  ): Unavailable | undefined {
    const own = this.#owners.get(owner) ?? { all: 0, followers: 0 };
    if (again && this.#taken.all < this.most) return undefined;
    const underWay = !hasPlace(own.all, { most: this.most, taken: this.#taken.all })
      ? `${own.all} operations that last are under way in sandboxes of this owner, ${this.#taken.all} of at most ${this.most} in all`
      : follower && !hasPlace(own.followers, { most: this.mostFollowers, taken: this.#taken.followers })
        ? `${own.followers} readers follow commands in sandboxes of this owner, ${this.#taken.followers} of at most ${this.mostFollowers} in all`
        : undefined;
    if (underWay === undefined) return undefined;
    const message = `the service is busy: ${underWay}; end readers and transfers that are not needed, or try again`;
    return new Unavailable(message, { retryAfterS: 1 });
  }

  take(owner: string, follower: boolean): void {
    this.#add(owner, 1, follower ? 1 : 0);
  }

  give(owner: string, follower: boolean): void {
    this.#add(owner, -1, follower ? -1 : 0);
  }

  #add(owner: string, all: number, followers: number): void {
    const own = this.#owners.get(owner) ?? { all: 0, followers: 0 };
    for (const taken of [this.#taken, own]) {
      taken.all += all;
      taken.followers += followers;
    }
    if (own.all > 0) this.#owners.set(owner, own);
    else this.#owners.delete(owner);
  }
}

/**
 * Bounds how many operations are under way at one agent, and of these the followers. Those above wait in their order, as
 * many as the line of their kind holds and as long as they may; the rest are refused. An operation leaves, from its place or
 * out of the line, when it is over.
 */
export class Places {
  readonly #what: string;
  readonly #most: number;
  readonly #mostFollowers: number;
  readonly #longestLine: number;
  readonly #longestWaitMs: number | undefined;
  readonly #shared: { places: SharedPlaces; owner: string } | undefined;
  #line: Line | undefined;
  #followerLine: Line | undefined;
  #taken = 0;
  #followers = 0;
  #filling = false;

  /**
   * @param options.what is told to who is refused. @param options.longestWaitMs for ever unless given.
   * @param options.shared what is full there, or for the owner there, is refused at its turn.
   */
  constructor(options: {
    what: string;
    most: number;
    mostFollowers?: number;
    longestLine: number;
    longestWaitMs?: number;
    shared?: { places: SharedPlaces; owner: string };
  }) {
    this.#what = options.what;
    this.#most = options.most;
    this.#mostFollowers = options.mostFollowers ?? options.most;
    this.#longestLine = options.longestLine;
    this.#longestWaitMs = options.longestWaitMs;
    this.#shared = options.shared;
  }

  /** Calls `begin` when there is a place, at once or later; an operation that is refused fails with Unavailable. */
  enter(operation: Operation, begin: () => void, options: { refusable: boolean }): void {
    const { follower } = operation;
    const line = this.#waiting(follower);
    if (this.#hasPlace(follower) && this.#waiting(false).size === 0 && line.size === 0) {
      this.#take(operation, begin);
    } else if (options.refusable && line.size >= this.#longestLine) {
      operation.fail(this.#busy(follower, `${this.#longestLine} wait`));
    } else {
      this.#wait(operation, begin, this.#lineOf(follower));
    }
  }

  /** Fails those that wait. */
  close(error: () => Error): void {
    for (const line of [this.#waiting(false), this.#waiting(true)])
      for (const operation of [...line.keys()]) operation.fail(error());
  }

  #waiting(follower: boolean): ReadonlyMap<Operation, () => void> {
    return (follower ? this.#followerLine : this.#line) ?? nobody;
  }

  #lineOf(follower: boolean): Line {
    if (follower) {
      this.#followerLine ??= new Map();
      return this.#followerLine;
    }
    this.#line ??= new Map();
    return this.#line;
  }

  #hasPlace(follower: boolean): boolean {
    return this.#taken < this.#most && !(follower && this.#followers >= this.#mostFollowers);
  }

  #wait(operation: Operation, begin: () => void, line: Line): void {
    const longestMs = this.#longestWaitMs;
    const refuse = () =>
      operation.fail(this.#busy(operation.follower, `none was free within ${longestMs} ms`));
    const timer = longestMs === undefined ? undefined : setTimeout(refuse, longestMs).unref();
    line.set(operation, () => {
      clearTimeout(timer);
      begin();
    });
    operation.whenOver(() => {
      clearTimeout(timer);
      line.delete(operation);
    });
  }

  #busy(follower: boolean, why: string): Unavailable {
    const underWay =
      follower && this.#followers >= this.#mostFollowers
        ? `${this.#mostFollowers} readers follow commands there`
        : `${this.#most} operations are under way`;
    return new Unavailable(`${this.#what} is busy: ${underWay} and ${why}; try again`, { retryAfterS: 1 });
  }

  #take(operation: Operation, begin: () => void): void {
    const { follower } = operation;
    const shared = this.#shared;
    const refusal = shared?.places.refusal(shared.owner, operation);
    if (refusal !== undefined) {
      operation.fail(refusal);
      return;
    }
    this.#taken += 1;
    if (follower) this.#followers += 1;
    shared?.places.take(shared.owner, follower);
    operation.whenOver(() => {
      this.#taken -= 1;
      if (follower) this.#followers -= 1;
      shared?.places.give(shared.owner, follower);
      this.#fill();
    });
    begin();
  }

  /** What begins here may be over at once, which ends in here again: that place goes to the next round. */
  #fill(): void {
    if (this.#filling) return;
    this.#filling = true;
    try {
      while (this.#fillOne(false) || this.#fillOne(true));
    } finally {
      this.#filling = false;
    }
  }

  /** @returns whether the first of the line got a place. */
  #fillOne(follower: boolean): boolean {
    const [next] = this.#waiting(follower);
    if (next === undefined || !this.#hasPlace(follower)) return false;
    this.#lineOf(follower).delete(next[0]);
    this.#take(...next);
    return true;
  }
}
