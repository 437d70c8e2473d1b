import { once } from "node:events";
import type { AlcoveClient, ExecStart } from "@alcove/sdk";
import { ExitWith, exitCodes } from "../exit-codes.ts";
import { LeaveKeys } from "../terminal/leave-keys.ts";
import { write } from "../terminal/output.ts";
import { printable } from "../terminal/printable.ts";
import { rawMode } from "../terminal/raw-mode.ts";
import { exitCodeOfExec } from "./exec-code.ts";
import { forwardSignals } from "./forward-signals.ts";
import { LastingExec } from "./lasting-exec.ts";
import { OutputProgress } from "./output-progress.ts";

export interface ExecSession {
  client: AlcoveClient;
  id: string;
  start: ExecStart;
  /** terminal: raw keys and window changes; pipe: standard input until its end; none: empty. */
  stdin: "terminal" | "pipe" | "none";
}

/** Runs one command with its output on ours. @returns the exit code for this process. */
export async function runSession(session: ExecSession): Promise<number> {
  // A terminal in raw mode returns to the start of a line only when told to, and may be in the midst of one.
  const lineEnd = session.stdin === "terminal" ? "\r\n" : "\n";
  // Bytes pass as the command writes them, whatever they are.
  using command = await LastingExec.open({
    client: session.client,
    id: session.id,
    start: { ...session.start, encoding: "base64" },
    size: session.start.tty === true ? windowSize : undefined,
    input: session.stdin === "pipe" && !process.stdin.isTTY ? "streamed" : "typed",
    onRefusal: ({ message }) =>
      process.stderr.write(
        `${session.stdin === "terminal" ? lineEnd : ""}alcove: ${printable(message)}; the command goes on${lineEnd}`,
      ),
  });
  const left = Promise.withResolvers<never>();
  const leave = (why: string) => {
    const name = printable(command.execId ?? "the command");
    process.stderr.write(`\r\nalcove: left ${name}; ${why}\n`);
    left.reject(new ExitWith(exitCodes.interrupted));
  };
  using _signals = forwardSignals({ send: (signal) => command.signal(signal), leave });
  using _terminal = session.stdin === "terminal" ? attachTerminal(command) : undefined;
  if (session.stdin === "none") command.closeStdin();
  else pumpStdin(command, session.stdin, leave).catch((error: unknown) => left.reject(error));
  return await Promise.race([follow(command), left.promise]);
}

/** @returns the window of standard output, when it is one. */
export function windowSize(): { cols?: number; rows?: number } {
  const { columns, rows } = process.stdout;
  return columns > 0 && rows > 0 ? { cols: columns, rows } : {};
}

async function follow(command: LastingExec): Promise<number> {
  const progress = new OutputProgress();
  for await (const message of command.messages()) {
    if (message.type === "exit") {
      progress.end(message);
      return progress.exitCode(exitCodeOfExec(message));
    }
    await write(message.type === "stdout" ? process.stdout : process.stderr, progress.take(message));
  }
  return exitCodes.execFailed;
}

/** Keys go through as they are, and the command hears of changes of the window. */
function attachTerminal(command: LastingExec): Disposable {
  const raw = rawMode();
  const resize = () => command.resize();
  process.stdout.on("resize", resize);
  return {
    [Symbol.dispose]() {
      process.stdout.removeListener("resize", resize);
      raw[Symbol.dispose]();
    },
  };
}

async function pumpStdin(
  command: LastingExec,
  kind: "terminal" | "pipe",
  leave: (why: string) => void,
): Promise<void> {
  const keys = new LeaveKeys();
  process.stdin.on("data", (chunk: Buffer) => {
    const { data, leave: wanted } = kind === "terminal" ? keys.feed(chunk) : { data: chunk, leave: false };
    if (wanted) leave("it is ended unless somebody picks it up within the service's exec.disconnect_grace");
    if (data.length === 0) return;
    process.stdin.pause();
    void command.stdin(data).then(() => process.stdin.resume());
  });
  await once(process.stdin, "end");
  command.closeStdin();
}
