import type http from "node:http";
import { finished, pipeline, type Readable } from "node:stream";
import { AlcoveError, clientError } from "./errors.ts";
import { exactly, frameBody } from "./framing.ts";

/** Why no connection was made, in words. */
const noAnswerCodes: Readonly<Record<string, string>> = {
  ECONNREFUSED: "nothing listens there",
  ENOTFOUND: "the host name is unknown",
  EAI_AGAIN: "the host name could not be looked up",
  ECONNRESET: "the connection broke",
  EPIPE: "the connection broke",
  EHOSTUNREACH: "the host cannot be reached",
  ENETUNREACH: "the network cannot be reached",
  ETIMEDOUT: "the host does not answer",
};

const maxJsonBytes = 128 * 2 ** 20;
/** A refusal that is not the service's own, a proxy's page for instance. */
const maxForeignBytes = 65_536;

/** Until the head of the answer to a call that is soon over. */
export const quickMs = 30_000;
/** A longer time would be none: timers hold no more. */
export const longestWaitMs = 2_147_483_647;

export interface TransportOptions {
  url: string;
  apiKey?: string | undefined;
  /** Sent as X-User-ID. */
  userId?: string | undefined;
}

export type Query = Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>;

export interface Call {
  method: string;
  /** Below /api/v1, parts already encoded. */
  path: string;
  query?: Query;
  /** In place of a query, to the letter. */
  search?: string;
  /** Names in small letters. A `content-length` is what a stream must have. */
  headers?: Readonly<Record<string, string>>;
  json?: unknown;
  /** A stream that fails fails the call with its own error. */
  body?: Readable | Uint8Array;
  signal?: AbortSignal | undefined;
  /** Until the head of the answer; undefined: as long as it takes. */
  timeoutMs?: number | undefined;
  /** What is an answer and no refusal; a status of 2xx unless given. */
  isAnswer?: (response: http.IncomingMessage) => boolean;
}

interface OpenRequest {
  request: http.ClientRequest;
  response: Promise<http.IncomingMessage>;
  /** What a stream must have. */
  length: number | undefined;
}

/**
 * Speaks HTTP to one service. Built on node:http rather than on fetch, whose hidden limit of five minutes until the
 * head of an answer is shorter than a command may run.
 */
export class Transport implements Disposable {
  readonly baseUrl: URL;
  readonly #options: TransportOptions;
  readonly #agent: http.Agent;
  readonly #client: Pick<typeof http, "Agent" | "request">;

  constructor(options: TransportOptions) {
    const url = parseUrl(options.url);
    if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) {
      throw clientError(
        "bad_request",
        `${JSON.stringify(options.url)} is not a URL such as http://127.0.0.1:7423`,
      );
    }
    // As it is copied from an example or a log.
    url.pathname = url.pathname.replace(/\/api\/v1\/*$/, "/");
    this.baseUrl = url;
    // As a file has it.
    const apiKey = options.apiKey?.trim();
    if (apiKey !== undefined && !/^[\x21-\x7e]*$/.test(apiKey))
      throw clientError(
        "bad_request",
        "the API key holds a character that no key has: a space, a line break or a letter beyond ASCII",
      );
    this.#options = { ...options, apiKey };
    // Not imported: an import evaluates every export of node:http, an HTTP client of another kind among them, and takes
    // half of a short command's time. TLS takes as long again, where nobody asked for it.
    this.#client =
      url.protocol === "https:"
        ? process.getBuiltinModule("node:https")
        : process.getBuiltinModule("node:http");
    this.#agent = new this.#client.Agent({ keepAlive: true });
  }

  [Symbol.dispose](): void {
    this.#agent.destroy();
  }

  /** @returns the address of a path below /api/v1. @throws AlcoveError `bad_request` for one that leads elsewhere. */
  address(path: string, query: Query = {}): URL {
    checkWay(path);
    const url = new URL(this.baseUrl);
    url.pathname = `${url.pathname.replace(/\/+$/, "")}/api/v1${path}`;
    for (const [name, value] of Object.entries(query)) {
      if (value === undefined) continue;
      for (const item of Array.isArray(value) ? value : [value]) url.searchParams.append(name, String(item));
    }
    return url;
  }

  headers(): Record<string, string> {
    return {
      ...(this.#options.apiKey ? { "x-api-key": this.#options.apiKey } : {}),
      ...(this.#options.userId ? { "x-user-id": headerText(this.#options.userId) } : {}),
    };
  }

  /** The answer's JSON. @throws AlcoveError */
  async json<T>(call: Call): Promise<{ body: T; headers: http.IncomingHttpHeaders; status: number }> {
    const response = await this.send(call);
    const text = await readText(response, maxJsonBytes);
    try {
      const body: T = JSON.parse(text);
      return { body, headers: response.headers, status: response.statusCode ?? 0 };
    } catch (cause) {
      throw clientError(
        "bad_response",
        `${call.method} ${call.path}: the answer is not JSON; is ${this.baseUrl.href} an Alcove service?`,
        cause,
      );
    }
  }

  /** What a list holds, page by page. @throws AlcoveError */
  async *pages<T>(path: string, call: Pick<Call, "timeoutMs" | "signal">): AsyncGenerator<T> {
    for (let cursor: string | undefined; ; ) {
      const { body, headers } = await this.json<T[]>({ ...call, method: "GET", path, query: { cursor } });
      yield* body;
      const next = headers["x-next-cursor"];
      if (typeof next !== "string") return;
      cursor = next;
    }
  }

  /** The answer to a call that is soon over, with a body where one is given. @throws AlcoveError */
  async quick<T>(
    method: Call["method"],
    path: string,
    options: { signal?: AbortSignal },
    json?: unknown,
  ): Promise<T> {
    const call = { method, path, timeoutMs: quickMs, signal: options.signal };
    const { body } = await this.json<T>(json === undefined ? call : { ...call, json });
    return body;
  }

  /** The answer as text. @throws AlcoveError */
  async text(call: Call): Promise<string> {
    return await readText(await this.send(call), maxJsonBytes);
  }

  /** The answer, unread, once it is known to be no refusal. The body must be read or destroyed. @throws AlcoveError */
  async send(call: Call): Promise<http.IncomingMessage> {
    const { body } = call;
    checkBody(call);
    if (body !== undefined && !(body instanceof Uint8Array) && body.destroyed) {
      throw body.errored ?? new Error("the body was read or closed before it was sent");
    }
    const { request, response, length } = this.#openOrDestroy(call);
    const sending =
      body === undefined || body instanceof Uint8Array
        ? undefined
        : sendBody(body, { request, length, signal: call.signal });
    // A refusal can come before the body is through; whichever ends first decides.
    const answer = await (sending === undefined ? response : Promise.race([response, sending]));
    const { isAnswer = isSuccess } = call;
    if (isAnswer(answer)) return tellingWhy(answer, call);
    const refused = await refusal(answer, call);
    // Nobody reads what is left of the body.
    if (!request.writableFinished) request.destroy();
    throw refused;
  }

  /** A stream whose request is not made is destroyed, as with every other failure: nobody else would close its file. */
  #openOrDestroy(call: Call): OpenRequest {
    try {
      return this.#open(call);
    } catch (error) {
      if (call.body !== undefined && !(call.body instanceof Uint8Array)) call.body.destroy();
      throw error;
    }
  }

  #open(call: Call): OpenRequest {
    if (Number.isNaN(call.timeoutMs))
      throw clientError("bad_request", `${call.method} ${call.path}: a timeoutMs of NaN is no time`);
    const payload = call.json === undefined ? call.body : Buffer.from(JSON.stringify(call.json));
    const headers: Record<string, string | number> = { ...this.headers(), ...call.headers };
    if (call.json !== undefined) headers["content-type"] = "application/json";
    const length = frameBody(headers, payload);
    const address = this.address(call.path, call.query);
    if (call.search !== undefined) address.search = call.search;
    const request = this.#request(address, call, headers);
    let connected = false;
    request.once("socket", (socket) => {
      const on = () => {
        connected = true;
      };
      if (!socket.connecting) on();
      else socket.once(this.baseUrl.protocol === "https:" ? "secureConnect" : "connect", on);
    });
    const response = new Promise<http.IncomingMessage>((resolve, reject) => {
      const timer =
        call.timeoutMs === undefined || call.timeoutMs === Number.POSITIVE_INFINITY
          ? undefined
          : setTimeout(
              () =>
                request.destroy(
                  clientError(
                    "client_timeout",
                    `${call.method} ${call.path}: ${this.baseUrl.href} gave no answer within ${call.timeoutMs} ms`,
                  ),
                ),
              Math.min(call.timeoutMs, longestWaitMs),
            );
      request.once("response", (answer) => {
        clearTimeout(timer);
        resolve(answer);
      });
      request.on("error", (error) => {
        clearTimeout(timer);
        reject(this.#translate(error, call, connected));
      });
    });
    if (payload === undefined || payload instanceof Uint8Array) request.end(payload);
    return { request, response, length };
  }

  /** @throws AlcoveError `bad_request` for a header that no request can have. */
  #request(address: URL, call: Call, headers: http.OutgoingHttpHeaders): http.ClientRequest {
    const { method, path, signal } = call;
    try {
      return this.#client.request(address, {
        method,
        headers,
        agent: this.#agent,
        ...(signal === undefined ? {} : { signal }),
      });
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      throw clientError("bad_request", `${method} ${path}: ${why}`, error);
    }
  }

  #translate(error: unknown, call: Call, connected: boolean): AlcoveError {
    const { signal, method, path } = call;
    if (error instanceof AlcoveError) return error;
    if (signal?.aborted) return cancelled(signal);
    if (connected) {
      const message = `${method} ${path}: the connection to ${this.baseUrl.href} broke before an answer; whether it was done is not known`;
      return clientError("cut", message, error);
    }
    return unreachable(this.baseUrl, error);
  }
}

/** Addresses lose such parts, and what is before ".." too, however they are encoded: `stats(".")` would ask for a list. */
function checkWay(path: string): void {
  const way = path.split("/").find((part) => /^(?:\.|%2e){1,2}$/i.test(part));
  if (way === undefined) return;
  throw clientError(
    "bad_request",
    `${path}: ${JSON.stringify(way)} would lead to another path; give the id or name of what is meant, as a list or the call that made it tells it`,
  );
}

/** Before a request is made, which nobody would end. @throws TypeError for what types refuse and JavaScript lets pass. */
function checkBody(call: Call): void {
  const body: unknown = call.body;
  if (!("body" in call) || body instanceof Uint8Array) return;
  if (typeof body === "object" && body !== null && "pipe" in body && typeof body.pipe === "function") return;
  throw new TypeError(
    `${call.method} ${call.path}: a body is bytes (Buffer, Uint8Array) or a stream (Readable; Readable.fromWeb makes one of a web stream), a file's also a text, not ${kindOf(body)}`,
  );
}

function kindOf(value: unknown): string {
  if (value === null) return "null";
  if (typeof value !== "object") return typeof value;
  return `of kind ${value.constructor?.name ?? "object"}`;
}

function isSuccess({ statusCode = 0 }: http.IncomingMessage): boolean {
  return statusCode >= 200 && statusCode < 300;
}

/**
 * Sends the body.
 * @returns what rejects when the body fails by itself or is not as long as announced; what happens to the request is told by
 *  the request.
 */
function sendBody(
  body: Readable,
  options: { request: http.ClientRequest; length: number | undefined; signal: AbortSignal | undefined },
): Promise<never> {
  const { request, length, signal } = options;
  return new Promise((_, reject) => {
    let requestFailed = false;
    request.once("error", () => {
      requestFailed = true;
    });
    // Before the pipeline, which ends the one when the other fails.
    finished(body, { writable: false }, (error) => {
      if (!error || requestFailed || request.destroyed) return;
      reject(signal?.aborted ? cancelled(signal) : error);
    });
    const done = (error?: Error | null) => {
      if (error) request.destroy();
    };
    if (length === undefined) pipeline(body, request, done);
    else pipeline(body, exactly(length, reject), request, done);
  });
}

/**
 * An answer that breaks off tells it as an AlcoveError to whoever reads it. Node destroys it with an error of its own then,
 * which is translated here and not by a stream behind it, through which every byte would have to go.
 */
function tellingWhy(answer: http.IncomingMessage, call: Call): http.IncomingMessage {
  const destroy = answer.destroy.bind(answer);
  answer.destroy = (error) => destroy(error === undefined ? error : brokenOff(error, call.signal));
  return answer;
}

export function cancelled(signal: AbortSignal): AlcoveError {
  return clientError("cancelled", "the call was cancelled", signal.reason);
}

function brokenOff(error: unknown, signal: AbortSignal | undefined): AlcoveError {
  if (error instanceof AlcoveError) return error;
  if (signal?.aborted) return cancelled(signal);
  return clientError("cut", "the connection broke before the answer was complete", error);
}

function parseUrl(text: string): URL | null {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

export function unreachable(url: URL, error: unknown): AlcoveError {
  const code = errorCode(error);
  const why = noAnswerCodes[code] ?? (error instanceof Error ? error.message : String(error));
  return clientError("unreachable", `no Alcove service answers at ${url.href}: ${why}`, error);
}

function errorCode(error: unknown): string {
  if (error instanceof AggregateError && error.errors.length > 0) return errorCode(error.errors[0]);
  return error instanceof Error && "code" in error ? String(error.code) : "";
}

/** A header takes bytes: those of the text as UTF-8, as the service reads it. */
function headerText(text: string): string {
  return Buffer.from(text, "utf8").toString("latin1");
}

/** @returns the error an answer other than a success stands for. */
export async function refusal(
  response: http.IncomingMessage,
  call: { method: string; path: string },
): Promise<AlcoveError> {
  const status = response.statusCode ?? 0;
  const { "x-request-id": requestId, "retry-after": retryAfter } = response.headers;
  // The output of a command that ran into its deadline stands in the body of the refusal.
  const isJson = response.headers["content-type"]?.startsWith("application/json") === true;
  const body = parseErrorBody(
    await readText(response, isJson ? maxJsonBytes : maxForeignBytes).catch(() => ""),
  );
  return new AlcoveError({
    status,
    code: typeof body.code === "string" ? body.code : `http_${status}`,
    message:
      typeof body.message === "string"
        ? body.message
        : `${call.method} ${call.path}: ${status} ${response.statusMessage ?? ""}`.trimEnd(),
    details: body,
    requestId: typeof requestId === "string" ? requestId : undefined,
    retryAfterS: /^\d+$/.test(retryAfter ?? "") ? Number(retryAfter) : undefined,
  });
}

function parseErrorBody(text: string): Record<string, unknown> {
  try {
    const body: unknown = JSON.parse(text);
    return typeof body === "object" && body !== null ? { ...body } : {};
  } catch {
    return {};
  }
}

async function readText(response: http.IncomingMessage, maxBytes: number): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of response) {
      if (!(chunk instanceof Buffer)) continue;
      size += chunk.length;
      if (size > maxBytes) throw clientError("bad_response", `the answer is larger than ${maxBytes} bytes`);
      chunks.push(chunk);
    }
  } catch (error) {
    throw brokenOff(error, undefined);
  }
  return Buffer.concat(chunks).toString("utf8");
}
