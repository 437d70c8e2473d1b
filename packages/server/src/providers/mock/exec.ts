import type { Clock, Timer } from "../../ports/clock.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { CallOptions, ExecExit, ExecInfo, ExecSpec } from "../../ports/sandbox-operations.ts";
import { CommandInput } from "./command-input.ts";
import type { StopCause } from "./exec-registry.ts";
import { Journal } from "./journal.ts";
import { NamedInputs } from "./named-inputs.ts";

const ringBytes = 1_048_576;

/** How the program of a command ended by itself. */
export interface ProgramEnd {
  exitCode: number;
  startError?: string;
  /** Its worker was lost under it. */
  lost?: boolean;
}

/** What runs a command's program. */
export interface ExecRunner {
  /** Refuses what cannot start. @throws BadRequest for a missing working directory or an unknown user. */
  prepare(spec: ExecSpec, options: CallOptions): Promise<void>;
  /** Resolves when nothing of the program runs any more; `signal` stops it. */
  run(
    spec: ExecSpec,
    program: { output: Journal; input: CommandInput; signal: AbortSignal },
  ): Promise<ProgramEnd>;
}

/** One command: running until `exit` is set. The first cause to stop it wins. */
export class Exec {
  readonly execId: ExecId;
  readonly pid: number;
  readonly journal = new Journal({ ringBytes });
  readonly inputs = new NamedInputs();
  readonly #spec: ExecSpec;
  readonly #clock: Clock;
  readonly #startedAt: Date;
  readonly #startedMs: number;
  readonly #abort = new AbortController();
  readonly #ended = Promise.withResolvers<ExecExit>();
  readonly input: CommandInput;
  /** Views that follow it now. */
  followers = 0;
  #deadline: Timer | undefined;
  #cause: StopCause | undefined;
  #exit: ExecExit | undefined;
  #cut = false;

  constructor(options: { spec: ExecSpec; pid: number; clock: Clock }) {
    this.#spec = options.spec;
    this.#clock = options.clock;
    this.execId = options.spec.execId;
    this.pid = options.pid;
    this.#startedAt = options.clock.now();
    this.#startedMs = options.clock.monotonicMs();
    this.input = new CommandInput({ open: options.spec.stdin });
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

  run(runner: ExecRunner): void {
    this.#deadline = this.#clock.setTimer(this.#spec.timeoutMs, () =>
      this.stop({ reason: "timeout", exitCode: 137, signal: "SIGKILL" }),
    );
    const program = { output: this.journal, input: this.input, signal: this.#abort.signal };
    runner.run(this.#spec, program).then(
      (end) => this.#finish(end),
      (error: unknown) => {
        const startError = error instanceof Error ? error.message : String(error);
        this.#finish({ exitCode: 126, startError });
      },
    );
  }

  stop(cause: StopCause): void {
    if (this.#exit !== undefined || this.#cause !== undefined) return;
    this.#cause = cause;
    this.#abort.abort();
    this.input.close();
    // A command that waits for a slow reader is let go.
    if (this.#cut) this.journal.end();
  }

  /** Ends every view now, without an exit. */
  cut(): void {
    this.#cut = true;
    this.journal.end();
  }

  info(): ExecInfo {
    return {
      execId: this.execId,
      pid: this.pid,
      command: this.#spec.command,
      args: this.#spec.args,
      tty: false,
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
    const cause: StopCause =
      this.#cause ??
      (end.lost === true
        ? { reason: "lost", exitCode: 137, signal: "SIGKILL" }
        : { reason: "exited", exitCode: end.exitCode });
    this.#exit = {
      ...cause,
      startedAt: this.#startedAt,
      endedAt: this.#clock.now(),
      durationMs: this.elapsedMs(),
      outputBytes: this.journal.totalBytes,
      ...(end.startError === undefined || this.#cause !== undefined ? {} : { startError: end.startError }),
    };
    this.input.close();
    this.journal.end();
    this.#ended.resolve(this.#exit);
  }
}
