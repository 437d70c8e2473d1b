import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import type { WsClientMessage, WsServerMessage } from "@alcove/wire";
import { type WebSocket, WebSocketServer } from "ws";

export interface Recorded {
  method: string;
  path: string;
  query: URLSearchParams;
  headers: http.IncomingHttpHeaders;
  body: string;
}

export interface FakeAnswer {
  status?: number;
  headers?: Record<string, string>;
  json?: unknown;
  /** Written piece by piece; null cuts the connection. */
  chunks?: (string | Buffer | null)[];
  /** Never answers. */
  hang?: boolean;
}

/** What a command at the other end of a WebSocket does. */
export interface FakeExec {
  send(message: WsServerMessage): void;
  /** Reads no more of what is sent. */
  hold(): void;
  /** Breaks the connection off. */
  cut(): void;
  /** Closes it as a service that stops does. */
  close(code: number): void;
}

/** An HTTP server that answers what a test tells it to, for what a real service does only on a bad day. */
export class FakeService implements AsyncDisposable {
  readonly requests: Recorded[] = [];
  readonly #server: http.Server;
  readonly #sockets: WebSocketServer;
  #streamed: FakeExec | undefined;
  answer: (request: Recorded) => FakeAnswer = () => ({
    status: 404,
    json: { code: "not_found", message: "nothing here" },
  });
  onExec: (message: WsClientMessage, exec: FakeExec) => void = () => undefined;
  /** Whether it tells how much of an input with a name has arrived. */
  countsInput = true;
  /** Whether this piece of an input is lost on its way. */
  losesInput: (data: Buffer) => boolean = () => false;
  readonly #taken = new Map<string, number>();
  /** Asked at the handshake of a WebSocket; a status refuses it. */
  refuseSocket: () => number | undefined = () => undefined;

  private constructor() {
    this.#server = http.createServer((request, response) => void this.#handle(request, response));
    this.#sockets = new WebSocketServer({
      server: this.#server,
      verifyClient: (_info, answer) => {
        const status = this.refuseSocket();
        answer(status === undefined, status);
      },
    });
    this.#sockets.on("headers", (headers) => headers.push("X-Exec-ID: ex-aaaaaaaa"));
    this.#sockets.on("connection", (socket: WebSocket) => {
      const exec: FakeExec = {
        send: (message) => socket.send(JSON.stringify(message)),
        hold: () => socket.pause(),
        cut: () => socket.terminate(),
        close: (code) => socket.close(code),
      };
      let input: string | undefined;
      const tell = () => {
        if (input === undefined || socket.readyState !== socket.OPEN) return;
        const taken = this.countsInput ? { taken: this.#taken.get(input) ?? 0 } : {};
        exec.send({ type: "input", ...taken });
      };
      socket.on("message", (data) => {
        const message: WsClientMessage = JSON.parse(String(data));
        if (message.type === "start" || message.type === "attach") {
          input = message.input;
          tell();
        } else if (message.type === "stdin") {
          const bytes = Buffer.from(message.data, message.encoding);
          if (this.losesInput(bytes)) return socket.terminate();
          if (input !== undefined) this.#taken.set(input, (this.#taken.get(input) ?? 0) + bytes.length);
          if (this.countsInput) tell();
        }
        this.onExec(message, exec);
      });
    });
  }

  static async start(): Promise<FakeService> {
    const service = new FakeService();
    service.#server.listen(0, "127.0.0.1");
    await once(service.#server, "listening");
    return service;
  }

  get url(): string {
    const { port } = this.#server.address() as AddressInfo;
    return `http://127.0.0.1:${port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const client of this.#sockets.clients) client.terminate();
    this.#sockets.close();
    this.#server.close();
    this.#server.closeAllConnections();
    await once(this.#server, "close");
  }

  /** A command over plain HTTP does what one over a WebSocket does, told in the words of its stream. */
  #streamExec({ method, path, body }: Recorded, response: http.ServerResponse): boolean {
    if (method !== "POST") return false;
    if (path.endsWith("/signal") && this.#streamed !== undefined) {
      response.end("{}");
      this.onExec({ type: "signal", ...JSON.parse(body) }, this.#streamed);
      return true;
    }
    if (!path.endsWith("/exec")) return false;
    const { stream, ...start } = JSON.parse(body);
    if (stream !== true) return false;
    const head = { "content-type": "application/x-ndjson", "x-exec-id": "ex-aaaaaaaa" };
    const exec: FakeExec = {
      send: (message) => {
        if (message.type === "error") {
          response.writeHead(400, { "content-type": "application/json" });
          response.end(JSON.stringify(message));
          return;
        }
        if (!response.headersSent) response.writeHead(200, head);
        const { type, ...rest } = message;
        const line = `${JSON.stringify({ stream: type, data: "", ...rest })}\n`;
        if (type === "exit") response.end(line);
        else response.write(line);
      },
      hold: () => response.req.pause(),
      cut: () => response.destroy(),
      close: () => response.destroy(),
    };
    this.#streamed = exec;
    this.onExec({ type: "start", ...start }, exec);
    this.onExec({ type: "stdin", data: "", close: true }, exec);
    return true;
  }

  async #handle(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", "http://fake");
    const body: Buffer[] = [];
    for await (const chunk of request) body.push(chunk);
    const recorded = {
      method: request.method ?? "",
      path: url.pathname.replace("/api/v1", ""),
      query: url.searchParams,
      headers: request.headers,
      body: Buffer.concat(body).toString("utf8"),
    };
    this.requests.push(recorded);
    if (this.#streamExec(recorded, response)) return;
    const answer = this.answer(recorded);
    if (answer.hang) return;
    response.writeHead(answer.status ?? 200, { "content-type": "application/json", ...answer.headers });
    if (answer.chunks === undefined) {
      response.end(JSON.stringify(answer.json ?? {}));
      return;
    }
    for (const chunk of answer.chunks) {
      if (chunk === null) {
        response.destroy();
        return;
      }
      await new Promise((resolve) => response.write(chunk, resolve));
    }
    response.end();
  }
}
