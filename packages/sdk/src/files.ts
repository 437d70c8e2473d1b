import type { Readable } from "node:stream";
import type { FileInfo } from "@alcove/wire";
import type { Query, Transport } from "./transport.ts";

interface FileCallOptions {
  signal?: AbortSignal;
}

const quickMs = 30_000;

/** Files of sandboxes; paths are absolute inside. Methods throw AlcoveError. */
export class FilesClient {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  async stat(id: string, path: string, options: FileCallOptions = {}): Promise<FileInfo> {
    return this.#json("GET", id, "/stat", { path }, options);
  }

  async list(id: string, path: string, options: FileCallOptions = {}): Promise<FileInfo[]> {
    return this.#json("GET", id, "/list", { path }, options);
  }

  async glob(id: string, pattern: string, options: FileCallOptions = {}): Promise<string[]> {
    return this.#json("GET", id, "/glob", { pattern }, options);
  }

  async remove(id: string, path: string, options: FileCallOptions & { recursive: boolean }): Promise<void> {
    await this.#json("DELETE", id, "", { path, recursive: options.recursive }, options);
  }

  async move(id: string, from: string, to: string, options: FileCallOptions = {}): Promise<void> {
    await this.#json("POST", id, "/move", {}, options, { old_path: from, new_path: to });
  }

  async chmod(id: string, path: string, mode: string, options: FileCallOptions = {}): Promise<void> {
    await this.#json("POST", id, "/chmod", {}, options, { path, mode });
  }

  /** The body must be read to its end or destroyed. */
  async read(
    id: string,
    path: string,
    options: FileCallOptions = {},
  ): Promise<{ body: Readable; length: number | undefined }> {
    const response = await this.#transport.send({
      method: "GET",
      path: filesPath(id, ""),
      query: { path },
      ...options,
    });
    return { body: response, length: lengthOf(response.headers["content-length"]) };
  }

  /** @param options.mode octal, `0755`; default 0644. */
  async write(
    id: string,
    path: string,
    body: Readable | Uint8Array,
    options: FileCallOptions & { mode?: string; length?: number } = {},
  ): Promise<void> {
    await this.#upload(id, "", { path, mode: options.mode }, body, options);
  }

  /** A tar of what is below a directory. */
  async readArchive(id: string, path: string, options: FileCallOptions = {}): Promise<Readable> {
    return this.#transport.send({
      method: "GET",
      path: filesPath(id, "/archive"),
      query: { path },
      ...options,
    });
  }

  /** Unpacks a tar below a directory. */
  async writeArchive(id: string, path: string, body: Readable, options: FileCallOptions = {}): Promise<void> {
    await this.#upload(id, "/archive", { path }, body, options);
  }

  async #upload(
    id: string,
    route: string,
    query: Query,
    body: Readable | Uint8Array,
    options: FileCallOptions & { length?: number },
  ): Promise<void> {
    await this.#transport.json({
      method: "PUT",
      path: filesPath(id, route),
      query,
      body,
      headers: {
        "content-type": route === "/archive" ? "application/x-tar" : "application/octet-stream",
        ...(options.length === undefined ? {} : { "content-length": String(options.length) }),
      },
      signal: options.signal,
    });
  }

  async #json<T>(
    method: string,
    id: string,
    route: string,
    query: Query,
    options: FileCallOptions,
    json?: unknown,
  ): Promise<T> {
    const { body } = await this.#transport.json<T>({
      method,
      path: filesPath(id, route),
      query,
      ...(json === undefined ? {} : { json }),
      timeoutMs: quickMs,
      signal: options.signal,
    });
    return body;
  }
}

function filesPath(id: string, route: string): string {
  return `/sandboxes/${encodeURIComponent(id)}/files${route}`;
}

function lengthOf(header: string | undefined): number | undefined {
  return header === undefined ? undefined : Number(header);
}
