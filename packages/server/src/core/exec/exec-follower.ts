import { CallerGone, ShuttingDown } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { Unavailable } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecEvent, ExecView } from "../../ports/sandbox-operations.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { ExecReader, ExecTracker } from "./exec-tracker.ts";
import { type FollowedEvent, LastingView } from "./lasting-view.ts";

/** A command that is followed. Iterate `events` once; `close` ends the reading, never the command itself. */
export interface ExecFollow extends AsyncDisposable {
  readonly execId: ExecId;
  readonly pid: number;
  readonly events: AsyncIterable<FollowedEvent>;
  /** After events that ended without an exit: whether the sandbox goes on, so that the command can be asked for again. */
  readonly sandboxRuns: boolean;
  writeStdin(data: Uint8Array): Promise<void>;
  closeStdin(): Promise<void>;
  /**
   * Calls back at once, and whenever more has arrived, with how many bytes of this input have, over all followers that were
   * given its name; undefined: nobody knows.
   */
  watchInput(listener: (taken: number | undefined) => void): void;
}

/** Follows commands, over breaks of their connection, and tells the tracker what it sees of their ends. */
export class ExecFollower {
  readonly #tracker: ExecTracker;
  readonly #logger: Logger;
  /** Who has each named input now. */
  readonly #inputs = new Map<string, LastingView>();

  constructor(options: { tracker: ExecTracker; logger: Logger }) {
    this.#tracker = options.tracker;
    this.#logger = options.logger;
  }

  /** @param reading.from offset of the first byte wanted. @param reading.until for a view that is not to follow. */
  follow(
    target: ExecTarget,
    reading: {
      view: ExecView;
      reader: ExecReader;
      signal: AbortSignal;
      from: number;
      lossless: boolean;
      until?: number;
      input?: string | undefined;
    },
  ): ExecFollow {
    const { view, reader, signal, from, lossless, until, input } = reading;
    const { execId } = view;
    const key = inputKey(target.row.id, execId, input ?? "");
    const lasting = new LastingView({
      view,
      from,
      ...(until === undefined ? {} : { until }),
      attach: (next, attempt) => {
        const named = input !== undefined && lasting.hasInput ? { input } : {};
        const again = { from: next, follow: true, lossless, signal: attempt, ...named };
        return target.operations.execs.attach(execId, again);
      },
      sandboxRuns: () => until === undefined && this.#tracker.follows(target.row.id),
    });
    if (input !== undefined) this.#inputs.set(key, lasting);
    const closeView = async () => {
      try {
        await lasting.close();
      } catch (error) {
        this.#logger.debug({ exec_id: execId, err: error }, "a view of a command did not close");
      }
    };
    const onAbort = () => void closeView();
    const sandboxRuns = () => this.#tracker.follows(target.row.id);
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
    return {
      execId,
      pid: view.pid,
      events: this.#watched(target, { execId, events: lasting.events(), signal }),
      writeStdin: (data) => lasting.writeStdin(data),
      closeStdin: () => lasting.closeStdin(),
      watchInput: (listener) => lasting.watchInput(listener),
      get sandboxRuns() {
        return sandboxRuns();
      },
      [Symbol.asyncDispose]: async () => {
        signal.removeEventListener("abort", onAbort);
        if (this.#inputs.get(key) === lasting) this.#inputs.delete(key);
        reader.leave({ grace: !(signal.reason instanceof ShuttingDown) });
        await closeView();
      },
    };
  }

  /** Whoever follows with this input must not take it back: somebody goes on with it. */
  leaveInput(sandboxId: string, execId: ExecId, input: string): void {
    this.#inputs.get(inputKey(sandboxId, execId, input))?.leaveInput();
  }

  /** Gives a command all of its input while its output is read; one that ends without having read it all is fine. */
  feed(follow: ExecFollow, stdin: Uint8Array): void {
    const feed = async () => {
      try {
        if (stdin.length > 0) await follow.writeStdin(stdin);
        await follow.closeStdin();
      } catch (error) {
        this.#logger.debug({ exec_id: follow.execId, err: error }, "standard input was not taken");
      }
    };
    void feed();
  }

  /** The events of a view; an exit is told to the tracker, an abort of the signal throws its reason. */
  async *#watched(
    target: ExecTarget,
    reading: { execId: ExecId; events: AsyncIterable<ExecEvent>; signal: AbortSignal },
  ): AsyncGenerator<ExecEvent> {
    const { execId, events, signal } = reading;
    try {
      for await (const event of events) {
        if (event.type === "exit") this.#tracker.sawExit(target.row.id, execId, event.exit);
        if (signal.aborted && event.type !== "exit") break;
        yield event;
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    if (signal.aborted) throw abortError(signal.reason);
  }
}

function inputKey(sandboxId: string, execId: ExecId, input: string): string {
  return `${sandboxId} ${execId} ${input}`;
}

function abortError(reason: unknown): Error {
  if (reason instanceof CallerGone) return reason;
  if (reason instanceof ShuttingDown)
    return new Unavailable("the service is shutting down", { cause: reason, retryAfterS: 1 });
  return new Unavailable("the sandbox did not report the end of the command in time", { cause: reason });
}
