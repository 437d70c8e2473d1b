import { once } from "node:events";
import type { WsClientMessage, WsServerMessage } from "@alcove/wire";
import { WebSocket } from "ws";
import { AlcoveError, clientError } from "./errors.ts";
import { parse } from "./lines.ts";
import { cancelled } from "./transport.ts";
import { closeReason, openWebSocket, partsOf } from "./web-socket.ts";

/** Received and not yet taken: above this the socket is paused, so that a slow reader slows the command down. */
const maxQueuedMessages = 256;
/** Sent and not yet on the wire: above this `stdin()` waits. */
const maxBufferedBytes = 1_048_576;

export type ExecStart = Omit<Extract<WsClientMessage, { type: "start" }>, "type">;
/** A command that runs already, from an offset of its output on. */
export type ExecAttach = Omit<Extract<WsClientMessage, { type: "attach" }>, "type">;
/** What a command says and how it ends. */
export type ExecMessage = Exclude<WsServerMessage, { type: "error" | "input" }>;

/**
 * A command that runs at the other end of a WebSocket. Open until the command has exited, the service refuses or the
 * connection breaks. Iterate `messages()` once.
 */
export class ExecSocket implements Disposable {
  /** Of X-Exec-ID: finds the command again when the connection breaks. */
  readonly execId: string | undefined;
  readonly #socket: WebSocket;
  readonly #queue: Exclude<WsServerMessage, { type: "input" }>[] = [];
  #onRefusal: ((error: AlcoveError) => void) | undefined;
  #wake: (() => void) | undefined;
  #onInput: ((taken: number | undefined) => void) | undefined;
  #input: { taken: number | undefined } | undefined;
  #ended: { code: number } | undefined;
  #left = false;
  readonly #signal: AbortSignal | undefined;

  private constructor(socket: WebSocket, execId: string | undefined, signal: AbortSignal | undefined) {
    this.#socket = socket;
    this.#signal = signal;
    this.execId = execId;
    socket.on("message", (data) => this.#receive(String(data)));
    socket.on("close", (code) => {
      this.#ended = { code };
      this.#wake?.();
    });
    socket.on("error", () => socket.terminate());
  }

  /**
   * @param options.signal leaves the command, also when it is open.
   * @throws AlcoveError when the handshake is refused, with the service's own words.
   */
  static async open(options: {
    url: URL;
    headers: Record<string, string>;
    start: ExecStart | ExecAttach;
    signal?: AbortSignal | undefined;
  }): Promise<ExecSocket> {
    const { start, signal } = options;
    let execId = start.exec_id;
    const opened = await openWebSocket({
      ...options,
      upgraded: (response) => {
        const header = execId ?? response.headers["x-exec-id"];
        if (typeof header === "string") execId = header;
      },
      opened: (socket) => new ExecSocket(socket, execId, signal),
    });
    opened.#send("command" in start ? { type: "start", ...start } : { type: "attach", ...start });
    return opened;
  }

  /**
   * Output in order, then the exit, which is the last message. A signal or a size that the service refuses is no end of the
   * command: see `watchRefusals`.
   * @throws AlcoveError when the service refuses the command, when the connection breaks before the exit, `cancelled` when the
   * signal aborted or the socket was disposed of.
   */
  async *messages(): AsyncGenerator<ExecMessage> {
    for (;;) {
      const message = this.#queue.shift();
      if (message === undefined) {
        if (this.#ended !== undefined) throw this.#cut(this.#ended.code);
        if (this.#socket.isPaused) this.#socket.resume();
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        this.#wake = undefined;
        continue;
      }
      if (message.type === "error") throw refusalOf(message);
      yield message;
      if (message.type === "exit") return;
    }
  }

  /**
   * Waits while the connection is behind. Of any size: it is sent in parts; a string as UTF-8. Data for a command that has exited
   * is dropped.
   * @returns whether it was sent; false when the connection was closed already. What was sent just before a connection
   * broke may not have arrived: an input with a name tells, see `watchInput`.
   */
  async stdin(data: Uint8Array | string): Promise<boolean> {
    if (this.#socket.readyState !== WebSocket.OPEN) return false;
    const bytes =
      typeof data === "string"
        ? Buffer.from(data)
        : Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    let behind = false;
    let last: Promise<void> | undefined;
    // All in this turn: what is called next, `closeStdin()` for instance, comes after all of it.
    for (const part of partsOf(bytes)) {
      const message = { type: "stdin", data: part.toString("base64"), encoding: "base64" } as const;
      behind ||= this.#socket.bufferedAmount > maxBufferedBytes;
      last = new Promise((resolve) => {
        // An error closes the socket as well, which `messages()` tells.
        this.#socket.send(JSON.stringify(message satisfies WsClientMessage), () => resolve());
      });
    }
    if (behind) await last;
    return true;
  }

  closeStdin(): void {
    this.#send({ type: "stdin", data: "", close: true });
  }

  /**
   * For a start or attach with `input`: calls back whenever more of it has arrived, and once when the command is there. A
   * connection that attaches with the same name goes on with what comes after `taken`; undefined: nobody knows.
   */
  watchInput(listener: (taken: number | undefined) => void): void {
    this.#onInput = listener;
    if (this.#input !== undefined) listener(this.#input.taken);
  }

  /** Calls back with what was refused of what was asked of the command: it goes on as if it had not been asked. */
  watchRefusals(listener: (error: AlcoveError) => void): void {
    this.#onRefusal = listener;
  }

  resize(size: { cols: number; rows: number }): void {
    this.#send({ type: "resize", ...size });
  }

  signal(signal: string): void {
    this.#send({ type: "signal", signal });
  }

  /** Leaves the command; the service ends it after its grace. */
  [Symbol.dispose](): void {
    this.#left = true;
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.close(1000);
    // The answer to the close frame is not worth waiting for when the process wants to end.
    setTimeout(() => this.#socket.terminate(), 250).unref();
  }

  /** Resolves when the connection is closed. */
  async closed(): Promise<void> {
    if (this.#socket.readyState !== WebSocket.CLOSED) await once(this.#socket, "close");
  }

  #receive(text: string): void {
    let message: WsServerMessage;
    try {
      message = parse(text);
    } catch {
      this.#socket.close(1007);
      return;
    }
    if (message.type === "input") {
      this.#input = { taken: message.taken };
      this.#onInput?.(message.taken);
      return;
    }
    if (message.type === "error" && message.goes_on === true) {
      this.#onRefusal?.(refusalOf(message));
      return;
    }
    this.#queue.push(message);
    if (this.#queue.length > maxQueuedMessages) this.#socket.pause();
    this.#wake?.();
  }

  #send(message: WsClientMessage): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #cut(code: number): AlcoveError {
    if (this.#signal?.aborted) return cancelled(this.#signal);
    if (this.#left) return clientError("cancelled", "the command was left");
    const which = this.execId === undefined ? "the command" : `command ${this.execId}`;
    const why = closeReason(this.#socket, code);
    return clientError("cut", `the connection to ${which} broke before it ended (${why})`);
  }
}

function refusalOf(refusal: Extract<WsServerMessage, { type: "error" }>): AlcoveError {
  const { type: _type, goes_on: _goesOn, retry_after_s: retryAfterS, ...details } = refusal;
  const { code, message } = refusal;
  return new AlcoveError({ status: 0, code, message, details, retryAfterS });
}
