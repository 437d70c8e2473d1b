import type {
  Sandbox,
  Template,
  TemplateReplacement,
  TemplateRequest,
  TemplateSpawnRequest,
} from "@alcove/wire";
import type { Transport } from "./transport.ts";

interface TemplateCallOptions {
  signal?: AbortSignal;
}

const quickMs = 30_000;
/** An image may have to be fetched first. */
const spawnMs = 600_000;

/** Named ways to spawn. Methods throw AlcoveError. */
export class TemplatesClient {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Every template, page by page. */
  async *all(options: TemplateCallOptions = {}): AsyncGenerator<Template> {
    for (let cursor: string | undefined; ; ) {
      const { body, headers } = await this.#transport.json<Template[]>({
        method: "GET",
        path: "/templates",
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

  async get(name: string, options: TemplateCallOptions = {}): Promise<Template> {
    return this.#json("GET", pathOf(name), options);
  }

  /** @throws AlcoveError `conflict` when the name is taken. */
  async create(template: TemplateRequest, options: TemplateCallOptions = {}): Promise<Template> {
    return this.#json("POST", "/templates", options, template);
  }

  async replace(
    name: string,
    template: TemplateReplacement,
    options: TemplateCallOptions = {},
  ): Promise<Template> {
    return this.#json("PUT", pathOf(name), options, template);
  }

  async remove(name: string, options: TemplateCallOptions = {}): Promise<void> {
    await this.#json("DELETE", pathOf(name), options);
  }

  /** What is given overrides what the template says. */
  async spawn(
    name: string,
    overrides: TemplateSpawnRequest = {},
    options: TemplateCallOptions & { idempotencyKey?: string } = {},
  ): Promise<Sandbox> {
    const { body } = await this.#transport.json<Sandbox>({
      method: "POST",
      path: `${pathOf(name)}/spawn`,
      json: overrides,
      headers: options.idempotencyKey === undefined ? {} : { "idempotency-key": options.idempotencyKey },
      timeoutMs: spawnMs,
      signal: options.signal,
    });
    return body;
  }

  async #json<T>(
    method: "GET" | "PUT" | "POST" | "DELETE",
    path: string,
    options: TemplateCallOptions,
    json?: unknown,
  ): Promise<T> {
    const call = { method, path, timeoutMs: quickMs, signal: options.signal };
    const { body } = await this.#transport.json<T>(json === undefined ? call : { ...call, json });
    return body;
  }
}

function pathOf(name: string): string {
  return `/templates/${encodeURIComponent(name)}`;
}
