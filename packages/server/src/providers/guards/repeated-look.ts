import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { outsideRequests } from "../../platform/request-scope.ts";

interface RepeatedLookOptions {
  /** @returns when to look again, milliseconds. */
  look: () => Promise<number>;
  /** Whether there is something to look at. */
  wanted: () => boolean;
  firstPauseMs: number;
  /** Until the next look after one that failed. */
  failedPauseMs: number;
  /** What cannot be done while looks fail, and the way out. */
  blind: string;
  logger: Logger;
}

/**
 * Looks again and again while there is something to look at, each time after the pause that the look before asked for. A look
 * that fails is logged once for each reason, and repeated.
 */
export class RepeatedLook implements AsyncDisposable {
  readonly #options: RepeatedLookOptions;
  #timer: NodeJS.Timeout | undefined;
  #looking: Promise<void> = Promise.resolve();
  #blindness: string | undefined;
  #closed = false;

  constructor(options: RepeatedLookOptions) {
    this.#options = options;
  }

  /** The last look failed, and there is something to look at. */
  get isBlind(): boolean {
    return this.#blindness !== undefined && this.#options.wanted();
  }

  /** Does nothing when it runs already. */
  start(): void {
    if (this.#timer === undefined && !this.#closed) this.#lookAfter(this.#options.firstPauseMs);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#looking;
  }

  #lookAfter(pauseMs: number): void {
    // Armed inside the request of the first spawn, it outlives it.
    this.#timer = outsideRequests(() => setTimeout(() => this.#lookNow(), pauseMs));
    this.#timer.unref();
  }

  #lookNow(): void {
    this.#looking = this.#look().then((nextMs) => {
      this.#timer = undefined;
      if (!this.#closed && this.#options.wanted()) this.#lookAfter(nextMs);
    });
  }

  async #look(): Promise<number> {
    try {
      const nextMs = await this.#options.look();
      this.#blindness = undefined;
      return nextMs;
    } catch (error) {
      // Its end cuts a look short.
      if (this.#closed) return this.#options.failedPauseMs;
      const why = messageOf(error);
      if (why !== this.#blindness) this.#options.logger.warn({ err: error }, this.#options.blind);
      this.#blindness = why;
      return this.#options.failedPauseMs;
    }
  }
}
