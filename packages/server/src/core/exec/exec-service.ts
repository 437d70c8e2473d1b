import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { Clock } from "../../ports/clock.ts";
import type { EventSink } from "../../ports/event-sink.ts";
import type { ExecId, Ids } from "../../ports/ids.ts";
import type { CallOptions, ExecInfo, ExecOperations, WindowSize } from "../../ports/sandbox-operations.ts";
import type { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import { inSandbox } from "../sandboxes/in-sandbox.ts";
import { BufferedExec, type BufferedOptions, type ExecOutcome } from "./buffered-exec.ts";
import { type AttachOptions, ExecAttacher } from "./exec-attacher.ts";
import { type ExecFollow, ExecFollower } from "./exec-follower.ts";
import { checkExecId, type ExecDeadlines, type ExecInput } from "./exec-input.ts";
import { ExecStarter } from "./exec-starter.ts";
import type { ExecTarget } from "./exec-target.ts";
import { ExecTracker } from "./exec-tracker.ts";
import { LostInputs } from "./lost-inputs.ts";
import { OverBreaks } from "./over-breaks.ts";
import type { RunningSandboxes } from "./running-sandboxes.ts";
import { parseSignal } from "./signals.ts";
import { type StdinOptions, StdinWriter } from "./stdin-writer.ts";
import type { WholeInput } from "./whole-input.ts";
import { WholeInputs } from "./whole-inputs.ts";

/** For what a sandbox answers at once unless it stands still; its list of commands may come in a few answers. */
const answerDeadlineMs = 30_000;

export interface ExecServiceLimits {
  /** Of an owner's commands, as its quota stands now. */
  deadlinesOf: (ownerId: string) => ExecDeadlines;
  maxOutputBytes: number;
  disconnectGraceMs: number;
}

/**
 * Runs commands in sandboxes. Every form of it, buffered, streamed or detached, is a view of one exec. What the forms
 * have in common are modules of their own: the start, the following, the attaching again. docs/api/exec.md.
 */
export class ExecService implements Disposable {
  readonly #sandboxes: RunningSandboxes;
  readonly #ids: Pick<Ids, "execId">;
  readonly #clock: Clock;
  readonly #tracker: ExecTracker;
  readonly #starter: ExecStarter;
  readonly #wholeInputs: WholeInputs;
  readonly #stdinWriter: StdinWriter;
  readonly #lostInputs: LostInputs;
  readonly #follower: ExecFollower;
  readonly #attacher: ExecAttacher;
  readonly #buffered: BufferedExec;
  readonly #answerDeadlineMs: number;

  constructor(options: {
    sandboxes: RunningSandboxes;
    events: EventSink;
    ids: Pick<Ids, "execId">;
    clock: Clock;
    logger: Logger;
    operations: OperationMetrics;
    limits: ExecServiceLimits;
    /** Whether the next process can reach a command of this sandbox again. */
    findsAgain: (target: ExecTarget) => boolean;
    /** How long a sandbox may take to tell of a command, or to pass a signal on. */
    answerDeadlineMs?: number;
  }) {
    this.#answerDeadlineMs = options.answerDeadlineMs ?? answerDeadlineMs;
    const { sandboxes, events, ids, clock, logger, operations, limits } = options;
    const { deadlinesOf, maxOutputBytes, disconnectGraceMs } = limits;
    const onInputOpen = (id: string, execId: ExecId) => this.#lostInputs.watch(id, execId);
    const tracker = new ExecTracker({
      ...{ sandboxes, events, clock, logger, operations },
      disconnectGraceMs,
      onInputOpen,
    });
    const overBreaks = new OverBreaks({ tracker, clock });
    const wholeInputs = new WholeInputs({ tracker, overBreaks, logger, onLeft: onInputOpen });
    const starting = { sandboxes, events, ids, logger, deadlinesOf, tracker, overBreaks, wholeInputs };
    const starter = new ExecStarter(starting);
    const follower = new ExecFollower({ tracker, clock, logger, wholeInputs });
    this.#sandboxes = sandboxes;
    this.#ids = ids;
    this.#clock = clock;
    this.#tracker = tracker;
    this.#starter = starter;
    this.#wholeInputs = wholeInputs;
    const stdinWriter = new StdinWriter({ ids, follower, overBreaks });
    this.#stdinWriter = stdinWriter;
    this.#lostInputs = new LostInputs({
      sandboxes,
      tracker,
      // An input that came whole has its command's id as its name.
      holds: (id, execId) =>
        wholeInputs.holds(id, execId) ||
        follower.holdsInput(id, execId, execId) ||
        stdinWriter.holds(id, execId, execId),
      clock,
      logger,
      graceMs: disconnectGraceMs,
    });
    this.#follower = follower;
    this.#attacher = new ExecAttacher({ tracker, follower });
    const { findsAgain } = options;
    this.#buffered = new BufferedExec({ sandboxes, clock, maxOutputBytes, starter, follower, findsAgain });
  }

  [Symbol.dispose](): void {
    this.#wholeInputs[Symbol.dispose]();
    this.#lostInputs[Symbol.dispose]();
    this.#tracker[Symbol.dispose]();
  }

  /**
   * Resolves when the commands whose callers were cut off have the input that was given with them or take no more of it, and
   * after `ms` at the latest.
   */
  inputsGiven(ms: number): Promise<void> {
    return this.#wholeInputs.given(ms);
  }

  /** Commands whose end was not seen yet. */
  get running(): number {
    return this.#tracker.size;
  }

  /** Those of one sandbox. */
  runningIn(sandboxId: string): number {
    return this.#tracker.countOf(sandboxId);
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
  run(sandboxId: string, input: ExecInput, options: BufferedOptions): Promise<ExecOutcome> {
    return this.#buffered.run(sandboxId, input, options);
  }

  /** Starts a command and follows it to its end; that is reason `lost` when the sandbox ends first. When `signal` aborts, the reading ends and the command gets its grace. */
  async stream(
    sandboxId: string,
    input: ExecInput,
    options: CallOptions & {
      stdin: boolean | WholeInput;
      /** Name of the input, so that `output` can go on with it. */
      input?: string;
    },
  ): Promise<ExecFollow> {
    const target = await this.#sandboxes.locate(sandboxId, options);
    const spec = this.#starter.spec(target, input, {
      operation: "exec_stream",
      stdin: typeof options.stdin === "boolean" ? options.stdin : options.stdin.length,
      detached: false,
      ...(options.input === undefined ? {} : { input: options.input }),
    });
    const startedAt = this.#clock.now();
    const { view, reader } = await this.#starter.start(target, spec, "exec_stream");
    return this.#follower.followToEnd(target, {
      startedAt,
      view,
      reader,
      signal: options.signal,
      from: 0,
      lossless: true,
      input: spec.input,
      stdin: typeof options.stdin === "boolean" ? undefined : options.stdin,
    });
  }

  /** Starts a command that nobody needs to read. */
  async startDetached(
    sandboxId: string,
    input: ExecInput,
    options: CallOptions & { stdin: boolean | WholeInput },
  ): Promise<{ execId: ExecId; pid: number }> {
    const target = await this.#sandboxes.locate(sandboxId, options);
    const { stdin } = options;
    const spec = this.#starter.spec(target, input, {
      operation: "exec",
      stdin: typeof stdin === "boolean" ? stdin : stdin.length,
      detached: true,
    });
    const whole = typeof stdin === "boolean" ? undefined : stdin;
    const { pid } = await this.#starter.startDetached(target, spec, whole);
    return { execId: spec.execId, pid };
  }

  async list(sandboxId: string, options: CallOptions): Promise<ExecInfo[]> {
    return inSandbox(this.#sandboxes, sandboxId, options, async ({ operations }) => {
      using deadline = deadlineAfter(this.#answerDeadlineMs, options.signal);
      return await operations.execs.list({ signal: deadline.signal });
    });
  }

  async get(sandboxId: string, execId: string, options: CallOptions): Promise<ExecInfo> {
    return this.#asked(sandboxId, execId, options, async (execs, id, call) => {
      const info = await execs.get(id, call);
      if (info.exit !== undefined) this.#tracker.sawExit(sandboxId, id, info.exit);
      return info;
    });
  }

  /**
   * Output from `from` on, what is kept first; with `follow` until the end. A reader that follows calls off a grace.
   * Who takes over an attached command slows it down as its first reader did; a detached one waits for no reader
   * but those that ask it to, with `lossless`, for as long as they follow.
   */
  async output(
    sandboxId: string,
    execId: string,
    options: AttachOptions,
  ): Promise<ExecFollow & { info: ExecInfo }> {
    return this.#addressed(sandboxId, execId, options, (target, id) =>
      this.#attacher.attach(target, id, options),
    );
  }

  /** @returns how much of the input was taken by now, when it has a name. */
  async writeStdin(
    sandboxId: string,
    execId: string,
    data: Uint8Array,
    options: StdinOptions,
  ): Promise<{ taken?: number }> {
    return this.#addressed(sandboxId, execId, options, async (target, id) => {
      let ended = false;
      try {
        const written = await this.#stdinWriter.write(target, id, data, options);
        ended = options.close;
        return written;
      } finally {
        // Of an input that came whole with its command somebody may have taken the rest over, and broken off.
        if (options.input === id && !ended) this.#lostInputs.watch(sandboxId, id);
      }
    });
  }

  async resize(sandboxId: string, execId: string, size: WindowSize, options: CallOptions): Promise<void> {
    await this.#asked(sandboxId, execId, options, (execs, id, call) => execs.resize(id, size, call));
  }

  async signal(
    sandboxId: string,
    execId: string,
    signal: string | number,
    options: CallOptions,
  ): Promise<void> {
    const number = parseSignal(signal);
    await this.#asked(sandboxId, execId, options, (execs, id, call) => execs.signal(id, number, call));
  }

  /** Kills the whole tree; a command that has ended keeps its record. */
  async kill(sandboxId: string, execId: string, options: CallOptions): Promise<ExecInfo> {
    return this.#asked(sandboxId, execId, options, async (execs, id, call) => {
      const info = await execs.kill(id, { ...call, reason: "cancelled" });
      if (info.exit !== undefined) this.#tracker.sawExit(sandboxId, id, info.exit);
      return info;
    });
  }

  /** Something that a sandbox answers at once. */
  #asked<T>(
    sandboxId: string,
    execId: string,
    options: CallOptions,
    act: (execs: ExecOperations, id: ExecId, call: CallOptions) => Promise<T>,
  ): Promise<T> {
    return this.#addressed(sandboxId, execId, options, async ({ operations }, id) => {
      using deadline = deadlineAfter(this.#answerDeadlineMs, options.signal);
      return await act(operations.execs, id, { signal: deadline.signal });
    });
  }

  #addressed<T>(
    sandboxId: string,
    execId: string,
    options: CallOptions,
    act: (target: ExecTarget, id: ExecId) => Promise<T>,
  ): Promise<T> {
    return inSandbox(this.#sandboxes, sandboxId, options, async (target) => act(target, checkExecId(execId)));
  }
}
