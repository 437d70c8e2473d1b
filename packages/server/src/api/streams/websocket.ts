import type { Readable } from "node:stream";
import { type OutputEncoding, WsClientMessage } from "@alcove/wire";
import type { WebSocket } from "@fastify/websocket";
import type { Share } from "../../core/answers/shares.ts";
import type { ExecFollow } from "../../core/exec/exec-follower.ts";
import type { ExecService } from "../../core/exec/exec-service.ts";
import { parseSignal } from "../../core/exec/signals.ts";
import { CallerGone, CallerRevoked, ShuttingDown } from "../../platform/deadline.ts";
import type { FairTurns } from "../../platform/fair-turns.ts";
import type { Logger } from "../../platform/logger.ts";
import { rememberRequest } from "../../platform/request-scope.ts";
import { BadRequest } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import { toDomainError } from "../error-map.ts";
import { Excessive, parseJson } from "../json-body.ts";
import { decodeContent, defined } from "../parse.ts";
import type { CallUnderWay } from "../request-context.ts";
import { execInput } from "../routes/exec-input.ts";
import { compileCheck } from "../validation.ts";
import { boundControlFrames } from "./control-frames.ts";
import { exitFields, lostField, nextField, OutputDecoder } from "./output-text.ts";
import { explainTooLarge } from "./socket-bounds.ts";
import { SocketControls } from "./socket-controls.ts";
import { SocketMemory, type SocketShare, tryAgainLater } from "./socket-memory.ts";
import { SocketStdin } from "./socket-stdin.ts";

const startDeadlineMs = 30_000;
const pingMs = 15_000;
/** How long a client may take to answer the close at a stop of the service. */
const goingAwayMs = 500;
/**
 * Output the socket may hold before the command has to wait for its reader. Less than the sandbox keeps of what was handed on:
 * what is here is lost with the service.
 */
const outputHighWaterBytes = 262_144;
/** Standard input that may wait for the command before the socket is no longer read. */
const stdinHighWaterBytes = 1_048_576;
/**
 * Standard input that may wait when it was held at a ping: pongs, and the end of the connection, come behind it. More
 * than the kernel holds of a connection that is not read, so that the client's silence is seen.
 */
const stdinMostBytes = 8_388_608;
/** Of a connection one message is emitted in a turn of the loop: a smaller one waits for no other turn. */
const smallMessageBytes = 16_384;

const closeCodes = { normal: 1000, goingAway: 1001, refused: 1008, failed: 1011 } as const;
const messageTypes = ["start", "attach", "stdin", "resize", "signal"] as const;

type ClientMessage<T extends WsClientMessage["type"]> = Extract<WsClientMessage, { type: T }>;

const checks = Object.fromEntries(
  WsClientMessage.anyOf.map((schema) => [
    schema.properties.type.const,
    compileCheck<WsClientMessage>(schema),
  ]),
);

/**
 * One command over a WebSocket. `waiting` until the first message, which must be `start` or `attach`; `running` while output goes
 * out and input comes in; `closed` after `exit`, an error, or when the client left. docs/api/exec.md.
 */
export class WebSocketExec {
  readonly #socket: WebSocket;
  readonly #sandboxId: string;
  readonly #execId: ExecId;
  readonly #execs: ExecService;
  readonly #call: CallUnderWay;
  readonly #logger: Logger;
  readonly #pingMs: number;
  readonly #turns: FairTurns;
  readonly #share: Share;
  /** Messages that wait for their turn, while no more is read. */
  readonly #inbox: Buffer[] = [];
  readonly #withinRequest = rememberRequest();
  #state: "waiting" | "running" | "closed" = "waiting";
  #follow: Promise<ExecFollow> | undefined;
  /** The same once it is there. */
  #following: ExecFollow | undefined;
  readonly #stdin: SocketStdin;
  readonly #controls: SocketControls;
  readonly #memory: SocketMemory;
  /** Input that came after a change of the window is typed into the changed one. */
  #resized: Promise<void> = Promise.resolve();
  #stdinLimitBytes = stdinHighWaterBytes;
  #answered = true;
  #tellsInput = false;
  /** How much of the input was taken that the client was not told yet. */
  #untold: { taken?: number | undefined } | undefined;

  constructor(options: {
    socket: WebSocket;
    /** What it reads from. */
    connection: Readable;
    sandboxId: string;
    /** The id announced in the handshake. */
    execId: ExecId;
    execs: ExecService;
    call: CallUnderWay;
    logger: Logger;
    /** In which messages are read and output is spelled out, and whose part of them it takes. */
    turns: FairTurns;
    share: Share;
    memory: SocketShare["budget"];
    /** A client that left two of these unanswered is gone. */
    pingMs?: number;
  }) {
    this.#socket = options.socket;
    this.#sandboxId = options.sandboxId;
    this.#execId = options.execId;
    this.#execs = options.execs;
    this.#call = options.call;
    this.#logger = options.logger;
    this.#pingMs = options.pingMs ?? pingMs;
    this.#turns = options.turns;
    this.#share = options.share;
    this.#stdin = new SocketStdin({
      write: (data) => this.#giveStdin((follow) => follow.writeStdin(data)),
      close: () => this.#giveStdin((follow) => follow.closeStdin()),
      onTaken: () => {
        this.#keep();
        this.#readOn();
      },
    });
    this.#memory = new SocketMemory({
      socket: options.socket,
      connection: options.connection,
      memory: { budget: options.memory, share: options.share },
      onRoom: () => this.#readOn(),
      onEnd: (why) => {
        if (this.#state !== "closed") this.#close(tryAgainLater, why);
        // What else was sent is not looked at any more.
        this.#socket.pause();
        this.#terminateSoon();
      },
    });
    this.#controls = new SocketControls({
      signal: async (number) => {
        await this.#carryOut((follow, signal) =>
          this.#execs.signal(this.#sandboxId, follow.execId, number, { signal }),
        );
        this.#readOn();
      },
      resize: (size) =>
        this.#carryOut((follow, signal) =>
          this.#execs.resize(this.#sandboxId, follow.execId, size, { signal }),
        ),
    });
  }

  /** Listens from now on; everything is let go of when the socket closes. */
  open(): void {
    const socket = this.#socket;
    const ping = setInterval(() => this.#ping(), this.#pingMs);
    const impatient = setTimeout(
      () => this.#refuse(new BadRequest("no start message came within 30s")),
      startDeadlineMs,
    );
    const onAbort = () => {
      if (this.#call.signal.reason instanceof ShuttingDown) this.#goAway(closeCodes.goingAway);
      if (this.#call.signal.reason instanceof CallerRevoked) this.#goAway(closeCodes.refused);
    };
    ping.unref();
    impatient.unref();
    this.#call.signal.addEventListener("abort", onAbort, { once: true });
    this.#call.setPatience("none");
    boundControlFrames(socket, () => this.#flooded());
    socket.on("pong", () => {
      this.#answered = true;
    });
    socket.on("message", (data: Buffer) => {
      clearTimeout(impatient);
      // A pong may be far behind the input of a slow line.
      this.#answered = true;
      this.#take(data);
    });
    explainTooLarge(socket);
    // Without its stack: it tells what the client did.
    socket.on("error", (error) => {
      this.#logger.debug({ exec_id: this.#execId, error: error.message }, "websocket failed");
    });
    socket.on("close", () => {
      clearInterval(ping);
      clearTimeout(impatient);
      this.#state = "closed";
      this.#inbox.length = 0;
      this.#stdin.drop();
      this.#controls.drop();
      this.#call.signal.removeEventListener("abort", onAbort);
      this.#call.end();
      this.#call.abort(new CallerGone());
    });
  }

  #flooded(): void {
    this.#goAway(closeCodes.refused);
    // What else was sent is not looked at any more.
    this.#socket.pause();
  }

  #ping(): void {
    // It has just been heard of; but it hears of nobody else.
    if (this.#inbox.length > 0 || this.#memory.waits) {
      this.#socket.ping();
      return;
    }
    if (this.#socket.isPaused) {
      // A socket that is not read cannot show its pongs; but what is sent to a client that closed it makes it fail.
      this.#socket.ping();
      this.#stdinLimitBytes = stdinMostBytes;
      this.#answered = this.#stdin.waitingBytes > stdinMostBytes;
      if (!this.#answered) this.#socket.resume();
      return;
    }
    if (this.#answered) this.#socket.ping();
    else this.#socket.terminate();
    this.#answered = false;
  }

  #take(data: Buffer): void {
    const isFirst = this.#inbox.length === 0;
    if (isFirst && (data.length <= smallMessageBytes || this.#turns.mayGoOn())) {
      this.#receive(data);
      return;
    }
    this.#inbox.push(data);
    this.#keep();
    if (!isFirst) return;
    this.#socket.pause();
    this.#awaitTurn();
  }

  #awaitTurn(): void {
    this.#turns.add(this.#share, () => {
      const data = this.#inbox[0];
      if (data !== undefined) this.#receive(data);
      this.#inbox.shift();
      this.#keep();
      if (this.#inbox.length > 0) this.#awaitTurn();
      else this.#readOn();
      return undefined;
    });
  }

  #receive(data: Buffer): void {
    if (this.#state === "closed") return;
    try {
      const message = parseMessage(data);
      if (this.#state === "waiting") {
        if (message.type === "start") this.#start(message);
        else if (message.type === "attach") this.#attach(message);
        else throw new BadRequest(`the first message must be of type start or attach, not ${message.type}`);
      } else {
        this.#act(message);
      }
    } catch (error) {
      if (this.#state === "waiting" || error instanceof Excessive) this.#refuse(error);
      else this.#tell(error, { goesOn: true });
    }
  }

  #start(message: ClientMessage<"start">): void {
    const { type: _, encoding = "utf8", input, ...command } = message;
    const wanted = { execId: this.#execId, ...execInput(command) };
    const { signal } = this.#call;
    this.#state = "running";
    this.#follow = this.#withinRequest(() =>
      this.#execs.stream(this.#sandboxId, wanted, { stdin: true, signal, ...defined({ input }) }),
    );
    void this.#pump(this.#follow, { encoding, tellsInput: input !== undefined });
  }

  /** Goes on with a command that was started by another connection, or detached. */
  #attach(message: ClientMessage<"attach">): void {
    const { exec_id: execId, from = 0, lossless = false, encoding = "utf8", input } = message;
    const { signal } = this.#call;
    this.#state = "running";
    // Also an input without a name is counted, as its connection to the sandbox may break.
    const wanted = { from, follow: true, lossless, signal, input: input ?? this.#execs.makeId() };
    this.#follow = this.#withinRequest(() => this.#execs.output(this.#sandboxId, execId, wanted));
    void this.#pump(this.#follow, { encoding, tellsInput: input !== undefined });
  }

  async #pump(
    starting: Promise<ExecFollow>,
    options: { encoding: OutputEncoding; tellsInput: boolean },
  ): Promise<void> {
    let follow: ExecFollow;
    try {
      follow = await starting;
    } catch (error) {
      this.#refuse(error);
      return;
    }
    this.#following = follow;
    follow.watchInput((taken) => {
      if (options.tellsInput) void this.#tellInput(taken);
      // It is held no longer.
      this.#keep();
      this.#readOn();
    });
    const decoder = new OutputDecoder(options.encoding);
    let ended = false;
    try {
      for await (const event of follow.events) {
        const turn = this.#turns.claim(this.#share);
        if (turn !== undefined) await turn;
        for (const piece of decoder.decode(event)) {
          if (piece.stream === "exit") {
            ended = true;
            await this.#send({ type: "exit", ...exitFields(piece.exit), ...lostField(piece) });
          } else {
            const { stream, lostBytes: _lost, nextOffset: _next, ...output } = piece;
            await this.#send({ type: stream, ...output, ...nextField(piece), ...lostField(piece) });
          }
        }
      }
      if (ended) this.#close(closeCodes.normal);
      // Only the way to the sandbox is broken: the client attaches again, as after any other cut.
      else this.#close(closeCodes.goingAway);
    } catch (error) {
      if (!(error instanceof CallerGone || this.#call.signal.reason instanceof ShuttingDown))
        this.#fail(error);
    } finally {
      await follow[Symbol.asyncDispose]();
    }
  }

  #act(message: WsClientMessage): void {
    switch (message.type) {
      case "start":
      case "attach":
        throw new BadRequest("the command was started already; open another connection for another one");
      case "stdin":
        this.#queueStdin(message);
        return;
      case "resize":
        this.#resized = this.#controls.resize({ cols: message.cols, rows: message.rows });
        return;
      case "signal":
        this.#controls.signal(parseSignal(message.signal));
        if (this.#controls.full) this.#socket.pause();
        return;
      default:
        message satisfies never;
    }
  }

  /** Input goes in order; signals overtake it, so that a command that does not read can be ended. */
  #queueStdin(message: ClientMessage<"stdin">): void {
    const data = decodeContent("data", message.data, message.encoding);
    this.#stdin.give({ data, close: message.close === true, after: this.#resized });
    this.#keep();
    if (this.#stdin.waitingBytes > this.#stdinLimitBytes) this.#socket.pause();
  }

  /** Reads from the client again once little enough of what it sent waits. */
  #readOn(): void {
    if (this.#stdin.waitingBytes > stdinHighWaterBytes || this.#memory.waits) return;
    this.#stdinLimitBytes = stdinHighWaterBytes;
    if (this.#socket.isPaused && !this.#controls.full && this.#inbox.length === 0) this.#socket.resume();
  }

  async #giveStdin(give: (follow: ExecFollow) => Promise<void>): Promise<void> {
    try {
      const follow = await this.#follow;
      if (follow !== undefined) await give(follow);
    } catch (error) {
      this.#logger.debug({ exec_id: this.#execId, err: error }, "standard input was not taken");
    }
  }

  async #carryOut(act: (follow: ExecFollow, signal: AbortSignal) => Promise<void>): Promise<void> {
    try {
      const follow = await this.#follow;
      if (follow !== undefined && this.#state === "running") await act(follow, this.#call.signal);
    } catch (error) {
      if (!(error instanceof CallerGone)) this.#tell(error, { goesOn: true });
    }
  }

  /** Resolves at once while the socket takes more, else when this message has left. */
  #send(message: Record<string, unknown>): Promise<void> | undefined {
    const text = JSON.stringify(message);
    if (this.#socket.readyState !== this.#socket.OPEN) return undefined;
    if (this.#socket.bufferedAmount < outputHighWaterBytes) {
      this.#socket.send(text);
      return undefined;
    }
    return new Promise((resolve) => this.#socket.send(text, () => resolve()));
  }

  /** While one has not left, the newest of those that follow waits for it: a client may wait for the last. */
  async #tellInput(taken: number | undefined): Promise<void> {
    this.#untold = defined({ taken });
    if (this.#tellsInput) return;
    this.#tellsInput = true;
    while (this.#untold !== undefined) {
      const count = this.#untold;
      this.#untold = undefined;
      await this.#send({ type: "input", ...count });
    }
    this.#tellsInput = false;
  }

  /** @param options.goesOn only what a message asked for is refused, not the command. */
  #tell(error: unknown, options: { goesOn?: true } = {}): void {
    const { code, message, details, retryAfterS: retry_after_s } = toDomainError(error);
    if (this.#socket.bufferedAmount >= outputHighWaterBytes) return;
    const more = defined({ retry_after_s, goes_on: options.goesOn });
    void this.#send({ ...details, ...more, type: "error", code, message });
  }

  #refuse(error: unknown): void {
    if (this.#state === "closed") return;
    this.#tell(error);
    const { code } = toDomainError(error);
    const ours = code === "internal" || code === "provider_error" || code === "unavailable";
    if (ours) this.#logger.error({ exec_id: this.#execId, err: error }, "websocket exec failed");
    this.#close(ours ? closeCodes.failed : closeCodes.refused);
  }

  #fail(error: unknown): void {
    if (this.#state === "closed") return;
    const { code, message } = toDomainError(error);
    // What happened to the sandbox is no fault to be searched for by its stack.
    if (code === "unavailable" || code === "not_found")
      this.#logger.info({ exec_id: this.#execId, code, error: message }, "websocket exec cut");
    else this.#logger.warn({ exec_id: this.#execId, err: error }, "websocket exec cut");
    this.#tell(error);
    this.#close(closeCodes.failed);
  }

  /** The service stops, or the client may no longer ask: no error of the command's, which goes on and can be picked up by its id. */
  #goAway(code: number): void {
    if (this.#state === "closed") return;
    this.#close(code);
    this.#terminateSoon();
  }

  /** A client that does not answer the close is not waited for. */
  #terminateSoon(): void {
    setTimeout(() => this.#socket.terminate(), goingAwayMs).unref();
    this.#call.end();
  }

  /** What was sent and has not been taken, by its command or for its turn; what is on its way to the command is held until it has arrived. */
  #keep(): void {
    const unread = this.#inbox.reduce((bytes, data) => bytes + data.length, 0);
    const held = this.#following?.heldInputBytes() ?? 0;
    this.#memory.keep(unread + this.#stdin.waitingBytes + held);
  }

  #close(code: number, why?: string): void {
    this.#state = "closed";
    this.#socket.close(code, why);
  }
}

function parseMessage(data: Buffer): WsClientMessage {
  const value = parseJson("the message", data);
  const type = value !== null && typeof value === "object" && "type" in value ? value.type : undefined;
  const check = typeof type === "string" && Object.hasOwn(checks, type) ? checks[type] : undefined;
  if (check === undefined)
    throw new BadRequest(`type of the message must be one of ${messageTypes.join(", ")}`);
  return check(value);
}
