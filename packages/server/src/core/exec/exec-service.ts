import { setTimeout as pause } from "node:timers/promises";
import { formatDuration, type OutputEncoding } from "@alcove/wire";
import { CallerGone, deadlineAfter, ShuttingDown } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { Clock } from "../../ports/clock.ts";
import {
  Conflict,
  type DomainError,
  NotFound,
  ResourceLimit,
  RuntimeGone,
  TimedOut,
  Unavailable,
} from "../../ports/errors.ts";
import type { EventSink } from "../../ports/event-sink.ts";
import type { ExecId, Ids } from "../../ports/ids.ts";
import type {
  CallOptions,
  ExecEvent,
  ExecExit,
  ExecInfo,
  ExecOperations,
  ExecSpec,
  ExecView,
  SandboxOperations,
  WindowSize,
} from "../../ports/sandbox-operations.ts";
import type { SandboxRow } from "../../ports/store.ts";
import type { Answer } from "../answers/answer-budget.ts";
import { checkExecId, type ExecDeadlines, type ExecInput, execSpec } from "./exec-input.ts";
import { type ExecOperation, type ExecReader, ExecTracker } from "./exec-tracker.ts";
import { type FollowedEvent, LastingView } from "./lasting-view.ts";
import { OutputCollector } from "./output-collector.ts";
import type { RunningSandboxes } from "./running-sandboxes.ts";
import { parseSignal } from "./signals.ts";
import type { WrittenOutput } from "./written-output.ts";

/** A sandbox answers a start in milliseconds; one that does not is ill. */
const startDeadlineMs = 30_000;
/** How long after its own deadline a buffered command may stay silent before its sandbox counts as ill. */
const overdueMs = 60_000;
const cleanupDeadlineMs = 10_000;
const unansweredPauseMs = 200;
/** How long a sandbox may take to be connected to anew, how often that is looked for, and how often something is done again. */
const connectMs = 10_000;
const connectPauseMs = 50;
const mostTries = 5;
/** How long it may take to see whether a sandbox is still there whose connection ended. */
const lookDeadlineMs = 2_000;
/** Output that is answered is there as bytes, twice while its buffer grows, and as what the caller has yet to take. */
const outputCopies = 3;
const empty = Buffer.alloc(0);

export interface ExecOutcome {
  execId: ExecId;
  exit: ExecExit;
  stdout: WrittenOutput;
  stderr: WrittenOutput;
  truncated: boolean;
  /** Of both streams together: what was written and is in neither of them, because a connection broke. */
  lostBytes: number;
  encoding: OutputEncoding;
}

/** A command that its deadline ended; what became of it is told all the same. */
export class ExecTimedOut extends TimedOut {
  readonly outcome: ExecOutcome;

  constructor(message: string, outcome: ExecOutcome) {
    super(message, { details: { exec_id: outcome.execId } });
    this.outcome = outcome;
  }
}

/** What is known of a command's output: details of an error that tells why its end is not. */
type WrittenDetails = Record<string, unknown> & { exec_id: string };

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

interface Target {
  row: SandboxRow;
  operations: SandboxOperations;
}

export interface ExecServiceLimits {
  /** Of an owner's commands, as its quota stands now. */
  deadlinesOf: (ownerId: string) => ExecDeadlines;
  maxOutputBytes: number;
  disconnectGraceMs: number;
}

/** Runs commands in sandboxes. Every form of it, buffered, streamed or detached, is a view of one exec. docs/api/exec.md. */
export class ExecService implements Disposable {
  readonly #sandboxes: RunningSandboxes;
  readonly #events: EventSink;
  readonly #ids: Pick<Ids, "execId">;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #limits: ExecServiceLimits;
  readonly #tracker: ExecTracker;
  /** Who has each named input now. */
  readonly #inputs = new Map<string, LastingView>();

  constructor(options: {
    sandboxes: RunningSandboxes;
    events: EventSink;
    ids: Pick<Ids, "execId">;
    clock: Clock;
    logger: Logger;
    limits: ExecServiceLimits;
  }) {
    this.#sandboxes = options.sandboxes;
    this.#events = options.events;
    this.#ids = options.ids;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#limits = options.limits;
    this.#tracker = new ExecTracker({
      sandboxes: options.sandboxes,
      events: options.events,
      clock: options.clock,
      logger: options.logger,
      disconnectGraceMs: options.limits.disconnectGraceMs,
    });
  }

  [Symbol.dispose](): void {
    this.#tracker[Symbol.dispose]();
  }

  /** Commands whose end was not seen yet. */
  get running(): number {
    return this.#tracker.size;
  }

  /** An id for a command that has yet to be asked for. */
  makeId(): ExecId {
    return this.#ids.execId();
  }

  /**
   * Runs a command to its end and returns at most `exec.max_output` bytes of each stream.
   * @throws ExecTimedOut when its deadline passed; NotFound or Conflict with reason `lost` when the sandbox ended under it;
   *   Unavailable when the connection to it was lost, and the command perhaps goes on.
   */
  async run(
    sandboxId: string,
    input: ExecInput,
    options: CallOptions & {
      /** All of the command's standard input. */
      stdin?: Uint8Array;
      encoding?: OutputEncoding;
      answer?: Answer;
      onStage?: (stage: string, durationMs: number) => void;
    },
  ): Promise<ExecOutcome> {
    const startedMs = this.#clock.monotonicMs();
    const target = await this.#sandboxes.locate(sandboxId, options);
    const { stdin, encoding = "utf8" } = options;
    const spec = this.#spec(target, input, {
      operation: "exec",
      stdin: stdin !== undefined,
      detached: false,
    });
    const { view, reader } = await this.#open(target, spec, "exec");
    const followingMs = this.#clock.monotonicMs();
    options.onStage?.("start", followingMs - startedMs);
    using overdue = deadlineAfter(Math.min(spec.timeoutMs + overdueMs, 2 ** 31 - 1), options.signal);
    await using follow = this.#follow(target, {
      view,
      reader,
      signal: overdue.signal,
      from: 0,
      lossless: true,
      input: spec.input,
    });
    if (stdin !== undefined) this.#feed(follow, stdin);
    const stdout = new OutputCollector({ maxBytes: this.#limits.maxOutputBytes });
    const stderr = new OutputCollector({ maxBytes: this.#limits.maxOutputBytes });
    const owner = target.row.ownerId || target.row.id;
    let exit: ExecExit | undefined;
    let brokenBy: unknown;
    let lostBytes = 0;
    try {
      for await (const event of follow.events) {
        lostBytes += event.lostBytes ?? 0;
        if (event.type === "exit") {
          exit = event.exit;
          continue;
        }
        const [grows, other] = event.stream === "stdout" ? [stdout, stderr] : [stderr, stdout];
        const bytes = (grows.bytesWith(event.data) + other.bytesWith(empty)) * outputCopies;
        // While it waits, a command that is being read waits as well.
        const waits = options.answer?.grow(owner, bytes, overdue.signal);
        if (waits !== undefined) await this.#roomFor(waits, target, spec.execId);
        grows.add(event.data);
      }
    } catch (error) {
      const stopped = options.signal.reason instanceof ShuttingDown;
      // The sandbox, or the connection to it: told apart below.
      const broke = error instanceof RuntimeGone && !overdue.signal.aborted;
      if (broke) brokenBy = error;
      else if (!stopped) throw error;
      else
        throw new Unavailable(
          `the service is shutting down; command ${spec.execId} goes on: read its output and end from /sandboxes/${sandboxId}/execs/${spec.execId}/output once the service is back`,
          { cause: error, details: { exec_id: spec.execId, goes_on: "shutting_down" }, retryAfterS: 1 },
        );
    }
    options.onStage?.("run", this.#clock.monotonicMs() - followingMs);
    const exceeded = exit?.limit === "output_bytes";
    const truncated = stdout.truncated || stderr.truncated || lostBytes > 0 || exceeded;
    const written = { stdout: stdout.written(encoding), stderr: stderr.written(encoding) };
    const details = () => ({
      exec_id: spec.execId,
      ...written,
      ...(truncated ? { truncated } : {}),
      ...(lostBytes > 0 ? { lost_bytes: lostBytes } : {}),
      ...(encoding === "base64" ? { encoding } : {}),
    });
    if (exit === undefined) throw await this.#withoutExit(target, details(), brokenBy);
    const outcome: ExecOutcome = {
      execId: spec.execId,
      exit,
      ...written,
      truncated,
      lostBytes,
      encoding,
    };
    if (exit.reason === "timeout")
      throw new ExecTimedOut(
        `command ${spec.execId} was ended at its deadline of ${formatDuration(spec.timeoutMs)}; ask for a longer timeout or start it detached`,
        outcome,
      );
    return outcome;
  }

  /** Why a command's output ended without its exit: with its sandbox, which does not come back, or with the connection. */
  async #withoutExit(target: Target, details: WrittenDetails, cause: unknown): Promise<DomainError> {
    const { id } = target.row;
    const { exec_id: execId } = details;
    return (
      (await this.#lostWith(target, details)) ??
      new Unavailable(
        `the connection to sandbox ${id} was lost while command ${execId} ran, and it may go on for its grace: its output and end are at /sandboxes/${id}/execs/${execId}/output`,
        { cause, details, retryAfterS: 1 },
      )
    );
  }

  /** @returns what a caller is told whose command went with its sandbox; undefined while the sandbox is there. */
  async #lostWith(target: Target, details: WrittenDetails): Promise<DomainError | undefined> {
    try {
      using deadline = deadlineAfter(lookDeadlineMs);
      await this.#sandboxes.locate(target.row.id, { signal: deadline.signal });
      return undefined;
    } catch (error) {
      const ended = error instanceof NotFound ? NotFound : error instanceof Conflict ? Conflict : undefined;
      if (ended === undefined) return undefined;
      return new ended(`command ${details.exec_id} is lost: ${(error as DomainError).message}`, {
        cause: error,
        details: { ...details, reason: "lost" },
      });
    }
  }

  /** Starts a command and follows it. When `signal` aborts, the reading ends and the command gets its grace. */
  async stream(
    sandboxId: string,
    input: ExecInput,
    options: CallOptions & {
      stdin: boolean | Uint8Array;
      /** Name of the input, so that `output` can go on with it. */
      input?: string;
    },
  ): Promise<ExecFollow> {
    const target = await this.#sandboxes.locate(sandboxId, options);
    const spec = this.#spec(target, input, {
      operation: "exec_stream",
      stdin: options.stdin !== false,
      detached: false,
      ...(options.input === undefined ? {} : { input: options.input }),
    });
    const { view, reader } = await this.#open(target, spec, "exec_stream");
    const follow = this.#follow(target, {
      view,
      reader,
      signal: options.signal,
      from: 0,
      lossless: true,
      input: spec.input,
    });
    if (typeof options.stdin !== "boolean") this.#feed(follow, options.stdin);
    return follow;
  }

  /** Starts a command that nobody needs to read. */
  async startDetached(
    sandboxId: string,
    input: ExecInput,
    options: CallOptions & { stdin: boolean | Uint8Array },
  ): Promise<{ execId: ExecId; pid: number }> {
    const target = await this.#sandboxes.locate(sandboxId, options);
    const { stdin } = options;
    const spec = this.#spec(target, input, { operation: "exec", stdin: stdin !== false, detached: true });
    using deadline = deadlineAfter(startDeadlineMs);
    const known = this.#tracker.knows(sandboxId, spec.execId);
    const { started } = await this.#tracker
      .start(target, { execId: spec.execId, operation: "exec", detached: true }, () =>
        this.#overBreaks(target, deadline, async (execs, again) => {
          const running = again ? await this.#runs(execs, spec.execId, deadline) : undefined;
          return running ?? execs.startDetached(spec, { signal: deadline.signal });
        }),
      )
      .catch((error: unknown) => {
        if (!known && maybeStarted(error, deadline.signal)) void this.#endUnanswered(target, spec.execId);
        throw named(error, spec.execId);
      });
    if (typeof stdin !== "boolean") void this.#feedDetached(target, spec.execId, stdin);
    return { execId: spec.execId, pid: started.pid };
  }

  async list(sandboxId: string, options: CallOptions): Promise<ExecInfo[]> {
    return (await this.#sandboxes.locate(sandboxId, options)).operations.execs.list(options);
  }

  async get(sandboxId: string, execId: string, options: CallOptions): Promise<ExecInfo> {
    const { target, id } = await this.#addressed(sandboxId, execId, options);
    const info = await target.operations.execs.get(id, options);
    if (info.exit !== undefined) this.#tracker.sawExit(sandboxId, id, info.exit);
    return info;
  }

  /**
   * Output from `from` on, what is kept first; with `follow` until the end. A reader that follows calls off a grace.
   * Who takes over an attached command slows it down as its first reader did; a detached one waits for no reader
   * but those that ask it to, with `lossless`, for as long as they follow.
   */
  async output(
    sandboxId: string,
    execId: string,
    options: CallOptions & {
      from: number;
      follow: boolean;
      lossless?: boolean;
      /** Name of the input of this follower; it goes on where an earlier one of that name broke off. */
      input?: string;
    },
  ): Promise<ExecFollow & { info: ExecInfo }> {
    const { target, id } = await this.#addressed(sandboxId, execId, options);
    const { from, follow, signal, input } = options;
    const lossless = (follow && options.lossless === true) || (await this.#isAttached(target, id, options));
    const named = input === undefined ? {} : { input };
    // Before the sandbox is told: an earlier follower of that name must not take the input back.
    if (input !== undefined) this.#inputs.get(inputKey(sandboxId, id, input))?.leaveInput();
    const attach = () => target.operations.execs.attach(id, { from, follow, lossless, signal, ...named });
    if (!follow) {
      const view = await attach();
      const reader: ExecReader = { leave: () => undefined };
      const until = view.info.outputBytes;
      return Object.assign(this.#follow(target, { view, reader, signal, from, lossless, until }), {
        info: view.info,
      });
    }
    const { attached, reader } = await this.#tracker.attach(target, id, attach);
    return Object.assign(this.#follow(target, { view: attached, reader, signal, from, lossless, input }), {
      info: attached.info,
    });
  }

  async writeStdin(
    sandboxId: string,
    execId: string,
    data: Uint8Array,
    options: CallOptions & { close: boolean },
  ): Promise<void> {
    const { target, id } = await this.#addressed(sandboxId, execId, options);
    const input = this.makeId();
    await this.#overBreaks(target, options, (execs, again) =>
      execs.writeStdin(id, data, { ...options, input, again }),
    );
  }

  async resize(sandboxId: string, execId: string, size: WindowSize, options: CallOptions): Promise<void> {
    const { target, id } = await this.#addressed(sandboxId, execId, options);
    await target.operations.execs.resize(id, size, options);
  }

  async signal(
    sandboxId: string,
    execId: string,
    signal: string | number,
    options: CallOptions,
  ): Promise<void> {
    const number = parseSignal(signal);
    const { target, id } = await this.#addressed(sandboxId, execId, options);
    await target.operations.execs.signal(id, number, options);
  }

  /** Kills the whole tree; a command that has ended keeps its record. */
  async kill(sandboxId: string, execId: string, options: CallOptions): Promise<ExecInfo> {
    const { target, id } = await this.#addressed(sandboxId, execId, options);
    const info = await target.operations.execs.kill(id, { ...options, reason: "cancelled" });
    if (info.exit !== undefined) this.#tracker.sawExit(sandboxId, id, info.exit);
    return info;
  }

  async #addressed(
    sandboxId: string,
    execId: string,
    options: CallOptions,
  ): Promise<{ target: Target; id: ExecId }> {
    return { target: await this.#sandboxes.locate(sandboxId, options), id: checkExecId(execId) };
  }

  /**
   * Whether this command runs and was not started detached. After a restart a reader may be back before the tracker
   * knows the command: its output would wait for ever for a reader that takes over as the first one did.
   */
  async #isAttached(target: Target, id: ExecId, options: CallOptions): Promise<boolean> {
    const detached = this.#tracker.isDetached(target.row.id, id);
    if (detached !== undefined) return !detached;
    const info = await target.operations.execs.get(id, options);
    return info.exit === undefined && !info.detached;
  }

  #spec(
    target: Target,
    input: ExecInput,
    options: { operation: ExecOperation; stdin: boolean; detached: boolean; input?: string },
  ): ExecSpec {
    // Also an input that nobody asked to go on with has a name: its connection to the sandbox may break.
    const named = options.stdin ? { input: options.input ?? this.makeId() } : {};
    try {
      const spec = execSpec(input, {
        limits: this.#limits.deadlinesOf(target.row.ownerId),
        makeId: () => this.#ids.execId(),
        stdin: options.stdin,
        detached: options.detached,
      });
      return { ...spec, ...named };
    } catch (error) {
      if (error instanceof ResourceLimit)
        this.#events.emit({
          type: "resource.limit",
          sandboxId: target.row.id,
          ownerId: target.row.ownerId,
          data: { operation: options.operation, provider: target.row.provider, error: error.message },
        });
      throw error;
    }
  }

  /**
   * The start is never cut short by a caller that leaves: a command that may have begun must be found again, so that
   * its grace can be started.
   */
  async #open(
    target: Target,
    spec: ExecSpec,
    operation: ExecOperation,
  ): Promise<{ view: ExecView; reader: ExecReader }> {
    using deadline = deadlineAfter(startDeadlineMs);
    const known = this.#tracker.knows(target.row.id, spec.execId);
    try {
      const { started, reader } = await this.#tracker.start(
        target,
        { execId: spec.execId, operation, detached: false },
        () =>
          this.#overBreaks(target, deadline, async (execs, again) => {
            const running = again ? await this.#runs(execs, spec.execId, deadline) : undefined;
            if (running === undefined) return execs.start(spec, { signal: deadline.signal });
            const { input } = spec;
            const whole = {
              from: 0,
              follow: true,
              lossless: true,
              ...(input === undefined ? {} : { input }),
            };
            return execs.attach(spec.execId, { ...whole, signal: deadline.signal });
          }),
      );
      return { view: started, reader };
    } catch (error) {
      if (!known && maybeStarted(error, deadline.signal)) void this.#endUnanswered(target, spec.execId);
      const lost =
        error instanceof RuntimeGone ? await this.#lostWith(target, { exec_id: spec.execId }) : undefined;
      if (lost !== undefined) throw lost;
      if (!deadline.signal.aborted) throw named(error, spec.execId);
      throw new Unavailable(
        `the sandbox ${target.row.id} did not start command ${spec.execId} within ${formatDuration(startDeadlineMs)}`,
        { cause: error, details: { exec_id: spec.execId } },
      );
    }
  }

  /**
   * Does something in a sandbox, and again when the sandbox was connected to anew meanwhile, which cuts what is under way.
   * `act` is told when it may have been done before.
   */
  async #overBreaks<T>(
    { row, operations }: Target,
    { signal }: CallOptions,
    act: (execs: ExecOperations, again: boolean) => Promise<T>,
  ): Promise<T> {
    let execs = operations.execs;
    for (let tries = 1; ; tries += 1) {
      try {
        return await act(execs, tries > 1);
      } catch (error) {
        if (!(error instanceof RuntimeGone) || tries >= mostTries) throw error;
        const anew = await this.#connectedAnew({ row, operations }, execs, signal);
        if (anew === undefined) throw error;
        execs = anew;
      }
    }
  }

  /** @returns the commands of a sandbox over another connection than before; undefined when that is the same, or the sandbox ended. */
  async #connectedAnew(
    { row, operations }: Target,
    before: ExecOperations,
    signal: AbortSignal,
  ): Promise<ExecOperations | undefined> {
    const deadlineMs = this.#clock.monotonicMs() + connectMs;
    while (!signal.aborted && this.#clock.monotonicMs() < deadlineMs) {
      await pause(connectPauseMs, undefined, { ref: false });
      if (!this.#tracker.follows(row.id)) return undefined;
      try {
        const { execs } = operations;
        return execs === before ? undefined : execs;
      } catch (error) {
        // There is none at the moment.
        if (!(error instanceof Unavailable)) return undefined;
      }
    }
    return undefined;
  }

  /** The command of this id, when a start that was not answered was carried out. */
  async #runs(execs: ExecOperations, execId: ExecId, options: CallOptions): Promise<ExecInfo | undefined> {
    try {
      return await execs.get(execId, options);
    } catch (error) {
      if (error instanceof NotFound) return undefined;
      throw error;
    }
  }

  /** Gives a command all of its input while its output is read; one that ends without having read it all is fine. */
  #feed(follow: ExecFollow, stdin: Uint8Array): void {
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

  async #feedDetached(target: Target, execId: ExecId, stdin: Uint8Array): Promise<void> {
    try {
      const { signal } = new AbortController();
      const input = this.makeId();
      await this.#overBreaks(target, { signal }, (execs, again) =>
        execs.writeStdin(execId, stdin, { close: true, signal, input, again }),
      );
    } catch (error) {
      this.#logger.debug({ exec_id: execId, err: error }, "standard input was not taken");
    }
  }

  /** A command whose answer finds no room is named, so that its output can be read as a stream within its grace. */
  async #roomFor(waits: Promise<void>, target: Target, execId: ExecId): Promise<void> {
    try {
      await waits;
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      throw new Unavailable(`${error.message}; command ${execId} goes on for its grace`, {
        cause: error,
        details: { exec_id: execId, sandbox_id: target.row.id, goes_on: "no_room" },
        ...(error.retryAfterS === undefined ? {} : { retryAfterS: error.retryAfterS }),
      });
    }
  }

  /**
   * Ends a command whose start was not answered, over the connection there is by then. The kill may overtake the start,
   * so that one answer of "not found" is not believed.
   */
  async #endUnanswered(target: Target, execId: ExecId): Promise<void> {
    using deadline = deadlineAfter(cleanupDeadlineMs);
    const { signal } = deadline;
    for (let notFound = 0; notFound < 2 && !signal.aborted; ) {
      try {
        const { operations } = await this.#sandboxes.locate(target.row.id, { signal });
        await operations.execs.kill(execId, { reason: "cancelled", signal });
        return;
      } catch (error) {
        if (error instanceof NotFound) notFound += 1;
        this.#logger.debug({ exec_id: execId, err: error }, "a command that did not start was not found");
      }
      await pause(unansweredPauseMs, undefined, { ref: false });
    }
  }

  /** @param reading.from offset of the first byte wanted. @param reading.until for a view that is not to follow. */
  #follow(
    target: Target,
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

  /** The events of a view; an exit is told to the tracker, an abort of the signal throws its reason. */
  async *#watched(
    target: Target,
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

/** The failure of a start that was perhaps carried out tells which command it was. */
function named(error: unknown, execId: ExecId): unknown {
  if (!(error instanceof RuntimeGone)) return error;
  return new RuntimeGone(error.message, { cause: error, details: { ...error.details, exec_id: execId } });
}

function inputKey(sandboxId: string, execId: ExecId, input: string): string {
  return `${sandboxId} ${execId} ${input}`;
}

/** Whether a start that failed was perhaps carried out: its answer is missing, it was not refused. */
function maybeStarted(error: unknown, deadline: AbortSignal): boolean {
  return deadline.aborted || error instanceof RuntimeGone;
}

function abortError(reason: unknown): Error {
  if (reason instanceof CallerGone) return reason;
  if (reason instanceof ShuttingDown)
    return new Unavailable("the service is shutting down", { cause: reason, retryAfterS: 1 });
  return new Unavailable("the sandbox did not report the end of the command in time", { cause: reason });
}
