import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import {
  type AlcoveClient,
  AlcoveError,
  bytesOf,
  type ExecMessage,
  type ExecSocket,
  type ExecStart,
} from "@alcove/sdk";
import { notPickedUp, patienceMs, tellBroken } from "./exec-resume.ts";
import { UnconfirmedInput } from "./unconfirmed-input.ts";

const firstPauseMs = 200;
const longestPauseMs = 2_000;
/** Input that may wait for a connection, or to arrive; above this it is no longer read. */
const maxHeldBytes = 4 * 1_048_576;
/** Where nobody counts it: input that was sent this long before the connection broke is taken to have arrived. */
const arrivalMs = 2_000;

export interface LastingExecOptions {
  client: AlcoveClient;
  id: string;
  start: ExecStart;
  /** Of the window now, for a command on a terminal. */
  size?: (() => { cols?: number; rows?: number }) | undefined;
  /**
   * Where nobody knows what of it arrived: a person sees what is missing and types it again; a stream with a gap is worse
   * than one that ends.
   */
  input: "typed" | "streamed";
  /** A signal or a size was refused, and the command goes on. */
  onRefusal: (error: AlcoveError) => void;
}

/**
 * A command over a WebSocket that is made again when it breaks. `connected` while messages come; `broken` from a cut until
 * the command is attached again, which also fails for good: then `messages()` throws. What is given meanwhile is sent after
 * the attach, behind what had not arrived by then; nothing is taken twice.
 */
export class LastingExec implements Disposable {
  readonly #options: LastingExecOptions;
  readonly #inputName: string;
  readonly #given = new AbortController();
  readonly #input = new UnconfirmedInput();
  #socket: ExecSocket;
  #state: "connected" | "broken" = "connected";
  /** How much of the input had arrived before is not known yet on this connection: none is sent. */
  #counting = false;
  #roomAgain = Promise.withResolvers<void>();
  #inputEnds = false;
  #sending = false;
  #sentAt: number | undefined;
  #signals: string[] = [];
  #lost: AlcoveError | undefined;

  private constructor(options: LastingExecOptions, socket: ExecSocket, inputName: string) {
    this.#options = options;
    this.#inputName = inputName;
    this.#socket = socket;
    this.#watch(socket);
  }

  /** @throws AlcoveError when the command cannot be started; only what broke later is made again. */
  static async open(options: LastingExecOptions): Promise<LastingExec> {
    const input = randomUUID();
    const socket = await options.client.openExec(options.id, { ...options.start, input });
    return new LastingExec(options, socket, input);
  }

  get execId(): string | undefined {
    return this.#socket.execId;
  }

  /** Output in order and without gaps, across connections, then the exit. Iterate once. */
  async *messages(): AsyncGenerator<ExecMessage> {
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
        // Its socket was left for it, whatever came over that until then.
        if (this.#lost !== undefined) throw this.#lost;
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
    this.#input.give(data);
    void this.#sendHeld();
    while (this.#input.heldBytes > maxHeldBytes) await this.#roomAgain.promise;
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
    const attach = {
      from,
      input: this.#inputName,
      ...(start.encoding === undefined ? {} : { encoding: start.encoding }),
    };
    for (;;) {
      const waitedMs = performance.now() - wanted.brokenSince;
      const pauseMs = Math.min(longestPauseMs, Math.max(firstPauseMs, waitedMs / 2));
      await pause(pauseMs, undefined, { signal: this.#given.signal });
      const leftMs = deadline - performance.now();
      if (leftMs <= 0) throw cause;
      // For the attempt alone: what is attached is left otherwise.
      const attempt = new AbortController();
      const giveUp = () => attempt.abort();
      const timer = setTimeout(giveUp, Math.ceil(leftMs));
      this.#given.signal.addEventListener("abort", giveUp);
      try {
        this.#socket = await client.attachExec(id, execId, { ...attach, signal: attempt.signal });
        break;
      } catch (error) {
        this.#given.signal.throwIfAborted();
        if (!(error instanceof AlcoveError)) throw error;
        if (isFinal(error)) throw notPickedUp(cause, error);
      } finally {
        clearTimeout(timer);
        this.#given.signal.removeEventListener("abort", giveUp);
      }
    }
    this.#state = "connected";
    this.#counting = this.#input.mayBeCounted;
    this.#watch(this.#socket);
    this.resize();
    for (const signal of this.#signals.splice(0)) this.#socket.signal(signal);
    void this.#sendHeld();
  }

  /** In order, one piece at a time. */
  async #sendHeld(): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    while (this.#state === "connected" && !this.#counting) {
      const socket = this.#socket;
      const data = this.#input.next();
      if (data === undefined) {
        // Also on a later connection: the end may have been lost, and a second one does no harm.
        if (this.#inputEnds) socket.closeStdin();
        break;
      }
      const taken = await socket.stdin(data);
      const sameSocket = socket === this.#socket;
      if (!taken && sameSocket) break;
      // What another connection has taken over is counted there, where it is counted.
      if (!taken || (!sameSocket && this.#input.counted)) continue;
      this.#sentAt = performance.now();
      this.#input.sent();
      this.#makeRoom();
    }
    this.#sending = false;
  }

  #makeRoom(): void {
    this.#roomAgain.resolve();
    this.#roomAgain = Promise.withResolvers();
  }

  #watch(socket: ExecSocket): void {
    socket.watchRefusals(this.#options.onRefusal);
    this.#watchInput(socket);
  }

  /** The first count on a connection says from where on the input is missing. */
  #watchInput(socket: ExecSocket): void {
    socket.watchInput((taken) => {
      if (socket !== this.#socket) return;
      if (taken === undefined) {
        if (this.#counting && !this.#input.allArrived) this.#fail(socket);
        this.#input.notCounted();
      } else if (!this.#counting) this.#input.arrived(taken);
      else if (!this.#input.goOnAt(taken)) this.#fail(socket);
      this.#makeRoom();
      if (!this.#counting) return;
      this.#counting = false;
      void this.#sendHeld();
    });
  }

  /** What was counted is not known any more. */
  #fail(socket: ExecSocket): void {
    if (this.#options.input === "typed") return;
    this.#lost = gap("the connection broke");
    socket[Symbol.dispose]();
  }

  /** Where nobody counts what arrives. @throws for a stream, which would go on with a gap. */
  #refuseGap(cause: AlcoveError): void {
    const recent = this.#sentAt !== undefined && performance.now() - this.#sentAt < arrivalMs;
    if (this.#input.mayBeCounted || this.#options.input === "typed" || !(recent || this.#sending)) return;
    throw gap(cause.message, cause);
  }
}

function gap(why: string, cause?: AlcoveError): AlcoveError {
  return new AlcoveError({
    status: 0,
    code: "cut",
    message: `${why}; input was on its way, and how much of it arrived is not known`,
    ...(cause === undefined ? {} : { cause }),
  });
}

/** Whether asking again is of no use. */
function isFinal({ status, code }: AlcoveError): boolean {
  if (status > 0) return status < 500;
  return !["unreachable", "cut", "cancelled", "unavailable", "remote_worker_rpc_unavailable"].includes(code);
}
