import { Unavailable } from "../../ports/errors.ts";
import type { Operation } from "./operation.ts";

/**
 * Bounds how many operations are under way at one agent. Those above wait in their order, as many as the line holds; the
 * rest are refused. An operation leaves, from its place or out of the line, when it is over.
 */
export class Places {
  readonly #what: string;
  readonly #most: number;
  readonly #longestLine: number;
  readonly #line = new Map<Operation, () => void>();
  #taken = 0;
  #filling = false;

  /** @param options.what is told to who is refused. */
  constructor(options: { what: string; most: number; longestLine: number }) {
    this.#what = options.what;
    this.#most = options.most;
    this.#longestLine = options.longestLine;
  }

  /** Calls `begin` when there is a place, at once or later; an operation that is refused fails with Unavailable. */
  enter(operation: Operation, begin: () => void, options: { refusable: boolean }): void {
    if (this.#taken < this.#most && this.#line.size === 0) {
      this.#take(operation, begin);
    } else if (options.refusable && this.#line.size >= this.#longestLine) {
      operation.fail(
        new Unavailable(
          `${this.#what} is busy: ${this.#most} operations are under way and ${this.#longestLine} wait; try again`,
          { retryAfterS: 1 },
        ),
      );
    } else {
      this.#line.set(operation, begin);
      operation.whenOver(() => this.#line.delete(operation));
    }
  }

  /** Fails those that wait. */
  close(error: () => Error): void {
    for (const operation of [...this.#line.keys()]) operation.fail(error());
  }

  #take(operation: Operation, begin: () => void): void {
    this.#taken += 1;
    operation.whenOver(() => {
      this.#taken -= 1;
      this.#fill();
    });
    begin();
  }

  /** What begins here may be over at once, which ends in here again: that place goes to the next round. */
  #fill(): void {
    if (this.#filling) return;
    this.#filling = true;
    try {
      while (this.#taken < this.#most) {
        const [next] = this.#line;
        if (next === undefined) return;
        this.#line.delete(next[0]);
        this.#take(...next);
      }
    } finally {
      this.#filling = false;
    }
  }
}
