import { once } from "node:events";
import { Duplex } from "node:stream";
import { WebSocket } from "ws";
import { clientError } from "./errors.ts";
import { cancelled } from "./transport.ts";
import { closeReason, openWebSocket, partsOf } from "./web-socket.ts";

/** Sent and not yet on the wire: above this writes wait. */
const maxBufferedBytes = 1_048_576;
/** The text message that ends a direction; bytes are binary messages. */
const endText = "end";

/**
 * A TCP connection to a port of a sandbox. Each direction ends by itself; it fails with an AlcoveError `cut` when the
 * connection breaks, `cancelled` when the signal aborts.
 * @throws AlcoveError when the handshake is refused, with the service's own words: `bad_gateway` when nothing listens.
 */
export async function openTunnel(options: {
  url: URL;
  headers: Record<string, string>;
  signal?: AbortSignal | undefined;
}): Promise<Duplex> {
  return await openWebSocket({ ...options, opened: (socket) => streamOf(socket, options.signal) });
}

function streamOf(socket: WebSocket, signal: AbortSignal | undefined): Duplex {
  const broken = (code: number, reason: string) =>
    signal?.aborted ? cancelled(signal) : cut(closeReason(socket, code, reason));
  const stream = new Duplex({
    read: () => {
      if (socket.isPaused) socket.resume();
    },
    write: (bytes: Buffer, _encoding, done) => {
      sendParts(bytes).then(() => done(), done);
    },
    final: (done) => {
      send(endText).then(() => done(), done);
    },
    destroy: (error, done) => {
      socket.terminate();
      done(error);
    },
  });
  let ended = false;
  const send = async (message: Buffer | string): Promise<void> => {
    if (socket.readyState !== WebSocket.OPEN) {
      // The port takes nothing more, and what came of it is yet to be read.
      if (ended) return;
      throw await cutOf(socket, broken);
    }
    const behind = socket.bufferedAmount > maxBufferedBytes;
    const sent = new Promise<boolean>((resolve) => {
      socket.send(message, (error) => resolve(!error));
    });
    if (behind && !(await sent) && !ended) throw await cutOf(socket, broken);
  };
  const sendParts = async (bytes: Buffer) => {
    for (const part of partsOf(bytes)) await send(part);
  };
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
    else stream.destroy(broken(code, reason.toString()));
  });
  return stream;
}

/** Why a socket that takes nothing more is broken, which it knows when it is closed. */
async function cutOf(socket: WebSocket, broken: (code: number, reason: string) => Error): Promise<Error> {
  if (socket.readyState === WebSocket.CLOSED) return broken(1006, "");
  const [code, reason] = (await once(socket, "close")) as [number, Buffer];
  return broken(code, reason.toString());
}

function cut(why: string): Error {
  return clientError("cut", `the connection to the port broke (${why})`);
}
