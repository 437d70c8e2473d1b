import { formatDuration } from "@alcove/wire";
import { abortable, forwardAbort } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { currentSpan, errorType } from "../../platform/request-scope.ts";
import type { Clock } from "../../ports/clock.ts";
import { DomainError, RuntimeGone } from "../../ports/errors.ts";
import type { EventSink } from "../../ports/event-sink.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecExit, ExecInfo, SandboxOperations } from "../../ports/sandbox-operations.ts";
import type { SandboxRow } from "../../ports/store.ts";
import type { Span } from "../../ports/tracer.ts";
import type { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import { endedBecause } from "./ended-because.ts";
import type { RunningSandboxes } from "./running-sandboxes.ts";
import { type MapSum, SummedMap } from "./summed-map.ts";

const controlDeadlineMs = 10_000;
const longestGraceRetryMs = 2_000;
/** Beside twice the grace: what looking after missing input takes. */
const inputGraceMs = 10_000;
const firstRetryMs = 200;
/** Before that a sandbox that ends is found to have ended. */
const attemptsBeforeWarning = 10;
const longestRetryMs = 10_000;

/** How long the end of a sandbox is put off at most for the ends of its commands. */
const lastLookMs = 250;

/** Commands that are learned from a sandbox: more than its agent starts. */
const mostLearned = 8_192;

/** One for all: an error of its own for each sandbox that stops would cost more than the rest of stopping it. */
const sandboxStopped = new Error("the sandbox stopped");
const followingEnded = new Error("the ends of commands are followed anew");

const lostWithSandbox = new RuntimeGone("the sandbox ended");

export type ExecOperation = "exec" | "exec_stream";

/**
 * One command whose end has not been told yet. `starting`: its start was asked for and not answered; an exit that
 * overtakes the answer waits in `earlyExit`. `running`: exec.started was told. `unanswered`: its start was given up and told
 * as failed, though it may have been carried out; an end that is seen is not told again. It leaves the tracker with its exit.
 */
interface TrackedExec {
  readonly execId: ExecId;
  readonly operation: ExecOperation;
  readonly detached: boolean;
  /** Monotonic. */
  readonly startedMs: number;
  /** Of the request that started it, where that is traced; it ends with the command, which may outlast the request. */
  readonly span: Span | undefined;
  phase: "starting" | "running" | "unanswered";
  earlyExit?: ExecExit;
  readers: number;
  /** A grace being announced to the sandbox; whoever attaches waits for it, so that attaching has the last word. */
  graceCall?: Promise<void>;
  /** Some of its input may be missing: who looks after that ends it sooner than its readers' grace, and says why. */
  inputMissing?: boolean;
  /** Through which connection to the sandbox the grace was announced last; one connection announces it once. */
  graceBy?: TrackedSandbox;
  /** That its grace could not be started has been told. */
  graceMissed?: true;
}

interface TrackedSandbox {
  readonly row: Pick<SandboxRow, "id" | "provider" | "ownerId">;
  readonly operations: SandboxOperations;
  readonly execs: SummedMap<ExecId, TrackedExec>;
  readonly stop: AbortController;
}

/** A reader of a command's output. The last one that leaves starts the disconnect grace. */
export interface ExecReader {
  /** @param options.grace false: the service itself stops; the next start gives a fresh grace. */
  leave(options?: { grace: boolean }): void;
}

/**
 * Knows the commands that run: tells their start and end as events exactly once, whoever sees them first, and gives
 * commands whose last reader left their grace. Holds one entry per running command, none for ended ones. docs/api/exec.md.
 */
export class ExecTracker implements Disposable {
  readonly #events: EventSink;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #operations: OperationMetrics;
  readonly #disconnectGraceMs: number;
  readonly #onInputOpen: (sandboxId: string, execId: ExecId) => void;
  readonly #sandboxes = new Map<string, TrackedSandbox>();
  /** Over those that are followed. */
  readonly #followed: MapSum = { total: 0 };
  readonly #unsubscribe: () => void;
  #disposed = false;

  constructor(options: {
    sandboxes: Pick<RunningSandboxes, "subscribe">;
    events: EventSink;
    clock: Clock;
    logger: Logger;
    operations: OperationMetrics;
    disconnectGraceMs: number;
    /** A command runs whose input was to come whole, and has not come to its end; perhaps nobody has the rest of it. */
    onInputOpen?: (sandboxId: string, execId: ExecId) => void;
  }) {
    this.#events = options.events;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#operations = options.operations;
    this.#disconnectGraceMs = options.disconnectGraceMs;
    this.#onInputOpen = options.onInputOpen ?? (() => undefined);
    this.#unsubscribe = options.sandboxes.subscribe({
      started: (row, operations, how) => this.#sandboxStarted(row, operations, how),
      ending: (id) => this.#lastLook(id),
      stopped: (id, how) => this.#sandboxStopped(id, how),
    });
  }

  [Symbol.dispose](): void {
    this.#disposed = true;
    this.#unsubscribe();
    for (const sandbox of this.#sandboxes.values()) {
      sandbox.stop.abort(sandboxStopped);
      sandbox.execs.leaveSum();
      // They go on without this process, which is the last to know of their traces.
      for (const { span } of sandbox.execs.values())
        span?.end({ attributes: { "alcove.exec.goes_on": true } });
    }
    this.#sandboxes.clear();
  }

  /** How many commands are followed. Metrics ask, with however many sandboxes. */
  get size(): number {
    return this.#followed.total;
  }

  /** How many commands of one sandbox are followed. */
  countOf(sandboxId: string): number {
    return this.#sandboxes.get(sandboxId)?.execs.size ?? 0;
  }

  /** Whether this running command was started detached; undefined for one that is not known, or not yet after a restart. */
  isDetached(sandboxId: string, execId: ExecId): boolean | undefined {
    return this.#sandboxes.get(sandboxId)?.execs.get(execId)?.detached;
  }

  /** Whether a command of this id runs, or is being started. */
  knows(sandboxId: string, execId: ExecId): boolean {
    const tracked = this.#sandboxes.get(sandboxId)?.execs.get(execId);
    return tracked !== undefined && tracked.phase !== "unanswered";
  }

  /** Whether the start of this command was given up, and what became of it is not known. */
  isUnanswered(sandboxId: string, execId: ExecId): boolean {
    return this.#sandboxes.get(sandboxId)?.execs.get(execId)?.phase === "unanswered";
  }

  /** A start that was given up was not carried out. */
  neverStarted(sandboxId: string, execId: ExecId): void {
    if (this.isUnanswered(sandboxId, execId)) this.#sandboxes.get(sandboxId)?.execs.delete(execId);
  }

  /** Whether commands can run in a sandbox, reachable now or not. */
  follows(sandboxId: string): boolean {
    return this.#sandboxes.has(sandboxId);
  }

  /** Whether a sandbox that was followed has ended, and its commands with it; not known once this is disposed. */
  sandboxEnded(sandboxId: string): boolean {
    return !this.#disposed && !this.follows(sandboxId);
  }

  /**
   * Runs `start` for a new command and tells what became of it. The reader, absent for detached ones, is the caller's.
   * @param exec.maybeStarted whether a start that failed this way was perhaps carried out.
   */
  async start<T>(
    target: { row: SandboxRow; operations: SandboxOperations },
    exec: {
      execId: ExecId;
      operation: ExecOperation;
      detached: boolean;
      maybeStarted?: (error: unknown) => boolean;
    },
    start: () => Promise<T>,
  ): Promise<{ started: T; reader: ExecReader }> {
    const sandbox = this.#sandboxOf(target);
    const earlier = sandbox.execs.get(exec.execId);
    const { maybeStarted, ...begun } = exec;
    const tracked: TrackedExec = {
      ...begun,
      startedMs: this.#clock.monotonicMs(),
      span: beginSpan(exec, sandbox),
      phase: "starting",
      readers: exec.detached ? 0 : 1,
    };
    if (earlier === undefined) sandbox.execs.set(exec.execId, tracked);
    try {
      const started = await start();
      if (earlier !== undefined) sandbox.execs.set(exec.execId, tracked);
      // One that was given up was not carried out if this one was: what was seen to end is this one.
      if (earlier?.phase === "unanswered" && earlier.earlyExit !== undefined)
        tracked.earlyExit = earlier.earlyExit;
      tracked.phase = "running";
      this.#emit(sandbox, "exec.started", {
        exec_id: exec.execId,
        provider: sandbox.row.provider,
        operation: exec.operation,
      });
      if (tracked.earlyExit !== undefined) this.#ended(sandbox, tracked, tracked.earlyExit);
      else if (this.sandboxEnded(sandbox.row.id)) this.#lost(sandbox, tracked);
      return { started, reader: this.#reader(sandbox, tracked) };
    } catch (error) {
      tracked.span?.end({ error: errorType(error) });
      // What runs under this id already ends by itself, and what was given up was told to have failed.
      if (earlier !== undefined) throw error;
      const seenToEnd = tracked.earlyExit !== undefined;
      if (!seenToEnd && maybeStarted?.(error) === true) Object.assign(tracked, unanswered);
      else sandbox.execs.delete(exec.execId);
      if (!isRefusal(error)) this.#startFailed(sandbox, tracked, error);
      throw error;
    }
  }

  /** Runs `attach` as a further reader of a command that runs. When it throws, what it attached is closed again. */
  async attach<T extends { info: ExecInfo } & AsyncDisposable>(
    target: { row: SandboxRow; operations: SandboxOperations },
    execId: ExecId,
    attach: () => Promise<T>,
  ): Promise<{ attached: T; reader: ExecReader }> {
    const sandbox = this.#sandboxOf(target);
    let tracked = sandbox.execs.get(execId);
    if (tracked !== undefined) tracked.readers += 1;
    let attached: T | undefined;
    try {
      const announced = tracked?.graceCall;
      await announced;
      attached = await attach();
      if (tracked === undefined) {
        tracked = this.#learn(sandbox, attached.info);
        if (tracked !== undefined) tracked.readers += 1;
      }
      if (tracked !== undefined && tracked.graceCall !== announced) await this.#callOff(sandbox, tracked);
      return {
        attached,
        reader: tracked === undefined ? { leave: () => undefined } : this.#reader(sandbox, tracked),
      };
    } catch (error) {
      if (tracked !== undefined) this.#readerLeft(sandbox, tracked);
      // What calling off failed for is what the caller is told.
      await attached?.[Symbol.asyncDispose]().then(undefined, () => undefined);
      throw error;
    }
  }

  /** Tells the end of a command unless it was told before. */
  sawExit(sandboxId: string, execId: ExecId, exit: ExecExit): void {
    const sandbox = this.#sandboxes.get(sandboxId);
    const tracked = sandbox?.execs.get(execId);
    if (sandbox === undefined || tracked === undefined) return;
    if (tracked.phase !== "running") tracked.earlyExit ??= exit;
    if (tracked.phase === "unanswered") sandbox.execs.delete(execId);
    if (tracked.phase === "running") this.#ended(sandbox, tracked, exit);
  }

  /** One that is not followed has ended since it was found, or this is disposed: it is not followed anew, and nothing is kept of it. */
  #sandboxOf({ row, operations }: { row: SandboxRow; operations: SandboxOperations }): TrackedSandbox {
    const followed = this.#sandboxes.get(row.id);
    if (followed !== undefined) return followed;
    const ended = trackedSandbox(row, operations, notFollowed());
    ended.stop.abort(sandboxStopped);
    return ended;
  }

  #sandboxStarted(row: SandboxRow, operations: SandboxOperations, how: "spawned" | "adopted"): void {
    const known = this.#sandboxes.get(row.id);
    if (known !== undefined && known.operations === operations) return;
    known?.stop.abort(sandboxStopped);
    const sandbox = trackedSandbox(
      row,
      operations,
      known?.execs ?? new SummedMap<ExecId, TrackedExec>(this.#followed),
    );
    this.#sandboxes.set(row.id, sandbox);
    void this.#follow(sandbox, how === "adopted");
  }

  /** The feed alone tells the ends of commands that nobody reads: it may not be there yet, and waits a moment for more of them. */
  #lastLook(id: string): Promise<void> | undefined {
    const sandbox = this.#sandboxes.get(id);
    if (sandbox === undefined) return undefined;
    const anyUnread = sandbox.execs
      .values()
      .some(({ phase, readers }) => phase === "running" && readers <= 0);
    return anyUnread ? this.#seeEnds(sandbox) : undefined;
  }

  async #seeEnds({ row, operations, stop }: TrackedSandbox): Promise<void> {
    using deadline = deadlineAfter(lastLookMs, stop.signal);
    const listed = operations.execs.list({ signal: deadline.signal });
    for (const { execId, exit } of await abortable(listed, deadline.signal))
      if (exit !== undefined) this.sawExit(row.id, execId, exit);
  }

  #sandboxStopped(id: string, how: "destroyed" | "ended"): void {
    const sandbox = this.#sandboxes.get(id);
    if (sandbox === undefined) return;
    this.#sandboxes.delete(id);
    sandbox.stop.abort(sandboxStopped);
    // Whoever found it before may still add to it.
    sandbox.execs.leaveSum();
    for (const tracked of sandbox.execs.values()) {
      if (tracked.phase !== "running") continue;
      // One that somebody destroyed has not failed its commands.
      if (how === "ended") this.#failed(sandbox, tracked, lostWithSandbox);
      this.#lost(sandbox, tracked);
    }
    sandbox.execs.clear();
  }

  #lost(sandbox: TrackedSandbox, tracked: TrackedExec): void {
    sandbox.execs.delete(tracked.execId);
    tracked.span?.end({ error: "lost" });
    const data = { ...this.#common(sandbox, tracked), reason: "lost", error: "the sandbox ended" };
    this.#emit(sandbox, "exec.failed", data);
  }

  /** Listens to the ends of a sandbox's commands for as long as it runs, and catches up after every interruption. */
  async #follow(sandbox: TrackedSandbox, catchUp: boolean): Promise<void> {
    const signal = sandbox.stop.signal;
    let missed = catchUp;
    let retryMs = firstRetryMs;
    const tellWhy = (error: unknown) => {
      if (signal.aborted) return;
      this.#logger.debug({ sandbox_id: sandbox.row.id, err: error }, "exec ends cannot be followed");
    };
    while (!signal.aborted) {
      // Its own signal ends a feed that is left early: whoever waits for its next exit must not keep it open.
      const feed = new AbortController();
      using _stopped = forwardAbort(signal, feed);
      const giveUp = (error: unknown) => {
        tellWhy(error);
        feed.abort(followingEnded);
      };
      try {
        const exits = sandbox.operations.execs.exits({
          signal: feed.signal,
          // The list is read once ends are told: one in between would be in neither.
          ...(missed ? { onListening: () => void this.#catchUp(sandbox).then(undefined, giveUp) } : {}),
        });
        for await (const { execId, exit } of exits) {
          retryMs = firstRetryMs;
          this.sawExit(sandbox.row.id, execId, exit);
        }
      } catch (error) {
        tellWhy(error);
      } finally {
        feed.abort(followingEnded);
      }
      missed = true;
      if (!signal.aborted) await this.#pause(retryMs, signal);
      retryMs = Math.min(retryMs * 2, longestRetryMs);
    }
  }

  /** Learns the commands that run and gives those that nobody here reads a fresh grace, known before or not. */
  async #catchUp(sandbox: TrackedSandbox): Promise<void> {
    using deadline = deadlineAfter(controlDeadlineMs, sandbox.stop.signal);
    const before = [...sandbox.execs.values()].filter(({ phase }) => phase === "unanswered");
    const infos = await sandbox.operations.execs.list({ signal: deadline.signal });
    const listed = new Set(infos.map(({ execId }) => execId));
    for (const { execId } of before) if (!listed.has(execId)) this.neverStarted(sandbox.row.id, execId);
    for (const info of infos) {
      if (info.exit !== undefined) this.sawExit(sandbox.row.id, info.execId, info.exit);
      else {
        const tracked = this.#learn(sandbox, info);
        const given = tracked?.graceBy === sandbox;
        if (tracked !== undefined) tracked.inputMissing = info.inputBytes !== undefined;
        if (tracked !== undefined && tracked.readers <= 0 && !given) this.#startGrace(sandbox, tracked);
        if (tracked?.phase === "running" && info.inputBytes !== undefined)
          this.#onInputOpen(sandbox.row.id, info.execId);
      }
    }
  }

  #learn(sandbox: TrackedSandbox, info: ExecInfo): TrackedExec | undefined {
    if (info.exit !== undefined) return undefined;
    const known = sandbox.execs.get(info.execId);
    if (known !== undefined) return known;
    if (sandbox.execs.size >= mostLearned) return undefined;
    const tracked: TrackedExec = {
      execId: info.execId,
      operation: "exec",
      detached: info.detached,
      startedMs:
        this.#clock.monotonicMs() - Math.max(0, this.#clock.now().getTime() - info.startedAt.getTime()),
      span: undefined,
      phase: "running",
      readers: 0,
    };
    sandbox.execs.set(info.execId, tracked);
    return tracked;
  }

  #reader(sandbox: TrackedSandbox, tracked: TrackedExec): ExecReader {
    let left = false;
    return {
      leave: (options) => {
        if (left) return;
        left = true;
        if (options?.grace === false) tracked.readers -= 1;
        else this.#readerLeft(sandbox, tracked);
      },
    };
  }

  #readerLeft(sandbox: TrackedSandbox, tracked: TrackedExec): void {
    tracked.readers -= 1;
    // The provider's connection may have been replaced since: commands go with the sandbox from one to the next.
    const current = this.#sandboxes.get(sandbox.row.id) ?? sandbox;
    const stillRuns = current.execs.get(tracked.execId) === tracked;
    if (stillRuns && tracked.readers <= 0) this.#startGrace(current, tracked);
  }

  #startGrace(sandbox: TrackedSandbox, tracked: TrackedExec): void {
    if (tracked.detached) return;
    tracked.graceBy = sandbox;
    tracked.graceCall = this.#announceGrace(sandbox, tracked);
  }

  async #announceGrace(sandbox: TrackedSandbox, tracked: TrackedExec): Promise<void> {
    const signal = sandbox.stop.signal;
    // A sandbox that cannot be reached now is told once it can: otherwise its command would run unread for ever.
    for (let attempt = 1; ; attempt += 1) {
      const over = sandbox.execs.get(tracked.execId) !== tracked;
      if (signal.aborted || over || tracked.readers > 0) return;
      try {
        using deadline = deadlineAfter(controlDeadlineMs, signal);
        await this.#endUnread(sandbox, tracked, deadline.signal);
        return;
      } catch (error) {
        // Also a sandbox that is said to be gone: one broken connection says so, and who knows better ends the following.
        if (signal.aborted || isRefusal(error)) return;
        // One that ends soon is told by its sandbox's own line.
        const tell = attempt >= attemptsBeforeWarning && tracked.graceMissed !== true;
        if (tell) tracked.graceMissed = true;
        this.#logger[tell ? "warn" : "debug"](
          {
            sandbox_id: sandbox.row.id,
            exec_id: tracked.execId,
            error: messageOf(error),
            ...(error instanceof DomainError ? {} : { err: error }),
            attempt,
          },
          "the grace of a command without readers could not be started; it is tried again",
        );
        await this.#pause(Math.min(firstRetryMs * attempt, longestGraceRetryMs), signal);
      }
    }
  }

  /** For a grace that was announced while somebody attached: which of both came first is not known. */
  async #callOff(sandbox: TrackedSandbox, tracked: TrackedExec): Promise<void> {
    await tracked.graceCall;
    using deadline = deadlineAfter(controlDeadlineMs, sandbox.stop.signal);
    await sandbox.operations.execs.setGrace(tracked.execId, null, { signal: deadline.signal });
  }

  async #endUnread(
    sandbox: TrackedSandbox,
    { execId, inputMissing }: TrackedExec,
    signal: AbortSignal,
  ): Promise<void> {
    const execs = sandbox.operations.execs;
    const graceMs = inputMissing ? 2 * this.#disconnectGraceMs + inputGraceMs : this.#disconnectGraceMs;
    if (graceMs > 0) return execs.setGrace(execId, graceMs, { signal });
    const info = await execs.kill(execId, { reason: "cancelled", signal });
    if (info.exit !== undefined) this.sawExit(sandbox.row.id, execId, info.exit);
  }

  #ended(sandbox: TrackedSandbox, tracked: TrackedExec, exit: ExecExit): void {
    sandbox.execs.delete(tracked.execId);
    tracked.span?.end(spanEnd(exit));
    // Whatever came of the command itself, its deadline included: the provider has run it.
    this.#operations.succeeded(tracked.operation, sandbox.row.provider, exit.durationMs);
    const data = {
      ...this.#common(sandbox, tracked),
      duration_ms: Math.round(exit.durationMs),
      ...(exit.oomKills === undefined ? {} : { oom_kills: exit.oomKills }),
    };
    const ending = {
      ...data,
      exit_code: exit.exitCode,
      reason: exit.reason,
      ...(exit.signal === undefined ? {} : { signal: exit.signal }),
      ...(exit.limit === undefined ? {} : { limit: exit.limit }),
    };
    if (exit.reason === "timeout") {
      const error = `the deadline passed after ${formatDuration(exit.durationMs)}`;
      this.#emit(sandbox, "exec.timeout", { ...data, error });
    } else if (exit.startError !== undefined) {
      this.#emit(sandbox, "exec.failed", { ...ending, error: exit.startError });
    } else if (exit.reason === "exited" || exit.reason === "signaled") {
      this.#emit(sandbox, "exec.completed", ending);
    } else {
      const error = endedBecause(exit) ?? `the command ended: ${exit.reason}`;
      this.#emit(sandbox, "exec.failed", { ...ending, error });
    }
  }

  #startFailed(sandbox: TrackedSandbox, tracked: TrackedExec, error: unknown): void {
    this.#failed(sandbox, tracked, error);
    const message = error instanceof DomainError ? error.message : "the command could not be started";
    // Its caller is told the same.
    const lost = this.sandboxEnded(sandbox.row.id) ? { reason: "lost" } : {};
    this.#emit(sandbox, "exec.failed", { ...this.#common(sandbox, tracked), ...lost, error: message });
  }

  #failed(sandbox: TrackedSandbox, { operation, startedMs }: TrackedExec, error: unknown): void {
    const ms = this.#clock.monotonicMs() - startedMs;
    this.#operations.failed(operation, sandbox.row.provider, ms, error);
  }

  #common(sandbox: TrackedSandbox, tracked: TrackedExec): Record<string, unknown> {
    return { exec_id: tracked.execId, provider: sandbox.row.provider, operation: tracked.operation };
  }

  #emit(
    sandbox: TrackedSandbox,
    type: "exec.started" | "exec.completed" | "exec.failed" | "exec.timeout",
    data: Record<string, unknown>,
  ): void {
    const { id: sandboxId, ownerId } = sandbox.row;
    this.#events.emit({ type, sandboxId, ownerId, data });
  }

  #pause(delayMs: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        timer.cancel();
        signal.removeEventListener("abort", done);
        resolve();
      };
      const timer = this.#clock.setTimer(delayMs, done);
      signal.addEventListener("abort", done, { once: true });
    });
  }
}

function trackedSandbox(
  { id, provider, ownerId }: SandboxRow,
  operations: SandboxOperations,
  execs: TrackedSandbox["execs"],
): TrackedSandbox {
  return { row: { id, provider, ownerId }, operations, execs, stop: new AbortController() };
}

function notFollowed(): TrackedSandbox["execs"] {
  return new SummedMap({ total: 0 });
}

function beginSpan(
  { execId, operation, detached }: Pick<TrackedExec, "execId" | "operation" | "detached">,
  { row }: TrackedSandbox,
): Span | undefined {
  return currentSpan()?.child("exec", {
    attributes: {
      "alcove.exec.id": execId,
      "alcove.operation": operation,
      "alcove.exec.detached": detached,
      "alcove.sandbox.id": row.id,
      "alcove.provider": row.provider,
    },
  });
}

/** A command that fails is none of the service's errors; one that was ended, or never began, is told apart. */
function spanEnd(exit: ExecExit): Parameters<Span["end"]>[0] {
  const attributes = { "process.exit.code": exit.exitCode, "alcove.exec.reason": exit.reason };
  if (exit.startError !== undefined) return { attributes, error: "start_failed" };
  const own = exit.reason === "exited" || exit.reason === "signaled";
  return own ? { attributes } : { attributes, error: exit.reason };
}

/** Nobody reads it. */
const unanswered = { phase: "unanswered", readers: 0 } as const;

/** Told to the caller as his own mistake; nothing was started. */
function isRefusal(error: unknown): boolean {
  return (
    error instanceof DomainError &&
    ["bad_request", "not_found", "conflict", "forbidden", "too_large"].includes(error.code)
  );
}
