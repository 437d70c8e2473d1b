import type { Readable } from "node:stream";
import type { FileInfo, WatchEvent } from "@alcove/wire";
import { clientError } from "./errors.ts";
import { openEvents } from "./event-response.ts";
import { parse, readEvents } from "./lines.ts";
import { type Query, quickMs, type Transport } from "./transport.ts";

interface FileCallOptions {
  signal?: AbortSignal;
  /** Until the answer begins, milliseconds; what is written is sent before that. Contents have no limit unless it is given. */
  timeoutMs?: number;
}

/** A tree may be large, and a move between file systems copies it. */
const treeMs = 600_000;

/**
 * Files of sandboxes; paths are absolute inside. Methods throw AlcoveError, and so do streams that break off; but a body of
 * yours that fails fails its call with its own error, and what is no body is a TypeError.
 */
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
    const patient = { ...options, timeoutMs: options.timeoutMs ?? treeMs };
    await this.#json("DELETE", id, "", { path, recursive: options.recursive }, patient);
  }

  async move(id: string, from: string, to: string, options: FileCallOptions = {}): Promise<void> {
    const patient = { ...options, timeoutMs: options.timeoutMs ?? treeMs };
    await this.#json("POST", id, "/move", {}, patient, { old_path: from, new_path: to });
  }

  async chmod(id: string, path: string, mode: string, options: FileCallOptions = {}): Promise<void> {
    await this.#json("POST", id, "/chmod", {}, options, { path, mode });
  }

  /**
   * The body must be read to its end or destroyed.
   * @param options.range bytes wanted: from `start`, up to and without `end`.
   */
  async read(
    id: string,
    path: string,
    options: FileCallOptions & { range?: { start: number; end?: number } } = {},
  ): Promise<{ body: Readable; length: number | undefined }> {
    const { signal, timeoutMs, range } = options;
    const response = await this.#transport.send({
      method: "GET",
      path: filesPath(id, ""),
      query: { path },
      headers: range === undefined ? {} : { range: rangeHeader(range) },
      timeoutMs,
      signal,
    });
    return { body: response, length: lengthOf(response.headers["content-length"]) };
  }

  /**
   * @param body a string is sent as UTF-8.
   * @param options.mode octal, `0755`; a file that is replaced keeps its own, a new one gets 0644.
   * @param options.user with whose rights it is written, and whose it is then.
   * @param options.length what a stream has in bytes. One that has more or less, or does not end within 30 s after them, is
   *  `bad_request`, and nothing is written.
   */
  async write(
    id: string,
    path: string,
    body: Readable | Uint8Array | string,
    options: FileCallOptions & { mode?: string; user?: string; length?: number } = {},
  ): Promise<void> {
    const content = typeof body === "string" ? Buffer.from(body) : body;
    await this.#upload(id, "", { path, mode: options.mode, user: options.user }, content, options);
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
  async writeArchive(
    id: string,
    path: string,
    body: Readable,
    options: FileCallOptions & { user?: string } = {},
  ): Promise<void> {
    await this.#upload(id, "/archive", { path, user: options.user }, body, options);
  }

  /**
   * Changes of a directory as they happen, from the moment this resolves until `signal` aborts or the reader leaves. `cut` when
   * the connection breaks or falls silent, the service stops or the sandbox ends: to watch again tells which.
   */
  async watch(
    id: string,
    path: string,
    options: FileCallOptions & { recursive?: boolean } = {},
  ): Promise<AsyncGenerator<WatchEvent>> {
    const { signal, timeoutMs = quickMs, recursive } = options;
    const response = await openEvents(this.#transport, {
      path: filesPath(id, "/watch"),
      query: { path, recursive },
      timeoutMs,
      signal,
    });
    return changes(response);
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
      timeoutMs: options.timeoutMs,
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
      timeoutMs: options.timeoutMs ?? quickMs,
      signal: options.signal,
    });
    return body;
  }
}

function filesPath(id: string, route: string): string {
  return `/sandboxes/${encodeURIComponent(id)}/files${route}`;
}

/** @throws RangeError for a range that holds nothing, or does not begin and end within a file. */
function rangeHeader({ start, end = Number.POSITIVE_INFINITY }: { start: number; end?: number }): string {
  if (!Number.isSafeInteger(start) || start < 0) throw new RangeError(`a range cannot start at ${start}`);
  if (end === Number.POSITIVE_INFINITY) return `bytes=${start}-`;
  if (!Number.isSafeInteger(end)) throw new RangeError(`a range cannot end at ${end}`);
  if (end <= start) throw new RangeError(`the range from ${start} to ${end} is empty`);
  return `bytes=${start}-${end - 1}`;
}

/** A watch has no end of its own: one that is over in good order has missed what comes after it all the same. */
async function* changes(response: Readable): AsyncGenerator<WatchEvent> {
  for await (const { data } of readEvents(response)) yield parse(data);
  throw clientError("cut", "the watch was ended by the service, which stops, or by the end of its sandbox");
}

function lengthOf(header: string | undefined): number | undefined {
  return header === undefined ? undefined : Number(header);
}
