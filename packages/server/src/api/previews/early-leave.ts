import type { Duplex } from "node:stream";

/** Clients wait for the answer to their handshake before they say anything. */
const mostEarlyBytes = 65_536;

/**
 * Ends a connection whose client leaves, or goes on talking, before its handshake was answered: it may be written to for as long
 * as the other side likes, so that the end of what the client says ends nothing by itself, and nobody reads it yet.
 * @returns ends the watch.
 */
export function endOnEarlyLeave(socket: Duplex): Disposable {
  const own = Object.hasOwn(socket, "push");
  const { push } = socket;
  if (socket.readableEnded) socket.destroy();
  let earlyBytes = 0;
  socket.push = (piece: Buffer | null, ...rest) => {
    earlyBytes += piece?.length ?? 0;
    const more = push.call(socket, piece, ...rest);
    if (piece === null || earlyBytes > mostEarlyBytes) socket.destroy();
    return more;
  };
  let isOver = false;
  return {
    [Symbol.dispose]: () => {
      if (isOver) return;
      isOver = true;
      if (own) socket.push = push;
      else Reflect.deleteProperty(socket, "push");
    },
  };
}
