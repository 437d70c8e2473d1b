import type { Duplex } from "node:stream";
import { deadlineAfter } from "../../platform/deadline.ts";
import { Unavailable } from "../../ports/errors.ts";
import type { AgentDialer } from "./channel.ts";
import { type PinnedUnixDialer, pinnedUnixDialer } from "./dialers.ts";

/** For the answer of a machine that is busy, not for one that boots: nothing listens there yet, and it refuses at once. */
const usualAnswerMs = 10_000;
/** `OK <port>` with ten digits is 13 bytes; no monitor of machines says more. */
const longestAnswer = 64;
const newline = 0x0a;

/**
 * Dials a port inside a virtual machine, through the unix socket of its monitor: `CONNECT <port>` is answered by
 * `OK <port of the host>`, each ended by a newline, and from there on the connection is the guest's.
 * @param dial connects to the monitor's socket.
 * @throws Unavailable when the guest does not take the connection, or the monitor does not answer in time.
 */
export function vsockDialer(
  dial: AgentDialer,
  port: number,
  { answerMs = usualAnswerMs }: { answerMs?: number } = {},
): AgentDialer {
  return async ({ signal }) => {
    const socket = await dial({ signal });
    try {
      using deadline = deadlineAfter(answerMs, signal);
      await answered(socket, port, deadline.signal);
      return socket;
    } catch (error) {
      socket.destroy();
      signal.throwIfAborted();
      if (error instanceof Unavailable) throw error;
      throw new Unavailable(`the machine's monitor did not answer CONNECT ${port} within ${answerMs} ms`, {
        cause: error,
        retryAfterS: 1,
      });
    }
  };
}

/** As {@link pinnedUnixDialer}, for the socket of a machine's monitor. */
export async function pinnedVsockDialer(path: string, port: number): Promise<PinnedUnixDialer> {
  const pinned = await pinnedUnixDialer(path);
  return { ...pinned, dial: vsockDialer(pinned.dial, port) };
}

/** Resolves once the answer was read, and nothing behind it. @throws Unavailable; the signal's reason. */
function answered(socket: Duplex, port: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const refuse = (why: string, cause?: unknown) =>
    reject(
      new Unavailable(`the machine took no connection to its port ${port}: ${why}`, {
        cause,
        retryAfterS: 1,
      }),
    );
  let line = Buffer.alloc(0);
  const onReadable = () => {
    for (let part: Buffer | null = socket.read(); part !== null; part = socket.read()) {
      line = Buffer.concat([line, part]);
      const end = line.indexOf(newline);
      if (end >= 0) {
        const answer = line.toString("latin1", 0, end);
        if (end > longestAnswer || !/^OK \d+$/.test(answer))
          return refuse(`it was answered ${quoted(answer)}`);
        // From here on nobody listens, so that nothing is read before the caller does.
        leave();
        if (end + 1 < line.length) socket.unshift(line.subarray(end + 1));
        return resolve();
      }
      if (line.length > longestAnswer) return refuse(`it was answered ${quoted(line.toString("latin1"))}`);
    }
  };
  const onEnd = () => refuse("it was closed instead of answered, nothing listens there or it is full");
  const onError = (error: Error) => refuse(error.message, error);
  const onAbort = () => reject(signal.reason);
  const leave = () => {
    socket.off("readable", onReadable).off("end", onEnd).off("close", onEnd).off("error", onError);
    signal.removeEventListener("abort", onAbort);
  };
  socket.on("readable", onReadable).on("end", onEnd).on("close", onEnd).on("error", onError);
  signal.addEventListener("abort", onAbort);
  if (signal.aborted) onAbort();
  socket.write(`CONNECT ${port}\n`);
  return promise.catch((error: unknown) => {
    leave();
    // The socket is given up; what it still says to that is nobody's.
    socket.on("error", () => undefined);
    throw error;
  });
}

function quoted(text: string): string {
  return JSON.stringify(text.length > longestAnswer ? `${text.slice(0, longestAnswer)}…` : text);
}
