import { constants } from "node:os";
import type { ProgramEnd } from "../exec-journal/index.ts";
import type { ProgramEvent } from "./envd-programs.ts";

/** What envd, a Go program, calls the signals that end programs. */
const goNames: Readonly<Record<string, string>> = {
  hangup: "SIGHUP",
  interrupt: "SIGINT",
  quit: "SIGQUIT",
  "illegal instruction": "SIGILL",
  "trace/breakpoint trap": "SIGTRAP",
  aborted: "SIGABRT",
  "bus error": "SIGBUS",
  "floating point exception": "SIGFPE",
  killed: "SIGKILL",
  "user defined signal 1": "SIGUSR1",
  "segmentation fault": "SIGSEGV",
  "user defined signal 2": "SIGUSR2",
  "broken pipe": "SIGPIPE",
  "alarm clock": "SIGALRM",
  terminated: "SIGTERM",
};

/** `exit status 7`, `signal: terminated`, `signal: aborted (core dumped)`. */
export function endOf(event: ProgramEvent & { type: "end" }): ProgramEnd {
  if (event.exited) return { exitCode: event.exitCode };
  const said = /^signal: (.+?)(?: \(core dumped\))?$/.exec(event.status)?.[1] ?? "";
  const signal = goNames[said] ?? "SIGKILL";
  const numbers: Readonly<Record<string, number>> = constants.signals;
  const byNumber = /^signal (\d+)$/.exec(said)?.[1];
  if (byNumber !== undefined) {
    const name = Object.keys(numbers).find((each) => numbers[each] === Number(byNumber));
    return { exitCode: 128 + Number(byNumber), signal: name ?? `SIG${byNumber}` };
  }
  return { exitCode: 128 + (numbers[signal] ?? 9), signal };
}
