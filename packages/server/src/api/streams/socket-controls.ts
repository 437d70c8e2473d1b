import type { WindowSize } from "../../ports/sandbox-operations.ts";

/** Signals that may wait before no more is read from the client. */
const mostWaiting = 16;

/**
 * What a client asks of its command beside its input. Signals are carried out one after another; of changes of the window
 * only the newest waits.
 */
export class SocketControls {
  readonly #signal: (signal: number) => Promise<void>;
  readonly #resize: (size: WindowSize) => Promise<void>;
  #signals: number[] = [];
  #signalling = false;
  #next: { size: WindowSize; done: PromiseWithResolvers<void> } | undefined;
  #resizing = false;

  /** Both carry one out and do not fail. */
  constructor(options: {
    signal: (signal: number) => Promise<void>;
    resize: (size: WindowSize) => Promise<void>;
  }) {
    this.#signal = options.signal;
    this.#resize = options.resize;
  }

  /** Whether so much waits that no more should be read. */
  get full(): boolean {
    return this.#signals.length >= mostWaiting;
  }

  signal(signal: number): void {
    // As with signals that are pending: of those that come at once, equal ones are one.
    if (this.full && this.#signals.includes(signal)) return;
    this.#signals.push(signal);
    if (!this.#signalling) void this.#sendSignals();
  }

  /** Resolves when the window has this size, or a newer one that came before it was carried out. */
  resize(size: WindowSize): Promise<void> {
    const { done } = this.#next ?? { done: Promise.withResolvers<void>() };
    this.#next = { size, done };
    if (!this.#resizing) void this.#sendSizes();
    return done.promise;
  }

  /** Lets go of what waits. */
  drop(): void {
    this.#signals = [];
    this.#next?.done.resolve();
    this.#next = undefined;
  }

  async #sendSignals(): Promise<void> {
    this.#signalling = true;
    for (let signal = this.#signals[0]; signal !== undefined; signal = this.#signals[0]) {
      this.#signals.shift();
      await this.#signal(signal);
    }
    this.#signalling = false;
  }

  async #sendSizes(): Promise<void> {
    this.#resizing = true;
    while (this.#next !== undefined) {
      const { size, done } = this.#next;
      this.#next = undefined;
      await this.#resize(size);
      done.resolve();
    }
    this.#resizing = false;
  }
}
