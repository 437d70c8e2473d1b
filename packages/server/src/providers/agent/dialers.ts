import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { connect, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { ProviderError, Unavailable } from "../../ports/errors.ts";
import type { AgentDialer } from "./channel.ts";

/** Linux, every architecture Node runs on; node:fs does not name it. */
const openPath = 0o10000000;
/** How often in a row connections refused for a full queue are tried, and how long between. */
const busyAttempts = 50;
const busyPauseMs = 10;

/** Makes one connection. Fails with EAGAIN where the queue of the socket is full. */
type Connect = (path: string, signal: AbortSignal) => Promise<Socket>;

/**
 * Dials a socket at a path that no sandbox can replace; one dialer for each socket, as those who wait for it wait together.
 * @param path where it lies now, if that changes.
 */
export function unixDialer(
  path: string | (() => Promise<string>),
  options: { connect?: Connect } = {},
): AgentDialer {
  const line = new DialLine(path, options.connect ?? connectOnce);
  return ({ signal }) => line.dial(signal);
}

interface Waiting {
  readonly signal: AbortSignal;
  readonly resolve: (socket: Socket) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Who dials a socket whose queue is full. The first tries for all, so that a full queue costs one attempt at a time however
 * many wait; once it was refused for as long as an agent takes to work off its queue, all of them are.
 */
class DialLine {
  readonly #path: string | (() => Promise<string>);
  readonly #connectTo: Connect;
  readonly #waiting = new Set<Waiting>();
  #trying = false;

  constructor(path: string | (() => Promise<string>), connect: Connect) {
    this.#path = path;
    this.#connectTo = connect;
  }

  async #connect(signal: AbortSignal): Promise<Socket> {
    return this.#connectTo(typeof this.#path === "string" ? this.#path : await this.#path(), signal);
  }

  async dial(signal: AbortSignal): Promise<Socket> {
    if (this.#waiting.size > 0) return this.#wait(signal);
    try {
      return await this.#connect(signal);
    } catch (error) {
      if (!isFull(error)) throw error;
    }
    return this.#wait(signal);
  }

  async #wait(signal: AbortSignal): Promise<Socket> {
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<Socket>();
    const waiting: Waiting = { signal, resolve, reject };
    const onAbort = () => reject(signal.reason);
    signal.addEventListener("abort", onAbort);
    this.#waiting.add(waiting);
    if (!this.#trying) void this.#try();
    try {
      return await promise;
    } finally {
      signal.removeEventListener("abort", onAbort);
      this.#waiting.delete(waiting);
    }
  }

  async #try(): Promise<void> {
    this.#trying = true;
    let refused = 1;
    for (;;) {
      if (refused > 0) await sleep(busyPauseMs);
      const [first] = this.#waiting;
      if (first === undefined) break;
      try {
        const socket = await this.#connect(first.signal);
        refused = 0;
        if (first.signal.aborted) socket.destroy();
        else first.resolve(socket);
      } catch (error) {
        if (!isFull(error)) first.reject(error);
        else {
          refused += 1;
          if (refused < busyAttempts) continue;
          for (const { reject } of this.#waiting) reject(tooBusy(error));
          this.#waiting.clear();
          // Who comes within the next pause is tried for as long as these were.
          refused = 1;
        }
      }
      this.#waiting.delete(first);
    }
    this.#trying = false;
  }
}

function isFull(error: unknown): boolean {
  return error instanceof Error && "code" in error && error.code === "EAGAIN";
}

function tooBusy(cause: unknown): Unavailable {
  return new Unavailable("the agent of this sandbox takes no connections at the moment; try again", {
    cause,
    retryAfterS: 1,
  });
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
