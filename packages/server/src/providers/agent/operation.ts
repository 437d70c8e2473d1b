import { ProviderError } from "../../ports/errors.ts";
import type { AgentConnection } from "./connection.ts";

/** How long the end of an operation may follow its last word. */
const endMs = 10_000;
/** Of one operation. An agent tells what it was asked for: only one that is newer has anything else to say, and not often. */
const mostUnknownEvents = 1_000;

/**
 * One request and its answer, as callbacks. States: waiting (no frame yet), answered (reply seen), over (`onEnd` or
 * `onFailure` was called, exactly one of them, once). A signal given to `guard` ends it early until `unguard`.
 */
export abstract class Operation {
  /** Whether the connection may be a reused one. Bodies cannot be repeated, so uploads take a fresh one. */
  readonly fresh: boolean = false;
  /**
   * Whether it is under way for as long as somebody reads, writes or waits for a command: many of them are no sign of an
   * agent that does not keep up, and what is answered at once does not wait for them.
   */
  readonly lasting: boolean = false;
  /** Whether it lasts because somebody follows a command that goes on without him: starts and files do not wait behind many such. */
  readonly follower: boolean = false;
  /** Whether it goes on where one broke off: the place of that was its own a moment ago, and it is no newcomer to the shares of all. */
  readonly again: boolean = false;
  /** Whether its events are batches, of files and paths. */
  readonly batches: boolean = false;
  /** The request was sent again, after a connection on which the agent may have taken it already. */
  sentAgain = false;
  /** What the agent was asked for; undefined until it is. */
  asked: string | undefined;
  protected connection: AgentConnection | null = null;
  #lastConnection: AgentConnection | undefined;
  #over = false;
  #signal: AbortSignal | null = null;
  #whenOver: (() => void) | undefined;
  #endTimer: NodeJS.Timeout | undefined;
  #unknownEvents = 0;
  readonly #onAbort = () => this.cancel(this.#signal?.reason);

  abstract onReply(value: unknown): void;
  onEvent(_value: unknown): void {
    this.countUnknown();
  }
  onRaw(kind: number, _bytes: Buffer, _offset: number): void {
    throw unexpectedRaw(kind);
  }
  onEof(): void {
    return;
  }
  /** All frames in bytes that a socket has read were given. */
  onSocketRead(_bytes: Buffer): void {
    return;
  }
  protected abstract onEnd(): void;
  protected abstract onFailure(error: unknown): void;

  get over(): boolean {
    return this.#over;
  }

  /** Calls back when it is over; takes the place of an earlier callback. */
  whenOver(callback: () => void): void {
    this.#whenOver = callback;
  }

  /** An event that means nothing here, as one of a newer agent may. @throws ProviderError for more than any agent sends. */
  protected countUnknown(): void {
    this.#unknownEvents += 1;
    if (this.#unknownEvents > mostUnknownEvents)
      throw new ProviderError(`the agent sent more than ${mostUnknownEvents} events that mean nothing`);
  }

  /**
   * Everything was said but the end, which comes with the last word: an agent that keeps it back holds a connection, and
   * nobody waits for it any more.
   */
  protected expectEnd(): void {
    queueMicrotask(() => {
      if (this.#over || this.#endTimer !== undefined) return;
      this.#endTimer = setTimeout(
        () => this.cancel(new ProviderError("the agent did not end an operation")),
        endMs,
      );
      this.#endTimer.unref();
    });
  }

  /** The connection the request went out on. */
  attach(connection: AgentConnection): void {
    this.connection = connection;
    this.#lastConnection = connection;
  }

  /** For what has come and is taken one by one, also after the end. @returns undefined when the next may be taken at once. */
  protected turn(): Promise<void> | undefined {
    return this.#lastConnection?.turn();
  }

  /** The request is on its way; raw frames may follow it. */
  onStarted(): void {
    return;
  }

  guard(signal: AbortSignal): void {
    this.#signal = signal;
    if (signal.aborted) this.cancel(signal.reason);
    else signal.addEventListener("abort", this.#onAbort);
  }

  /** From here on the caller owns the operation; its signal no longer ends it. */
  unguard(): void {
    this.#signal?.removeEventListener("abort", this.#onAbort);
  }

  /** Ends it from this side: the connection closes, which tells the agent. */
  cancel(reason: unknown): void {
    if (this.#over) return;
    const connection = this.connection;
    this.fail(reason);
    connection?.destroy();
  }

  end(): void {
    if (this.#over) return;
    this.#leave();
    this.onEnd();
  }

  fail(error: unknown): void {
    if (this.#over) return;
    this.#leave();
    this.onFailure(error);
  }

  #leave(): void {
    this.#over = true;
    this.connection = null;
    this.unguard();
    clearTimeout(this.#endTimer);
    this.#whenOver?.();
  }
}

/** Raw bytes where an operation has none of that kind. */
export function unexpectedRaw(kind: number): ProviderError {
  return new ProviderError(`the agent sent bytes of kind 0x${kind.toString(16)} that were not asked for`);
}

/** An operation whose whole answer is one reply. */
export class Call extends Operation {
  readonly #settle = Promise.withResolvers<unknown>();
  override readonly fresh: boolean;

  constructor(options: { fresh: boolean }) {
    super();
    this.fresh = options.fresh;
  }

  get reply(): Promise<unknown> {
    return this.#settle.promise;
  }

  override onReply(value: unknown): void {
    this.unguard();
    this.#settle.resolve(value);
    this.expectEnd();
  }
  protected override onEnd(): void {
    this.#settle.resolve(undefined);
  }
  protected override onFailure(error: unknown): void {
    this.#settle.reject(error);
  }
}

/** An operation whose answer is a bounded number of events. */
export class Collect extends Operation {
  override readonly batches = true;
  readonly #settle = Promise.withResolvers<void>();
  readonly #take: (event: unknown) => Promise<void> | undefined;
  /** Events that came in one chunk with the one that is waited for, in order. */
  #left: unknown[] = [];
  #waits = false;
  #paused: AgentConnection | null = null;
  #ended = false;

  /** @param take may throw, or reject; the operation then fails with that. While it waits, nothing more is read. */
  constructor(take: (event: unknown) => Promise<void> | undefined) {
    super();
    this.#take = take;
  }

  get done(): Promise<void> {
    return this.#settle.promise;
  }

  override onReply(): void {
    return;
  }
  override onEvent(value: unknown): void {
    if (this.#waits) {
      this.#left.push(value);
      return;
    }
    try {
      const waits = this.#take(value);
      if (waits !== undefined) void this.#holdFor(waits);
    } catch (error) {
      this.#stop(error);
    }
  }
  protected override onEnd(): void {
    this.#ended = true;
    // Nothing more comes, and the connection is somebody else's from now on.
    this.#resume();
    if (!this.#waits) this.#settle.resolve();
  }
  protected override onFailure(error: unknown): void {
    this.#left = [];
    // The connection may carry the next operation; what waits here must not resume it under that one.
    this.#resume();
    this.#settle.reject(error);
  }

  async #holdFor(waits: Promise<void>): Promise<void> {
    this.#waits = true;
    this.#paused = this.connection;
    this.#paused?.pause();
    try {
      await waits;
      while (this.#left.length > 0) await this.#take(this.#left.shift());
      this.#waits = false;
      if (this.#ended) this.#settle.resolve();
    } catch (error) {
      this.#stop(error);
    }
    this.#resume();
  }

  #resume(): void {
    this.#paused?.resume();
    this.#paused = null;
  }

  /** After the end there is nothing left to cancel, only somebody to tell. */
  #stop(error: unknown): void {
    this.cancel(error);
    this.#settle.reject(error);
  }
}
