import type { AuditRecord } from "@alcove/wire";
import { quickMs, type Transport } from "./transport.ts";

/** What is left out is not asked for. */
export interface AuditFilter {
  actor?: string | undefined;
  method?: string | undefined;
  status?: number | undefined;
  /** Part of the path. */
  path?: string | undefined;
  /** RFC 3339. */
  since?: string | undefined;
  until?: string | undefined;
  /** 1 to 500; 100 unless given. */
  limit?: number | undefined;
  /** The `nextCursor` of the page before. */
  cursor?: string | undefined;
}

interface AuditCallOptions {
  signal?: AbortSignal;
}

/** The audit history; takes an admin key. Methods throw AlcoveError. */
export class AuditClient {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Newest first. */
  async list(filter: AuditFilter = {}, options: AuditCallOptions = {}): Promise<AuditRecord[]> {
    return (await this.page(filter, options)).items;
  }

  /** One page of it, and where the older ones begin, if there are any. */
  async page(
    filter: AuditFilter = {},
    options: AuditCallOptions = {},
  ): Promise<{ items: AuditRecord[]; nextCursor: string | undefined }> {
    const { body, headers } = await this.#transport.json<AuditRecord[]>(call(filter, options));
    const cursor = headers["x-next-cursor"];
    return { items: body, nextCursor: typeof cursor === "string" ? cursor : undefined };
  }

  /** The same as CSV, with a line of names. */
  async csv(filter: AuditFilter = {}, options: AuditCallOptions = {}): Promise<string> {
    return await this.#transport.text(call({ ...filter, format: "csv" }, options));
  }
}

function call(filter: AuditFilter & { format?: "csv" }, options: AuditCallOptions) {
  return {
    method: "GET",
    path: "/admin/audit",
    query: { ...filter },
    timeoutMs: quickMs,
    signal: options.signal,
  };
}
