import { DeadlineExceeded } from "./deadline.ts";

/**
 * A body on its way to somebody who may stop taking it, or who has all of it and says nothing. It waits for its sender as long
 * as that takes, and for the other side so long each time: then `signal` aborts. Disposing ends the last wait.
 */
export class TakenBody implements Disposable {
  readonly #atMostMs: number;
  readonly #silent = new AbortController();
  #timer: NodeJS.Timeout | undefined;

  /** @param options.atMostMs how long a part of it may lie untaken, and all of it unanswered. */
  constructor(options: { atMostMs: number }) {
    this.#atMostMs = options.atMostMs;
  }

  get signal(): AbortSignal {
    return this.#silent.signal;
  }

  /** The body as it is; once. */
  async *pass(body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    for await (const data of body) {
      this.#watch();
      yield data;
      clearTimeout(this.#timer);
    }
    this.#watch();
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
  }

  #watch(): void {
    this.#timer = setTimeout(() => this.#silent.abort(new DeadlineExceeded(this.#atMostMs)), this.#atMostMs);
  }
}
