import type { ExitReason } from "@alcove/wire";
import type { Clock, Timer } from "../../ports/clock.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { CallOptions, ExecExit, ExecInfo, ExecSpec } from "../../ports/sandbox-operations.ts";
import { ExecInput } from "./exec-input.ts";
import { Journal } from "./journal.ts";
import { NamedInputs } from "./named-inputs.ts";
import type { ExecRunner, ProgramEnd, RunningProgram } from "./runner.ts";

/** Why a command is stopped from outside. */
export type StopCause = { reason: ExitReason; exitCode: number; signal?: string; inputLostBytes?: number };

/** Characters of its command line that are kept of a command that has ended, as many as the agent keeps: a thousand of them hold 32 Mi. */
const commandLineAtMost = 32_768;
/** An empty argument takes memory too. */
const eachArgument = 24;

/** One command: made, started (`program` is set), ended (`exit` is set). The first cause to stop it wins. */
export class JournaledExec {
  readonly execId: ExecId;
  readonly journal: Journal;
  readonly inputs = new NamedInputs();
  /** Once it has ended, the beginning of its command line alone. */
  #spec: ExecSpec;
  readonly #clock: Clock;
  readonly #startedAt: Date;
  readonly #startedMs: number;
  readonly #abort = new AbortController();
  readonly #ended = Promise.withResolvers<ExecExit>();
  readonly input: ExecInput;
  /** Views that follow it now. */
  followers = 0;
  #deadline: Timer | undefined;
  #program: RunningProgram | undefined;
  #cause: StopCause | undefined;
  #exit: ExecExit | undefined;
  #cut = false;

  constructor(options: { spec: ExecSpec; clock: Clock; ringBytes: number; inputHoldsBytes: number }) {
    this.#spec = options.spec;
    this.#clock = options.clock;
    this.execId = options.spec.execId;
    this.journal = new Journal({ ringBytes: options.ringBytes });
    this.#startedAt = options.clock.now();
    this.#startedMs = options.clock.monotonicMs();
    this.input = new ExecInput({ open: options.spec.stdin, holdsBytes: options.inputHoldsBytes });
  }

  /** @throws Error before it was started: it is shown to nobody until then. */
  get program(): RunningProgram {
    if (this.#program === undefined) throw new Error(`exec "${this.execId}" was not started`);
    return this.#program;
  }
  get pid(): number {
    return this.program.pid;
  }
  get hasTerminal(): boolean {
    return this.#spec.tty !== undefined;
  }
  get exit(): ExecExit | undefined {
    return this.#exit;
  }
  get ended(): Promise<ExecExit> {
    return this.#ended.promise;
  }
  elapsedMs(): number {
    return this.#clock.monotonicMs() - this.#startedMs;
  }
  get isCut(): boolean {
    return this.#cut;
  }

  /** @throws what the runner throws; the command is then nowhere. */
  async start(runner: ExecRunner, options: CallOptions): Promise<void> {
    const streams = { output: this.journal, input: this.input, signal: this.#abort.signal };
    const program = await runner.start(this.#spec, streams, options);
    this.#program = program;
    this.#deadline = this.#clock.setTimer(this.#spec.timeoutMs, () =>
      this.stop({ reason: "timeout", exitCode: 137, signal: "SIGKILL" }),
    );
    void program.ended.then((end) => this.#finish(end));
  }

  stop(cause: StopCause): void {
    if (this.#exit !== undefined || this.#cause !== undefined) return;
    this.#cause = cause;
    this.#abort.abort();
    this.input.drop();
    // A command that waits for a slow reader is let go.
    if (this.#cut) this.journal.end();
  }

  /** Ends every view now, without an exit, and keeps its deadline no more. */
  cut(): void {
    this.#cut = true;
    this.#deadline?.cancel();
    this.journal.end();
  }

  info(): ExecInfo {
    return {
      execId: this.execId,
      pid: this.pid,
      command: this.#spec.command,
      args: this.#spec.args,
      tty: this.hasTerminal,
      detached: this.#spec.detached,
      startedAt: this.#startedAt,
      outputBytes: this.journal.totalBytes,
      firstOffset: this.journal.firstOffset,
      ...(this.#spec.tag === undefined ? {} : { tag: this.#spec.tag }),
      ...(this.#spec.inputBytes === undefined || !this.input.isOpen
        ? {}
        : { inputBytes: this.#spec.inputBytes }),
      ...(this.#exit === undefined ? {} : { exit: this.#exit }),
    };
  }

  #finish(end: ProgramEnd): void {
    this.#deadline?.cancel();
    const cause = this.#cause ?? causeOf(end);
    this.#exit = {
      ...cause,
      startedAt: this.#startedAt,
      endedAt: this.#clock.now(),
      durationMs: this.elapsedMs(),
      outputBytes: this.journal.totalBytes,
      ...(end.startError === undefined || this.#cause !== undefined ? {} : { startError: end.startError }),
    };
    this.#spec = { ...this.#spec, ...remembered(this.#spec), argv: [], env: {} };
    this.input.drop();
    this.journal.end();
    this.#ended.resolve(this.#exit);
  }
}

/** A long command line is cut, and ends in an ellipsis then. */
function remembered({ command, args }: ExecSpec): { command: string; args: string[] } {
  let left = commandLineAtMost;
  const kept: string[] = [];
  for (const word of [command, ...args]) {
    if (word.length + eachArgument > left) {
      // As a copy: a part of a string keeps all of it.
      kept.push(Buffer.from(`${word.slice(0, Math.max(0, left))}…`).toString());
      break;
    }
    left -= word.length + eachArgument;
    kept.push(word);
  }
  const [first = "", ...others] = kept;
  return { command: first, args: others };
}

function causeOf({ exitCode, signal, lost }: ProgramEnd): StopCause {
  if (lost === true) return { reason: "lost", exitCode: 137, signal: "SIGKILL" };
  if (signal !== undefined) return { reason: "signaled", exitCode, signal };
  return { reason: "exited", exitCode };
}
