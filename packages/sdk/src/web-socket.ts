import type { IncomingMessage } from "node:http";
import { WebSocket } from "ws";
import { onSilence, silenceText } from "./silence.ts";
import { cancelled, refusal, unreachable } from "./transport.ts";

const maxMessageBytes = 64 * 2 ** 20;
const handshakeTimeoutMs = 30_000;
/** The service takes messages of 4 MiB; small ones let others in between. */
const maxPartBytes = 262_144;
/** Of a machine that is gone; what swallows bytes without closing is told by the silence. */
const keepAliveMs = 30_000;

const silentSockets = new WeakSet<WebSocket>();

/**
 * A WebSocket to the service, which pings it. One that falls silent is terminated; `closeReason` tells.
 * @param options.opened makes of it what the caller wants, in the turn in which it opens: listeners that it adds are there
 *  before the first message.
 * @param options.upgraded is told of the answer to the handshake, before that.
 * @param options.signal leaves, also when it is open.
 * @throws AlcoveError when the handshake is refused, with the service's own words.
 */
export async function openWebSocket<T>(options: {
  url: URL;
  headers: Record<string, string>;
  signal?: AbortSignal | undefined;
  upgraded?: (response: IncomingMessage) => void;
  opened: (socket: WebSocket) => T;
}): Promise<T> {
  const url = new URL(options.url);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const { signal, opened, upgraded } = options;
  if (signal?.aborted) throw cancelled(signal);
  const socket = new WebSocket(url, {
    headers: options.headers,
    maxPayload: maxMessageBytes,
    handshakeTimeout: handshakeTimeoutMs,
    perMessageDeflate: false,
  });
  socket.once("upgrade", (response) => {
    endWhenSilent(socket, response.socket);
    upgraded?.(response);
  });
  return await new Promise<T>((resolve, reject) => {
    const abort = () => {
      if (signal !== undefined) reject(cancelled(signal));
      socket.terminate();
    };
    signal?.addEventListener("abort", abort, { once: true });
    socket.once("close", () => signal?.removeEventListener("abort", abort));
    socket.once("open", () => resolve(opened(socket)));
    socket.once("unexpected-response", (_request, response: IncomingMessage) => {
      signal?.removeEventListener("abort", abort);
      void refusal(response, { method: "GET", path: url.pathname }).then(reject);
    });
    socket.on("error", (error) => {
      reject(unreachable(new URL("/", options.url), error));
    });
  });
}

/** Why it was closed, in words. */
export function closeReason(socket: WebSocket, code: number, reason = ""): string {
  if (silentSockets.has(socket)) return silenceText;
  return reason === "" ? `close code ${code}` : reason;
}

function endWhenSilent(socket: WebSocket, connection: IncomingMessage["socket"]): void {
  connection.setKeepAlive(true, keepAliveMs);
  const end = onSilence({
    bytesRead: () => connection.bytesRead,
    heldUp: () => socket.isPaused,
    // A proxy that ends WebSockets itself keeps the service's pings, and answers this one.
    missed: () => socket.ping(),
    silent: () => {
      silentSockets.add(socket);
      socket.terminate();
    },
  });
  socket.once("close", end);
}

/** What is sent as a message each, in order; nothing of no bytes. */
export function* partsOf(bytes: Buffer): Generator<Buffer> {
  for (let start = 0; start < bytes.length; start += maxPartBytes)
    yield bytes.subarray(start, start + maxPartBytes);
}
