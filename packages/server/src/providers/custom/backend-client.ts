import { type IncomingMessage, Agent as PlainAgent, request as requestPlain } from "node:http";
import { request as requestSecure, Agent as SecureAgent } from "node:https";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { ignoreOutcome } from "../../platform/abortable.ts";
import { backendReads } from "./backend-turns.ts";
import type { CustomConfig } from "./custom-config.ts";

export interface BackendRequest {
  method: "GET" | "POST" | "PUT" | "DELETE";
  /** Steps of the path below the backend's address, not escaped. */
  path: readonly string[];
  query?: Readonly<Record<string, string | undefined>>;
  json?: unknown;
  bytes?: Uint8Array;
  body?: AsyncIterable<Uint8Array>;
  signal: AbortSignal;
  /** Told when it is sent again: what comes then may be of the first time. */
  onRepeat?: () => void;
}

/** HTTP to the backend: one request is one answer. Redirects are answers too: the key goes nowhere else. */
export class BackendClient implements Disposable {
  readonly #config: CustomConfig;
  readonly #agent: PlainAgent;

  constructor(config: CustomConfig) {
    this.#config = config;
    const options = { keepAlive: true, maxFreeSockets: 32 };
    this.#agent = config.url.startsWith("https:") ? new SecureAgent(options) : new PlainAgent(options);
  }

  /**
   * Resolves with the head of the answer; its body must be read or destroyed. What was sent over a kept connection that had been
   * closed is sent again over a new one: of those that are kept the others may be closed as well.
   */
  async send(request: BackendRequest): Promise<IncomingMessage> {
    try {
      return await this.#send(request, this.#agent);
    } catch (error) {
      if (request.body !== undefined || !(error instanceof StaleConnection)) throw error;
      request.onRepeat?.();
      return await this.#send(request, false);
    }
  }

  #send(
    { method, path, query = {}, json, bytes, body, signal }: BackendRequest,
    agent: PlainAgent | false,
  ): Promise<IncomingMessage> {
    const url = new URL(this.#config.url);
    url.pathname = [url.pathname.replace(/\/+$/, ""), ...path.map(encodeURIComponent)].join("/");
    for (const [key, value] of Object.entries(query))
      if (value !== undefined) url.searchParams.set(key, value);
    const data = json === undefined ? bytes : Buffer.from(JSON.stringify(json));
    const headers = {
      accept: "application/json, application/x-ndjson, application/octet-stream",
      ...this.#authorization(),
      ...(json === undefined ? {} : { "content-type": "application/json" }),
      ...(data === undefined ? {} : { "content-length": data.length }),
      ...(body === undefined ? {} : { "transfer-encoding": "chunked" }),
    };
    const open = url.protocol === "https:" ? requestSecure : requestPlain;
    return new Promise((resolve, reject) => {
      const sent = open(url, { method, headers, agent, signal });
      sent.on("socket", (socket) => backendReads.pace(socket));
      sent.on("response", resolve);
      sent.on("error", (error: NodeJS.ErrnoException) =>
        reject(
          sent.reusedSocket && error.code === "ECONNRESET" && !signal.aborted ? new StaleConnection() : error,
        ),
      );
      if (body === undefined) sent.end(data);
      // What fails of it fails the request too.
      else void pipeline(Readable.from(body, { objectMode: false }), sent).catch(ignoreOutcome);
    });
  }

  [Symbol.dispose](): void {
    this.#agent.destroy();
  }

  #authorization(): Record<string, string> {
    const { apiKey, authHeader } = this.#config;
    if (apiKey === "") return {};
    return authHeader === "bearer" ? { authorization: `Bearer ${apiKey}` } : { "x-api-key": apiKey };
  }
}

class StaleConnection extends Error {}
