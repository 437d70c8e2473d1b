import { randomBytes } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
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
import type { E2bCalls } from "./e2b-calls.ts";
import type { EnvdPrograms, ProgramEvent } from "./envd-programs.ts";
import { connectCodes, isAnswer, isInvalid, isUnknownUser } from "./failures.ts";
import { findProgramScript, marker, signalScript, sweepScript } from "./helper-scripts.ts";
import { endOf } from "./program-end.ts";

/** envd ends a program this long after us, so that a service that is gone prolongs none. */
const envdGraceMs = 10_000;
const cleanupMs = 20_000;
/** How long the end of a program that was killed may take to be told. */
const endAfterKillMs = 5_000;
/** Waits before each try to kill. After the last envd's own deadline is left. */
const killPausesMs = [0, 500, 2_000, 5_000, 15_000, 30_000, 60_000];
/** How often a start that failed is looked for, which may still be carried out: over two seconds and more. */
const failedStartLooks = 3;
/**
 * So many starts that failed are looked for again, as many as commands run at once, and so many commands that were lost are killed
 * again where the first kill failed; of more each is once.
 */
const undoneAtMost = 256;
const inputPartBytes = 65_536;
const notStarted = new Set([126, 127]);
const lost: ProgramEnd = { exitCode: 137, lost: true };
const noProcess = 3;

/** Runs commands in one sandbox through envd. What it starts is named by the command's id, as the tag of its process. */
export class ProgramRunner implements ExecRunner {
  readonly #programs: EnvdPrograms;
  readonly #calls: E2bCalls;
  readonly #user: string | undefined;
  readonly #workdir: string;
  /** Aborts when the sandbox is gone, or let go of. */
  readonly #closed: AbortSignal;
  /** Looks at once whether the sandbox is still there. */
  readonly #confirm: () => Promise<boolean>;
  /** Tags of starts that failed and are being ended. */
  readonly #undone = new Set<string>();
  /** Kills of commands that are told as lost by now. */
  #behind = 0;

  constructor(options: {
    programs: EnvdPrograms;
    calls: E2bCalls;
    user: string | undefined;
    workdir: string;
    closed: AbortSignal;
    confirm: () => Promise<boolean>;
  }) {
    this.#programs = options.programs;
    this.#calls = options.calls;
    this.#user = options.user;
    this.#workdir = options.workdir;
    this.#closed = options.closed;
    this.#confirm = options.confirm;
  }

  async start(spec: ExecSpec, program: ProgramStreams, options: CallOptions): Promise<RunningProgram> {
    refuseOwnLimits(spec.limits);
    if (spec.limits !== undefined)
      throw new BadRequest(
        'provider e2b holds no command to limits (capabilities "exec_usage", "exec_limits"); leave limits out',
      );
    refuseNumericUser(spec.user);
    const stream = new AbortController();
    const user = spec.user ?? this.#user;
    const workdir = spec.workdir ?? this.#workdir;
    // Its own for each start: what is left of one that failed is ended while the same command is started again.
    const tag = `${spec.execId}.${randomBytes(4).toString("hex")}`;
    const events = this.#programs.start({
      argv: ["/bin/sh", "-c", 'exec "$@"', "sh", ...spec.argv],
      env: {
        ...(spec.tty === undefined ? {} : { TERM: "xterm-256color" }),
        ...spec.env,
        [marker]: tag,
      },
      workdir,
      ...(user === undefined ? {} : { user }),
      tag,
      stdin: spec.stdin,
      ...(spec.tty === undefined ? {} : { tty: spec.tty }),
      timeoutMs: spec.timeoutMs + envdGraceMs,
      signal: AbortSignal.any([stream.signal, this.#closed]),
    });
    let pid: number;
    try {
      pid = await this.#calls.run(
        "start a command",
        { ...options, known: this.#startRefusal(workdir, user) },
        () => firstPid(events),
      );
    } catch (error) {
      stream.abort();
      if (!(error instanceof BadRequest)) void this.#undoStart(tag);
      throw error;
    }
    const ended = this.#run(spec, { ...program, tag, events, stream, user, workdir });
    return {
      pid,
      ended,
      signal: (number, call) => this.#signal(spec.execId, tag, pid, number, call),
      resize: (size, call) =>
        this.#calls.run("resize a terminal", call, (signal) => this.#programs.resize(tag, size, { signal })),
      sweep: (call) => this.#sweep(tag, call),
    };
  }

  #startRefusal(workdir: string, user: string | undefined) {
    return async (error: unknown) => {
      if (isInvalid(error))
        return new BadRequest(`working directory "${workdir}" does not exist in this sandbox, or is none`);
      if (user !== undefined && isUnknownUser(error))
        return new BadRequest(`user "${user}" is not known in this sandbox`);
      return (await this.#confirm()) ? undefined : gone();
    };
  }

  /** A start whose answer did not come may have happened, or happen still. A sandbox that answers what it should not is not asked again. */
  async #undoStart(tag: string): Promise<void> {
    const pausesMs = this.#undone.size < undoneAtMost ? killPausesMs : [0];
    this.#undone.add(tag);
    let looks = 0;
    for (const pauseMs of pausesMs) {
      await pause(pauseMs, undefined, { ref: false });
      if (this.#closed.aborted) break;
      using deadline = deadlineAfter(cleanupMs, this.#closed);
      const failure = await this.#kill(tag, deadline).catch((error: unknown) => error);
      if (failure === undefined) looks += 1;
      else if (!(failure instanceof Unavailable)) break;
      if (looks === failedStartLooks) break;
    }
    this.#undone.delete(tag);
  }

  /** Ends what nobody needs any more: tried once before that is told, and behind that again where it failed. */
  async #undo(tag: string): Promise<void> {
    const [first = 0, ...later] = killPausesMs;
    if ((await this.#killInTime(tag, [first])) || this.#behind >= undoneAtMost) return;
    this.#behind += 1;
    void this.#killInTime(tag, later).finally(() => (this.#behind -= 1));
  }

  async #run(
    spec: ExecSpec,
    run: ProgramStreams & {
      tag: string;
      events: AsyncIterator<ProgramEvent>;
      stream: AbortController;
      user: string | undefined;
      workdir: string;
    },
  ): Promise<ProgramEnd> {
    const ended = this.#follow(run);
    let inputLost = false;
    if (spec.stdin)
      void this.#feed(spec, run).catch(() => {
        inputLost = true;
        run.stream.abort();
      });
    const killed = Promise.withResolvers<ProgramEnd>();
    const onAbort = () => void this.#end(run.tag, ended).then(killed.resolve, killed.reject);
    if (run.signal.aborted) onAbort();
    else run.signal.addEventListener("abort", onAbort, { once: true });
    try {
      const end = await Promise.race([ended, killed.promise]);
      if (!inputLost) return await this.#explained(end, spec, run);
      await this.#undo(run.tag);
      return lost;
    } catch {
      return lost;
    } finally {
      run.signal.removeEventListener("abort", onAbort);
      run.stream.abort();
    }
  }

  /** Kills it, and waits for its end and for what it wrote before. */
  async #end(tag: string, ended: Promise<ProgramEnd>): Promise<ProgramEnd> {
    if (!(await this.#killInTime(tag, killPausesMs))) return lost;
    using last = deadlineAfter(endAfterKillMs, this.#closed);
    return await abortable(ended, last.signal).catch(() => lost);
  }

  /** Kills it, again where that failed. @returns whether it was killed, as long as that could be tried. */
  async #killInTime(tag: string, pausesMs: readonly number[]): Promise<boolean> {
    for (const pauseMs of pausesMs) {
      await pause(pauseMs, undefined, { ref: false });
      if (this.#closed.aborted) return false;
      using deadline = deadlineAfter(cleanupMs, this.#closed);
      const killed = await this.#kill(tag, deadline).then(
        () => true,
        () => false,
      );
      if (killed) return true;
    }
    return false;
  }

  /** Output into the journal until the end; a stream that breaks is followed anew. */
  async #follow(
    run: ProgramStreams & { tag: string; events: AsyncIterator<ProgramEvent>; stream: AbortController },
  ): Promise<ProgramEnd> {
    let events = run.events;
    const tries = new FollowTries();
    for (;;) {
      tries.begin();
      try {
        for (let next = await events.next(); !next.done; next = await events.next()) {
          const event = next.value;
          if (event.type === "end") return endOf(event);
          if (event.type !== "output") continue;
          if (event.data.length > 0) tries.progress();
          await this.#keep(event, run);
        }
      } catch (error) {
        if (isAnswer(error, connectCodes.notFound)) return lost;
      }
      if (run.stream.signal.aborted || this.#closed.aborted) return lost;
      const pauseMs = tries.broke();
      if (!(await this.#confirm())) return lost;
      if (pauseMs === undefined) {
        // Nobody can follow it any more, so that it is not to go on unseen. Its end is told before its kill is.
        void this.#undo(run.tag);
        return lost;
      }
      await pause(pauseMs);
      events = this.#programs.connect(run.tag, AbortSignal.any([run.stream.signal, this.#closed]));
    }
  }

  /** Waits for slow readers, but not once the command is to end. */
  async #keep(event: ProgramEvent & { type: "output" }, run: ProgramStreams): Promise<void> {
    const kept = run.output.append(event.stream, Buffer.from(event.data));
    if (!run.signal.aborted) await abortable(kept, run.signal).catch(ignoreOutcome);
  }

  /** @throws when nobody knows how much of the input has arrived. */
  async #feed(spec: ExecSpec, run: ProgramStreams & { tag: string; stream: AbortController }): Promise<void> {
    const signal = AbortSignal.any([run.stream.signal, run.signal, this.#closed]);
    const tty = spec.tty !== undefined;
    for (;;) {
      const data = await abortable(run.input.next(inputPartBytes), signal).catch(() => null);
      if (data === null) return;
      try {
        if (data !== undefined) await this.#programs.sendInput(run.tag, data, { signal, tty });
        // A terminal has no end of input but the character for it.
        else if (tty) await this.#programs.sendInput(run.tag, Buffer.from([4]), { signal, tty });
        else await this.#programs.closeInput(run.tag, { signal });
      } catch (error) {
        if (signal.aborted) return;
        // It has ended, or has closed its input.
        const { notFound, failedPrecondition, internal, unknown } = connectCodes;
        if (!isAnswer(error, notFound, failedPrecondition, internal, unknown)) throw error;
        run.input.drop();
        return;
      }
      if (data === undefined) return;
    }
  }

  async #signal(
    execId: ExecId,
    tag: string,
    pid: number,
    number: number,
    options: CallOptions,
  ): Promise<void> {
    const args = [`${marker}=${tag}`, String(number), String(pid)];
    const { exitCode } = await this.#programs.runHelper("signal a command", signalScript, args, options);
    if (exitCode === noProcess) throw new Conflict(`exec "${execId}" has ended`);
  }

  /** The first process is killed by envd itself, so that a sandbox without a shell ends it too. */
  async #kill(tag: string, options: CallOptions): Promise<void> {
    const swept = this.#sweep(tag, options);
    await swept.catch(async (error: unknown) => {
      await this.#programs.killFirst(tag, options).catch((failure: unknown) => {
        if (!isAnswer(failure, connectCodes.notFound)) throw error;
      });
    });
  }

  async #sweep(tag: string, options: CallOptions): Promise<void> {
    const args = [`${marker}=${tag}`];
    const { exitCode } = await this.#programs.runHelper("kill a command", sweepScript, args, options);
    if (exitCode !== 0)
      throw new Unavailable(`a command starts processes faster than they can be killed; try again`);
  }

  /** Why a program did not start is found out after the fact: those that did pay nothing for it. */
  async #explained(
    end: ProgramEnd,
    spec: ExecSpec,
    run: ProgramStreams & { user: string | undefined; workdir: string },
  ): Promise<ProgramEnd> {
    const [program = ""] = spec.argv;
    if (!notStarted.has(end.exitCode) || run.signal.aborted || program === "/bin/sh") return end;
    using deadline = deadlineAfter(cleanupMs, this.#closed);
    const path = spec.env.PATH === undefined ? {} : { env: { PATH: spec.env.PATH } };
    const options = {
      signal: deadline.signal,
      workdir: run.workdir,
      ...(run.user === undefined ? {} : { user: run.user }),
      ...path,
    };
    const { exitCode } = await this.#programs
      .runHelper("look for a program", findProgramScript, [program], options)
      .catch(() => ({ exitCode: 0 }));
    if (exitCode === 1 && end.exitCode === 127)
      return { ...end, startError: `exec "${program}": no such file or directory` };
    if (exitCode === 2) return { exitCode: 126, startError: `exec "${program}": permission denied` };
    return end;
  }
}

/** Users have names here: envd looks them up. @throws BadRequest. */
export function refuseNumericUser(user: string | undefined): void {
  if (user !== undefined && !/^[A-Za-z_][\w.-]*$/.test(user))
    throw new BadRequest(
      `user "${user}" is no name; provider e2b runs commands as users of the template, by name (capability "users")`,
    );
}

async function firstPid(events: AsyncIterator<ProgramEvent>): Promise<number> {
  const first = await events.next();
  if (first.done || first.value.type !== "start") throw new Error("a program's stream began without its pid");
  return first.value.pid;
}

function gone(): RuntimeGone {
  return new RuntimeGone("the sandbox has ended");
}
