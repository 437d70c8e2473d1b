import type { ExecEvent, ExecId, ExecView } from "../../ports/index.ts";
import type { AgentAsk } from "./channel.ts";
import { runtimeGone } from "./failures.ts";
import { frameKinds } from "./frames.ts";
import { Operation } from "./operation.ts";
import { PushIterator } from "./push-iterator.ts";
import { execExitOf, numberOf, objectOf, textOf } from "./reading.ts";

/** Output a reader may leave waiting here before the connection, and with it the command, is held. */
const highWaterBytes = 512 * 1024;
const lowWaterBytes = 128 * 1024;
/** Output that is handed on is acknowledged in steps, and what is left when nothing waits. */
const ackBytes = 128 * 1024;
/** What an event costs beside its bytes, so that a flood of tiny writes is bounded too. */
const eventCostBytes = 128;

/**
 * The output of one command as it arrives: an answered `exec.start` or `exec.attach`. Its signal counts until the reply;
 * then the holder ends it by disposing.
 */
export class ExecFollow extends Operation {
  readonly #reply = Promise.withResolvers<unknown>();
  readonly #events: PushIterator<ExecEvent>;
  readonly #name: string;
  #answered = false;
  #waitingBytes = 0;
  #held = false;
  #stdinClosed = false;
  #exited = false;
  #inputTaken = 0;
  #onInput: ((taken: number) => void) | undefined;
  /** Whether the agent was told that output is acknowledged. */
  #acks = false;
  /** The end of the output that was taken. */
  #taken = 0;
  /** The end of the output that was handed on. */
  #handed = 0;
  #acked = 0;
  #ackAtRest = false;

  constructor(options: { name: string }) {
    super();
    this.#name = options.name;
    this.#events = new PushIterator<ExecEvent>({
      onNext: () => this.#handedOn(),
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
    if (kind === frameKinds.data) return;
    this.#waitingBytes += bytes.length + eventCostBytes;
    this.#events.push({
      type: "output",
      stream: kind === frameKinds.stdout ? "stdout" : "stderr",
      data: bytes,
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
      this.#exited = true;
      this.#events.push({ type: "exit", exit: execExitOf(value) });
    } else if (name === "input") {
      this.#inputTaken = numberOf(value, "taken");
      this.#onInput?.(this.#inputTaken);
    }
  }

  protected override onEnd(): void {
    if (!this.#answered) this.#reply.reject(runtimeGone(this.#name));
    this.#events.end();
  }

  /** Before the reply the call fails; after it the view is cut: its events end without an exit. */
  protected override onFailure(error: unknown): void {
    this.#reply.reject(error);
    this.#events.end();
  }

  async writeStdin(data: Uint8Array): Promise<void> {
    const connection = this.connection;
    if (connection === null || this.#exited || this.#stdinClosed || data.length === 0) return;
    if (!connection.sendData(data)) await connection.drained();
  }

  closeStdin(): Promise<void> {
    if (this.connection !== null && !this.#exited && !this.#stdinClosed) this.connection.sendEof();
    this.#stdinClosed = true;
    return Promise.resolve();
  }

  dispose(): Promise<void> {
    if (this.#answered) this.cancel(undefined);
    this.#events.end();
    return Promise.resolve();
  }

  /**
   * @param inputTaken of the view's named input when it began; undefined: nobody knows.
   * @returns this as what the port promises.
   */
  view(execId: ExecId, pid: number, inputTaken: number | undefined): ExecView {
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
      setImmediate(() => {
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
