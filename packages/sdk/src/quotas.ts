import type { OwnerQuota, OwnerUsage, QuotaRequest, QuotaSummary } from "@alcove/wire";
import { quickMs, type Transport } from "./transport.ts";

interface QuotaCallOptions {
  signal?: AbortSignal;
}

/** Quotas of owners. Methods throw AlcoveError. */
export class QuotasClient {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Every quota, page by page. */
  all(options: QuotaCallOptions = {}): AsyncGenerator<OwnerQuota> {
    return this.#transport.pages("/quotas", { timeoutMs: quickMs, signal: options.signal });
  }

  async summary(options: QuotaCallOptions = {}): Promise<QuotaSummary> {
    return this.#transport.quick("GET", "/quotas/summary", options);
  }

  async get(owner: string, options: QuotaCallOptions = {}): Promise<OwnerQuota> {
    return this.#transport.quick("GET", pathOf(owner), options);
  }

  /** Replaces what was there; what is left out inherits the default. */
  async save(owner: string, quota: QuotaRequest, options: QuotaCallOptions = {}): Promise<OwnerQuota> {
    return this.#transport.quick("PUT", pathOf(owner), options, quota);
  }

  async usage(owner: string, options: QuotaCallOptions = {}): Promise<OwnerUsage> {
    return this.#transport.quick("GET", `${pathOf(owner)}/usage`, options);
  }

  async remove(owner: string, options: QuotaCallOptions = {}): Promise<void> {
    await this.#transport.quick("DELETE", pathOf(owner), options);
  }
}

function pathOf(owner: string): string {
  return `/quotas/${encodeURIComponent(owner)}`;
}
