import { abortable } from "../../platform/abortable.ts";
import { CallerGone, ShuttingDown } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { Clock } from "../../ports/clock.ts";
import { Unavailable } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecEvent, ExecExit, ExecView } from "../../ports/sandbox-operations.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { ExecReader, ExecTracker } from "./exec-tracker.ts";
import { type FollowedEvent, LastingView } from "./lasting-view.ts";
import type { WholeInput } from "./whole-input.ts";
import type { WholeInputs } from "./whole-inputs.ts";

/** A command that is followed. Iterate `events` once; `close` ends the reading, never the command itself. */
export interface ExecFollow extends AsyncDisposable {
  readonly execId: ExecId;
  readonly pid: number;
  readonly events: AsyncIterable<FollowedEvent>;
  /** Resolves when more may be given. @throws Conflict, at once, when somebody else goes on with this input. */
  writeStdin(data: Uint8Array): Promise<void>;
  closeStdin(): Promise<void>;
  /**
   * Calls back at once, and whenever more has arrived, with how many bytes of this input have, over all followers that were
   * given its name; undefined: nobody knows.
   */
  watchInput(listener: (taken: number | undefined) => void): void;
  /** What is held of input that was given and may not have arrived, bytes of memory; less of it whenever more has. */
  heldInputBytes(): number;
}

export interface InputClaim {
  taken(): void;
  refused(): void;
}

/** Follows commands, over breaks of their connection, and tells the tracker what it sees of their ends. */
export class ExecFollower {
  readonly #tracker: ExecTracker;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #wholeInputs: WholeInputs;
  /** Who has each named input now. */
  readonly #inputs = new Map<string, LastingView>();
  /** Inputs that somebody has asked the sandbox for, until it has answered. */
  readonly #claims = new Map<string, Promise<unknown>>();

  constructor(options: { tracker: ExecTracker; clock: Clock; logger: Logger; wholeInputs: WholeInputs }) {
    this.#tracker = options.tracker;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#wholeInputs = options.wholeInputs;
  }

  /** As `follow`, of a command whose events were taken together: nothing is left to follow. @returns the events. */
  ended(
    target: ExecTarget,
    { execId, reader, events }: { execId: ExecId; reader: ExecReader; events: readonly ExecEvent[] },
  ): readonly FollowedEvent[] {
    for (const event of events)
      if (event.type === "exit") this.#tracker.sawExit(target.row.id, execId, event.exit);
    reader.leave();
    return events;
  }

  /**
   * As `follow`, and a command whose sandbox ends under it ends too, with reason `lost`: a stream without an exit can then be
   * picked up again.
   */
  followToEnd(
    target: ExecTarget,
    reading: Parameters<ExecFollower["follow"]>[1] & { startedAt: Date },
  ): ExecFollow {
    const follow = this.follow(target, reading);
    return { ...follow, events: this.#ending(target, follow.events, reading) };
  }

  /**
   * @param reading.from offset of the first byte wanted. @param reading.until for a view that is not to follow.
   * @param reading.stdin all of the command's input, which has the name `input`.
   */
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
      stdin?: WholeInput | undefined;
    },
  ): ExecFollow {
    const { view, reader, signal, from, lossless, until, input, stdin } = reading;
    const { execId } = view;
    const key = inputKey(target.row.id, execId, input ?? "");
    const lasting = new LastingView({
      view,
      from,
      ...(until === undefined ? {} : { until }),
      attach: async (next, attempt) => {
        // Whoever asks for this input may get it: it must not be taken back then.
        const claims = input === undefined ? undefined : this.#claims.get(key);
        if (claims !== undefined) await abortable(claims, attempt);
        const named = input !== undefined && lasting.hasInput ? { input } : {};
        const reading = { from: next, follow: true, lossless, again: true, signal: attempt, ...named };
        return target.operations.execs.attach(execId, reading);
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
    let exited = false;
    const leaveInput =
      stdin === undefined || input === undefined
        ? undefined
        : this.#wholeInputs.begin(target, {
            ...{ execId, input, data: stdin },
            hasInput: () => lasting.hasInput,
          });
    if (stdin !== undefined) {
      lasting.watchInput((taken) => stdin.arrived(taken));
      void this.#feed(lasting, stdin, execId);
    }
    const onAbort = () => void closeView();
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
    return {
      execId,
      pid: view.pid,
      events: this.#watched(target, {
        execId,
        events: lasting.events(),
        signal,
        onExit: () => (exited = true),
      }),
      writeStdin: (data) => lasting.writeStdin(data),
      closeStdin: () => lasting.closeStdin(),
      watchInput: (listener) => lasting.watchInput(listener),
      heldInputBytes: () => lasting.heldInputBytes,
      [Symbol.asyncDispose]: async () => {
        signal.removeEventListener("abort", onAbort);
        if (this.#inputs.get(key) === lasting) this.#inputs.delete(key);
        reader.leave({ grace: !(signal.reason instanceof ShuttingDown) });
        await closeView();
        leaveInput?.({ exited: exited || !lasting.hasInput, taken: lasting.inputTaken });
      },
    };
  }

  /** Whoever follows with this input must not take it back: somebody goes on with it. */
  leaveInput(sandboxId: string, execId: ExecId, input: string): void {
    this.#inputs.get(inputKey(sandboxId, execId, input))?.leaveInput();
  }

  /**
   * Somebody asks the sandbox for this input. Until that is settled whoever follows with it keeps it, but does not ask for it
   * again: `taken` ends that it has it, `refused` leaves it all.
   */
  claimInput(sandboxId: string, execId: ExecId, input: string): InputClaim {
    const key = inputKey(sandboxId, execId, input);
    const holder = this.#inputs.get(key);
    const settled = Promise.withResolvers<void>();
    const claims = Promise.all([this.#claims.get(key), settled.promise]);
    this.#claims.set(key, claims);
    const settle = () => {
      settled.resolve();
      if (this.#claims.get(key) === claims) this.#claims.delete(key);
    };
    return {
      taken: () => {
        holder?.leaveInput();
        settle();
      },
      refused: settle,
    };
  }

  /** Whether a follower goes on with this input. */
  holdsInput(sandboxId: string, execId: ExecId, input: string): boolean {
    return this.#inputs.get(inputKey(sandboxId, execId, input))?.hasInput === true;
  }

  /** Gives a command all of its input while its output is read; one that ends without having read it all is fine. */
  async #feed(view: LastingView, stdin: WholeInput, execId: ExecId): Promise<void> {
    try {
      if (stdin.length > 0) await view.writeStdin(stdin.missing);
      await view.closeStdin();
    } catch (error) {
      this.#logger.debug({ exec_id: execId, err: error }, "standard input was not taken");
    }
  }

  async *#ending(
    target: ExecTarget,
    events: AsyncIterable<FollowedEvent>,
    reading: { from: number; signal: AbortSignal; startedAt: Date },
  ): AsyncGenerator<FollowedEvent> {
    const { from, signal, startedAt } = reading;
    const ended = () => !signal.aborted && this.#tracker.sandboxEnded(target.row.id);
    let outputBytes = from;
    let exited = false;
    try {
      for await (const event of events) {
        if (event.type === "exit") exited = true;
        else outputBytes = event.offset + event.data.length;
        yield event;
      }
    } catch (error) {
      if (exited || !ended()) throw error;
      this.#logger.debug({ sandbox_id: target.row.id, err: error }, "a command's sandbox ended under it");
    }
    if (!exited && ended())
      yield { type: "exit", exit: lostExit({ startedAt, endedAt: this.#clock.now(), outputBytes }) };
  }

  /** The events of a view; an exit is told to the tracker, an abort of the signal throws its reason. */
  async *#watched(
    target: ExecTarget,
    reading: { execId: ExecId; events: AsyncIterable<ExecEvent>; signal: AbortSignal; onExit: () => void },
  ): AsyncGenerator<ExecEvent> {
    const { execId, events, signal, onExit } = reading;
    try {
      for await (const event of events) {
        if (event.type === "exit") {
          onExit();
          this.#tracker.sawExit(target.row.id, execId, event.exit);
        }
        if (signal.aborted && event.type !== "exit") break;
        yield event;
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    if (signal.aborted) throw abortError(signal.reason);
  }
}

/** Of a command that went with its sandbox, as a kill of all its processes looks. */
function lostExit(known: Pick<ExecExit, "startedAt" | "endedAt" | "outputBytes">): ExecExit {
  const durationMs = Math.max(0, known.endedAt.getTime() - known.startedAt.getTime());
  return { ...known, exitCode: 137, reason: "lost", durationMs };
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
