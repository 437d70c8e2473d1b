import { setTimeout as pause } from "node:timers/promises";
import { type AlcoveClient, AlcoveError, bytesOf, type ExecSocket, type ExecStart } from "@alcove/sdk";
import type { WsServerMessage } from "@alcove/wire";
import { patienceMs, tellBroken } from "./exec-resume.ts";

const firstPauseMs = 200;
const longestPauseMs = 2_000;
/** Input that may wait for a connection; above this it is no longer read. */
const maxHeldBytes = 1_048_576;
/** Input that was sent this long before the connection broke is taken to have arrived. */
const arrivalMs = 2_000;

type Message = Exclude<WsServerMessage, { type: "error" }>;

export interface LastingExecOptions {
  client: AlcoveClient;
  id: string;
  start: ExecStart;
  /** Of the window now, for a command on a terminal. */
  size?: (() => { cols?: number; rows?: number }) | undefined;
  /** A person sees what is missing and types it again; a stream with a gap is worse than one that ends. */
  input: "typed" | "streamed";
}

/**
 * A command over a WebSocket that is made again when it breaks. `connected` while messages come; `broken` from a cut until
 * the command is attached again, which also fails for good: then `messages()` throws. What is given meanwhile is sent after
 * the attach, nothing is sent twice.
 */
export class LastingExec implements Disposable {
  readonly #options: LastingExecOptions;
  readonly #given = new AbortController();
  #socket: ExecSocket;
  #state: "connected" | "broken" = "connected";
  #held: Uint8Array[] = [];
  #heldBytes = 0;
  #roomAgain = Promise.withResolvers<void>();
  #inputEnds = false;
  #sending = false;
  #sentAt: number | undefined;
  #signals: string[] = [];

  private constructor(options: LastingExecOptions, socket: ExecSocket) {
    this.#options = options;
    this.#socket = socket;
  }

  /** @throws AlcoveError when the command cannot be started; only what broke later is made again. */
  static async open(options: LastingExecOptions): Promise<LastingExec> {
    return new LastingExec(options, await options.client.openExec(options.id, options.start));
  }

  get execId(): string | undefined {
    return this.#socket.execId;
  }

  /** Output in order and without gaps, across connections, then the exit. Iterate once. */
  async *messages(): AsyncGenerator<Message> {
    let from = 0;
    let brokenSince: number | undefined;
    for (;;) {
      const openedAt = performance.now();
      try {
        for await (const message of this.#socket.messages()) {
          brokenSince = undefined;
          if (message.type !== "exit" && message.notice !== true)
            from = (message.offset ?? from) + bytesOf(message).length;
          yield message;
          if (message.type === "exit") return;
        }
      } catch (error) {
        const execId = this.execId;
        if (!(error instanceof AlcoveError) || execId === undefined) throw error;
        // An attach is refused by a message when the service is not ready for it.
        if (error.code !== "cut" && (brokenSince === undefined || isFinal(error))) throw error;
        this.#state = "broken";
        if (performance.now() - openedAt > longestPauseMs) brokenSince = undefined;
        this.#refuseGap(error);
        if (brokenSince === undefined) tellBroken(execId);
        brokenSince ??= performance.now();
        await this.#attach({ execId, from, cause: error, brokenSince });
      }
    }
  }

  /** Resolves when more may be given. */
  async stdin(data: Uint8Array): Promise<void> {
    this.#held.push(data);
    this.#heldBytes += data.length;
    void this.#sendHeld();
    while (this.#heldBytes > maxHeldBytes) await this.#roomAgain.promise;
  }

  closeStdin(): void {
    this.#inputEnds = true;
    void this.#sendHeld();
  }

  resize(): void {
    const { cols, rows } = this.#options.size?.() ?? {};
    if (cols !== undefined && rows !== undefined) this.#socket.resize({ cols, rows });
  }

  signal(signal: string): void {
    if (this.#state === "connected") this.#socket.signal(signal);
    else this.#signals.push(signal);
  }

  /** Leaves the command; the service ends it after its grace. */
  [Symbol.dispose](): void {
    this.#given.abort();
    this.#socket[Symbol.dispose]();
  }

  /** Makes one connection. @throws the cause when the command is gone or its grace has passed. */
  async #attach(wanted: {
    execId: string;
    from: number;
    cause: AlcoveError;
    brokenSince: number;
  }): Promise<void> {
    const { client, id, start } = this.#options;
    const { execId, from, cause } = wanted;
    const deadline = wanted.brokenSince + patienceMs;
    this.#socket[Symbol.dispose]();
    const attach = { from, ...(start.encoding === undefined ? {} : { encoding: start.encoding }) };
    for (;;) {
      const waitedMs = performance.now() - wanted.brokenSince;
      const pauseMs = Math.min(longestPauseMs, Math.max(firstPauseMs, waitedMs / 2));
      await pause(pauseMs, undefined, { signal: this.#given.signal });
      const leftMs = deadline - performance.now();
      if (leftMs <= 0) throw cause;
      const signal = AbortSignal.any([this.#given.signal, AbortSignal.timeout(Math.ceil(leftMs))]);
      try {
        this.#socket = await client.attachExec(id, execId, { ...attach, signal });
        break;
      } catch (error) {
        this.#given.signal.throwIfAborted();
        if (!(error instanceof AlcoveError)) throw error;
        if (isFinal(error)) throw ended(cause, error);
      }
    }
    this.#state = "connected";
    this.#sentAt = undefined;
    this.resize();
    for (const signal of this.#signals.splice(0)) this.#socket.signal(signal);
    void this.#sendHeld();
  }

  /** In order, one piece at a time; what a broken connection did not take waits for the next. */
  async #sendHeld(): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    while (this.#state === "connected") {
      const socket = this.#socket;
      const [data] = this.#held;
      if (data === undefined) {
        // Also on a later connection: the end may have been lost, and a second one does no harm.
        if (this.#inputEnds) socket.closeStdin();
        break;
      }
      const taken = await socket.stdin(data);
      if (!taken && socket === this.#socket) break;
      if (!taken) continue;
      this.#sentAt = performance.now();
      this.#held.shift();
      this.#heldBytes -= data.length;
      this.#roomAgain.resolve();
      this.#roomAgain = Promise.withResolvers();
    }
    this.#sending = false;
  }

  /** How much of what was under way has arrived is not known. @throws for a stream, which would go on with a gap. */
  #refuseGap(cause: AlcoveError): void {
    const recent = this.#sentAt !== undefined && performance.now() - this.#sentAt < arrivalMs;
    if (this.#options.input === "typed" || !(recent || this.#sending)) return;
    throw new AlcoveError({
      status: 0,
      code: "cut",
      message: `${cause.message}; input was on its way, and how much of it arrived is not known`,
      cause,
    });
  }
}

/** Whether asking again is of no use. */
function isFinal({ status, code }: AlcoveError): boolean {
  if (status > 0) return status < 500;
  return !["unreachable", "cut", "cancelled", "unavailable", "remote_worker_rpc_unavailable"].includes(code);
}

function ended(cause: AlcoveError, refusal: AlcoveError): AlcoveError {
  const message = `${cause.message}, and it cannot be picked up: ${refusal.message}`;
  return new AlcoveError({ status: 0, code: "cut", message, cause: refusal });
}
