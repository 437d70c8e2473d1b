import { setTimeout as pause } from "node:timers/promises";
import { formatDuration } from "@alcove/wire";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { NotFound, ResourceLimit, RuntimeGone, Unavailable } from "../../ports/errors.ts";
import type { EventSink } from "../../ports/event-sink.ts";
import type { ExecId, Ids } from "../../ports/ids.ts";
import type {
  CallOptions,
  ExecInfo,
  ExecOperations,
  ExecSpec,
  ExecView,
} from "../../ports/sandbox-operations.ts";
import { ownerData } from "../events/owner-data.ts";
import { checkSlotUser, workspacePath } from "../pool/workspace.ts";
import { deadlineAdvice, type ExecDeadlines, type ExecInput, execSpec } from "./exec-input.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { ExecOperation, ExecReader, ExecTracker } from "./exec-tracker.ts";
import { lostWithSandbox } from "./lost-with-sandbox.ts";
import type { OverBreaks } from "./over-breaks.ts";
import type { RunningSandboxes } from "./running-sandboxes.ts";
import type { WholeInput } from "./whole-input.ts";
import type { WholeInputs } from "./whole-inputs.ts";

/** A sandbox answers a start in milliseconds; one that does not is ill. */
const startDeadlineMs = 30_000;
const cleanupDeadlineMs = 10_000;
const unansweredPauseMs = 200;

/** Starts commands, each once: what was not answered is looked for, gone on with or ended. docs/api/exec.md. */
export class ExecStarter {
  readonly #sandboxes: RunningSandboxes;
  readonly #events: EventSink;
  readonly #ids: Pick<Ids, "execId">;
  readonly #logger: Logger;
  readonly #deadlinesOf: (ownerId: string) => ExecDeadlines;
  readonly #tracker: ExecTracker;
  readonly #overBreaks: OverBreaks;
  readonly #wholeInputs: WholeInputs;

  constructor(options: {
    sandboxes: RunningSandboxes;
    events: EventSink;
    ids: Pick<Ids, "execId">;
    logger: Logger;
    /** Of an owner's commands, as its quota stands now. */
    deadlinesOf: (ownerId: string) => ExecDeadlines;
    tracker: ExecTracker;
    overBreaks: OverBreaks;
    wholeInputs: WholeInputs;
  }) {
    this.#sandboxes = options.sandboxes;
    this.#events = options.events;
    this.#ids = options.ids;
    this.#logger = options.logger;
    this.#deadlinesOf = options.deadlinesOf;
    this.#tracker = options.tracker;
    this.#overBreaks = options.overBreaks;
    this.#wholeInputs = options.wholeInputs;
  }

  /** @throws BadRequest naming the field; ResourceLimit, told as an event too, for a timeout above the maximum. */
  spec(
    target: ExecTarget,
    input: ExecInput,
    options: {
      operation: ExecOperation;
      /** With its length, where it came whole. */
      stdin: boolean | number;
      detached: boolean;
      input?: string;
    },
  ): ExecSpec {
    try {
      const spec = execSpec(input, {
        limits: this.#deadlinesOf(target.row.ownerId),
        makeId: () => this.#ids.execId(),
        stdin: options.stdin !== false,
        detached: options.detached,
      });
      const { slot } = target.row;
      if (slot !== undefined) checkSlotUser(slot, spec.user);
      const placed =
        slot === undefined || spec.workdir === undefined
          ? spec
          : { ...spec, workdir: workspacePath(spec.workdir) };
      // Also an input that nobody named has a name, its command's: its connection to the sandbox may break.
      if (options.stdin === false) return placed;
      const whole = options.stdin === true ? {} : { inputBytes: options.stdin };
      return { ...placed, input: options.input ?? spec.execId, ...whole };
    } catch (error) {
      if (error instanceof ResourceLimit)
        this.#events.emit({
          type: "resource.limit",
          sandboxId: target.row.id,
          ownerId: target.row.ownerId,
          data: {
            operation: options.operation,
            provider: target.row.provider,
            error: error.message,
            ...ownerData(target.row.ownerId),
            ...error.details,
          },
        });
      throw error;
    }
  }

  /** What a caller can do whose command was ended at this deadline. */
  deadlineAdvice(target: ExecTarget, timeoutMs: number): string {
    return deadlineAdvice(timeoutMs, this.#deadlinesOf(target.row.ownerId));
  }

  /**
   * Starts a command that is read. This is never cut short by a caller that leaves: a command that may have begun must be
   * found again, so that its grace can be started.
   */
  async start(
    target: ExecTarget,
    spec: ExecSpec,
    operation: ExecOperation,
  ): Promise<{ view: ExecView; reader: ExecReader }> {
    using deadline = deadlineAfter(startDeadlineMs);
    const known = this.#tracker.knows(target.row.id, spec.execId);
    try {
      const { started, reader } = await this.#tracker.start(
        target,
        {
          execId: spec.execId,
          operation,
          detached: false,
          maybeStarted: (error) => maybeStarted(error, deadline.signal),
        },
        () =>
          this.#overBreaks.perform(target, deadline, async (execs, again) => {
            const running = again ? await this.#runs(execs, spec.execId, deadline) : undefined;
            if (running === undefined) return execs.start(spec, { signal: deadline.signal });
            const { input } = spec;
            const whole = {
              from: 0,
              follow: true,
              lossless: true,
              again: true,
              ...(input === undefined ? {} : { input }),
            };
            return execs.attach(spec.execId, { ...whole, signal: deadline.signal });
          }),
      );
      return { view: started, reader };
    } catch (error) {
      if (!known && maybeStarted(error, deadline.signal)) void this.#endUnanswered(target, spec.execId);
      throw await this.#failureOf(error, target, spec, deadline.signal);
    }
  }

  /** What a caller is told whose command did not start, or perhaps did: which one it was, and whether it went with its sandbox. */
  async #failureOf(
    error: unknown,
    target: ExecTarget,
    { execId }: ExecSpec,
    deadline: AbortSignal,
  ): Promise<unknown> {
    const lost =
      error instanceof RuntimeGone
        ? await lostWithSandbox(this.#sandboxes, target, { exec_id: execId })
        : undefined;
    if (lost !== undefined) return lost;
    if (!deadline.aborted) return named(error, execId);
    return new Unavailable(
      `the sandbox ${target.row.id} did not start command ${execId} within ${formatDuration(startDeadlineMs)}`,
      { cause: error, details: { exec_id: execId } },
    );
  }

  /** Starts a command that nobody needs to read, and gives it its input, when that is known. */
  async startDetached(
    target: ExecTarget,
    spec: ExecSpec,
    stdin: WholeInput | undefined,
  ): Promise<{ pid: number }> {
    using deadline = deadlineAfter(startDeadlineMs);
    const known = this.#tracker.knows(target.row.id, spec.execId);
    const maybe = (error: unknown) => maybeStarted(error, deadline.signal);
    const { started } = await this.#tracker
      .start(target, { execId: spec.execId, operation: "exec", detached: true, maybeStarted: maybe }, () =>
        this.#overBreaks.perform(target, deadline, async (execs, again) => {
          const running = again ? await this.#runs(execs, spec.execId, deadline) : undefined;
          return running ?? execs.startDetached(spec, { signal: deadline.signal });
        }),
      )
      .catch(async (error: unknown) => {
        if (!known && maybeStarted(error, deadline.signal)) void this.#endUnanswered(target, spec.execId);
        throw await this.#failureOf(error, target, spec, deadline.signal);
      });
    if (stdin !== undefined)
      this.#wholeInputs.give(target, { execId: spec.execId, input: spec.execId, data: stdin });
    return { pid: started.pid };
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

  /**
   * Ends a command whose start was not answered, over the connection there is by then. The kill may overtake the start,
   * so that one answer of "not found" is not believed.
   */
  async #endUnanswered(target: ExecTarget, execId: ExecId): Promise<void> {
    using deadline = deadlineAfter(cleanupDeadlineMs);
    const { signal } = deadline;
    let notFound = 0;
    // An end that was seen meanwhile, or one of the sandbox, leaves nothing to do.
    while (!signal.aborted && this.#tracker.isUnanswered(target.row.id, execId)) {
      try {
        const { operations } = await this.#sandboxes.locate(target.row.id, { signal });
        const { exit } = await operations.execs.kill(execId, { reason: "cancelled", signal });
        if (exit !== undefined) this.#tracker.sawExit(target.row.id, execId, exit);
        return;
      } catch (error) {
        if (error instanceof NotFound) notFound += 1;
        if (notFound === 2) this.#tracker.neverStarted(target.row.id, execId);
        this.#logger.debug({ exec_id: execId, err: error }, "a command that did not start was not found");
      }
      await pause(unansweredPauseMs, undefined, { ref: false });
    }
  }
}

/** The failure of a start that was perhaps carried out tells which command it was. */
function named(error: unknown, execId: ExecId): unknown {
  if (!(error instanceof RuntimeGone)) return error;
  return new RuntimeGone(error.message, { cause: error, details: { ...error.details, exec_id: execId } });
}

/** Whether a start that failed was perhaps carried out: its answer is missing, it was not refused. */
function maybeStarted(error: unknown, deadline: AbortSignal): boolean {
  return deadline.aborted || error instanceof RuntimeGone;
}
