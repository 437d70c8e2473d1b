import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { isOfPackage } from "./retry-afters.ts";

const channel = "undici:request:headers";

/**
 * No answer to a request of the package leads elsewhere: a sandbox could send the service to addresses that only the service
 * reaches, with what opens the sandbox. The package follows redirects and takes no option for it. Its HTTP client publishes
 * the headers that it goes on with: without an address, a redirect is an answer that the package takes for a failure.
 */
export class RefusedRedirects implements Disposable {
  readonly #onHeaders = (message: unknown) => {
    const { request, response } = message as {
      request: { headers?: unknown };
      response: { statusCode: number; headers: Uint8Array[] };
    };
    if (response.statusCode < 300 || response.statusCode > 399 || !isOfPackage(request.headers)) return;
    for (let at = 0; at < response.headers.length; at += 2) {
      const name = Buffer.from(response.headers[at] ?? "").toString("latin1");
      if (name.toLowerCase() === "location") response.headers[at] = Buffer.from("x-refused-location");
    }
  };

  /** From now on. */
  listen(): void {
    // Twice would be called twice.
    unsubscribe(channel, this.#onHeaders);
    subscribe(channel, this.#onHeaders);
  }

  [Symbol.dispose](): void {
    unsubscribe(channel, this.#onHeaders);
  }
}
