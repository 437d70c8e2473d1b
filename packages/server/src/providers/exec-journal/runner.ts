import type { CallOptions, ExecSpec, WindowSize } from "../../ports/sandbox-operations.ts";
import type { ExecInput } from "./exec-input.ts";
import type { Journal } from "./journal.ts";

/** What a command writes to and reads from, and when it is to end. */
export interface ProgramStreams {
  output: Journal;
  input: ExecInput;
  /** Aborts when the command is to be killed, the deadline and the end of the sandbox included. */
  signal: AbortSignal;
}

/** How a program ended by itself. Why it was killed, who killed it knows. */
export interface ProgramEnd {
  exitCode: number;
  /** `SIGTERM` and so on, when a signal ended it; the exit code is 128 and its number. */
  signal?: string;
  /** Why it could not be started. */
  startError?: string;
  /** Nobody knows how it ended: what ran it was lost. */
  lost?: boolean;
}

export interface RunningProgram {
  /** As it is seen inside the sandbox. */
  readonly pid: number;
  /** Resolves when nothing more will come of it: all of its output is in the journal. Never rejects. */
  readonly ended: Promise<ProgramEnd>;
  /** To its process group. */
  signal(signal: number, options: CallOptions): Promise<void>;
  /** Only asked for where the command has a terminal. */
  resize?(size: WindowSize, options: CallOptions): Promise<void>;
  /** Ends what it left running. Asked for by the kill of a command that has ended. */
  sweep?(options: CallOptions): Promise<void>;
}

/** Runs the programs of one sandbox: what a provider without an agent of ours brings to `JournaledExecs`. */
export interface ExecRunner {
  /**
   * Starts a program. When the call is aborted or fails, nothing of it may go on running.
   * @throws BadRequest for what cannot be started here: a missing working directory, an unknown user, limits, a terminal.
   */
  start(spec: ExecSpec, program: ProgramStreams, options: CallOptions): Promise<RunningProgram>;
}
