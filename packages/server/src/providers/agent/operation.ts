import type { AgentConnection } from "./connection.ts";

/**
 * One request and its answer, as callbacks. States: waiting (no frame yet), answered (reply seen), over (`onEnd` or
 * `onFailure` was called, exactly one of them, once). A signal given to `guard` ends it early until `unguard`.
 */
export abstract class Operation {
  /** Whether the connection may be a reused one. Bodies cannot be repeated, so uploads take a fresh one. */
  readonly fresh: boolean = false;
  protected connection: AgentConnection | null = null;
  #over = false;
  #signal: AbortSignal | null = null;
  readonly #onAbort = () => this.cancel(this.#signal?.reason);

  abstract onReply(value: unknown): void;
  onEvent(_value: unknown): void {
    return;
  }
  onRaw(_kind: number, _bytes: Buffer, _offset: number): void {
    return;
  }
  onEof(): void {
    return;
  }
  protected abstract onEnd(): void;
  protected abstract onFailure(error: unknown): void;

  get over(): boolean {
    return this.#over;
  }

  /** The connection the request went out on. */
  attach(connection: AgentConnection): void {
    this.connection = connection;
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
    this.#over = true;
    this.connection = null;
    this.unguard();
    this.onEnd();
  }

  fail(error: unknown): void {
    if (this.#over) return;
    this.#over = true;
    this.connection = null;
    this.unguard();
    this.onFailure(error);
  }
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
  readonly #settle = Promise.withResolvers<void>();
  readonly #take: (event: unknown) => void;

  /** @param take may throw; the operation then fails with what it threw. */
  constructor(take: (event: unknown) => void) {
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
    try {
      this.#take(value);
    } catch (error) {
      this.cancel(error);
    }
  }
  protected override onEnd(): void {
    this.#settle.resolve();
  }
  protected override onFailure(error: unknown): void {
    this.#settle.reject(error);
  }
}
