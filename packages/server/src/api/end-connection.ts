import type { Duplex } from "node:stream";

/** How long a client may take to close its side; what it was told is on its way by then. */
const patienceMs = 1_000;

/**
 * Ends a connection that Node's server no longer watches, after its last answer was written: its own end alone would leave the
 * connection to the client, for ever. What the client still sends is dropped, since unread bytes would have the connection
 * reset, and the answer lost.
 */
export function endConnection(socket: Duplex): void {
  const timer = setTimeout(() => socket.destroy(), patienceMs).unref();
  socket.once("close", () => clearTimeout(timer));
  socket.end();
  socket.resume();
}
