import { execIdPattern, formatDuration } from "@alcove/wire";
import { BadRequest, ResourceLimit } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecSpec, ExecUseLimits, WindowSize } from "../../ports/sandbox-operations.ts";
import { commandArgv } from "./command-line.ts";
import { checkEnvironment, checkUser, checkWorkdir, refuseNul } from "./command-rules.ts";

/** A command as a client asks for it, durations already in milliseconds. */
export interface ExecInput {
  command: string;
  args?: readonly string[];
  mode?: "shell" | "argv";
  env?: Readonly<Record<string, string>>;
  workdir?: string;
  user?: string;
  /** Above 0; absent: the configured default. */
  timeoutMs?: number;
  /** Chosen by the client, so that it finds a command whose answer it lost. */
  execId?: string;
  tag?: string;
  tty?: WindowSize;
  limits?: ExecUseLimits;
}

/** How long commands may run. */
export interface ExecDeadlines {
  /** 0: the maximum. */
  defaultTimeoutMs: number;
  /** 0: none. */
  maxTimeoutMs: number;
  /** Whose quota says so; absent: the configuration does. */
  quotaOf?: string;
}

/** Stands for "no deadline" where the limits ask for none. */
const noDeadlineMs = 100 * 366 * 24 * 3_600_000;
const execIdForm = new RegExp(execIdPattern);

/**
 * Checks a command and turns it into what a sandbox runs.
 * @throws BadRequest naming the field; ResourceLimit for a timeout above the maximum. docs/api/exec.md.
 */
export function execSpec(
  input: ExecInput,
  options: { limits: ExecDeadlines; makeId: () => ExecId; stdin: boolean; detached: boolean },
): ExecSpec {
  const args = input.args ?? [];
  if (input.command === "") throw new BadRequest("command must not be empty");
  refuseNul("command", input.command);
  const withNul = args.findIndex((arg) => arg.includes("\0"));
  if (withNul !== -1) refuseNul(`args[${withNul}]`, "\0");
  const env = input.env ?? {};
  checkEnvironment("env", env);
  if (input.workdir !== undefined) checkWorkdir(input.workdir);
  if (input.user !== undefined) checkUser(input.user);
  return {
    execId: input.execId === undefined ? options.makeId() : checkExecId(input.execId),
    command: input.command,
    args,
    argv: commandArgv({ command: input.command, args, mode: input.mode ?? "shell" }),
    env,
    ...(input.workdir === undefined ? {} : { workdir: input.workdir }),
    ...(input.user === undefined ? {} : { user: input.user }),
    ...(input.tty === undefined ? {} : { tty: input.tty }),
    ...(input.tag === undefined ? {} : { tag: input.tag }),
    ...(input.limits === undefined ? {} : { limits: input.limits }),
    stdin: options.stdin,
    timeoutMs: effectiveTimeoutMs(input.timeoutMs, options.limits),
    detached: options.detached,
  };
}

/** @throws BadRequest for an id that could not be a command's. */
export function checkExecId(execId: string): ExecId {
  if (!execIdForm.test(execId))
    throw new BadRequest(`exec_id must be "ex-" and 8 to 32 of [a-z0-9], not ${JSON.stringify(execId)}`);
  return execId as ExecId;
}

/** @returns what can be done for a command to run longer than this. */
export function deadlineAdvice(timeoutMs: number, limits: ExecDeadlines): string {
  return limits.maxTimeoutMs === 0 || timeoutMs < limits.maxTimeoutMs
    ? "ask for a longer timeout"
    : `no command may run longer (${boundBy(limits)})`;
}

function boundBy({ quotaOf }: ExecDeadlines): string {
  return quotaOf === undefined
    ? "defaults.max_exec_timeout"
    : `max_exec_timeout of the quota of owner ${JSON.stringify(quotaOf)}`;
}

function effectiveTimeoutMs(askedMs: number | undefined, limits: ExecDeadlines): number {
  const maximumMs = limits.maxTimeoutMs === 0 ? noDeadlineMs : limits.maxTimeoutMs;
  if (askedMs === undefined)
    return limits.defaultTimeoutMs === 0 ? maximumMs : Math.min(limits.defaultTimeoutMs, maximumMs);
  if (!(askedMs > 0)) throw new BadRequest("timeout must be longer than 0s");
  if (askedMs > maximumMs)
    throw new ResourceLimit(
      `timeout is ${formatDuration(askedMs)} and commands may run ${formatDuration(maximumMs)} at most (${boundBy(limits)})`,
      { details: { reason: "max_exec_timeout" } },
    );
  return askedMs;
}
