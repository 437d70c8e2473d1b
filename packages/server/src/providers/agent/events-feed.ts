import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { outsideRequests } from "../../platform/request-scope.ts";
import { type CallOptions, type ExecExit, type ExecId, RuntimeGone } from "../../ports/index.ts";
import type { AgentChannel } from "./channel.ts";
import type { AgentConnection } from "./connection.ts";
import { listExecs } from "./exec-list.ts";
import { Operation } from "./operation.ts";
import { PushIterator } from "./push-iterator.ts";
import { execExitOf, execIdOf, objectOf, textOf } from "./reading.ts";

type Exit = { execId: ExecId; exit: ExecExit };

/** Exits a subscriber may leave waiting; above that it loses the oldest. */
const maxWaiting = 10_000;
/** Exits remembered so that one told before a reconnection is not told again. */
const maxRemembered = 2_000;
/** How long a connection may take until the agent has answered on it, and the list after it. */
const connectMs = 5_000;
/** Nobody waits for a feed in which nothing can be missed yet: what makes the sandbox has been answered by then. */
const soonMs = 2;
/** And often its first command, whose end is told to whoever follows it. */
const soonAfterFollowedMs = 10;
/** Pauses before a connection is made anew: none after one that lasted, then ever longer ones. */
const lastedMs = 10_000;
const firstPauseMs = 100;
const longestPauseMs = 5_000;

/** Why nobody listens any more. One for all: without a reason each abort makes an exception with a stack. */
const closed = new Error("the events are followed no longer");

/**
 * The one `sandbox.events` connection of a sandbox and everybody who listens to it. States: unused (until somebody
 * wants it, and for a moment from then on unless a command starts that nobody follows), connecting, connected, gone. A connection that ends is made anew as often as it takes, because a broken transport is not a dead
 * sandbox; exits missed meanwhile are read from the list of commands once the new one is answered. The sandbox is gone,
 * for good, when nobody takes a connection at its endpoint any more.
 */
export class EventsFeed {
  readonly #channel: AgentChannel;
  readonly #logger: Logger;
  readonly #subscribers = new Set<PushIterator<Exit>>();
  /** Told, once each, that the ends of commands are told from now on. */
  readonly #awaiting = new Set<() => void>();
  readonly #goneListeners = new Set<() => void>();
  readonly #told = new Set<ExecId>();
  readonly #closing = new AbortController();
  #state: "unused" | "connecting" | "connected" | "gone" = "unused";
  #soon: NodeJS.Timeout | undefined;
  #wasPutOff = false;
  /** A command was started before the agent had answered here, and may have ended by then. */
  #startedEarly = false;

  constructor(options: { channel: AgentChannel; logger: Logger }) {
    this.#channel = options.channel;
    this.#logger = options.logger;
  }

  /** Calls back once when the sandbox is gone, soon when it is already. @returns how to stop listening. */
  onGone(listener: () => void): () => void {
    const own = () => listener();
    this.#goneListeners.add(own);
    if (this.#state === "gone") queueMicrotask(() => this.#tellGone());
    else this.#connectSoon();
    return () => this.#goneListeners.delete(own);
  }

  exits(options: CallOptions & { onListening?: () => void }): AsyncIterable<Exit> {
    const listening = () => options.onListening?.();
    const leave = () => {
      this.#subscribers.delete(queue);
      this.#awaiting.delete(listening);
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
    if (this.#state === "connected") queueMicrotask(listening);
    else this.#awaiting.add(listening);
    if (options.onListening === undefined) this.#connectSoon();
    else this.#connect();
    return queue;
  }

  /**
   * A start with this id is about to be sent. Where the agent has forgotten it that is a new command, whose end is to be
   * told; where it has not, the end that is told again ends nothing.
   * @param options.followed its end is told on a connection of its own too: it does not wait for this one.
   */
  willStart(execId: ExecId, options: { followed: boolean }): void {
    this.#told.delete(execId);
    if (!options.followed) this.#connectNow();
    else if (this.#state === "unused" && this.#soon !== undefined) this.#putOff();
    const isComing = this.#state === "unused" ? this.#soon !== undefined : this.#state === "connecting";
    if (isComing) this.#startedEarly = true;
  }

  /** A command is followed no longer, and its end was not told there. */
  wasLeft(): void {
    this.#connectNow();
  }

  /** Stops listening without telling anybody that the sandbox is gone. */
  close(): void {
    this.#closing.abort(closed);
    clearTimeout(this.#soon);
    this.#goneListeners.clear();
    this.#endQueues();
  }

  /** Where somebody listens, and a moment was to pass. */
  #connectNow(): void {
    if (this.#soon !== undefined) this.#connect();
  }

  #connectSoon(): void {
    if (this.#state !== "unused" || this.#soon !== undefined || this.#closing.signal.aborted) return;
    this.#soon = outsideRequests(() => setTimeout(() => this.#connect(), soonMs));
  }

  /** Once: there may be one command after the other. */
  #putOff(): void {
    if (this.#wasPutOff || this.#closing.signal.aborted) return;
    this.#wasPutOff = true;
    clearTimeout(this.#soon);
    this.#soon = outsideRequests(() => setTimeout(() => this.#connect(), soonAfterFollowedMs));
  }

  #connect(): void {
    clearTimeout(this.#soon);
    if (this.#state !== "unused" || this.#closing.signal.aborted) return;
    this.#state = "connecting";
    // What is armed here lives as long as the sandbox, whoever asked first.
    void outsideRequests(() => this.#keepConnected());
  }

  async #keepConnected(): Promise<void> {
    const { signal } = this.#closing;
    let pauseMs = 0;
    for (let again = false; !signal.aborted; again = true) {
      const startedMs = performance.now();
      try {
        await this.#listen(again);
      } catch (error) {
        if (error instanceof NobodyThere) return this.#gone(error.cause);
        if (!signal.aborted)
          this.#logger.debug({ err: error }, "the events connection of a sandbox broke; it is made anew");
      }
      if (this.#state === "connected") this.#state = "connecting";
      pauseMs =
        performance.now() - startedMs > lastedMs ? 0 : Math.min(longestPauseMs, pauseMs * 2 || firstPauseMs);
      await pause(pauseMs, signal);
    }
  }

  /** One connection, until it ends. @throws NobodyThere, or why it ended. */
  async #listen(again: boolean): Promise<void> {
    const connection = new AbortController();
    const until = AbortSignal.any([this.#closing.signal, connection.signal]);
    const listening = new Listening({ onExit: (exit) => this.#tell(exit) });
    try {
      using deadline = deadlineAfter(connectMs, until);
      this.#channel.begin({ op: "sandbox.events" }, listening, until);
      await Promise.race([listening.started, whenAborted(deadline.signal)]);
      const missing = again || this.#startedEarly;
      this.#startedEarly = false;
      if (missing) {
        const missed = await listExecs(this.#channel, { signal: deadline.signal, fresh: true });
        for (const { execId, exit } of missed) if (exit !== undefined) this.#tell({ execId, exit });
      }
      if (this.#closing.signal.aborted) return;
      this.#state = "connected";
      const awaiting = [...this.#awaiting];
      this.#awaiting.clear();
      for (const listener of awaiting) listener();
      deadline[Symbol.dispose]();
      await listening.ended;
    } finally {
      connection.abort(closed);
    }
  }

  #gone(error: unknown): void {
    if (this.#state === "gone" || this.#closing.signal.aborted) return;
    this.#state = "gone";
    this.#logger.debug({ err: error }, "the agent of a sandbox is gone");
    this.#endQueues();
    this.#tellGone();
  }

  #endQueues(): void {
    for (const queue of this.#subscribers) queue.end();
    this.#subscribers.clear();
    this.#awaiting.clear();
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

/** The endpoint takes no connection: the process that listened there has ended. */
class NobodyThere extends Error {}

/** One `sandbox.events` request, open until either side goes. */
class Listening extends Operation {
  override readonly fresh = true;
  readonly #started = Promise.withResolvers<void>();
  readonly #ended = Promise.withResolvers<never>();
  readonly #onExit: (exit: Exit) => void;
  #dialled = false;

  constructor(options: { onExit: (exit: Exit) => void }) {
    super();
    this.#onExit = options.onExit;
    this.#started.promise.catch(() => undefined);
    this.#ended.promise.catch(() => undefined);
  }

  /** Resolves when the agent has answered. */
  get started(): Promise<void> {
    return this.#started.promise;
  }

  /** Rejects when the connection ends. */
  get ended(): Promise<never> {
    return this.#ended.promise;
  }

  override attach(connection: AgentConnection): void {
    super.attach(connection);
    this.#dialled = true;
  }
  override onReply(): void {
    this.connection?.setKeepsProcessAlive(false);
    this.#started.resolve();
  }
  override onEvent(value: unknown): void {
    const fields = objectOf(value, "event");
    if (textOf(fields, "event") === "exit")
      this.#onExit({ execId: execIdOf(fields), exit: execExitOf(fields) });
    else this.countUnknown();
  }
  protected override onEnd(): void {
    this.onFailure(new Error("the agent ended the connection"));
  }
  protected override onFailure(error: unknown): void {
    const refused = !this.#dialled && error instanceof RuntimeGone;
    const cause = refused ? new NobodyThere("nobody listens there", { cause: error }) : error;
    this.#started.reject(cause);
    this.#ended.reject(cause);
  }
}

/** Never resolves. */
function whenAborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    const tell = () => reject(signal.reason);
    if (signal.aborted) tell();
    else signal.addEventListener("abort", tell, { once: true });
  });
}

/** Keeps no process alive. */
function pause(delayMs: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, delayMs);
    timer.unref();
    signal.addEventListener("abort", done, { once: true });
  });
}
