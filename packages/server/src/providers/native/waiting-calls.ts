import { readdir, readFile } from "node:fs/promises";
import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { shuffled } from "../../platform/shuffled.ts";

const mostThreads = 5_000;
const parallelLooks = 16;

export type Call = "send" | "lock";

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

/**
 * Threads that wait in a call that has files, of which the descriptors may have been closed meanwhile: to send something, with up to 253
 * files each, or for a lock of a file.
 * @param pids of processes as the host sees them; who is gone or may not be looked at waits for nothing.
 * @returns by thread and what it gave to the call, which stay while it waits.
 */
export async function waitingCallsOf(pids: readonly number[]): Promise<ReadonlyMap<string, Call>> {
  const threads: string[] = [];
  for (const pid of shuffled(pids)) {
    if (threads.length >= mostThreads) break;
    const folder = `/proc/${pid}/task`;
    for (const thread of await readdir(folder).catch(() => [])) threads.push(`${folder}/${thread}`);
  }
  const found = new Map<string, Call>();
  await boundedParallel(threads.slice(0, mostThreads), parallelLooks, async (thread) => {
    const line = await readFile(`${thread}/syscall`, "latin1").catch(() => "");
    const call = waitingCall(line);
    if (call !== undefined) found.set(`${thread} ${line}`, call);
  });
  return found;
}

/** @param text of `/proc/PID/task/TID/syscall`: the number and what was given to the call, or that the thread runs. */
export function waitingCall(text: string, arch = process.arch): Call | undefined {
  return calls[arch]?.get(/^\d+(?= )/.exec(text)?.[0] ?? "");
}
