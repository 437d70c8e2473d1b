import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { type JsonBounds, JsonLook } from "../../platform/bounded-json.ts";
import { isOfPackage } from "./retry-afters.ts";

const createChannel = "undici:request:create";
const headersChannel = "undici:request:headers";
const chunkChannel = "undici:request:bodyChunkReceived";
/** The longest answer that is believed: a list of a hundred thousand files. */
export const answerBytesAtMost = 64 * 1_048_576;
/** The longest message of a stream; envd sends output in pieces of some ten kilobytes. */
export const messageBytesAtMost = 4 * 1_048_576;
/** What the package makes of some megabytes can take gigabytes: of a hundred thousand files each has two dozen values. */
const answerValues: JsonBounds = { maxDepth: 64, maxParts: 2_500_000 };
const messageValues: JsonBounds = { maxDepth: 64, maxParts: 10_000 };
const prefixBytes = 5;
/** What an answer's chunks have at the least, on average, when there are many: a message of a stream has more, and files come in large ones. */
const chunkBytesAtLeast = 8;
const manyChunks = 2_000;
/** How messages of a stream are asked for, and come. */
const streamType = "application/connect+";

/** An answer, or a message in it, that nobody is to hold in memory. */
export class TooLongAnswer extends Error {}

interface PackageRequest {
  headers?: unknown;
  method?: string;
  path?: string;
  abort?: (error: Error) => void;
}

/** What of a body is still to come; undefined: any length, because its reader takes it as it comes. */
type Watched = { take(chunk: Uint8Array): boolean };

/**
 * The package holds answers, and messages of streams, until they are whole, and takes no option for how long they may be. Its
 * HTTP client publishes each piece as it comes: what goes beyond its bound is broken off there.
 */
export class AnswerBounds implements Disposable {
  readonly #watched = new WeakMap<object, Watched>();
  /** Asks for what is not packed. The package takes no headers for what it asks sandboxes. */
  readonly #onCreate = (message: unknown) => {
    const { headers } = (message as { request: PackageRequest }).request;
    if (!Array.isArray(headers) || !isOfPackage(headers)) return;
    const at = headers.findIndex((each, index) => index % 2 === 0 && /^accept-encoding$/i.test(each));
    if (at >= 0) headers[at + 1] = "identity";
  };
  readonly #onHeaders = (message: unknown) => {
    const { request, response } = message as {
      request: PackageRequest;
      response: { statusCode: number; headers: readonly Uint8Array[] };
    };
    if (!isOfPackage(request.headers)) return;
    const isFile = request.method === "GET" && request.path?.startsWith("/files");
    if (isFile && response.statusCode === 200) {
      this.#watched.set(request, new Chunks());
      return;
    }
    const headers = new Map<string, string>();
    for (const [at, name] of response.headers.entries())
      if (at % 2 === 0) headers.set(textOf(name), textOf(response.headers[at + 1]));
    // What is unpacked of it may be a thousand times as long, and is not published.
    if ((headers.get("content-encoding") ?? "identity") !== "identity") {
      breakOff(request, "e2b sent something packed, which it was asked not to");
      return;
    }
    const isStream =
      String(request.headers).includes(streamType) && headers.get("content-type")?.startsWith(streamType);
    this.#watched.set(request, new Chunks(isStream ? new Messages() : new Whole()));
  };
  readonly #onChunk = (message: unknown) => {
    const { request, chunk } = message as { request: PackageRequest; chunk: Uint8Array };
    const watched = this.#watched.get(request);
    if (watched === undefined || watched.take(chunk)) return;
    this.#watched.delete(request);
    breakOff(request, "e2b sent more than is believable");
  };

  /** From now on. */
  listen(): void {
    // Twice would be called twice.
    this[Symbol.dispose]();
    subscribe(createChannel, this.#onCreate);
    subscribe(headersChannel, this.#onHeaders);
    subscribe(chunkChannel, this.#onChunk);
  }

  [Symbol.dispose](): void {
    unsubscribe(createChannel, this.#onCreate);
    unsubscribe(headersChannel, this.#onHeaders);
    unsubscribe(chunkChannel, this.#onChunk);
  }
}

function breakOff(request: PackageRequest, why: string): void {
  // Not in the middle of its parser's turn.
  setImmediate(() => request.abort?.(new TooLongAnswer(why)));
}

/** In lower case. */
function textOf(header: Uint8Array | undefined): string {
  return Buffer.from(header ?? [])
    .toString("latin1")
    .toLowerCase();
}

/** Each costs as much as some hundred bytes, and all that have come are dealt with in one turn of the loop. */
class Chunks implements Watched {
  readonly #content: Watched | undefined;
  #count = 0;
  #bytes = 0;

  constructor(content?: Watched) {
    this.#content = content;
  }

  take(chunk: Uint8Array): boolean {
    this.#count += 1;
    this.#bytes += chunk.length;
    const isTiny = this.#count > manyChunks && this.#bytes < this.#count * chunkBytesAtLeast;
    return !isTiny && this.#content?.take(chunk) !== false;
  }
}

class Whole implements Watched {
  readonly #look = new JsonLook(answerValues);
  #left = answerBytesAtMost;

  take(chunk: Uint8Array): boolean {
    this.#left -= chunk.length;
    return this.#left >= 0 && this.#look.add(chunk) === undefined;
  }
}

/** Each message has a byte of flags and its length in front of it. */
class Messages implements Watched {
  #look = new JsonLook(messageValues);
  #prefix = Buffer.alloc(0);
  #left = 0;

  take(chunk: Uint8Array): boolean {
    let rest = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length);
    while (rest.length > 0) {
      const taken = Math.min(this.#left, rest.length);
      if (this.#look.add(rest.subarray(0, taken)) !== undefined) return false;
      this.#left -= taken;
      rest = rest.subarray(taken);
      if (rest.length === 0) return true;
      const more = rest.subarray(0, prefixBytes - this.#prefix.length);
      this.#prefix = Buffer.concat([this.#prefix, more]);
      rest = rest.subarray(more.length);
      if (this.#prefix.length < prefixBytes) return true;
      this.#left = this.#prefix.readUInt32BE(1);
      this.#prefix = Buffer.alloc(0);
      this.#look = new JsonLook(messageValues);
      if (this.#left > messageBytesAtMost) return false;
    }
    return true;
  }
}

/** Whether it failed because an answer was broken off here. */
export function isTooLong(error: unknown): boolean {
  for (let depth = 0, at = error; depth < 6 && at instanceof Error; depth += 1, at = at.cause)
    if (at instanceof TooLongAnswer) return true;
  return false;
}
