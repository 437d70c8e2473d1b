import { Agent as PlainAgent, request as requestPlain } from "node:http";
import { request as requestSecure, Agent as SecureAgent } from "node:https";

/** What has no answer by then never has one. */
const answerMs = 120_000;

/**
 * One keep-alive connection to any service of the interface, however it frames its answers; heavier than `KeepAliveClient`,
 * alike for every service it is held against.
 */
export class HttpClient {
  readonly #agent: PlainAgent;
  readonly #base: URL;
  readonly #key: string | undefined;

  constructor({ url, key }: { url: string; key: string | undefined }) {
    this.#base = new URL(url);
    const options = { keepAlive: true, maxSockets: 1 };
    this.#agent = this.#isSecure ? new SecureAgent(options) : new PlainAgent(options);
    this.#key = key;
  }

  get #isSecure(): boolean {
    return this.#base.protocol === "https:";
  }

  /** @throws Error unless the answer is of class 2xx. @returns its body, and how many bytes that has. */
  async call(
    method: string,
    path: string,
    body?: unknown,
    { keep = true }: { keep?: boolean } = {},
  ): Promise<{ text: string; bytes: number }> {
    const sent = body === undefined ? undefined : JSON.stringify(body);
    const request = this.#isSecure ? requestSecure : requestPlain;
    return new Promise((resolve, reject) => {
      const outgoing = request(
        new URL(`/api/v1${path}`, this.#base),
        {
          method,
          agent: this.#agent,
          timeout: answerMs,
          headers: {
            ...(this.#key === undefined ? {} : { "X-API-Key": this.#key }),
            ...(sent === undefined
              ? {}
              : { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(sent) }),
          },
        },
        (answer) => {
          const pieces: Buffer[] = [];
          let bytes = 0;
          const refused = (answer.statusCode ?? 0) >= 300;
          answer.on("data", (piece: Buffer) => {
            bytes += piece.length;
            if (keep || refused) pieces.push(piece);
          });
          answer.on("error", reject);
          answer.on("end", () => {
            const text = Buffer.concat(pieces).toString();
            if (refused) reject(new Error(`${method} ${path}: ${answer.statusCode} ${text.slice(0, 300)}`));
            else resolve({ text, bytes });
          });
        },
      );
      outgoing.on("timeout", () => outgoing.destroy(new Error(`no answer within ${answerMs} ms`)));
      outgoing.on("error", reject);
      outgoing.end(sent);
    });
  }

  async json<T>(method: string, path: string, body?: unknown): Promise<T> {
    return JSON.parse((await this.call(method, path, body)).text) as T;
  }

  close(): void {
    this.#agent.destroy();
  }
}
