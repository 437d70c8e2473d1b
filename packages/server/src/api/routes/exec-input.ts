import type { ExecRequest } from "@alcove/wire";
import type { ExecInput } from "../../core/exec/exec-input.ts";
import type { WindowSize } from "../../ports/sandbox-operations.ts";
import { defined, given, optionalDuration } from "../parse.ts";

type CommandFields = Omit<ExecRequest, "stream">;
interface TerminalFields {
  tty?: boolean;
  cols?: number;
  rows?: number;
}

const defaultWindow: WindowSize = { cols: 80, rows: 24 };

/** A command as it comes over the wire, its empty texts left out. @throws BadRequest naming the field. */
export function execInput(request: CommandFields & TerminalFields): ExecInput {
  return defined({
    command: request.command,
    args: request.args,
    mode: request.mode,
    env: request.env,
    workdir: given(request.workdir),
    user: given(request.user),
    timeoutMs: optionalDuration("timeout", request.timeout),
    execId: given(request.exec_id),
    tag: given(request.tag),
    tty: windowOf(request),
  });
}

/** A PTY when asked for, or when columns and rows are given. DESIGN §4.2, WebSocket. */
function windowOf(request: TerminalFields): WindowSize | undefined {
  const sized = request.cols !== undefined && request.rows !== undefined;
  if (request.tty === false || !(request.tty === true || sized)) return undefined;
  return { cols: request.cols ?? defaultWindow.cols, rows: request.rows ?? defaultWindow.rows };
}
