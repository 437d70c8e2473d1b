import { once } from "node:events";
import type { AlcoveClient, ExecSocket, ExecStart } from "@alcove/sdk";
import { AlcoveError, bytesOf } from "@alcove/sdk";
import type { ExitReason, LimitName } from "@alcove/wire";
import { ExitWith, exitCodes } from "../exit-codes.ts";
import { LeaveKeys } from "../terminal/leave-keys.ts";
import { write } from "../terminal/output.ts";
import { rawMode } from "../terminal/raw-mode.ts";
import { resumeOutput } from "./exec-resume.ts";
import { forwardSignals } from "./forward-signals.ts";

export interface ExecSession {
  client: AlcoveClient;
  id: string;
  start: ExecStart;
  /** terminal: raw keys and window changes; pipe: standard input until its end; none: empty. */
  stdin: "terminal" | "pipe" | "none";
}

/** Runs one command with its output on ours. @returns the exit code for this process. */
export async function runSession(session: ExecSession): Promise<number> {
  // Bytes pass as the command writes them, whatever they are.
  using socket = await session.client.openExec(session.id, { ...session.start, encoding: "base64" });
  const left = Promise.withResolvers<never>();
  const leave = (why: string) => {
    const name = socket.execId === undefined ? "the command" : socket.execId;
    process.stderr.write(`\r\nalcove: left ${name}; ${why}\n`);
    left.reject(new ExitWith(exitCodes.interrupted));
  };
  using _signals = forwardSignals({ send: (signal) => socket.signal(signal), leave });
  using _terminal = session.stdin === "terminal" ? attachTerminal(socket) : undefined;
  if (session.stdin === "none") socket.closeStdin();
  else pumpStdin(socket, session.stdin, leave).catch((error: unknown) => left.reject(error));
  return await Promise.race([follow(session, socket), left.promise]);
}

/** @returns the window of standard output, when it is one. */
export function windowSize(): { cols?: number; rows?: number } {
  const { columns, rows } = process.stdout;
  return columns > 0 && rows > 0 ? { cols: columns, rows } : {};
}

/** The command's code; 124 for its deadline. What else happened to it is said on standard error. */
export function exitCodeOfExec(exit: { exit_code: number; reason: ExitReason; limit?: LimitName }): number {
  switch (exit.reason) {
    case "exited":
    case "signaled":
      return exit.exit_code;
    case "timeout":
      // The service has said so on standard error already.
      return exitCodes.timeout;
    case "oom":
      process.stderr.write("alcove: the command was killed: the sandbox ran out of memory\n");
      return exit.exit_code || exitCodes.execFailed;
    case "cancelled":
      process.stderr.write("alcove: the command was cancelled\n");
      return exit.exit_code || exitCodes.execFailed;
    case "limit":
      process.stderr.write(
        `alcove: the command was ended: it used more than its limit ${exit.limit ?? ""}\n`,
      );
      return exit.exit_code || exitCodes.execFailed;
    case "lost":
      process.stderr.write("alcove: the command was lost with its sandbox\n");
      return exitCodes.execFailed;
    default: {
      const unreachable: never = exit.reason;
      return unreachable;
    }
  }
}

async function follow(session: ExecSession, socket: ExecSocket): Promise<number> {
  let next = 0;
  try {
    for await (const message of socket.messages()) {
      if (message.type === "exit") return exitCodeOfExec(message);
      const bytes = bytesOf(message);
      if (message.notice !== true) next = (message.offset ?? next) + bytes.length;
      await write(message.type === "stdout" ? process.stdout : process.stderr, bytes);
    }
  } catch (error) {
    const broken = error instanceof AlcoveError && error.code === "cut";
    if (!broken || socket.execId === undefined || session.stdin !== "none") throw error;
    const exit = await resumeOutput({
      client: session.client,
      id: session.id,
      execId: socket.execId,
      from: next,
      cause: error,
    });
    return exitCodeOfExec(exit);
  }
  return exitCodes.execFailed;
}

/** Keys go through as they are, and the command hears of changes of the window. */
function attachTerminal(socket: ExecSocket): Disposable {
  const raw = rawMode();
  const resize = () => {
    const { cols, rows } = windowSize();
    if (cols !== undefined && rows !== undefined) socket.resize({ cols, rows });
  };
  process.stdout.on("resize", resize);
  return {
    [Symbol.dispose]() {
      process.stdout.removeListener("resize", resize);
      raw[Symbol.dispose]();
    },
  };
}

async function pumpStdin(
  socket: ExecSocket,
  kind: "terminal" | "pipe",
  leave: (why: string) => void,
): Promise<void> {
  const keys = new LeaveKeys();
  process.stdin.on("data", (chunk: Buffer) => {
    const { data, leave: wanted } = kind === "terminal" ? keys.feed(chunk) : { data: chunk, leave: false };
    if (wanted) leave("it is ended unless somebody picks it up within the service's exec.disconnect_grace");
    if (data.length === 0) return;
    process.stdin.pause();
    void socket.stdin(data).then(() => process.stdin.resume());
  });
  await once(process.stdin, "end");
  socket.closeStdin();
}
