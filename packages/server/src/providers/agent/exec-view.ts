import { ownBytes } from "../../platform/own-bytes.ts";
import { ProviderError } from "../../ports/errors.ts";
import type { ExecEvent, ExecId, ExecView } from "../../ports/index.ts";
import type { AgentAsk } from "./channel.ts";
import { runtimeGone } from "./failures.ts";
import { frameKinds } from "./frames.ts";
import { Operation, unexpectedRaw } from "./operation.ts";
import { PushIterator } from "./push-iterator.ts";
import { execExitOf, numberOf, objectOf, textOf } from "./reading.ts";

/** Output a reader may leave waiting here before the connection, and with it the command, is held. */
const highWaterBytes = 64 * 1024;
const lowWaterBytes = 32 * 1024;
/** Output that is handed on is acknowledged in steps, and what is left when nothing waits. */
const ackBytes = 128 * 1024;
/** Input that is sent beyond what the agent has told to be taken; so much an agent takes without ceasing to read acks. */
const inputWindowBytes = 512 * 1024;
/** Input is not cut into smaller pieces than this by the window. */
const inputPieceBytes = 256 * 1024;
/** What comes together with the answer of a start and is no more than this is handed on together too. */
const mostWholeEvents = 8;
const mostWholeBytes = 16 * 1024;
/** What an event costs beside its bytes, so that a flood of tiny writes is bounded too. */
const eventCostBytes = 128;

/**
 * The output of one command as it arrives: an answered `exec.start` or `exec.attach`. Its signal counts until the reply;
 * then the holder ends it by disposing.
 */
export class ExecFollow extends Operation {
  override readonly lasting = true;
  override readonly follower: boolean;
  override readonly again: boolean;
  readonly #reply = Promise.withResolvers<unknown>();
  readonly #events: PushIterator<ExecEvent>;
  readonly #name: string;
  #answered = false;
  #waitingBytes = 0;
  #held = false;
  #stdinClosed = false;
  #exited = false;
  #inputTaken = 0;
  /** Whether the agent counts the input, so that no more is sent than it takes. */
  #inputCounted = false;
  /** How much of the input was sent, over all connections. */
  #inputSent = 0;
  /** Input goes in order. */
  #inputWritten: Promise<void> = Promise.resolve();
  #inputWaits: (() => void) | undefined;
  #onInput: ((taken: number) => void) | undefined;
  /** Whether the agent was told that output is acknowledged. */
  #acks = false;
  /** The end of the output that has arrived. */
  #arrived = 0;
  /** The end of the output that was taken. */
  #taken = 0;
  /** The end of the output that was handed on. */
  #handed = 0;
  #acked = 0;
  #ackAtRest = false;

  readonly #onLeft: (() => void) | undefined;

  /** @param options.onLeft called when it is over without the command's exit. */
  constructor(options: { name: string; follower?: boolean; again?: boolean; onLeft?: () => void }) {
    super();
    this.#onLeft = options.onLeft;
    this.#name = options.name;
    this.follower = options.follower ?? false;
    this.again = options.again ?? false;
    this.#events = new PushIterator<ExecEvent>({
      onNext: () => this.#handedOn(),
      turn: () => this.turn(),
      onTake: (event) => this.#take(event),
      onReturn: () => this.cancel(undefined),
    });
  }

  get reply(): Promise<unknown> {
    return this.#reply.promise;
  }
  get events(): AsyncIterable<ExecEvent> {
    return this.#events;
  }

  override onReply(value: unknown): void {
    this.unguard();
    this.#answered = true;
    this.#reply.resolve(value);
  }

  override onRaw(kind: number, bytes: Buffer, offset: number): void {
    if (kind === frameKinds.data) throw unexpectedRaw(kind);
    if (this.#exited) throw new ProviderError("the agent sent output of a command after its exit");
    if (offset < this.#arrived)
      throw new ProviderError(`the agent sent output at ${offset} after that up to ${this.#arrived}`);
    this.#arrived = offset + bytes.length;
    this.#waitingBytes += bytes.length + eventCostBytes;
    this.#events.push({
      type: "output",
      stream: kind === frameKinds.stdout ? "stdout" : "stderr",
      data: ownBytes(bytes),
      offset,
    });
    if (this.#waitingBytes > highWaterBytes && !this.#held) {
      this.#held = true;
      this.connection?.pause();
    }
  }

  override onEvent(value: unknown): void {
    const name = textOf(objectOf(value, "event"), "event");
    if (name === "exit") {
      if (this.#exited) throw new ProviderError("the agent told the exit of a command a second time");
      this.#exited = true;
      this.#wakeInput();
      this.#events.push({ type: "exit", exit: execExitOf(value) });
      this.expectEnd();
    } else if (name === "input") {
      this.#inputTaken = numberOf(value, "taken");
      this.#wakeInput();
      this.#onInput?.(this.#inputTaken);
    } else {
      this.countUnknown();
    }
  }

  protected override onEnd(): void {
    this.#wakeInput();
    if (!this.#answered) this.#reply.reject(runtimeGone(this.#name));
    this.#events.end();
    if (!this.#exited) this.#onLeft?.();
  }

  /** Before the reply the call fails; after it the view is cut: its events end without an exit. */
  protected override onFailure(error: unknown): void {
    this.#wakeInput();
    this.#reply.reject(error);
    this.#events.end();
    if (!this.#exited) this.#onLeft?.();
  }

  /** @returns all events from the first byte on, which are taken then; undefined unless all of them, and the end, are here. */
  #whole(): readonly ExecEvent[] | undefined {
    if (!this.over || !this.#exited || this.#taken > 0) return undefined;
    if (this.#events.queued > mostWholeEvents || this.#waitingBytes > mostWholeBytes) return undefined;
    const events = this.#events.items;
    let end = 0;
    for (const event of events) {
      const begin = event.type === "exit" ? event.exit.outputBytes : event.offset;
      if (begin !== end) return undefined;
      if (event.type === "output") end += event.data.length;
    }
    if (events.at(-1)?.type !== "exit") return undefined;
    void this.#events.return();
    return events;
  }

  writeStdin(data: Uint8Array): Promise<void> {
    const written = this.#inputWritten.then(() => this.#sendInput(data));
    this.#inputWritten = written.catch(() => undefined);
    return written;
  }

  closeStdin(): Promise<void> {
    const closed = this.#inputWritten.then(() => {
      if (this.connection !== null && !this.#exited && !this.#stdinClosed) this.connection.sendEof();
      this.#stdinClosed = true;
    });
    this.#inputWritten = closed;
    return closed;
  }

  /** What output acknowledges travels behind the input, and a command that waits for its output to be taken may read none. */
  async #sendInput(data: Uint8Array): Promise<void> {
    for (let from = 0; from < data.length; ) {
      const connection = this.connection;
      if (connection === null || this.#exited || this.#stdinClosed) return;
      const left = data.length - from;
      const room = this.#inputCounted ? inputWindowBytes - (this.#inputSent - this.#inputTaken) : left;
      if (room < Math.min(left, inputPieceBytes)) {
        await new Promise<void>((resolve) => (this.#inputWaits = resolve));
        continue;
      }
      const piece = data.subarray(from, from + room);
      from += piece.length;
      this.#inputSent += piece.length;
      if (!connection.sendData(piece)) await connection.drained();
    }
  }

  #wakeInput(): void {
    const wake = this.#inputWaits;
    this.#inputWaits = undefined;
    wake?.();
  }

  dispose(): Promise<void> {
    if (this.#answered) this.cancel(undefined);
    this.#events.end();
    return Promise.resolve();
  }

  /**
   * @param inputTaken of the view's named input when it began; undefined: nobody knows.
   * @param options.counted the agent counts the input, whether or not it knows what it had taken before.
   * @returns this as what the port promises.
   */
  view(execId: ExecId, pid: number, inputTaken: number | undefined, options: { counted: boolean }): ExecView {
    this.#inputCounted = options.counted;
    this.#inputSent = inputTaken ?? 0;
    if (inputTaken !== undefined) this.#inputTaken = Math.max(this.#inputTaken, inputTaken);
    const watchInput = (listener: (taken: number) => void) => {
      this.#onInput = listener;
      listener(this.#inputTaken);
    };
    return {
      ...(inputTaken === undefined ? {} : { watchInput }),
      execId,
      pid,
      events: this.#events,
      whole: () => this.#whole(),
      writeStdin: (data) => this.writeStdin(data),
      closeStdin: () => this.closeStdin(),
      [Symbol.asyncDispose]: () => this.dispose(),
    };
  }

  /** @returns the request, which says that output is acknowledged where the agent knows that. */
  acknowledging(ask: AgentAsk): AgentAsk {
    return (features) => {
      const request = typeof ask === "function" ? ask(features) : ask;
      this.#acks = features.has("output_ack");
      return this.#acks ? { ...request, acks: true } : request;
    };
  }

  /** Who asks for the next event has handed on what was taken: the agent need not keep all of that any more. */
  #handedOn(): void {
    this.#handed = this.#taken;
    if (!this.#acks || this.#acked === this.#handed) return;
    if (this.#handed - this.#acked >= ackBytes) {
      this.#ack();
    } else if (this.#events.queued === 0 && !this.#ackAtRest) {
      this.#ackAtRest = true;
      // What is on its way may come within this turn, and the exit makes it needless.
      this.connection?.soon(() => {
        this.#ackAtRest = false;
        if (this.#events.queued === 0) this.#ack();
      });
    }
  }

  #ack(): void {
    if (this.connection === null || this.#exited || this.#acked === this.#handed) return;
    this.#acked = this.#handed;
    this.connection.sendAck(this.#handed);
  }

  #take(event: ExecEvent): void {
    if (event.type !== "output") return;
    this.#taken = event.offset + event.data.length;
    this.#waitingBytes -= event.data.length + eventCostBytes;
    if (this.#held && this.#waitingBytes < lowWaterBytes) {
      this.#held = false;
      this.connection?.resume();
    }
  }
}
