import type { IncomingMessage } from "node:http";
import { WebSocket } from "ws";
import { cancelled, refusal, unreachable } from "./transport.ts";

const maxMessageBytes = 64 * 2 ** 20;
const handshakeTimeoutMs = 30_000;
/** The service takes messages of 4 MiB; small ones let others in between. */
const maxPartBytes = 262_144;

/**
 * A WebSocket to the service.
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
  if (upgraded !== undefined) socket.once("upgrade", upgraded);
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

/** What is sent as a message each, in order; nothing of no bytes. */
export function* partsOf(bytes: Buffer): Generator<Buffer> {
  for (let start = 0; start < bytes.length; start += maxPartBytes)
    yield bytes.subarray(start, start + maxPartBytes);
}
