import { formatDuration, type OutputEncoding } from "@alcove/wire";
import { deadlineAfter, ShuttingDown } from "../../platform/deadline.ts";
import type { Clock } from "../../ports/clock.ts";
import { type DomainError, RuntimeGone, TimedOut, Unavailable } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { OnStage } from "../../ports/runtime-provider.ts";
import type { CallOptions, ExecExit } from "../../ports/sandbox-operations.ts";
import type { Answer } from "../answers/answer-budget.ts";
import { NoRoom } from "../answers/memory-budget.ts";
import type { ExecFollower } from "./exec-follower.ts";
import type { ExecInput } from "./exec-input.ts";
import type { ExecStarter } from "./exec-starter.ts";
import type { ExecTarget } from "./exec-target.ts";
import { type CommandDetails, lostWithSandbox } from "./lost-with-sandbox.ts";
import { OutputCollector } from "./output-collector.ts";
import type { RunningSandboxes } from "./running-sandboxes.ts";
import type { WholeInput } from "./whole-input.ts";
import type { WrittenOutput } from "./written-output.ts";

/** How long after its own deadline a buffered command may stay silent before its sandbox counts as ill. */
const overdueMs = 60_000;
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

export type BufferedOptions = CallOptions & {
  /** All of the command's standard input. */
  stdin?: WholeInput;
  encoding?: OutputEncoding;
  answer?: Answer;
  onStage?: OnStage;
};

/** Runs commands to their end and collects their output. */
export class BufferedExec {
  readonly #sandboxes: RunningSandboxes;
  readonly #clock: Clock;
  readonly #maxOutputBytes: number;
  readonly #starter: ExecStarter;
  readonly #follower: ExecFollower;
  readonly #findsAgain: (target: ExecTarget) => boolean;

  constructor(options: {
    sandboxes: RunningSandboxes;
    clock: Clock;
    maxOutputBytes: number;
    starter: ExecStarter;
    follower: ExecFollower;
    /** Whether the next process can reach a command of this sandbox again. */
    findsAgain: (target: ExecTarget) => boolean;
  }) {
    this.#sandboxes = options.sandboxes;
    this.#clock = options.clock;
    this.#maxOutputBytes = options.maxOutputBytes;
    this.#starter = options.starter;
    this.#follower = options.follower;
    this.#findsAgain = options.findsAgain;
  }

  /**
   * Runs a command to its end and returns at most `exec.max_output` bytes of each stream.
   * @throws ExecTimedOut when its deadline passed; NotFound or Conflict with reason `lost` when the sandbox ended under it;
   *   Unavailable when the connection to it was lost, and the command perhaps goes on.
   */
  async run(sandboxId: string, input: ExecInput, options: BufferedOptions): Promise<ExecOutcome> {
    const startedMs = this.#clock.monotonicMs();
    const target = await this.#sandboxes.locate(sandboxId, options);
    const { stdin, encoding = "utf8" } = options;
    const spec = this.#starter.spec(target, input, {
      operation: "exec",
      stdin: stdin?.length ?? false,
      detached: false,
    });
    const { view, reader } = await this.#starter.start(target, spec, "exec");
    const followingMs = this.#clock.monotonicMs();
    options.onStage?.("start", followingMs - startedMs);
    // A short command's end came with the answer of its start: nothing is left to wait for, to leave or to lose.
    const whole = stdin === undefined && !options.signal.aborted ? view.whole?.() : undefined;
    using overdue =
      whole === undefined
        ? deadlineAfter(Math.min(spec.timeoutMs + overdueMs, 2 ** 31 - 1), options.signal)
        : undefined;
    const signal = overdue?.signal ?? options.signal;
    await using follow =
      whole === undefined
        ? this.#follower.follow(target, {
            view,
            reader,
            signal,
            from: 0,
            lossless: true,
            input: spec.input,
            stdin,
          })
        : undefined;
    const events =
      follow?.events ?? this.#follower.ended(target, { execId: spec.execId, reader, events: whole ?? [] });
    const stdout = new OutputCollector({ maxBytes: this.#maxOutputBytes });
    const stderr = new OutputCollector({ maxBytes: this.#maxOutputBytes });
    let exit: ExecExit | undefined;
    let brokenBy: unknown;
    let stoppedBy: unknown;
    let nextOffset = 0;
    let lostBytes = 0;
    try {
      for await (const event of events) {
        lostBytes += event.lostBytes ?? 0;
        if (event.type === "exit") {
          exit = event.exit;
          continue;
        }
        const [grows, other] = event.stream === "stdout" ? [stdout, stderr] : [stderr, stdout];
        // The buffers are all there is: what the caller has yet to take is spelled out piece by piece.
        const bytes = grows.bytesWith(event.data) + other.bytesWith(empty);
        // While it waits, a command that is being read waits as well.
        const waits = options.answer?.grow(target.row.ownerId, bytes, signal);
        if (waits !== undefined) await this.#roomFor(waits, target, spec.execId);
        grows.add(event.data);
        nextOffset = event.offset + event.data.length;
      }
    } catch (error) {
      const stopped = options.signal.reason instanceof ShuttingDown;
      // The sandbox, or the connection to it: told apart below.
      const broke = error instanceof RuntimeGone && !signal.aborted;
      const unexplained = error instanceof Unavailable && error.details?.goes_on === undefined;
      const silent = signal.aborted && !options.signal.aborted && unexplained;
      if (broke) brokenBy = error;
      else if (silent)
        throw new Unavailable(
          `the sandbox ${sandboxId} did not report the end of command ${spec.execId} in time: its output and end are at /sandboxes/${sandboxId}/execs/${spec.execId}/output`,
          { cause: error, details: { exec_id: spec.execId, goes_on: "connection_lost" }, retryAfterS: 1 },
        );
      else if (stopped) stoppedBy = error;
      else throw error;
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
    if (stoppedBy !== undefined && !this.#findsAgain(target))
      throw new Unavailable(
        `the service is shutting down, and command ${spec.execId} is lost to it: provider ${target.row.provider} finds no command again (capability "adopt"); it may go on until its deadline, or until its sandbox ends`,
        { cause: stoppedBy, details: { ...details(), reason: "lost" }, retryAfterS: 1 },
      );
    if (stoppedBy !== undefined)
      throw new Unavailable(
        `the service is shutting down; command ${spec.execId} goes on: read its output and end from /sandboxes/${sandboxId}/execs/${spec.execId}/output once the service is back`,
        {
          cause: stoppedBy,
          details: { ...details(), next_offset: nextOffset, goes_on: "shutting_down" },
          retryAfterS: 1,
        },
      );
    if (exit === undefined) throw await this.#withoutExit(target, details(), { nextOffset, cause: brokenBy });
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
        `command ${spec.execId} was ended at its deadline of ${formatDuration(spec.timeoutMs)}; ${this.#starter.deadlineAdvice(target, spec.timeoutMs)}`,
        outcome,
      );
    return outcome;
  }

  /** Why a command's output ended without its exit: with its sandbox, which does not come back, or with the connection. */
  async #withoutExit(
    target: ExecTarget,
    details: CommandDetails,
    { nextOffset, cause }: { nextOffset: number; cause: unknown },
  ): Promise<DomainError> {
    const { id } = target.row;
    const { exec_id: execId } = details;
    return (
      (await lostWithSandbox(this.#sandboxes, target, details)) ??
      new Unavailable(
        `the connection to sandbox ${id} was lost while command ${execId} ran, and it may go on for its grace: its output and end are at /sandboxes/${id}/execs/${execId}/output`,
        {
          cause,
          details: { ...details, next_offset: nextOffset, goes_on: "connection_lost" },
          retryAfterS: 1,
        },
      )
    );
  }

  /** A command whose answer finds no room is named, so that its output can be read as a stream within its grace. */
  async #roomFor(waits: Promise<void>, target: ExecTarget, execId: ExecId): Promise<void> {
    try {
      await waits;
    } catch (error) {
      if (!(error instanceof NoRoom)) throw error;
      const { id } = target.row;
      // What was taken of it so far is held nowhere else. To try again would run the command again.
      const message = `${error.why}, and this one found no room; command ${execId} goes on for its grace: its end, and what is kept of its output, are at /sandboxes/${id}/execs/${execId}/output; a stream needs no room`;
      throw new Unavailable(message, {
        cause: error,
        details: { exec_id: execId, sandbox_id: id, goes_on: "no_room" },
        ...(error.retryAfterS === undefined ? {} : { retryAfterS: error.retryAfterS }),
      });
    }
  }
}
