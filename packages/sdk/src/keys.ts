import type { ApiKey, KeyRequest, NewApiKey } from "@alcove/wire";
import type { Transport } from "./transport.ts";

interface KeyCallOptions {
  signal?: AbortSignal;
}

const quickMs = 30_000;

/** Keys; they take the admin key. Methods throw AlcoveError. */
export class KeysClient {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** @returns the key, which is told this once. @throws AlcoveError `conflict` when the name is taken. */
  async create(key: KeyRequest, options: KeyCallOptions = {}): Promise<NewApiKey> {
    const { body } = await this.#transport.json<NewApiKey>({
      method: "POST",
      path: "/admin/keys",
      json: key,
      timeoutMs: quickMs,
      signal: options.signal,
    });
    return body;
  }

  /** By name. */
  async list(options: KeyCallOptions = {}): Promise<ApiKey[]> {
    const { body } = await this.#transport.json<ApiKey[]>({
      method: "GET",
      path: "/admin/keys",
      timeoutMs: quickMs,
      signal: options.signal,
    });
    return body;
  }

  /** It is not accepted from now on, and what it has open ends. */
  async revoke(name: string, options: KeyCallOptions = {}): Promise<void> {
    await this.#transport.json({
      method: "DELETE",
      path: `/admin/keys/${encodeURIComponent(name)}`,
      timeoutMs: quickMs,
      signal: options.signal,
    });
  }
}
