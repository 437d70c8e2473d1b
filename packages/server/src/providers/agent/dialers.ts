import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { connect, type Socket } from "node:net";
import { ProviderError } from "../../ports/errors.ts";
import type { AgentDialer } from "./channel.ts";

/** Linux, every architecture Node runs on; node:fs does not name it. */
const openPath = 0o10000000;
/** How often a connection refused for a full queue is tried, and how long between. */
const busyAttempts = 50;
const busyPauseMs = 10;

/** Dials a socket at a path that no sandbox can replace. */
export function unixDialer(path: string): AgentDialer {
  return async ({ signal }) => {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await connectOnce(path, signal);
      } catch (error) {
        const full = error instanceof Error && "code" in error && error.code === "EAGAIN";
        if (!full || attempt >= busyAttempts) throw error;
        await pause(busyPauseMs, signal);
      }
    }
  };
}

/**
 * Dials a socket whose name a sandbox could replace: the name is looked up once, without following a link, and every
 * connection goes to what was found then. @throws ProviderError when the name is no socket; ENOENT when it is not there.
 */
export async function pinnedUnixDialer(path: string): Promise<PinnedUnixDialer> {
  const handle = await open(path, openPath | constants.O_NOFOLLOW);
  try {
    const stats = await handle.stat({ bigint: true });
    if (!stats.isSocket()) throw new ProviderError(`${path} is no socket; something replaced it`);
    return {
      dial: unixDialer(`/proc/self/fd/${handle.fd}`),
      identity: { device: String(stats.dev), inode: String(stats.ino) },
      close: () => handle.close(),
    };
  } catch (error) {
    await handle.close();
    throw error;
  }
}

export interface PinnedUnixDialer {
  dial: AgentDialer;
  /** What the name led to, to recognise it by after a restart. */
  identity: { device: string; inode: string };
  close(): Promise<void>;
}

function connectOnce(path: string, signal: AbortSignal): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  if (signal.aborted) {
    reject(signal.reason);
    return promise;
  }
  const socket = connect({ path });
  const onAbort = () => {
    socket.destroy();
    reject(signal.reason);
  };
  signal.addEventListener("abort", onAbort);
  const onError = (error: Error) => {
    signal.removeEventListener("abort", onAbort);
    reject(error);
  };
  socket.once("error", onError);
  socket.once("connect", () => {
    signal.removeEventListener("abort", onAbort);
    socket.off("error", onError);
    resolve(socket);
  });
  return promise;
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const onAbort = () => {
    clearTimeout(timer);
    reject(signal.reason);
  };
  const timer = setTimeout(() => {
    signal.removeEventListener("abort", onAbort);
    resolve();
  }, ms);
  signal.addEventListener("abort", onAbort, { once: true });
  return promise;
}
