import http, { type ClientRequest, type IncomingMessage, type ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import type { OpenPort, Previews } from "../../core/previews/previews.ts";
import { carry, carryAll } from "../../platform/carry.ts";
import { ShuttingDown } from "../../platform/deadline.ts";
import { joinPieces } from "../../platform/join-pieces.ts";
import type { ReadTurns } from "../../platform/read-turns.ts";
import { DomainError } from "../../ports/errors.ts";
import { endUnlessComplete } from "../refused-body.ts";
import { mostHeaders } from "../refused-head.ts";
import { bodyOf, type HeaderList } from "./carried-headers.ts";
import { PortAgent, type PortRequestArgs } from "./port-agent.ts";
import type { FirstAnswer } from "./port-concurrency.ts";

/** One request on its way to a program. */
export interface Passage {
  readonly request: IncomingMessage;
  readonly port: OpenPort;
  /** What the program is asked for: path and query. */
  readonly path: string;
  readonly headers: HeaderList;
  /** Ends it, whatever has become of it. */
  readonly signal: AbortSignal;
  /** The headers of the answer as the client gets them. @throws DomainError `bad_gateway` */
  readonly answerHeaders: (answer: IncomingMessage) => HeaderList;
}

/** A head above it is no answer of a program that means well. */
const mostHeadBytes = 65_536;
/** Of the shortest ones a head costs many times its bytes, for as long as its body goes out; Node would drop those beyond its own bound. */
const hasTooManyHeaders = ({ rawHeaders }: IncomingMessage) => rawHeaders.length > 2 * mostHeaders;
/** Interim answers (1xx) before the answer itself: programs that mean well send one or two. */
const mostInterimAnswers = 16;
/** How long the other direction may go on after one has ended. */
const halfClosedMs = 10_000;
/** Of a client that vanished without a word, whose connection may be idle for hours otherwise. */
const keepAliveProbeMs = 60_000;
/**
 * Asking these again does no harm: they may go out on a connection that the program is about to close, and who asked may be told
 * to try again.
 */
const repeatable = /^(GET|HEAD|OPTIONS)$/;

/**
 * HTTP/1.1 to programs in sandboxes: a program's answer is read by a strict parser and written anew, bodies go through as
 * they come, and who reads or writes slowly holds the other side.
 */
export class PortProxy {
  readonly #previews: Previews;
  readonly #responseTimeoutMs: number;
  readonly #turns: ReadTurns;
  readonly #kept: PortAgent;
  readonly #single: PortAgent;

  /**
   * @param options.responseTimeoutMs 0: a program may take as long as it likes.
   * @param options.turns in which what programs answer is parsed.
   */
  constructor(options: { previews: Previews; responseTimeoutMs: number; turns: ReadTurns }) {
    this.#previews = options.previews;
    this.#responseTimeoutMs = options.responseTimeoutMs;
    this.#turns = options.turns;
    this.#kept = new PortAgent({ keep: true, turns: options.turns });
    this.#single = new PortAgent({ keep: false, turns: options.turns });
  }

  /** Closes the connections that are kept. */
  close(): void {
    this.#kept.destroy();
    this.#single.destroy();
  }

  /**
   * Answers with what the program answers. @returns whether all of it went out.
   * @param take gives the answer to write to, once the program has begun its own.
   * @throws DomainError as long as nothing was sent.
   */
  async forward(passage: Passage, take: () => ServerResponse): Promise<"whole" | "cut"> {
    const { request, port, signal } = passage;
    using _place = this.#previews.places.take(placeOf(port));
    const { answer, outgoing, stopBody } = await this.#ask({ ...passage, upgrades: false });
    let response: ServerResponse | undefined;
    try {
      const headers = passage.answerHeaders(answer);
      const taken = take();
      response = taken;
      writeHead(response, answer, headers);
      response.socket?.setKeepAlive(true, keepAliveProbeMs);
      // Node's parser makes each piece anew, and nobody else has it.
      const onBreak = () => tellHead(taken, headers);
      await carryAll(answer, response, { signal, spends: true, onBreak });
      return "whole";
    } catch (error) {
      if (response === undefined) throw error;
      // A client that was told less than there is must see it: the connection ends before the body does.
      response.destroy();
      return "cut";
    } finally {
      // A program that has not taken all of a body may never do, and is not left with the connection.
      if (!answer.complete || !request.complete) outgoing.destroy();
      if (!request.complete) {
        stopBody?.();
        endUnlessComplete(request);
      }
    }
  }

  /**
   * Asks the program for a WebSocket and carries its bytes until both sides have ended. Where the program answers otherwise,
   * that is the answer.
   * @param client.onSwitch called when the program has agreed, before anything is written to the connection. From then on the
   * passage's signal is not to tell that the connection has closed.
   * @param client.response what to answer with where the program does not agree.
   * @throws DomainError as long as nothing was sent.
   */
  async upgrade(
    passage: Passage,
    client: { socket: Duplex; head: Buffer; onSwitch?: () => void; response: () => ServerResponse },
  ): Promise<"whole" | "cut"> {
    using _place = this.#previews.places.take(placeOf(passage.port));
    const { answer, outgoing, program, head } = await this.#ask({
      ...passage,
      upgrades: true,
      headers: [...passage.headers, "Connection", "Upgrade", "Upgrade", "websocket"],
    });
    if (program === undefined) {
      let response: ServerResponse | undefined;
      try {
        const headers = passage.answerHeaders(answer);
        response = client.response();
        writeHead(response, answer, headers);
        await carryAll(answer, response, { signal: passage.signal });
        return "whole";
      } catch (error) {
        if (response === undefined) throw error;
        response.destroy();
        return "cut";
      } finally {
        if (!answer.complete) outgoing.destroy();
      }
    }
    let lines: string;
    try {
      lines = handshake(passage.answerHeaders(answer));
    } catch (error) {
      program.destroy();
      throw error;
    }
    const { socket } = client;
    client.onSwitch?.();
    joinPieces(socket);
    if ("setKeepAlive" in socket && typeof socket.setKeepAlive === "function")
      socket.setKeepAlive(true, keepAliveProbeMs);
    socket.write(lines, "latin1");
    if (client.head.length > 0) program.write(client.head);
    if (head !== undefined && head.length > 0) socket.write(head);
    // Awaited, so that the place is kept until then.
    return await join(socket, program, passage.signal);
  }

  async #ask(passage: Passage & { upgrades: boolean }, again = false): Promise<Asked> {
    try {
      return await this.#askOnce(passage, again);
    } catch (error) {
      // A kept connection may have been closed by the program at this very moment.
      if (!(error instanceof StaleConnection)) throw error;
      return this.#ask(passage, true);
    }
  }

  #askOnce(
    { request, port, path, headers, signal, upgrades }: Passage & { upgrades: boolean },
    again: boolean,
  ): Promise<Asked> {
    const { promise, resolve, reject } = Promise.withResolvers<Asked>();
    const { method = "GET" } = request;
    const body = bodyOf(request);
    const hasBody = body === "chunked" || (body !== undefined && Number(body.length) > 0);
    const reusable = !again && !hasBody && !upgrades && repeatable.test(method);
    const keeps = reusable && !isLast(request);
    const portKey = `${port.target.sandboxId}:${port.target.port}`;
    let first: FirstAnswer | undefined;
    let outgoing: ClientRequest;
    let stopBody: (() => void) | undefined;
    signal.throwIfAborted();
    const args: PortRequestArgs = {
      agent: reusable ? this.#kept : this.#single,
      portKey,
      connect: async () => {
        first = this.#kept.concurrency.begin(portKey);
        const connection = await this.#previews.dial(port, { signal });
        first.made(connection, keeps || upgrades);
        // Node's parser keeps nothing of it; behind a switch of protocols it is given on as it came.
        connection.readerCopies = !upgrades;
        // A body's pieces are what Node's parser made of it, and a request that has one is not asked again.
        connection.writerGives = !upgrades;
        return connection;
      },
      method,
      path,
      // Node writes "close" itself where headers are given as a list.
      headers: upgrades ? headers : [...headers, "Connection", keeps ? "keep-alive" : "close"],
      maxHeaderSize: mostHeadBytes,
    };
    try {
      outgoing = http.request(args);
    } catch (cause) {
      throw new DomainError("bad_request", "the request has a path or headers that HTTP does not allow", {
        cause,
      });
    }
    const name = `the program on port ${port.target.port} of sandbox "${port.target.sandboxId}"`;
    outgoing.maxHeadersCount = mostHeaders + 1;
    let answered = false;
    let sent = false;
    const stop = (error: unknown) => {
      if (answered) return;
      outgoing.destroy();
      // Whoever refuses the request reads what is left of its body.
      stopBody?.();
      reject(sent && !repeatable.test(method) ? inDoubt(error, { name, method }) : error);
    };
    outgoing.once("socket", () => {
      sent = true;
    });
    const timer =
      this.#responseTimeoutMs === 0
        ? undefined
        : setTimeout(() => {
            const seconds = this.#responseTimeoutMs / 1_000;
            const message = `${name} did not begin its answer within ${seconds} s (preview.response_timeout)`;
            stop(new DomainError("gateway_timeout", message));
          }, this.#responseTimeoutMs);
    const onAbort = () => {
      stop(signal.reason);
      outgoing.destroy();
    };
    const settle = (asked: Asked) => {
      answered = true;
      first?.came();
      clearTimeout(timer);
      resolve(asked);
    };
    signal.addEventListener("abort", onAbort, { once: true });
    outgoing.on("close", () => {
      first?.[Symbol.dispose]();
      clearTimeout(timer);
      signal.removeEventListener("abort", onAbort);
    });
    let given: IncomingMessage | undefined;
    outgoing.on("error", (error) => {
      if (given?.complete === false) breakOff(given, error);
      if (outgoing.reusedSocket && !(error instanceof DomainError)) stop(new StaleConnection(error));
      else stop(error instanceof DomainError ? error : brokenAnswer(name, error));
    });
    let interimAnswers = 0;
    outgoing.on("information", () => {
      interimAnswers += 1;
      if (interimAnswers <= mostInterimAnswers) return;
      const message = `${name} sent more than ${mostInterimAnswers} interim answers (1xx) and none that is final`;
      stop(new DomainError("bad_gateway", message));
    });
    const manyHeaders = () =>
      new DomainError("bad_gateway", `${name} answered with more than ${mostHeaders} headers`);
    outgoing.on("response", (answer) => {
      if (hasTooManyHeaders(answer)) return stop(manyHeaders());
      // The parser takes any three digits, and nobody can write such an answer. Here too is a 101 that names no protocol: a proxy in front
      // would carry whatever the client says from then on to this service, which goes on to read requests.
      const { statusCode = 0 } = answer;
      if (statusCode < 200) {
        const status = String(statusCode).padStart(3, "0");
        const why = statusCode < 100 ? "which is none" : "and to no protocol";
        return stop(new DomainError("bad_gateway", `${name} answered with status ${status}, ${why}`));
      }
      // Its parser makes a piece of each chunk, however small.
      joinPieces(answer);
      breakBehindWhatCame(answer);
      given = answer;
      settle({ answer, outgoing, ...(stopBody === undefined ? {} : { stopBody }) });
    });
    outgoing.on("upgrade", (answer, program, begun) => {
      const head = Buffer.concat([begun, this.#turns.release(program)]);
      if (hasTooManyHeaders(answer)) {
        program.destroy();
        stop(manyHeaders());
      } else if (upgrades && isWebSocket(answer)) settle({ answer, outgoing, program, head });
      else {
        program.destroy();
        stop(
          new DomainError("bad_gateway", `${name} switched to another protocol, which nobody asked it for`),
        );
      }
    });
    if (hasBody) {
      request.on("data", () => timer?.refresh());
      stopBody = carry(request, outgoing);
    } else outgoing.end();
    return promise;
  }
}

/** The client was told of no other, and reads what comes as one. */
const isWebSocket = ({ headers }: IncomingMessage) => headers.upgrade?.trim().toLowerCase() === "websocket";

interface Asked {
  answer: IncomingMessage;
  outgoing: ClientRequest;
  /** No more of the client's body is carried. */
  stopBody?: () => void;
  /** The connection to the program, where it switched protocols. */
  program?: Duplex;
  head?: Buffer;
}

class StaleConnection extends Error {
  constructor(cause: unknown) {
    super("the program closed a connection that was kept", { cause });
    this.name = "StaleConnection";
  }
}

/** Whether the client asks for nothing more on its connection. */
function isLast({ headers, httpVersion }: IncomingMessage): boolean {
  const { connection = "" } = headers;
  return /\bclose\b/i.test(connection) || (httpVersion === "1.0" && !/\bkeep-alive\b/i.test(connection));
}

function placeOf({ sandbox, target }: OpenPort): { sandboxId: string; ownerId: string } {
  return { sandboxId: target.sandboxId, ownerId: sandbox.row.ownerId };
}

/** @throws when the program's status is none. */
function writeHead(response: ServerResponse, answer: IncomingMessage, headers: HeaderList): void {
  for (const [name, value] of Object.entries(response.getHeaders())) {
    response.removeHeader(name);
    for (const one of [value].flat()) headers.push(name, String(one));
  }
  response.writeHead(answer.statusCode ?? 502, headers);
  // An event stream's reader waits for the head before its first event; a short answer goes out in one piece.
  if (answer.readableLength === 0 && !answer.complete) response.flushHeaders();
}

/**
 * An answer may break off before its first piece has gone out, with which its head does: its reader is told that it began. Not
 * where the end of the connection is that of the answer, as a head alone would be all of one.
 */
function tellHead(response: ServerResponse, headers: HeaderList): void {
  const hasLength = headers.some((name, index) => index % 2 === 0 && name.toLowerCase() === "content-length");
  if (!response.destroyed && (hasLength || response.chunkedEncoding)) response.flushHeaders();
}

function brokenAnswer(name: string, cause: Error): DomainError {
  const { code } = cause as NodeJS.ErrnoException;
  const why =
    code === "HPE_HEADER_OVERFLOW"
      ? `answered with a head of more than ${mostHeadBytes} bytes`
      : code?.startsWith("HPE_")
        ? "answered with something that is not HTTP/1.1"
        : "closed the connection before it answered";
  return new DomainError("bad_gateway", `${name} ${why}`, { cause });
}

/**
 * Node takes what a broken connection has brought for the whole of a body that the connection's end ends: here it has no end,
 * and breaks behind what can go out at once.
 */
function breakOff(answer: IncomingMessage, error: Error): void {
  const push = answer.push.bind(answer);
  answer.push = (piece: unknown) => piece !== null && push(piece);
  setImmediate(() => answer.destroy(error));
}

/** Node destroys an answer whose connection ends within it at once, with what has come and nobody could read yet. */
function breakBehindWhatCame(answer: IncomingMessage): void {
  const destroy = answer.destroy.bind(answer);
  answer.destroy = (error) => {
    if (error === undefined || answer.readableLength === 0) return destroy(error);
    answer.destroy = destroy;
    breakOff(answer, error);
    return answer;
  };
}

/** What becomes of a request that the program may have carried out: nobody is told to try it again. */
function inDoubt(error: unknown, { name, method }: { name: string; method: string }): unknown {
  const doubt = `the ${method} may have been carried out`;
  if (error instanceof ShuttingDown)
    return new DomainError("bad_gateway", `the service stops, and ${name} has not answered; ${doubt}`, {
      cause: error,
    });
  if (!(error instanceof DomainError)) return error;
  const code = error.code === "gateway_timeout" ? error.code : "bad_gateway";
  return new DomainError(code, `${error.message}; ${doubt}`, { cause: error });
}

function handshake(headers: HeaderList): string {
  const lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket"];
  for (let index = 0; index + 1 < headers.length; index += 2)
    lines.push(`${headers[index]}: ${headers[index + 1]}`);
  return `${lines.join("\r\n")}\r\n\r\n`;
}

/**
 * Carries bytes both ways until both connections have closed; one that ends is followed by the other soon.
 * @param one the client's. @param other the program's.
 * @param signal not of the client's leaving: how its connection closes tells whether it was in order.
 * @returns "cut" where one broke before any had ended, the program's also after the client's had, or the signal ended both.
 */
export function join(one: Duplex, other: Duplex, signal: AbortSignal): Promise<"whole" | "cut"> {
  const { promise, resolve } = Promise.withResolvers<"whole" | "cut">();
  let outcome: "whole" | "cut" = "whole";
  let open = 2;
  let timer: NodeJS.Timeout | undefined;
  const end = () => {
    one.destroy();
    other.destroy();
  };
  const onAbort = () => {
    outcome = "cut";
    end();
  };
  for (const [from, to] of [
    [one, other],
    [other, one],
  ] as const) {
    from.on("error", () => undefined);
    carry(from, to);
    from.once("end", () => {
      timer ??= setTimeout(end, halfClosedMs);
    });
    const onClose = () => {
      // What it still said has been read, or never will be.
      if (!from.readableEnded) {
        if (open === 2 && (from === other || timer === undefined)) outcome = "cut";
        to.destroy();
      }
      open -= 1;
      if (open > 0) return;
      clearTimeout(timer);
      signal.removeEventListener("abort", onAbort);
      resolve(outcome);
    };
    // What has closed already tells nobody any more.
    if (from.closed) process.nextTick(onClose);
    else from.once("close", onClose);
  }
  if (signal.aborted) onAbort();
  else signal.addEventListener("abort", onAbort, { once: true });
  return promise;
}
