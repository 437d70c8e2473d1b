import { once } from "node:events";
import http, { type IncomingHttpHeaders } from "node:http";
import net from "node:net";
import WebSocket from "ws";

export interface PreviewAnswer {
  status: number;
  headers: IncomingHttpHeaders;
  /** Names and values in turn. */
  raw: string[];
  text: string;
}

/** Speaks to a preview host of a service that listens elsewhere. */
export class PreviewClient {
  readonly #port: number;
  readonly host: string;

  /** @param url of the service. */
  constructor(url: string, host: string) {
    this.#port = Number(new URL(url).port);
    this.host = `${host}:${this.#port}`;
  }

  get port(): number {
    return this.#port;
  }

  open(
    path: string,
    options: {
      method?: string;
      headers?: Record<string, string | string[]>;
      body?: string | Buffer;
      agent?: http.Agent;
    } = {},
  ): Promise<{ response: http.IncomingMessage; request: http.ClientRequest }> {
    return new Promise((resolve, reject) => {
      const request = http.request({
        host: "127.0.0.1",
        port: this.#port,
        path,
        method: options.method ?? "GET",
        headers: { host: this.host, ...options.headers },
        agent: options.agent ?? false,
      });
      request.on("error", reject);
      request.on("response", (response) => resolve({ response, request }));
      request.end(options.body);
    });
  }

  async get(path: string, options: Parameters<PreviewClient["open"]>[1] = {}): Promise<PreviewAnswer> {
    const { response } = await this.open(path, options);
    const chunks: Buffer[] = [];
    for await (const chunk of response) chunks.push(chunk);
    return {
      status: response.statusCode ?? 0,
      headers: response.headers,
      raw: response.rawHeaders,
      text: Buffer.concat(chunks).toString(),
    };
  }

  socket(path: string, options: { headers?: Record<string, string>; protocols?: string[] } = {}): WebSocket {
    return new WebSocket(`ws://127.0.0.1:${this.#port}${path}`, options.protocols ?? [], {
      headers: { host: this.host, ...options.headers },
    });
  }

  /** Sends bytes as they are. @returns all that came back until the connection ended. */
  async raw(bytes: string, options: { end?: boolean } = {}): Promise<string> {
    const socket = net.connect({ host: "127.0.0.1", port: this.#port, allowHalfOpen: true });
    let text = "";
    socket.setEncoding("latin1").on("data", (chunk) => {
      text += chunk;
    });
    socket.on("error", () => undefined).once("end", () => socket.destroy());
    socket.write(bytes.replaceAll("HOST", this.host), "latin1");
    if (options.end === true) socket.end();
    const timer = setTimeout(() => socket.destroy(), 3_000);
    await once(socket, "close");
    clearTimeout(timer);
    return text;
  }
}
