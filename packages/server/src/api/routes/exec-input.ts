import type { ExecRequest } from "@alcove/wire";
import type { ExecInput } from "../../core/exec/exec-input.ts";
import type { WindowSize } from "../../ports/sandbox-operations.ts";
import { defined, given, optionalDuration, type Total } from "../parse.ts";

type CommandFields = Omit<ExecRequest, "stream">;
interface TerminalFields {
  tty?: boolean;
  cols?: number;
  rows?: number;
}

const defaultWindow: WindowSize = { cols: 80, rows: 24 };

/** A command as it comes over the wire, its empty texts left out. @throws BadRequest naming the field. */
export function execInput(request: CommandFields & TerminalFields): ExecInput {
  const { command, args, mode, env, workdir, user, timeout, exec_id, tag, tty, cols, rows, ...rest } =
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
    tty: windowOf({ ...(tty !== undefined && { tty }), ...(cols && { cols }), ...(rows && { rows }) }),
  });
}

/** A PTY when asked for, or when columns and rows are given. DESIGN §4.2, WebSocket. */
function windowOf(request: TerminalFields): WindowSize | undefined {
  const sized = request.cols !== undefined && request.rows !== undefined;
  if (request.tty === false || !(request.tty === true || sized)) return undefined;
  return { cols: request.cols ?? defaultWindow.cols, rows: request.rows ?? defaultWindow.rows };
}
