import type { IncomingMessage } from "node:http";
import { formatDuration } from "@alcove/wire";
import type { Static, TSchema } from "typebox";
import { abortable } from "../../platform/abortable.ts";
import { ByteBlocks } from "../../platform/byte-blocks.ts";
import { DeadlineExceeded, deadlineAfter } from "../../platform/deadline.ts";
import type { Taker } from "../../platform/fair-turns.ts";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { type CallOptions, DomainError, ProviderError, Unavailable } from "../../ports/index.ts";
import type { BackendClient, BackendRequest } from "./backend-client.ts";
import { backendTurns } from "./backend-turns.ts";
import { Health } from "./contract-schemas.ts";
import { ListReader } from "./list-reader.ts";
import { checked, parsed, readAnswer, Unreadable } from "./tolerant-reader.ts";

const answerAtMost = 1_048_576;
const listAtMost = 64 * 1_048_576;
/** Bytes of a refusal that are read. */
const refusalAtMost = 4_096;
/** Of an answer that says nothing here: what is longer costs its connection, which else can be used again. */
const unreadAtMost = 65_536;
const loggedLength = 300;
const retryAfterAtMostS = 3_600;
const defaultRetryAfterS = 5;
const lookMs = 5_000;

/** An answer that is none of success. */
export class Refusal extends Error {
  readonly status: number;
  readonly retryAfterS: number | undefined;
  constructor(status: number, retryAfterS: number | undefined) {
    super(`status ${status}`);
    this.name = "Refusal";
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

export const isRefusal = (error: unknown, ...statuses: readonly number[]): boolean =>
  error instanceof Refusal && statuses.includes(error.status);

export type CallRequest = Omit<BackendRequest, "signal" | "onRepeat"> & {
  /** null: as long as the caller's signal allows. */
  timeoutMs?: number | null;
  /** Makes an error of a refusal that is expected here; undefined: nothing special. */
  known?: (error: unknown) => Promise<Error | undefined>;
  /** Done twice it is refused the second time (404, 409), which says nothing of the first. */
  isOnce?: boolean;
};

/** Calls of the backend: each has a deadline, is bounded in size, ends with its caller's signal, and fails in our words. */
export class BackendCalls {
  /** Longest time for one call. */
  readonly timeoutMs: number;
  readonly #client: BackendClient;
  readonly #apiKey: string;
  readonly #logger: Logger;

  constructor(options: { client: BackendClient; timeoutMs: number; apiKey: string; logger: Logger }) {
    this.#client = options.client;
    this.timeoutMs = options.timeoutMs;
    this.#apiKey = options.apiKey;
    this.#logger = options.logger;
  }

  /** @param what ends "the backend failed to …". */
  async read<T extends TSchema>(
    what: string,
    schema: T,
    request: CallRequest,
    options: CallOptions,
  ): Promise<Static<T>> {
    return await this.#run(what, request, options, async (response, signal) =>
      readAnswer(schema, await textOf(response, answerAtMost, signal)),
    );
  }

  /**
   * For an answer with a list of many: each thing in it is read as it comes, in the turns of `taker`.
   * @param list.field the list's name. @param list.thingAtMost bytes of one thing. @param list.each what it throws ends the call.
   * @param list.room is awaited before more of it is read.
   */
  async readEach<T extends TSchema>(
    what: string,
    list: {
      field: string;
      schema: T;
      thingAtMost: number;
      taker: Taker;
      each: (thing: Static<T>) => void;
      room?: () => Promise<void> | undefined;
    },
    request: CallRequest,
    options: CallOptions,
  ): Promise<void> {
    const { field, schema, thingAtMost, taker, each, room } = list;
    await this.#run(what, request, options, async (response, signal) => {
      const reader = new ListReader(field, thingAtMost);
      for await (const piece of partsOf(response, listAtMost, signal)) {
        await backendTurns.claim(taker);
        for (const thing of reader.push(piece)) {
          each(checked(schema, parsed(thing)));
          const turn = backendTurns.claim(taker);
          if (turn !== undefined) await turn;
        }
        await room?.();
      }
      reader.end();
    });
  }

  /** Whether it is the backend that answers now, and not something in front of it that says 404 to everything. */
  async isThere(options: CallOptions): Promise<boolean> {
    const request = { method: "GET" as const, path: ["health"], timeoutMs: lookMs };
    return await this.read("say how it is", Health, request, options).then(
      () => true,
      () => false,
    );
  }

  /** What a refusal means that is a 404 while `isThere` is not so; undefined for any other. */
  async hiddenBy(error: unknown, options: CallOptions): Promise<Unavailable | undefined> {
    return isRefusal(error, 404) && !(await this.isThere(options)) ? this.hidden() : undefined;
  }

  hidden(): Unavailable {
    const message =
      "the backend is not there now: what answers in its place says 404, to its health call too";
    return new Unavailable(message, { retryAfterS: defaultRetryAfterS });
  }

  /** For a call whose answer says nothing but that it was carried out. */
  async tell(what: string, request: CallRequest, options: CallOptions): Promise<void> {
    await this.#run(what, request, options, async (response) => this.#letGo(response));
  }

  /** It is read to its end, which nobody waits for, as long as a call may take. */
  #letGo(response: IncomingMessage): void {
    let left = unreadAtMost;
    const late = setTimeout(() => response.destroy(), this.timeoutMs);
    response.on("close", () => clearTimeout(late));
    response.on("data", (part: Buffer) => {
      left -= part.length;
      if (left < 0) response.destroy();
    });
  }

  /**
   * For an answer that is a stream: `signal` bounds all of it, the deadline of the call its head and what `first` waits for.
   */
  async stream<T>(
    what: string,
    request: CallRequest,
    options: CallOptions & { stream: AbortSignal },
    first: (response: IncomingMessage) => Promise<T>,
  ): Promise<T> {
    return await this.#run(what, request, options, first, options.stream);
  }

  /** For who builds the backend: nobody else is told why a command is lost. */
  warn(what: string, error: Unreadable): void {
    this.#logger.warn(
      { error: error.message },
      `the backend was asked to ${what}, and its answer could not be understood`,
    );
  }

  /** Says of a failure what it means. */
  translate(what: string, error: unknown, signal: AbortSignal): unknown {
    if (error instanceof DomainError) return error;
    if (signal.aborted) return aborted(what, signal.reason);
    if (error instanceof DeadlineExceeded) return aborted(what, error);
    if (error instanceof Unreadable)
      return new ProviderError(
        `the backend was asked to ${what}, and its answer could not be understood: ${error.message}`,
      );
    if (error instanceof Refusal) return refused(what, error);
    return new Unavailable(`the backend could not be reached, or broke off, when asked to ${what}`, {
      cause: new Error(messageOf(error).slice(0, loggedLength)),
      retryAfterS: defaultRetryAfterS,
    });
  }

  async #run<T>(
    what: string,
    request: CallRequest,
    options: CallOptions,
    read: (response: IncomingMessage, signal: AbortSignal) => Promise<T>,
    stream?: AbortSignal,
  ): Promise<T> {
    options.signal.throwIfAborted();
    const { timeoutMs = this.timeoutMs, known, isOnce = false, ...sent } = request;
    using deadline = deadlineAfter(timeoutMs ?? 2 ** 31 - 1, options.signal);
    const cut = new AbortController();
    let isRepeated = false;
    let response: IncomingMessage | undefined;
    try {
      const answer = this.#client.send({
        ...sent,
        onRepeat: () => (isRepeated = true),
        signal: stream === undefined ? deadline.signal : AbortSignal.any([stream, cut.signal]),
      });
      response = await abortable(answer, deadline.signal);
      // A reader that waits for it is told; without one it is nobody's to hear.
      response.on("error", () => undefined);
      await abortable(this.#refuse(what, response, deadline.signal), deadline.signal);
      return await abortable(read(response, deadline.signal), deadline.signal);
    } catch (error) {
      // One without an answer too: its stream may be wanted for much longer.
      cut.abort();
      response?.destroy();
      if (isOnce && isRepeated && isRefusal(error, 404, 409))
        throw new Unavailable(
          `the connection to the backend broke when it was asked to ${what}; whether that was done is not known`,
          { retryAfterS: defaultRetryAfterS },
        );
      const meant =
        known === undefined || deadline.signal.aborted
          ? undefined
          : await abortable(known(error), deadline.signal).catch(() => undefined);
      throw meant ?? this.translate(what, error, deadline.signal);
    }
  }

  async #refuse(what: string, response: IncomingMessage, signal: AbortSignal): Promise<void> {
    const { statusCode = 0 } = response;
    if (statusCode >= 200 && statusCode < 300) return;
    const body = await beginningOfRefusal(response, signal);
    this.#logger.debug(
      { status: statusCode, answer: this.#scrubbed(body) },
      `the backend refused to ${what}`,
    );
    throw new Refusal(statusCode, retryAfter(response.headers["retry-after"]));
  }

  #scrubbed(text: string): string {
    const kept = this.#apiKey === "" ? text : text.replaceAll(this.#apiKey, "[redacted]");
    return kept.slice(0, loggedLength);
  }
}

function refused(what: string, { status, retryAfterS }: Refusal): DomainError {
  const asked = `when asked to ${what}`;
  if (status === 401 || status === 403)
    return new ProviderError(
      `the backend refused the configured key ${asked} (${status}); check providers.custom.api_key and auth_header`,
    );
  if (status >= 300 && status < 400)
    return new ProviderError(
      `the backend answered with a redirect (${status}) ${asked}; none is followed: set providers.custom.url to where it leads`,
    );
  if (status === 429)
    return new Unavailable(`the backend takes no more requests now (${asked})`, {
      retryAfterS: retryAfterS ?? defaultRetryAfterS,
    });
  if (status === 507) return new DomainError("storage_full", `the backend has no room left (${asked})`);
  return new ProviderError(`the backend failed with status ${status} ${asked}`);
}

function aborted(what: string, reason: unknown): unknown {
  if (!(reason instanceof DeadlineExceeded)) return reason;
  return new Unavailable(`the backend did not ${what} within ${formatDuration(reason.afterMs)}`, {
    cause: reason,
    retryAfterS: defaultRetryAfterS,
  });
}

/** Seconds, or a date. */
function retryAfter(value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  const seconds = /^\d+$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1_000;
  return Number.isFinite(seconds) ? Math.min(retryAfterAtMostS, Math.max(0, Math.ceil(seconds))) : undefined;
}

async function textOf(response: IncomingMessage, atMost: number, signal: AbortSignal): Promise<string> {
  const blocks = new ByteBlocks();
  for await (const part of partsOf(response, atMost, signal)) blocks.add(part);
  return blocks.take().toString();
}

/** To its end where that is near, so that the connection is kept. */
async function beginningOfRefusal(response: IncomingMessage, signal: AbortSignal): Promise<string> {
  const blocks = new ByteBlocks();
  try {
    for await (const part of response as AsyncIterable<Buffer>) {
      blocks.add(part.subarray(0, refusalAtMost - blocks.bytes));
      if (signal.aborted || blocks.bytes === refusalAtMost) break;
    }
  } catch (error) {
    // Its status says what it means.
    blocks.add(Buffer.from(` (cut: ${messageOf(error)})`));
  }
  return blocks.take().toString();
}

/** An answer of a bounded length, to its end. */
async function* partsOf(
  response: IncomingMessage,
  atMost: number,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  let bytes = 0;
  for await (const part of response as AsyncIterable<Buffer>) {
    signal.throwIfAborted();
    bytes += part.length;
    if (bytes > atMost) throw new Unreadable(`it is longer than ${atMost} bytes`);
    yield part;
  }
  if (!response.complete) throw new Error("the answer was cut");
}
