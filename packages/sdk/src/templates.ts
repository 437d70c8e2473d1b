import type {
  Sandbox,
  Template,
  TemplateReplacement,
  TemplateRequest,
  TemplateSpawnRequest,
} from "@alcove/wire";
import { quickMs, type Transport } from "./transport.ts";

interface TemplateCallOptions {
  signal?: AbortSignal;
}

/** An image may have to be fetched first. */
const spawnMs = 600_000;

/** Named ways to spawn. Methods throw AlcoveError. */
export class TemplatesClient {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Every template, page by page. */
  all(options: TemplateCallOptions = {}): AsyncGenerator<Template> {
    return this.#transport.pages("/templates", { timeoutMs: quickMs, signal: options.signal });
  }

  async get(name: string, options: TemplateCallOptions = {}): Promise<Template> {
    return this.#transport.quick("GET", pathOf(name), options);
  }

  /** @throws AlcoveError `conflict` when the name is taken. */
  async create(template: TemplateRequest, options: TemplateCallOptions = {}): Promise<Template> {
    return this.#transport.quick("POST", "/templates", options, template);
  }

  async replace(
    name: string,
    template: TemplateReplacement,
    options: TemplateCallOptions = {},
  ): Promise<Template> {
    return this.#transport.quick("PUT", pathOf(name), options, template);
  }

  async remove(name: string, options: TemplateCallOptions = {}): Promise<void> {
    await this.#transport.quick("DELETE", pathOf(name), options);
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
}

function pathOf(name: string): string {
  return `/templates/${encodeURIComponent(name)}`;
}
