import type { IncomingMessage } from "node:http";
import { Duplex } from "node:stream";
import { WebSocket } from "ws";
import { clientError } from "./errors.ts";
import { cancelled, refusal, unreachable } from "./transport.ts";

/** Sent and not yet on the wire: above this writes wait. */
const maxBufferedBytes = 1_048_576;
const maxMessageBytes = 64 * 2 ** 20;
const handshakeTimeoutMs = 30_000;
/** The text message that ends a direction; bytes are binary messages. */
const endText = "end";

/**
 * A TCP connection to a port of a sandbox. Each direction ends by itself; it fails with an AlcoveError `cut` when the
 * connection breaks.
 * @throws AlcoveError when the handshake is refused, with the service's own words: `bad_gateway` when nothing listens.
 */
export async function openTunnel(options: {
  url: URL;
  headers: Record<string, string>;
  signal?: AbortSignal | undefined;
}): Promise<Duplex> {
  const url = new URL(options.url);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const { signal } = options;
  if (signal?.aborted) throw cancelled(signal);
  const socket = new WebSocket(url, {
    headers: options.headers,
    maxPayload: maxMessageBytes,
    handshakeTimeout: handshakeTimeoutMs,
    perMessageDeflate: false,
  });
  return await new Promise<Duplex>((resolve, reject) => {
    const abort = () => {
      if (signal !== undefined) reject(cancelled(signal));
      socket.terminate();
    };
    signal?.addEventListener("abort", abort, { once: true });
    socket.once("close", () => signal?.removeEventListener("abort", abort));
    // The listeners of the stream must be there before the first message, in the same turn as "open".
    socket.once("open", () => resolve(streamOf(socket)));
    socket.once("unexpected-response", (_request, response: IncomingMessage) => {
      signal?.removeEventListener("abort", abort);
      void refusal(response, { method: "GET", path: url.pathname }).then(reject);
    });
    socket.on("error", (error) => {
      reject(unreachable(new URL("/", options.url), error));
    });
  });
}

function streamOf(socket: WebSocket): Duplex {
  const stream = new Duplex({
    read: () => {
      if (socket.isPaused) socket.resume();
    },
    write: (bytes: Buffer, _encoding, done) => send(bytes, done),
    final: (done) => send(endText, done),
    destroy: (error, done) => {
      socket.terminate();
      done(error);
    },
  });
  const send = (message: Buffer | string, done: (error?: Error | null) => void) => {
    if (socket.readyState !== WebSocket.OPEN) return done(cut(1006, ""));
    if (socket.bufferedAmount <= maxBufferedBytes) {
      socket.send(message);
      done();
    } else socket.send(message, (error) => done(error ?? null));
  };
  let ended = false;
  socket.on("message", (data: Buffer, isBinary: boolean) => {
    if (isBinary) {
      if (!stream.push(data)) socket.pause();
    } else {
      ended = true;
      stream.push(null);
    }
  });
  socket.on("error", () => socket.terminate());
  socket.on("close", (code, reason) => {
    if (ended) stream.end();
    else stream.destroy(cut(code, reason.toString()));
  });
  return stream;
}

function cut(code: number, reason: string): Error {
  const why = reason === "" ? `close code ${code}` : reason;
  return clientError("cut", `the connection to the port broke (${why})`);
}
