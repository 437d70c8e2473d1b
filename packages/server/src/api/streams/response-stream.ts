import type { FastifyReply } from "fastify";

/**
 * A response written piece by piece, past Fastify. `write` resolves when the client's connection takes more, so that
 * a reader that stops reading stops the writer; it rejects with the signal's reason when the call ends.
 */
export class ResponseStream {
  readonly #reply: FastifyReply;
  readonly #signal: AbortSignal;

  private constructor(reply: FastifyReply, signal: AbortSignal) {
    this.#reply = reply;
    this.#signal = signal;
  }

  /** Sends the head at once, with what hooks and handlers have set. */
  static open(
    reply: FastifyReply,
    options: { signal: AbortSignal; headers: Record<string, string> },
  ): ResponseStream {
    reply.hijack();
    reply.raw.writeHead(200, { ...definedHeaders(reply), ...options.headers });
    reply.raw.flushHeaders();
    return new ResponseStream(reply, options.signal);
  }

  /** @returns whether the connection takes more at once; else wait for `drained`. */
  write(text: string): boolean {
    return this.#reply.raw.write(text);
  }

  async drained(): Promise<void> {
    const response = this.#reply.raw;
    const signal = this.#signal;
    signal.throwIfAborted();
    if (!response.writableNeedDrain) return;
    await new Promise<void>((resolve) => {
      const done = () => {
        response.off("drain", done);
        response.off("close", done);
        signal.removeEventListener("abort", done);
        resolve();
      };
      response.once("drain", done);
      response.once("close", done);
      signal.addEventListener("abort", done, { once: true });
    });
    signal.throwIfAborted();
  }

  end(): void {
    this.#reply.raw.end();
  }

  /** Ends without the mark of a complete response: the reader sees that it was cut. */
  cut(): void {
    this.#reply.raw.destroy();
  }
}

function definedHeaders(reply: FastifyReply): Record<string, string | number | string[]> {
  const headers: Record<string, string | number | string[]> = {};
  for (const [name, value] of Object.entries(reply.getHeaders()))
    if (value !== undefined) headers[name] = value;
  return headers;
}
