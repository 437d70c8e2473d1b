import type { OwnerQuota, OwnerUsage, QuotaRequest, QuotaSummary } from "@alcove/wire";
import type { Transport } from "./transport.ts";

interface QuotaCallOptions {
  signal?: AbortSignal;
}

const quickMs = 30_000;

/** Quotas of owners. Methods throw AlcoveError. */
export class QuotasClient {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Every quota, page by page. */
  async *all(options: QuotaCallOptions = {}): AsyncGenerator<OwnerQuota> {
    for (let cursor: string | undefined; ; ) {
      const { body, headers } = await this.#transport.json<OwnerQuota[]>({
        method: "GET",
        path: "/quotas",
        query: { cursor },
        timeoutMs: quickMs,
        signal: options.signal,
      });
      yield* body;
      const next = headers["x-next-cursor"];
      if (typeof next !== "string") return;
      cursor = next;
    }
  }

  async summary(options: QuotaCallOptions = {}): Promise<QuotaSummary> {
    return this.#json("GET", "/quotas/summary", options);
  }

  async get(owner: string, options: QuotaCallOptions = {}): Promise<OwnerQuota> {
    return this.#json("GET", pathOf(owner), options);
  }

  /** Replaces what was there; what is left out inherits the default. */
  async save(owner: string, quota: QuotaRequest, options: QuotaCallOptions = {}): Promise<OwnerQuota> {
    return this.#json("PUT", pathOf(owner), options, quota);
  }

  async usage(owner: string, options: QuotaCallOptions = {}): Promise<OwnerUsage> {
    return this.#json("GET", `${pathOf(owner)}/usage`, options);
  }

  async remove(owner: string, options: QuotaCallOptions = {}): Promise<void> {
    await this.#json("DELETE", pathOf(owner), options);
  }

  async #json<T>(
    method: "GET" | "PUT" | "DELETE",
    path: string,
    options: QuotaCallOptions,
    json?: unknown,
  ): Promise<T> {
    const call = { method, path, timeoutMs: quickMs, signal: options.signal };
    const { body } = await this.#transport.json<T>(json === undefined ? call : { ...call, json });
    return body;
  }
}

function pathOf(owner: string): string {
  return `/quotas/${encodeURIComponent(owner)}`;
}
