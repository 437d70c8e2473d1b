import type { ExecLimits, ExecRequest } from "@alcove/wire";
import type { ExecInput } from "../../core/exec/exec-input.ts";
import { BadRequest } from "../../ports/errors.ts";
import type { ExecUseLimits, WindowSize } from "../../ports/sandbox-operations.ts";
import { decodeContent, defined, given, optionalDuration, type Total } from "../parse.ts";

type CommandFields = Omit<ExecRequest, "stream" | "encoding" | "stdin" | "stdin_encoding">;
interface TerminalFields {
  tty?: boolean;
  cols?: number;
  rows?: number;
}

const defaultWindow: WindowSize = { cols: 80, rows: 24 };

/** A command as it comes over the wire, its empty texts left out. @throws BadRequest naming the field. */
export function execInput(request: CommandFields & TerminalFields): ExecInput {
  const { command, args, mode, env, workdir, user, timeout, exec_id, tag, limits, tty, cols, rows, ...rest } =
    request;
  rest satisfies Record<string, never>;
  return defined<Total<ExecInput>>({
    command,
    args,
    mode,
    env,
    workdir: given(workdir),
    user: given(user),
    timeoutMs: optionalDuration("timeout", timeout),
    execId: given(exec_id),
    tag: given(tag),
    limits: limitsOf(limits),
    tty: windowOf({ ...(tty !== undefined && { tty }), ...(cols && { cols }), ...(rows && { rows }) }),
  });
}

/** None when none is given. @throws BadRequest naming the field. */
function limitsOf(limits: ExecLimits | undefined): ExecUseLimits | undefined {
  const cpuTimeMs = optionalDuration("limits.cpu_time", limits?.cpu_time);
  const outputBytes = limits?.output_bytes;
  const given = defined<Total<ExecUseLimits>>({
    cpuTimeMs,
    outputBytes,
    memoryMb: limits?.memory_mb,
    pids: limits?.pids,
  });
  return Object.keys(given).length === 0 ? undefined : given;
}

/** A whole standard input. @throws BadRequest when it is not what its encoding says, or has one alone. */
export function stdinOf(request: {
  stdin?: string | boolean;
  stdin_encoding?: "utf8" | "base64";
}): Buffer | undefined {
  const { stdin, stdin_encoding: encoding } = request;
  if (typeof stdin === "string") return decodeContent("stdin", stdin, encoding);
  if (encoding !== undefined)
    throw new BadRequest("stdin_encoding is of a stdin that is a text, and there is none");
  return undefined;
}

/** A PTY when asked for, or when columns or rows are given; what is not is the default's. docs/api/exec.md. */
function windowOf(request: TerminalFields): WindowSize | undefined {
  const sized = request.cols !== undefined || request.rows !== undefined;
  if (request.tty === false || !(request.tty === true || sized)) return undefined;
  return { cols: request.cols ?? defaultWindow.cols, rows: request.rows ?? defaultWindow.rows };
}
