import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import type { ExecLimits, ExecResult } from "@alcove/wire";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { ExitWith, exitCodes, UsageError } from "../exit-codes.ts";
import { reportFailure } from "../failure.ts";
import { outputFailsWith, printJson, printLines } from "../terminal/output.ts";
import { printable } from "../terminal/printable.ts";
import { exitCodeOfExec } from "./exec-code.ts";
import { resumeOutput, tellBroken } from "./exec-resume.ts";
import { runStream } from "./exec-stream.ts";
import { idOf } from "./named.ts";
import { OutputProgress } from "./output-progress.ts";

export interface RunFlags extends ClientFlags {
  env?: Record<string, string>;
  workdir?: string;
  user?: string;
  timeout?: string;
  cpuTime?: string;
  outputBytes?: number;
  memory?: number;
  pids?: number;
}

export interface ExecFlags extends RunFlags, JsonFlags {
  interactive?: boolean;
  tty?: boolean;
  detach?: boolean;
}

/** Ends with the command's own exit code. */
export async function exec(sandbox: string, command: readonly string[], flags: ExecFlags): Promise<void> {
  if (flags.detach && (flags.interactive || flags.tty)) {
    throw new UsageError("--detach leaves nobody to talk to: it goes with neither -i nor -t");
  }
  if (flags.json && (flags.interactive || flags.tty)) {
    throw new UsageError("--json waits for the whole result: it goes with neither -i nor -t");
  }
  const code = await asExec(async () => {
    if (flags.detach) return detached(sandbox, command, flags);
    if (flags.json) return buffered(sandbox, command, flags);
    using client = openClient(flags);
    const id = await idOf(client, sandbox, { flags });
    if (!flags.interactive && !flags.tty)
      return await runStream({ client, id, request: { ...commandOf(command), ...settingsOf(flags) } });
    // Loaded for those alone who talk to their command.
    const { runSession, windowSize } = await import("./exec-session.ts");
    return await runSession({
      client,
      id,
      start: {
        ...commandOf(command),
        ...settingsOf(flags),
        ...(flags.tty ? { tty: true, ...windowSize() } : {}),
      },
      stdin: flags.interactive ? (flags.tty && process.stdin.isTTY ? "terminal" : "pipe") : "none",
    });
  });
  if (code === notFound) adviseOptions(command);
  if (code !== 0) throw new ExitWith(code);
}

/** What a shell answers when there is no such program. */
const notFound = 127;

/** A whole line as a program's name is an option behind it, or a habit of quoting: both are told what to write. */
function adviseOptions(command: readonly string[]): void {
  const [program = "", ...more] = command[0] === "--" ? command.slice(1) : command;
  if (more.length === 0 || !/\s/.test(program)) return;
  process.stderr.write(
    `alcove: ${printable(JSON.stringify(program))} was run as a program, because more words follow it; options of alcove come before the sandbox's id\n`,
  );
}

/** Failures of ours get a code of their own, so that no caller takes them for the command's. */
export async function asExec(run: () => Promise<number>): Promise<number> {
  outputFailsWith(exitCodes.execFailed, exitCodes.unread);
  try {
    return await run();
  } catch (error) {
    if (error instanceof ExitWith || error instanceof UsageError) throw error;
    reportFailure(error);
    if (error instanceof AlcoveError && error.code === "timeout") return exitCodes.timeout;
    if (error instanceof AlcoveError && error.code === "cancelled") return exitCodes.interrupted;
    return exitCodes.execFailed;
  }
}

/** One argument is a shell command line, several are a program and its arguments. A `--` in front is a habit. */
export function commandOf(command: readonly string[]): {
  command: string;
  args?: string[];
  mode: "shell" | "argv";
} {
  const words = command[0] === "--" ? command.slice(1) : command;
  const [program = "", ...args] = words;
  if (program === "") throw new UsageError("exec needs a command");
  return args.length === 0 ? { command: program, mode: "shell" } : { command: program, args, mode: "argv" };
}

export function settingsOf(flags: RunFlags): {
  env?: Record<string, string>;
  workdir?: string;
  user?: string;
  timeout?: string;
  limits?: ExecLimits;
} {
  const { env, workdir, user, timeout, cpuTime, outputBytes, memory, pids } = flags;
  const limits: ExecLimits = {
    ...(cpuTime === undefined ? {} : { cpu_time: cpuTime }),
    ...(outputBytes === undefined ? {} : { output_bytes: outputBytes }),
    ...(memory === undefined ? {} : { memory_mb: memory }),
    ...(pids === undefined ? {} : { pids }),
  };
  return {
    ...(env === undefined ? {} : { env }),
    ...(workdir === undefined ? {} : { workdir }),
    ...(user === undefined ? {} : { user }),
    ...(timeout === undefined ? {} : { timeout }),
    ...(Object.keys(limits).length === 0 ? {} : { limits }),
  };
}

async function detached(sandbox: string, command: readonly string[], flags: ExecFlags): Promise<number> {
  using client = openClient(flags);
  const id = await idOf(client, sandbox, { flags });
  const started = await client.startExec(id, { ...commandOf(command), ...settingsOf(flags), stdin: false });
  if (flags.json) printJson(started);
  else printLines([started.exec_id]);
  return exitCodes.ok;
}

async function buffered(sandbox: string, command: readonly string[], flags: ExecFlags): Promise<number> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const id = await idOf(client, sandbox, { flags, signal: interrupt.signal });
  const request = { ...commandOf(command), ...settingsOf(flags) };
  const result: ExecResult = await client
    .exec(id, request, { signal: interrupt.signal })
    .catch((error: unknown) => timedOut(error) ?? resumed(client, id, error));
  printJson(result);
  const code = exitCodeOfExec(result);
  return result.lost_bytes === undefined ? code : exitCodes.execFailed;
}

/** @returns what a command had done at its deadline; undefined for any other error, and from services that did not tell. */
function timedOut(error: unknown): ExecResult | undefined {
  if (!(error instanceof AlcoveError) || error.code !== "timeout") return undefined;
  const { code: _code, message: _message, ...result } = error.details;
  if (typeof result.exit_code !== "number") return undefined;
  process.stderr.write(`alcove: ${printable(error.message)}\n`);
  return result as unknown as ExecResult;
}

/** The command goes on, and only its answer cannot be had as a whole. @throws any other error as it is. */
async function resumed(client: AlcoveClient, id: string, error: unknown): Promise<ExecResult> {
  if (!(error instanceof AlcoveError) || error.status !== 503) throw error;
  const { exec_id: execId, goes_on: told, stdout } = error.details;
  // Earlier services did not tell; what is left of a command that ended with its sandbox came as `stdout`.
  const why = told ?? (stdout === undefined ? "shutting_down" : undefined);
  if (typeof execId !== "string" || typeof why !== "string") throw error;
  if (why === "shutting_down" || why === "connection_lost") tellBroken(execId);
  else
    process.stderr.write(
      `alcove: ${printable(`${error.message}; reading the output of ${execId}`)} as it comes\n`,
    );
  const written: Record<"stdout" | "stderr", Buffer[]> = { stdout: [], stderr: [] };
  const progress = new OutputProgress();
  const end = await resumeOutput({
    client,
    id,
    execId,
    progress,
    cause: error,
    take: (stream, data) => {
      written[stream].push(data);
    },
  });
  const { stream: _, data: __, lost_bytes: ___, ...exit } = end;
  return {
    ...exit,
    stdout: Buffer.concat(written.stdout).toString(),
    stderr: Buffer.concat(written.stderr).toString(),
    exec_id: execId,
    ...(progress.lostBytes > 0 ? { truncated: true, lost_bytes: progress.lostBytes } : {}),
  };
}
