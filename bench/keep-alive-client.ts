import { connect, type Socket } from "node:net";

/** What has no answer by then never has one. */
const answerMs = 60_000;

export interface BenchResponse {
  status: number;
  /** Status line and headers, as they came. */
  head: string;
  body: string;
}

/**
 * One keep-alive HTTP/1.1 connection that does little itself: requests are written as one string, responses are expected with a
 * Content-Length. One request at a time. Its part of a figure is 0.1 ms and more: `timeCalls` is for what is held against a floor.
 */
export class KeepAliveClient {
  readonly #socket: Socket;
  readonly #host: string;
  #received = "";
  #waiting: { resolve(response: BenchResponse): void; reject(error: Error): void } | undefined;

  /** @param as the Host it asks for; that of `url` unless given. */
  constructor(url: string, as?: string) {
    const { hostname, port, host } = new URL(url);
    this.#host = as ?? host;
    this.#socket = connect({ host: hostname, port: Number(port), noDelay: true });
    this.#socket.setEncoding("latin1");
    this.#socket.on("data", (chunk: string) => this.#onData(chunk));
    this.#socket.setTimeout(answerMs, () => {
      if (this.#waiting !== undefined) this.#socket.destroy(new Error(`no answer within ${answerMs} ms`));
    });
    this.#socket.on("error", (error) => this.#fail(error));
    this.#socket.on("close", () => this.#fail(new Error("the server closed the connection")));
  }

  request(method: string, path: string, body?: unknown): Promise<BenchResponse> {
    const text = body === undefined ? "" : JSON.stringify(body);
    const type = body === undefined ? "" : "Content-Type: application/json\r\n";
    return this.send(`${method} /api/v1${path} HTTP/1.1`, text, type);
  }

  /** @param line the request line. */
  send(line: string, text: string, headers = ""): Promise<BenchResponse> {
    const head = `${line}\r\nHost: ${this.#host}\r\n${headers}Content-Length: ${Buffer.byteLength(text)}\r\n\r\n`;
    return new Promise((resolve, reject) => {
      if (this.#socket.destroyed) {
        reject(new Error("the server closed the connection meanwhile"));
        return;
      }
      this.#waiting = { resolve, reject };
      this.#socket.write(head + text);
    });
  }

  /** @throws Error unless the status is the expected one. @returns the parsed body. */
  async expect<T>(status: number, method: string, path: string, body?: unknown): Promise<T> {
    const response = await this.request(method, path, body);
    if (response.status !== status) throw new Error(`${method} ${path}: ${response.status} ${response.body}`);
    return JSON.parse(response.body) as T;
  }

  close(): void {
    this.#waiting = undefined;
    this.#socket.destroy();
  }

  #onData(chunk: string): void {
    this.#received += chunk;
    const headEnd = this.#received.indexOf("\r\n\r\n");
    if (headEnd < 0) return;
    const length = Number(/content-length: (\d+)/i.exec(this.#received.slice(0, headEnd))?.[1] ?? "0");
    if (this.#received.length < headEnd + 4 + length) return;
    const head = this.#received.slice(0, headEnd);
    const response = { status: Number(head.slice(9, 12)), head, body: this.#received.slice(headEnd + 4) };
    this.#received = "";
    const waiting = this.#waiting;
    this.#waiting = undefined;
    waiting?.resolve(response);
  }

  #fail(error: Error): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    waiting?.reject(error);
  }
}
