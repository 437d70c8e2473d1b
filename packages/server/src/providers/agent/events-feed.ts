import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { CallOptions, ExecExit, ExecId } from "../../ports/index.ts";
import type { AgentChannel } from "./channel.ts";
import { listExecs } from "./exec-list.ts";
import { Operation } from "./operation.ts";
import { PushIterator } from "./push-iterator.ts";
import { execExitOf, execIdOf, objectOf, textOf } from "./reading.ts";

type Exit = { execId: ExecId; exit: ExecExit };

/** Exits a subscriber may leave waiting; above that it loses the oldest. */
const maxWaiting = 10_000;
/** Exits remembered so that one told before a reconnection is not told again. */
const maxRemembered = 2_000;
const reconnectMs = 2_000;

/**
 * The one `sandbox.events` connection of a sandbox and everybody who listens to it. States: unused, connected, gone.
 * A connection that ends is tried once more, because a broken transport is not a dead sandbox; exits missed meanwhile
 * are read from the list of commands. When that fails the sandbox is gone, for good.
 */
export class EventsFeed {
  readonly #channel: AgentChannel;
  readonly #logger: Logger;
  readonly #subscribers = new Set<PushIterator<Exit>>();
  readonly #goneListeners = new Set<() => void>();
  readonly #told = new Set<ExecId>();
  readonly #closing = new AbortController();
  #state: "unused" | "connected" | "gone" = "unused";

  constructor(options: { channel: AgentChannel; logger: Logger }) {
    this.#channel = options.channel;
    this.#logger = options.logger;
  }

  /** Calls back once when the sandbox is gone, soon when it is already. @returns how to stop listening. */
  onGone(listener: () => void): () => void {
    const own = () => listener();
    this.#goneListeners.add(own);
    if (this.#state === "gone") queueMicrotask(() => this.#tellGone());
    else this.#connect();
    return () => this.#goneListeners.delete(own);
  }

  exits(options: CallOptions): AsyncIterable<Exit> {
    const leave = () => {
      this.#subscribers.delete(queue);
      options.signal.removeEventListener("abort", leave);
      queue.end();
    };
    const queue = new PushIterator<Exit>({ onReturn: leave });
    if (options.signal.aborted || this.#state === "gone") {
      queue.end();
      return queue;
    }
    this.#subscribers.add(queue);
    options.signal.addEventListener("abort", leave);
    this.#connect();
    return queue;
  }

  /** Stops listening without telling anybody that the sandbox is gone. */
  close(): void {
    this.#closing.abort();
    this.#goneListeners.clear();
    for (const queue of this.#subscribers) queue.end();
    this.#subscribers.clear();
  }

  #connect(): void {
    if (this.#state !== "unused" || this.#closing.signal.aborted) return;
    this.#state = "connected";
    this.#listen((error) => void this.#reconnect(error));
  }

  #listen(onEnded: (error: unknown) => void): Promise<void> {
    const listening = new Listening({ onExit: (exit) => this.#tell(exit), onEnded });
    this.#channel.begin({ op: "sandbox.events" }, listening, this.#closing.signal);
    return listening.started;
  }

  async #reconnect(cause: unknown): Promise<void> {
    if (this.#closing.signal.aborted) return;
    try {
      using deadline = deadlineAfter(reconnectMs, this.#closing.signal);
      const missed = await listExecs(this.#channel, { signal: deadline.signal, fresh: true });
      await this.#listen((error) => this.#gone(error));
      this.#logger.warn({ err: cause }, "the events connection of a sandbox broke and was made anew");
      for (const { execId, exit } of missed) if (exit !== undefined) this.#tell({ execId, exit });
    } catch (error) {
      this.#gone(error);
    }
  }

  #gone(error: unknown): void {
    if (this.#state === "gone" || this.#closing.signal.aborted) return;
    this.#state = "gone";
    this.#logger.debug({ err: error }, "the agent of a sandbox is gone");
    for (const queue of this.#subscribers) queue.end();
    this.#subscribers.clear();
    this.#tellGone();
  }

  #tellGone(): void {
    const listeners = [...this.#goneListeners];
    this.#goneListeners.clear();
    for (const listener of listeners) listener();
  }

  #tell(exit: Exit): void {
    if (this.#told.has(exit.execId)) return;
    this.#told.add(exit.execId);
    if (this.#told.size > maxRemembered) {
      const [oldest] = this.#told;
      if (oldest !== undefined) this.#told.delete(oldest);
    }
    for (const queue of this.#subscribers) {
      if (queue.queued >= maxWaiting) queue.dropOldest();
      queue.push(exit);
    }
  }
}

/** One `sandbox.events` request, open until either side goes. */
class Listening extends Operation {
  override readonly fresh = true;
  readonly #started = Promise.withResolvers<void>();
  readonly #onExit: (exit: Exit) => void;
  readonly #onEnded: (error: unknown) => void;
  #answered = false;

  constructor(options: { onExit: (exit: Exit) => void; onEnded: (error: unknown) => void }) {
    super();
    this.#onExit = options.onExit;
    this.#onEnded = options.onEnded;
    // A failure is told through onEnded as well; nobody need wait for the start.
    this.#started.promise.catch(() => undefined);
  }

  get started(): Promise<void> {
    return this.#started.promise;
  }

  override onReply(): void {
    this.#answered = true;
    this.connection?.setKeepsProcessAlive(false);
    this.#started.resolve();
  }
  override onEvent(value: unknown): void {
    const fields = objectOf(value, "event");
    if (textOf(fields, "event") === "exit")
      this.#onExit({ execId: execIdOf(fields), exit: execExitOf(fields) });
  }
  protected override onEnd(): void {
    this.onFailure(undefined);
  }
  protected override onFailure(error: unknown): void {
    if (!this.#answered) this.#started.reject(error);
    this.#onEnded(error);
  }
}
