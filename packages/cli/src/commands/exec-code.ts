import type { ExitReason, LimitName } from "@alcove/wire";
import { exitCodes } from "../exit-codes.ts";

/** The command's code; 124 for its deadline. What else happened to it is said on standard error. */
export function exitCodeOfExec(exit: {
  exit_code: number;
  reason: ExitReason;
  limit?: LimitName;
  oom_kills?: number;
}): number {
  const { reason, limit, oom_kills: killed = 0 } = exit;
  // Where memory ended the command itself that is all there is to say.
  if (killed > 0 && reason !== "oom" && limit !== "memory_mb")
    process.stderr.write(
      `alcove: ${killed === 1 ? "a process" : `${killed} processes`} of the sandbox ${killed === 1 ? "was" : "were"} killed for memory meanwhile\n`,
    );
  switch (reason) {
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
      process.stderr.write(`alcove: the command was ended: it used more than its limit ${limit ?? ""}\n`);
      return exit.exit_code || exitCodes.execFailed;
    case "lost":
      process.stderr.write("alcove: the command was lost with its sandbox\n");
      return exitCodes.execFailed;
    default: {
      const unreachable: never = reason;
      return unreachable;
    }
  }
}
