import type { ServerResponse } from "node:http";
import type { Duplex } from "node:stream";

/** An answer of which nothing was taken for so long ends its connection, after twice as long at the latest. */
const stalledMs = 30_000;

/** What Node knows of a connection beneath its streams: a large piece is one write to them until its last byte was taken. */
type WithHandle = Duplex & { bytesWritten?: number; _handle?: { writeQueueSize?: number } | null };

/** Changes with whatever the other side takes. */
function taken(socket: WithHandle): number {
  return (socket.bytesWritten ?? 0) - socket.writableLength - (socket._handle?.writeQueueSize ?? 0);
}

/**
 * Ends a connection of which the other side takes nothing for `afterMs`, while something waits to be written. What is sent as it
 * comes, events for one, may be silent: then nothing waits.
 * @returns ends the watch; it also ends with the connection.
 */
export function endWhenStalled(socket: Duplex, options: { afterMs?: number } = {}): Disposable {
  let before = taken(socket);
  const timer = setInterval(() => {
    if (socket.destroyed) return clearInterval(timer);
    const now = taken(socket);
    if (socket.writableLength > 0 && now === before) socket.destroy();
    before = now;
  }, options.afterMs ?? stalledMs).unref();
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

/** Ends the connection of an answer that nobody takes: Node's server gives it as long as it likes, and its bytes with it. */
export function endUnlessTaken(response: ServerResponse, options: { afterMs?: number } = {}): void {
  // Most are taken at once.
  setImmediate(() => {
    const { socket } = response;
    if (socket === null || socket.destroyed || response.writableFinished || response.closed) return;
    const watch = endWhenStalled(socket, options);
    const over = () => watch[Symbol.dispose]();
    response.once("finish", over).once("close", over);
  });
}
