import type { IncomingMessage } from "node:http";
import { setTimeout as pause } from "node:timers/promises";
import type { Static } from "typebox";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Taker } from "../../platform/fair-turns.ts";
import { beginningOf } from "../../ports/command-beginning.ts";
import {
  BadRequest,
  type CallOptions,
  Conflict,
  type ExecId,
  type ExecSpec,
  RuntimeGone,
  refuseOwnLimits,
  Unavailable,
} from "../../ports/index.ts";
import {
  type ExecRunner,
  FollowTries,
  type ProgramEnd,
  type ProgramStreams,
  type RunningProgram,
} from "../exec-journal/index.ts";
import { type BackendCalls, isRefusal } from "./backend-calls.ts";
import type { ExecRequest, SignalRequest } from "./contract-schemas.ts";
import { type ExecStreamEvent, execStream } from "./exec-stream.ts";
import { Unreadable } from "./tolerant-reader.ts";

/** The backend ends a program this long after us, so that a service that is gone prolongs none. */
const backendGraceMs = 10_000;
const cleanupMs = 20_000;
/** How long the end of a program that was killed may take to be told. */
const endAfterKillMs = 5_000;
/** Waits before each try to kill. After the last the backend's own deadline is left. */
const killPausesMs = [0, 500, 2_000, 5_000, 15_000, 30_000, 60_000];
/** How often a start that failed is looked for, which may still be carried out: over two seconds and more. */
const failedStartLooks = 3;
/**
 * So many starts that failed are looked for again, as many as commands run at once, and so many commands that were lost are killed
 * again where the first kill failed; of more each is once.
 */
const undoneAtMost = 256;
const inputPartBytes = 65_536;
/** Of what a backend says of an end: it is kept with the command, and told in its event. */
const longestSignal = 16;
const longestReason = 1_000;
/** Waits before input that was not taken is sent again: a backend may take no requests for a minute. */
const inputPausesMs = [0, 100, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000];
const lost: ProgramEnd = { exitCode: 137, lost: true };

type Run = ProgramStreams & {
  execId: ExecId;
  events: AsyncIterator<ExecStreamEvent>;
  stream: AbortController;
  /** Bytes of output that have come. */
  offset: number;
};

/** Runs commands in one sandbox of the backend, by the commands' own ids. */
export class CommandRunner implements ExecRunner {
  readonly #calls: BackendCalls;
  readonly #path: readonly string[];
  readonly #user: string | undefined;
  readonly #workdir: string;
  readonly #silenceMs: number;
  readonly #taker: Taker;
  readonly #canReattach: () => boolean;
  /** Aborts when the sandbox is gone, or let go of. */
  readonly #closed: AbortSignal;
  readonly #confirm: () => Promise<boolean>;
  readonly #onUnreadable: (line: string) => void;
  /** Starts that failed and are being ended, by their commands: when one is started again, it is not to be ended. */
  readonly #undone = new Map<ExecId, { stop: AbortController; done: Promise<void> }>();
  /** Kills of commands that are told as lost by now. */
  #behind = 0;

  constructor(options: {
    calls: BackendCalls;
    /** Of the sandbox. */
    path: readonly string[];
    taker: Taker;
    user: string | undefined;
    workdir: string;
    /** How long a stream may say nothing at all. */
    silenceMs: number;
    canReattach: () => boolean;
    closed: AbortSignal;
    /** Looks whether the sandbox is still there. */
    confirm: () => Promise<boolean>;
    /** Why a command is lost whose stream is none. */
    onUnreadable: (line: string) => void;
  }) {
    this.#calls = options.calls;
    this.#path = options.path;
    this.#user = options.user;
    this.#workdir = options.workdir;
    this.#silenceMs = options.silenceMs;
    this.#taker = options.taker;
    this.#canReattach = options.canReattach;
    this.#closed = options.closed;
    this.#confirm = options.confirm;
    this.#onUnreadable = options.onUnreadable;
  }

  async start(spec: ExecSpec, program: ProgramStreams, options: CallOptions): Promise<RunningProgram> {
    refuseOwnLimits(spec.limits);
    if (spec.limits !== undefined)
      throw new BadRequest(
        'provider custom holds no command to limits (capabilities "exec_usage", "exec_limits"); leave limits out',
      );
    if (spec.tty !== undefined)
      throw new BadRequest(`provider custom has no terminals (capability "pty"); leave tty out`);
    const failed = this.#undone.get(spec.execId);
    failed?.stop.abort();
    // A kill that is under way would meet this one.
    if (failed !== undefined) await abortable(failed.done, options.signal);
    const stream = new AbortController();
    const user = spec.user ?? this.#user;
    const workdir = spec.workdir ?? this.#workdir;
    const request = {
      method: "POST" as const,
      path: [...this.#path, "execs"],
      isOnce: true,
      json: {
        exec_id: spec.execId,
        argv: [...spec.argv],
        env: spec.env,
        workdir,
        ...(user === undefined ? {} : { user }),
        stdin: spec.stdin,
        timeout_ms: spec.timeoutMs + backendGraceMs,
      } satisfies Static<typeof ExecRequest>,
      known: async (error: unknown) => {
        if (isRefusal(error, 400))
          return new BadRequest(
            `working directory "${workdir}" does not exist in this sandbox, or is none${user === undefined ? "" : `; or user "${user}" is not known in it`}`,
          );
        if (isRefusal(error, 409))
          return failed === undefined
            ? new Conflict(`exec "${spec.execId}" exists already in this sandbox`)
            : new Unavailable(
                `exec "${spec.execId}" was begun by the start before, which had no answer; it is being ended: start it under another id`,
              );
        if (!isRefusal(error, 404)) return undefined;
        return (await this.#confirm()) ? await this.#calls.hiddenBy(error, options) : gone();
      },
    };
    try {
      const bounds = { ...options, stream: AbortSignal.any([stream.signal, this.#closed]) };
      const { events, pid } = await this.#calls.stream(
        "start a command",
        request,
        bounds,
        async (response) => {
          const started = this.#events(response);
          const first = await started.next();
          if (first.done || first.value.type !== "start")
            throw new Unreadable("it does not begin with a start");
          return { events: started, pid: first.value.pid };
        },
      );
      const ended = this.#run(spec, { ...program, execId: spec.execId, events, stream, offset: 0 });
      return {
        pid,
        ended,
        signal: (number, call) => this.#signal(spec.execId, number, call),
        sweep: async (call) => void (await this.#kill(spec.execId, call)),
      };
    } catch (error) {
      stream.abort();
      // A start whose answer did not come may have happened.
      if (!(error instanceof BadRequest || error instanceof Conflict)) this.#undoStart(spec.execId);
      throw error;
    }
  }

  #events(response: IncomingMessage): AsyncGenerator<ExecStreamEvent> {
    return execStream(response, { silenceMs: this.#silenceMs, taker: this.#taker });
  }

  #undoStart(execId: ExecId): void {
    const stop = new AbortController();
    const undone = { stop, done: this.#lookForStart(execId, stop.signal) };
    this.#undone.set(execId, undone);
    void undone.done.finally(() => {
      if (this.#undone.get(execId) === undone) this.#undone.delete(execId);
    });
  }

  /** Until one look finds it, or enough were answered that it is not there. */
  async #lookForStart(execId: ExecId, stop: AbortSignal): Promise<void> {
    const signal = AbortSignal.any([stop, this.#closed]);
    let looks = 0;
    for (const pauseMs of this.#undone.size < undoneAtMost ? killPausesMs : [0]) {
      await pause(pauseMs, undefined, { signal, ref: false }).catch(ignoreOutcome);
      if (signal.aborted) return;
      using deadline = deadlineAfter(cleanupMs, this.#closed);
      const found = await this.#kill(execId, deadline).catch(() => undefined);
      if (found === false) looks += 1;
      if (found || looks === failedStartLooks) return;
    }
  }

  /** Ends what nobody can follow: tried once before that is told, and behind that again where it failed. */
  async #undo(execId: ExecId): Promise<void> {
    const [first = 0, ...later] = killPausesMs;
    if ((await this.#killInTime(execId, [first])) || this.#behind >= undoneAtMost) return;
    this.#behind += 1;
    void this.#killInTime(execId, later).finally(() => (this.#behind -= 1));
  }

  async #run(spec: ExecSpec, run: Run): Promise<ProgramEnd> {
    const ended = this.#follow(run);
    let inputLost = false;
    if (spec.stdin)
      void this.#feed(run).catch(() => {
        inputLost = true;
        run.stream.abort();
      });
    const killed = Promise.withResolvers<ProgramEnd>();
    const onAbort = () => void this.#end(run.execId, ended).then(killed.resolve, killed.reject);
    if (run.signal.aborted) onAbort();
    else run.signal.addEventListener("abort", onAbort, { once: true });
    try {
      const end = await Promise.race([ended, killed.promise]);
      if (!inputLost) return end;
      await this.#undo(run.execId);
      return lost;
    } catch {
      return lost;
    } finally {
      run.signal.removeEventListener("abort", onAbort);
      run.stream.abort();
    }
  }

  /** Kills it, and waits for its end and for what it wrote before. */
  async #end(execId: ExecId, ended: Promise<ProgramEnd>): Promise<ProgramEnd> {
    if (!(await this.#killInTime(execId, killPausesMs))) return lost;
    using last = deadlineAfter(endAfterKillMs, this.#closed);
    return await abortable(ended, last.signal).catch(() => lost);
  }

  /** Kills it, again where that failed. @returns whether it was killed, as long as that could be tried. */
  async #killInTime(execId: ExecId, pausesMs: readonly number[]): Promise<boolean> {
    for (const pauseMs of pausesMs) {
      await pause(pauseMs, undefined, { ref: false });
      if (this.#closed.aborted) return false;
      using deadline = deadlineAfter(cleanupMs, this.#closed);
      const killed = await this.#kill(execId, deadline).then(
        () => true,
        () => false,
      );
      if (killed) return true;
    }
    return false;
  }

  /** Output into the journal until the end; a stream that breaks is followed anew where the backend can. */
  async #follow(run: Run): Promise<ProgramEnd> {
    const tries = new FollowTries();
    for (;;) {
      const before = run.offset;
      tries.begin();
      const end = await this.#readAll(run).catch((error: unknown) => {
        if (!(error instanceof Unreadable)) return undefined;
        this.#calls.warn("run a command", error);
        this.#onUnreadable(`the stream of ${run.execId} could not be understood: ${error.message}`);
        return lost;
      });
      if (end !== undefined && end !== lost) return end;
      if (run.offset > before) tries.progress();
      if (run.stream.signal.aborted || this.#closed.aborted) return lost;
      const pauseMs = tries.broke();
      if (end === lost || pauseMs === undefined || !this.#canReattach() || !(await this.#confirm()))
        return await this.#givenUp(run);
      await pause(pauseMs);
      const events = await this.#reattach(run).catch(async (error: unknown) =>
        isRefusal(error) && (await this.#calls.isThere({ signal: this.#closed })) ? lost : undefined,
      );
      if (events === lost) return await this.#givenUp(run);
      if (events !== undefined) run.events = events as AsyncIterator<ExecStreamEvent>;
    }
  }

  /** Nobody can follow it any more, so that it is not to go on unseen. */
  async #givenUp(run: Run): Promise<ProgramEnd> {
    await this.#undo(run.execId);
    return lost;
  }

  async #readAll(run: Run): Promise<ProgramEnd | undefined> {
    for (let next = await run.events.next(); !next.done; next = await run.events.next()) {
      const event = next.value;
      if (event.type === "exit") {
        const end = endOf(event);
        // Where a shell would say it.
        if (end.startError !== undefined && run.offset === 0)
          void run.output.append("stderr", Buffer.from(`${end.startError}\n`));
        return end;
      }
      if (event.type !== "output") continue;
      run.offset += event.data.length;
      // Waits for slow readers, but not once the command is to end.
      const kept = run.output.append(event.stream, event.data);
      if (!run.signal.aborted) await abortable(kept, run.signal).catch(ignoreOutcome);
    }
    return undefined;
  }

  /** @throws Refusal when the backend has nothing to follow. */
  async #reattach(run: Run): Promise<AsyncIterator<ExecStreamEvent>> {
    const stream = AbortSignal.any([run.stream.signal, this.#closed]);
    let refusal: unknown;
    const known = async (error: unknown) => {
      if (isRefusal(error, 404, 409, 410)) refusal = error;
      return undefined;
    };
    const request = {
      method: "GET" as const,
      path: [...this.#path, "execs", run.execId],
      query: { from: String(run.offset) },
      known,
    };
    return await this.#calls
      .stream("follow a command", request, { signal: stream, stream }, async (response) =>
        this.#events(response),
      )
      .catch((error: unknown) => {
        throw refusal ?? error;
      });
  }

  /** @throws when nobody knows how much of the input has arrived. */
  async #feed(run: Run): Promise<void> {
    const signal = AbortSignal.any([run.stream.signal, run.signal, this.#closed]);
    let offset = 0;
    for (;;) {
      const data = await abortable(run.input.next(inputPartBytes), signal).catch(() => null);
      if (data === null) return;
      const query = { offset: String(offset), close: data === undefined ? "true" : undefined };
      if (!(await this.#isTaken(run.execId, query, data ?? Buffer.alloc(0), signal))) {
        if (!signal.aborted) run.input.drop();
        return;
      }
      if (data === undefined) return;
      offset += data.length;
    }
  }

  /**
   * Sends a part of the input until the backend has taken it: what of it was taken before is dropped there, by its offset.
   * @returns false when the command takes no more. @throws when nobody knows how much has arrived.
   */
  async #isTaken(
    execId: ExecId,
    query: Record<string, string | undefined>,
    bytes: Uint8Array,
    signal: AbortSignal,
  ): Promise<boolean> {
    let ended = false;
    const request = {
      method: "POST" as const,
      path: [...this.#path, "execs", execId, "stdin"],
      ...{ query, bytes },
      // As long as the command takes to read it.
      timeoutMs: null,
      known: async (error: unknown) => {
        const hidden = await this.#calls.hiddenBy(error, { signal });
        ended = hidden === undefined && isRefusal(error, 404, 409, 410);
        return hidden;
      },
    };
    for (let tries = 0; ; tries += 1) {
      try {
        await this.#calls.tell("write standard input", request, { signal });
        return true;
      } catch (error) {
        // It has ended, or has closed its input.
        if (signal.aborted || ended) return false;
        const pauseMs = inputPausesMs[tries];
        if (pauseMs === undefined) throw error;
        await pause(pauseMs, undefined, { signal, ref: false }).catch(ignoreOutcome);
      }
    }
  }

  async #signal(execId: ExecId, number: number, options: CallOptions): Promise<void> {
    const path = [...this.#path, "execs", execId, "signal"];
    const known = async (error: unknown) =>
      (await this.#calls.hiddenBy(error, options)) ??
      (isRefusal(error, 404, 409, 410) ? new Conflict(`exec "${execId}" has ended`) : undefined);
    await this.#calls.tell(
      "signal a command",
      { method: "POST", path, json: { signal: number } satisfies Static<typeof SignalRequest>, known },
      options,
    );
  }

  /** @returns whether there was one. */
  async #kill(execId: ExecId, options: CallOptions): Promise<boolean> {
    let isNone = false;
    const known = async (error: unknown) => {
      const hidden = await this.#calls.hiddenBy(error, options);
      isNone = hidden === undefined && isRefusal(error, 404, 410);
      return hidden;
    };
    const request = { method: "DELETE" as const, path: [...this.#path, "execs", execId], known };
    await this.#calls.tell("kill a command", request, options).catch((error: unknown) => {
      if (!isNone) throw error;
    });
    return !isNone;
  }
}

function endOf(event: ExecStreamEvent & { type: "exit" }): ProgramEnd {
  return {
    exitCode: event.exit_code,
    ...(event.signal === undefined ? {} : { signal: beginningOf(event.signal, longestSignal) }),
    ...(event.start_error === undefined ? {} : { startError: beginningOf(event.start_error, longestReason) }),
  };
}

function gone(): RuntimeGone {
  return new RuntimeGone("the sandbox has ended");
}
