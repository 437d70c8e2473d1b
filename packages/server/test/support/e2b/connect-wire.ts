import type { IncomingMessage, ServerResponse } from "node:http";
import { writeOut } from "./write-out.ts";

/** Codes of the Connect protocol that envd answers, with their HTTP status. */
const statuses = {
  invalid_argument: 400,
  failed_precondition: 400,
  unauthenticated: 401,
  not_found: 404,
  already_exists: 409,
  resource_exhausted: 429,
  unimplemented: 501,
  unavailable: 503,
  internal: 500,
  unknown: 500,
} as const;

export class ConnectFailure extends Error {
  readonly code: keyof typeof statuses;
  constructor(code: keyof typeof statuses, message: string) {
    super(message);
    this.code = code;
  }
}

const endOfStream = 2;

/** One request of the Connect protocol in its JSON form, unary or with a stream of answers. */
export class ConnectCall {
  readonly #response: ServerResponse;
  readonly message: Record<string, unknown>;
  readonly isStream: boolean;

  private constructor(options: {
    response: ServerResponse;
    message: Record<string, unknown>;
    isStream: boolean;
  }) {
    this.#response = options.response;
    this.message = options.message;
    this.isStream = options.isStream;
  }

  static async read(request: IncomingMessage, response: ServerResponse): Promise<ConnectCall> {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const body = Buffer.concat(parts);
    const isStream = request.headers["content-type"] === "application/connect+json";
    const text = isStream ? body.subarray(5, 5 + body.readUInt32BE(1)) : body;
    return new ConnectCall({ response, isStream, message: JSON.parse(text.toString() || "{}") });
  }

  answer(message: unknown): void {
    this.#response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(message));
  }

  /** Opens the stream with its first message. */
  async send(message: unknown): Promise<void> {
    if (!this.#response.headersSent)
      this.#response.writeHead(200, { "content-type": "application/connect+json" });
    await writeOut(this.#response, envelope(0, message));
  }

  end(): void {
    this.#response.end(envelope(endOfStream, {}));
  }

  fail(failure: ConnectFailure): void {
    const error = { code: failure.code, message: failure.message };
    if (this.isStream) {
      if (!this.#response.headersSent)
        this.#response.writeHead(200, { "content-type": "application/connect+json" });
      this.#response.end(envelope(endOfStream, { error }));
      return;
    }
    this.#response
      .writeHead(statuses[failure.code], { "content-type": "application/json" })
      .end(JSON.stringify(error));
  }
}

function envelope(flags: number, message: unknown): Buffer {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
}
