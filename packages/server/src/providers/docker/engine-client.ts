import { Agent, type ClientRequest, request as httpRequest, type IncomingMessage } from "node:http";
import { request as httpsRequest, type RequestOptions, Agent as SecureAgent } from "node:https";
import type { Socket } from "node:net";
import type { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { Static, TSchema } from "typebox";
import { Value } from "typebox/value";
import { Unavailable } from "../../ports/index.ts";
import { type EngineAddress, parseEngineAddress } from "./engine-address.ts";
import { EngineRefusal, unreachableEngine } from "./engine-errors.ts";
import { EngineTls } from "./engine-tls.ts";
import { type EnginePatience, EngineWaits, usualPatience } from "./engine-waits.ts";

/** Longest JSON answer taken as a whole, bytes. */
const largestAnswerBytes = 32 * 1024 * 1024;
/** Longest error body kept, bytes. */
const largestRefusalBytes = 64 * 1024;

export interface EngineCall {
  method: "GET" | "HEAD" | "POST" | "PUT" | "DELETE";
  /** Path below the engine's root, each segment already fit for a URL. */
  path: string;
  query?: Readonly<Record<string, string>>;
  /** Sent as JSON. */
  body?: unknown;
  signal: AbortSignal;
  /** How long a whole answer may take; unset: 30 s, null: as long as `signal` allows. Streams have the caller's time alone. */
  withinMs?: number | null;
  /** Longest answer taken as a whole; unset: 32 MiB. */
  largestBytes?: number;
}

/** An answer was longer than it may be. */
export class TooLongAnswer extends Error {}

/**
 * Speaks the Engine API, without a version prefix: the engine then answers in its newest, and refuses none.
 * Connections are kept and reused; a call that meets one the engine has just closed is made again.
 * Every method throws Unavailable when the engine cannot be reached, EngineRefusal when it answers an error status, and
 * the signal's reason when that aborts. What is answered as a whole has a deadline, after which it is Unavailable too.
 */
export class EngineClient implements Disposable {
  readonly address: EngineAddress;
  readonly waits: EngineWaits;
  readonly #tls: EngineTls | undefined;
  readonly #agent: Agent;
  /** Calls that take their time must not hold up the question whether it answers. */
  readonly #pings: Agent;

  /**
   * @param options.patience unset: the usual.
   * @param options.tlsDir folder of what TLS needs; empty: no TLS, nor at a unix socket.
   */
  constructor(options: { socket: string; tlsDir?: string; patience?: EnginePatience }) {
    const { tlsDir = "" } = options;
    this.address = parseEngineAddress(options.socket, { tls: tlsDir !== "" });
    const { kind } = this.address;
    this.#tls =
      tlsDir === "" || kind === "unix" ? undefined : new EngineTls({ dir: tlsDir, host: this.address.host });
    const KindOfAgent = this.#tls === undefined ? Agent : SecureAgent;
    this.#agent = new KindOfAgent({ keepAlive: true, maxSockets: 128, maxFreeSockets: 8 });
    this.#pings = new KindOfAgent({ keepAlive: true, maxSockets: 1 });
    this.waits = new EngineWaits({
      patience: options.patience ?? usualPatience,
      ping: async ({ signal }) => {
        // A refusal, such as that of a proxy before it, is an answer too.
        const call = { method: "GET", path: "/_ping", signal } as const;
        await readText(await this.#open(call, this.#pings), largestRefusalBytes);
      },
    });
  }

  /** What is to be known of our certificate's end. @returns undefined when nothing is, and without TLS. */
  certificateEnding(now: Date): Promise<string | undefined> {
    return this.#tls?.ending(now) ?? Promise.resolve(undefined);
  }

  /** Whether what passes is encrypted and both sides are known. */
  get isSecure(): boolean {
    return this.#tls !== undefined;
  }

  [Symbol.dispose](): void {
    this.#agent.destroy();
    this.#pings.destroy();
  }

  /** @returns the answer, checked against `schema`. @throws TooLongAnswer */
  async call<S extends TSchema>(call: EngineCall, schema: S): Promise<Static<S>> {
    const text = await this.#inTime(call, async (inTime) =>
      readText(await this.stream(inTime), call.largestBytes ?? largestAnswerBytes),
    );
    const answer: unknown = text === "" ? undefined : JSON.parse(text);
    if (Value.Check(schema, answer)) return answer;
    const [first] = Value.Errors(schema, answer);
    throw new EngineRefusal(
      call,
      200,
      `unexpected answer: ${first?.instancePath ?? ""} ${first?.message ?? ""}`,
    );
  }

  /** Gives an answer to `reader` as it comes: it may be of any length. @returns what was read. */
  async read<T>(call: EngineCall, reader: { push(piece: Buffer): void; end(): T }): Promise<T> {
    return this.#inTime(call, async (inTime) => {
      for await (const piece of await this.stream(inTime)) reader.push(piece);
      return reader.end();
    });
  }

  /** A call whose answer does not matter beyond its status. */
  async send(call: EngineCall): Promise<void> {
    await this.#inTime(call, async (inTime) => {
      const response = await this.stream(inTime);
      response.resume();
      await new Promise<void>((resolve, reject) => response.on("end", resolve).on("error", reject));
    });
  }

  async #inTime<T>(call: EngineCall, ask: (call: EngineCall) => Promise<T>): Promise<T> {
    const { withinMs = this.waits.patience.callMs } = call;
    if (withinMs === null) return ask(call);
    return this.waits.within(withinMs, call, ({ signal }) => ask({ ...call, signal }));
  }

  /** @returns the answer as it comes; the caller reads it to its end or destroys it. */
  async stream(call: EngineCall): Promise<IncomingMessage> {
    return accepted(call, await this.#open(call));
  }

  /** Sends a body that is not JSON, such as a tar. */
  async upload(call: Omit<EngineCall, "body">, type: string, body: Readable): Promise<void> {
    const options = await this.#options(call, { "Content-Type": type });
    const response = new Promise<IncomingMessage>((resolve, reject) => {
      const outgoing = this.#request(options);
      outgoing.on("response", resolve).on("error", reject);
      pipeline(body, outgoing).catch(reject);
    });
    const answer = await accepted(call, await response.catch((error) => this.#failed(call, error)));
    answer.resume();
  }

  /** Takes a connection over, as the engine offers it for exec and attach. */
  async hijack(call: EngineCall): Promise<{ socket: Socket; head: Buffer }> {
    const payload = JSON.stringify(call.body ?? {});
    const options = await this.#options(call, {
      "Content-Type": "application/json",
      "Content-Length": Buffer.byteLength(payload),
      Connection: "Upgrade",
      Upgrade: "tcp",
    });
    return new Promise<{ socket: Socket; head: Buffer }>((resolve, reject) => {
      const outgoing = this.#request({ ...options, agent: false });
      outgoing.on("upgrade", (_response, socket: Socket, head) => resolve({ socket, head }));
      outgoing.on("response", (response) => {
        accepted(call, response).then((taken) => {
          taken.destroy();
          reject(new EngineRefusal(call, taken.statusCode ?? 0, "the connection was not handed over"));
        }, reject);
      });
      outgoing.on("error", (error) => this.#failed(call, error).catch(reject));
      outgoing.end(payload);
    });
  }

  async #open(call: EngineCall, agent = this.#agent): Promise<IncomingMessage> {
    const payload = call.body === undefined ? undefined : JSON.stringify(call.body);
    for (let attempt = 1; ; attempt++) {
      const headers =
        payload === undefined
          ? {}
          : { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(payload) };
      const outgoing = this.#request({ ...(await this.#options(call, headers)), agent });
      try {
        return await new Promise<IncomingMessage>((resolve, reject) => {
          outgoing.on("response", resolve).on("error", reject);
          outgoing.end(payload);
        });
      } catch (error) {
        // A kept connection that the engine closed says so only once it is used. The engine answers a call made twice
        // like one: containers are created under a name of ours.
        if (attempt === 1 && outgoing.reusedSocket && !call.signal.aborted) continue;
        return this.#failed(call, error);
      }
    }
  }

  #request(options: RequestOptions): ClientRequest {
    return this.#tls === undefined ? httpRequest(options) : httpsRequest(options);
  }

  async #options(call: EngineCall, headers: Record<string, string | number>): Promise<RequestOptions> {
    const query = new URLSearchParams(call.query).toString();
    const target = { method: call.method, path: query === "" ? call.path : `${call.path}?${query}` };
    const place =
      this.address.kind === "unix"
        ? { socketPath: this.address.path }
        : { host: this.address.host, port: this.address.port };
    return {
      ...target,
      ...place,
      ...(await this.#tls?.material()),
      headers: { Host: "docker", ...headers },
      agent: this.#agent,
      signal: call.signal,
    };
  }

  async #failed(call: EngineCall, error: unknown): Promise<never> {
    if (call.signal.aborted) throw call.signal.reason;
    this.#tls?.forget();
    throw unreachableEngine(this.address, error);
  }
}

async function accepted(call: EngineCall, response: IncomingMessage): Promise<IncomingMessage> {
  const status = response.statusCode ?? 0;
  // 304: the container is already in the state asked for.
  if (status < 400) return response;
  const said = messageIn(await readText(response, largestRefusalBytes));
  if (status === 400 && said.includes("HTTP request to an HTTPS server"))
    throw new Unavailable("the Docker Engine speaks TLS at this address; set providers.docker.tls_dir");
  throw new EngineRefusal(call, status, said);
}

function messageIn(body: string): string {
  try {
    const parsed: unknown = JSON.parse(body);
    if (typeof parsed === "object" && parsed !== null && "message" in parsed) return String(parsed.message);
  } catch {
    // Not JSON: an old engine or a proxy before it; the text itself is the message.
  }
  return body.trim();
}

async function readText(stream: IncomingMessage, limit: number): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of stream) {
    length += chunk.length;
    if (length > limit) throw new TooLongAnswer(`the Docker Engine's answer is longer than ${limit} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}
