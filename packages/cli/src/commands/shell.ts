import { openClient } from "../context.ts";
import { ExitWith } from "../exit-codes.ts";
import { asExec, commandOf, type RunFlags, settingsOf } from "./exec.ts";
import { runSession, windowSize } from "./exec-session.ts";
import { idOf } from "./named.ts";

/** The best shell the image has. */
const anyShell = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi";

/** A terminal when there is one at both ends, else a shell that reads standard input. Ends with the shell's code. */
export async function shell(sandbox: string, command: readonly string[], flags: RunFlags): Promise<void> {
  const terminal = process.stdin.isTTY === true && process.stdout.isTTY === true;
  const code = await asExec(async () => {
    using client = openClient(flags);
    return await runSession({
      client,
      id: await idOf(client, sandbox, { flags }),
      start: {
        ...commandOf(command.length === 0 ? [anyShell] : command),
        ...settingsOf(flags),
        ...(terminal
          ? { tty: true, ...windowSize(), env: { TERM: process.env.TERM ?? "xterm", ...flags.env } }
          : {}),
      },
      stdin: terminal ? "terminal" : "pipe",
    });
  });
  if (code !== 0) throw new ExitWith(code);
}
