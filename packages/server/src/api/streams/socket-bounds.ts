import type { WebSocket } from "@fastify/websocket";

const maxMessageMb = 4;
const tooLarge = 1009;

/** Of every WebSocket to the service itself; docs/api/exec.md, Interactive, and docs/api/previews.md, Tunnels. */
export const socketBounds = {
  maxPayload: maxMessageMb * 1_048_576,
  // Clients write a message in parts of 1 KiB at least, networks carry more of it at once; each costs some hundred bytes.
  maxFragments: 4_096,
  maxBufferedChunks: 8_192,
  // A client that pings each second may do so for a quarter of an hour while its input is held; all are then read at once.
  maxPendingAutoPongs: 1_024,
};

/** Tells a client whose message is too large what the bound is: the library itself closes with the code alone. */
export function explainTooLarge(socket: WebSocket): void {
  const close = socket.close.bind(socket);
  const why = `a message has at most ${maxMessageMb} MiB; send parts`;
  socket.close = (code, reason) => close(code, reason ?? (code === tooLarge ? why : undefined));
}
