import { Unavailable } from "../../ports/errors.ts";
import type { Operation } from "./operation.ts";

/** Those who wait, in their order; what is called for one when there is a place. */
type Line = Map<Operation, () => void>;

/**
 * Counts operations over all agents of this process, and of these the followers: each holds a connection, which is a
 * descriptor and buffers of this process, and there may be thousands of sandboxes. Nobody waits here.
 */
export class SharedPlaces {
  readonly most: number;
  readonly mostFollowers: number;
  #taken = 0;
  #followers = 0;

  constructor(options: { most: number; mostFollowers: number }) {
    this.most = options.most;
    this.mostFollowers = options.mostFollowers;
  }

  /** @returns why there is no place; undefined: there is one. */
  refusal(follower: boolean): Unavailable | undefined {
    const underWay =
      this.#taken >= this.most
        ? `${this.most} operations that last are under way in all its sandboxes`
        : follower && this.#followers >= this.mostFollowers
          ? `${this.mostFollowers} readers follow commands in all its sandboxes`
          : undefined;
    if (underWay === undefined) return undefined;
    const message = `the service is busy: ${underWay}; end readers and transfers that are not needed, or try again`;
    return new Unavailable(message, { retryAfterS: 1 });
  }

  take(follower: boolean): void {
    this.#taken += 1;
    if (follower) this.#followers += 1;
  }

  give(follower: boolean): void {
    this.#taken -= 1;
    if (follower) this.#followers -= 1;
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
  readonly #shared: SharedPlaces | undefined;
  readonly #line: Line = new Map();
  readonly #followerLine: Line = new Map();
  #taken = 0;
  #followers = 0;
  #filling = false;

  /**
   * @param options.what is told to who is refused. @param options.longestWaitMs for ever unless given.
   * @param options.shared what is full there is refused at its turn.
   */
  constructor(options: {
    what: string;
    most: number;
    mostFollowers?: number;
    longestLine: number;
    longestWaitMs?: number;
    shared?: SharedPlaces;
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
    const line = follower ? this.#followerLine : this.#line;
    if (this.#hasPlace(follower) && this.#line.size === 0 && line.size === 0) {
      this.#take(operation, begin);
    } else if (options.refusable && line.size >= this.#longestLine) {
      operation.fail(this.#busy(follower, `${this.#longestLine} wait`));
    } else {
      this.#wait(operation, begin, line);
    }
  }

  /** Fails those that wait. */
  close(error: () => Error): void {
    for (const line of [this.#line, this.#followerLine])
      for (const operation of [...line.keys()]) operation.fail(error());
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
    const refusal = this.#shared?.refusal(follower);
    if (refusal !== undefined) {
      operation.fail(refusal);
      return;
    }
    this.#taken += 1;
    if (follower) this.#followers += 1;
    this.#shared?.take(follower);
    operation.whenOver(() => {
      this.#taken -= 1;
      if (follower) this.#followers -= 1;
      this.#shared?.give(follower);
      this.#fill();
    });
    begin();
  }

  /** What begins here may be over at once, which ends in here again: that place goes to the next round. */
  #fill(): void {
    if (this.#filling) return;
    this.#filling = true;
    try {
      while (this.#fillOne(this.#line, false) || this.#fillOne(this.#followerLine, true));
    } finally {
      this.#filling = false;
    }
  }

  /** @returns whether the first of the line got a place. */
  #fillOne(line: Line, follower: boolean): boolean {
    const [next] = line;
    if (next === undefined || !this.#hasPlace(follower)) return false;
    line.delete(next[0]);
    this.#take(...next);
    return true;
  }
}
