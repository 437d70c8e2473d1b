import type { Readable } from "node:stream";
import type { WebSocket } from "@fastify/websocket";
import { carry } from "../../platform/carry.ts";
import { CallerGone, CallerRevoked } from "../../platform/deadline.ts";
import { JoinedReadable } from "../../platform/joined-readable.ts";
import { copyOf } from "../../platform/own-bytes.ts";
import { smallBytes } from "../../platform/piece-joiner.ts";
import { spend } from "../../platform/spent-bytes.ts";
import type { PortConnection } from "../../ports/sandbox-operations.ts";
import type { CallUnderWay } from "../request-context.ts";
import { boundControlFrames } from "./control-frames.ts";
import { explainTooLarge } from "./socket-bounds.ts";
import { SocketMemory, type SocketShare, tryAgainLater } from "./socket-memory.ts";

/** Bytes that may wait in the socket before the program is no longer read. */
const highWaterBytes = 262_144;
/** Bytes for the program that may wait before the socket is no longer read. */
const inwardHighWaterBytes = 65_536;
const pingMs = 15_000;
/** How many pings in a row a client that is gone leaves unanswered, and one that does read answers. */
const pingsThatTell = 2;
/** How long a client may take to answer a close. */
const closingMs = 500;
/** How long a client may take nothing of what is left for it after an orderly end. */
const stalledTailMs = 30_000;
/** The text that says that a direction has ended; bytes are binary messages. */
const endText = "end";

/** Of a WebSocket, as its `readyState` says it. */
const closedState = 3;
/** As the library says it of a connection that ended without a close. */
const brokenCode = 1006;

const closeCodes = { normal: 1000, goingAway: 1001, refused: 1008, cut: 1011 } as const;
/** What clients close with that are done: with nothing said, or because a page is left, too. */
const orderlyCodes: ReadonlySet<number> = new Set([closeCodes.normal, closeCodes.goingAway, 1005]);

/**
 * A TCP connection to a port of a sandbox over a WebSocket: binary messages are its bytes, the text `end` the end of one
 * direction. `open` until both directions have ended, or either side is gone. docs/api/previews.md, Tunnels.
 */
export class PortTunnel {
  readonly #socket: WebSocket;
  readonly #port: PortConnection;
  readonly #call: CallUnderWay;
  /** What the client has sent: what is parsed already comes also when the socket is paused, a message of any size each. */
  readonly #inward: JoinedReadable;
  readonly #memory: SocketMemory;
  /** No more should come of the client, because the program does not read. */
  #held = false;
  #clientEnded = false;
  #portEnded = false;
  #closed = false;
  /** What was closed from here says whether it was in order; before that the code says it that the client closes with. */
  #outcome: "whole" | "cut" | undefined;
  /** Pings since anything came of the client, and those that it has answered since it was sent bytes. */
  #unanswered = 0;
  #answered = pingsThatTell;

  /** @param options.connection what the WebSocket reads from. */
  constructor(options: {
    socket: WebSocket;
    connection: Readable;
    port: PortConnection;
    call: CallUnderWay;
    memory: SocketShare;
  }) {
    this.#socket = options.socket;
    this.#port = options.port;
    this.#call = options.call;
    this.#inward = new JoinedReadable({
      highWaterMark: inwardHighWaterBytes,
      goOn: () => {
        this.#held = false;
        this.#keep();
        this.#readOn();
      },
    });
    this.#memory = new SocketMemory({
      socket: options.socket,
      connection: options.connection,
      memory: options.memory,
      onRoom: () => this.#readOn(),
      onEnd: (why) => {
        this.#close(tryAgainLater, why);
        this.#socket.pause();
        this.#terminateSoon();
      },
    });
  }

  /** @param onClosed called once, when nothing is left of it; "cut" unless both directions or the client's WebSocket ended in order. */
  open(onClosed: (outcome: "whole" | "cut") => void): void {
    const [socket, port] = [this.#socket, this.#port];
    socket.on("message", (data: Buffer, isBinary: boolean) => this.#fromClient(data, isBinary));
    explainTooLarge(socket);
    socket.on("error", () => this.#broke());
    const ping = setInterval(() => this.#ping(), pingMs);
    ping.unref();
    socket.on("pong", () => {
      this.#unanswered = 0;
      this.#answered += 1;
    });
    boundControlFrames(socket, () => {
      this.#close(closeCodes.refused, "more pings and pongs than a client may send");
      // What else was sent is not looked at any more.
      socket.pause();
    });
    socket.on("close", (code: number) => {
      this.#closed = true;
      clearInterval(ping);
      port.destroy();
      this.#inward.destroy();
      this.#call.signal.removeEventListener("abort", onAbort);
      this.#call.end();
      this.#call.abort(new CallerGone());
      const inOrder = orderlyCodes.has(code) || (this.#clientEnded && this.#portEnded);
      onClosed(this.#outcome ?? (inOrder ? "whole" : "cut"));
    });
    // What is sent is a copy, and the library keeps nothing of what it has made of the client's bytes.
    port.readerCopies = true;
    port.writerGives = true;
    carry(this.#inward, port);
    port.on("error", () => undefined);
    port.on("data", (bytes: Buffer) => this.#fromPort(bytes));
    port.on("end", () => {
      this.#portEnded = true;
      socket.send(endText);
      this.#closeWhenOver();
    });
    port.on("finish", () => this.#closeWhenOver());
    port.on("drain", () => this.#keep());
    const onPortClose = () => {
      if (!this.#portEnded) this.#close(closeCodes.cut, "the connection inside the sandbox broke");
      else this.#close(closeCodes.normal, "");
    };
    port.on("close", onPortClose);
    const onAbort = () => {
      const revoked = this.#call.signal.reason instanceof CallerRevoked;
      this.#close(
        revoked ? closeCodes.refused : closeCodes.goingAway,
        revoked ? "the key was taken back" : "",
      );
    };
    // What has closed already tells nobody any more.
    if (port.closed) port.emit("close");
    if (socket.readyState === closedState) socket.emit("close", brokenCode);
    if (this.#call.signal.aborted) onAbort();
    else this.#call.signal.addEventListener("abort", onAbort, { once: true });
  }

  /**
   * Ends the tunnel of a client that is gone without a word. One whose own reader has stopped does not read either, pings
   * included, and is as silent: that is only so since it was sent something.
   */
  #ping(): void {
    // A socket that is not read cannot show its pongs.
    if (this.#socket.isPaused) this.#unanswered = 0;
    if (this.#unanswered >= pingsThatTell && this.#answered >= pingsThatTell) {
      this.#socket.terminate();
      return;
    }
    this.#unanswered += 1;
    this.#socket.ping();
  }

  #fromClient(data: Buffer, isBinary: boolean): void {
    this.#unanswered = 0;
    if (this.#closed) return;
    if (!isBinary && data.toString("latin1") === endText) {
      this.#clientEnded = true;
      this.#inward.finish();
      return;
    }
    if (!isBinary || this.#clientEnded) {
      const why = isBinary ? "bytes came after the end" : `a text message can only be "${endText}"`;
      this.#close(closeCodes.refused, why);
      return;
    }
    if (!this.#inward.give(data)) {
      this.#held = true;
      this.#socket.pause();
    }
    this.#keep();
  }

  /** What the program has not taken, on this side of it and in what leads there. */
  #keep(): void {
    this.#memory.keep(this.#inward.readableLength + this.#port.writableLength);
  }

  #readOn(): void {
    if (!this.#closed && !this.#held && !this.#memory.waits) this.#socket.resume();
  }

  #fromPort(bytes: Buffer): void {
    this.#answered = 0;
    if (this.#closed) return;
    // Parts of what one read brought share its memory, so that none of them could be given back by itself.
    const own = copyOf(bytes);
    this.#socket.send(own, (error) => {
      // Neither masked nor compressed, it was written as it is; what was not is left to the collector.
      if (!error) spend(own);
      if (this.#socket.bufferedAmount < highWaterBytes) this.#port.resume();
    });
    // What waits is counted in bytes: of small pieces one waits at most, the port joins what comes meanwhile.
    if (bytes.length < smallBytes || this.#socket.bufferedAmount >= highWaterBytes) this.#port.pause();
  }

  #closeWhenOver(): void {
    if (this.#clientEnded && this.#portEnded && this.#port.writableFinished)
      this.#close(closeCodes.normal, "");
  }

  /** The library has closed it, with a code where the client broke the protocol, which is only told while it is read on. */
  #broke(): void {
    this.#closed = true;
    this.#outcome ??= "cut";
    this.#terminateSoon();
  }

  #close(code: number, reason: string): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#outcome = code === closeCodes.normal ? "whole" : "cut";
    // A paused socket would not see the answer.
    this.#socket.resume();
    this.#socket.close(code, reason);
    if (code === closeCodes.normal) this.#terminateWhenSent();
    else this.#terminateSoon();
  }

  /** What waits for a client that reads slowly belongs to what is told as whole. */
  #terminateWhenSent(): void {
    let waits = this.#socket.bufferedAmount;
    let stalledMs = 0;
    const timer = setInterval(() => {
      const now = this.#socket.bufferedAmount;
      stalledMs = now < waits ? 0 : stalledMs + closingMs;
      waits = now;
      if (now > 0 && stalledMs < stalledTailMs && !this.#call.signal.aborted) return;
      clearInterval(timer);
      if (now > 0) this.#outcome = "cut";
      this.#socket.terminate();
    }, closingMs).unref();
    this.#socket.once("close", () => clearInterval(timer));
  }

  #terminateSoon(): void {
    setTimeout(() => this.#socket.terminate(), closingMs).unref();
  }
}
