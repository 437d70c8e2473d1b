import { readdir, readFile } from "node:fs/promises";
import { boundedParallel } from "../../platform/bounded-parallel.ts";

const mostThreads = 5_000;
const parallelLooks = 16;

type Call = "send" | "lock";

/** `sendmsg`, `sendmmsg`, `flock` and `fcntl`, by their numbers. */
const calls: Partial<Record<NodeJS.Architecture, ReadonlyMap<string, Call>>> = {
  x64: new Map<string, Call>([
    ["46", "send"],
    ["307", "send"],
    ["73", "lock"],
    ["72", "lock"],
  ]),
  arm64: new Map<string, Call>([
    ["211", "send"],
    ["269", "send"],
    ["32", "lock"],
    ["25", "lock"],
  ]),
};

/** How many threads wait in a call that has files, of which the descriptors may have been closed meanwhile. */
export interface WaitingCalls {
  /** To send something, with up to 253 files each. */
  sends: number;
  /** For a lock of a file. */
  locks: number;
}

/** @param pids of processes as the host sees them; who is gone or may not be looked at waits for nothing. */
export async function waitingCallsOf(pids: readonly number[]): Promise<WaitingCalls> {
  const threads: string[] = [];
  for (const pid of pids) {
    if (threads.length >= mostThreads) break;
    const folder = `/proc/${pid}/task`;
    for (const thread of await readdir(folder).catch(() => [])) threads.push(`${folder}/${thread}`);
  }
  const found: WaitingCalls = { sends: 0, locks: 0 };
  await boundedParallel(threads.slice(0, mostThreads), parallelLooks, async (thread) => {
    const call = waitingCall(await readFile(`${thread}/syscall`, "latin1").catch(() => ""));
    if (call === "send") found.sends++;
    else if (call === "lock") found.locks++;
  });
  return found;
}

/** @param text of `/proc/PID/task/TID/syscall`: the number and what was given to the call, or that the thread runs. */
export function waitingCall(text: string, arch = process.arch): Call | undefined {
  return calls[arch]?.get(/^\d+(?= )/.exec(text)?.[0] ?? "");
}
