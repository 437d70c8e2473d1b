import type { WebSocket } from "@fastify/websocket";

/** Pings of an hour may have come while the socket was not read. */
const mostAtOnce = 4_096;
const perSecond = 10;

/**
 * How many pings and pongs a client may send. Each is answered or dropped at once; but a part of a message that is not
 * complete keeps all that was read together with it, which a client may fill with those.
 */
export class ControlFrames {
  readonly #nowMs: () => number;
  #left = mostAtOnce;
  #filledMs: number;

  constructor(nowMs = () => performance.now()) {
    this.#nowMs = nowMs;
    this.#filledMs = nowMs();
  }

  /** @returns false when they are too many with this one. */
  count(): boolean {
    if (this.#left < 1) {
      const nowMs = this.#nowMs();
      this.#left = Math.min(mostAtOnce, ((nowMs - this.#filledMs) * perSecond) / 1_000);
      this.#filledMs = nowMs;
    }
    this.#left -= 1;
    return this.#left >= 0;
  }
}

/** @param onFlood called when a client has sent more pings and pongs than it may, for each of them. */
export function boundControlFrames(socket: WebSocket, onFlood: () => void): void {
  const frames = new ControlFrames();
  const count = () => {
    if (!frames.count()) onFlood();
  };
  socket.on("ping", count).on("pong", count);
}
