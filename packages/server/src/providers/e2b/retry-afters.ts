import { subscribe, unsubscribe } from "node:diagnostics_channel";

const channel = "undici:request:headers";
const tooManyRequests = 429;
/** An error of the package follows the answer it tells of at once. */
const freshMs = 1_000;
/** What a sandbox or the service says beyond it is not told on: nobody is made to wait for years. */
export const retryAfterAtMostS = 60;

/**
 * The `Retry-After` of the service's refusals: the package's errors leave it out, and its HTTP client publishes the headers
 * it gets.
 */
export class RetryAfters implements Disposable {
  #seconds = 0;
  #at = Number.NEGATIVE_INFINITY;
  readonly #onHeaders = (message: unknown) => {
    const { request, response } = message as {
      request: { headers?: unknown };
      response: { statusCode: number; headers: readonly Uint8Array[] };
    };
    if (response.statusCode !== tooManyRequests || !isOfPackage(request.headers)) return;
    const names = response.headers.map((each) => Buffer.from(each).toString("latin1"));
    const at = names.findIndex((name, index) => index % 2 === 0 && name.toLowerCase() === "retry-after");
    const seconds = Number(at < 0 ? Number.NaN : names[at + 1]);
    if (!Number.isFinite(seconds) || seconds < 0) return;
    this.#seconds = Math.min(Math.ceil(seconds), retryAfterAtMostS);
    this.#at = performance.now();
  };

  /** Listens from now on: a process that does not need it does not pay for it. */
  listen(): void {
    // Twice would be called twice.
    unsubscribe(channel, this.#onHeaders);
    subscribe(channel, this.#onHeaders);
  }

  /** @returns the seconds of a refusal that has just come. */
  recent(): number | undefined {
    return performance.now() - this.#at < freshMs ? this.#seconds : undefined;
  }

  [Symbol.dispose](): void {
    unsubscribe(channel, this.#onHeaders);
  }
}

/** Requests of the package carry its key or its sandbox. */
export function isOfPackage(headers: unknown): boolean {
  return /(^|[,\r\n])(x-api-key|e2b-sandbox-id)([,:])/i.test(String(headers));
}
