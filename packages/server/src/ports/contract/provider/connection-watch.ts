import { subscribe, unsubscribe } from "node:diagnostics_channel";
import type { Socket } from "node:net";

const channel = "net.client.socket";

/** Sees every connection this process makes, whatever makes it, and can break them all. */
export class ConnectionWatch implements Disposable {
  readonly #sockets = new Set<Socket>();
  readonly #onSocket = (message: unknown) => {
    const { socket } = message as { socket: Socket };
    this.#sockets.add(socket);
    socket.once("close", () => this.#sockets.delete(socket));
  };

  constructor() {
    subscribe(channel, this.#onSocket);
  }

  breakAll(): void {
    for (const socket of [...this.#sockets]) socket.destroy();
  }

  /** Those over TCP stay; one that is still being made cannot be told from them, and stays too. */
  breakLocal(): void {
    for (const socket of [...this.#sockets])
      if (!socket.connecting && socket.remoteAddress === undefined) socket.destroy();
  }

  [Symbol.dispose](): void {
    unsubscribe(channel, this.#onSocket);
  }
}
