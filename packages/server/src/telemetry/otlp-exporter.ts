import { setTimeout as pause } from "node:timers/promises";
import { type ExportResult, ExportResultCode } from "@opentelemetry/core";
import { JsonTraceSerializer } from "@opentelemetry/otlp-transformer";
import type { ReadableSpan, SpanExporter } from "@opentelemetry/sdk-trace";
import { messageOf } from "../platform/message-of.ts";

const sendDeadlineMs = 10_000;
/** How long after each attempt that failed the next is made; after the last of them there is none. */
const retryPausesMs = [500, 2_000];
/** The collector is busy or being restarted. OTLP, Failures. */
const retryable: ReadonlySet<number> = new Set([429, 502, 503, 504]);
/** A collector answers with a few bytes; what more it says nobody reads. */
const answerBytes = 65_536;

/**
 * Sends batches to a collector, as OTLP in JSON over HTTP. OpenTelemetry's own exporter is not used: it reads OTEL_ variables of
 * the environment and files they name, a collector that drips an answer holds it for ever, and a stop cannot end what it has
 * under way.
 */
export class OtlpExporter implements SpanExporter {
  readonly #url: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #onSent: (spans: number, error: string | undefined) => void;
  readonly #stopped = new AbortController();
  readonly #deadlineMs: number;

  constructor(options: {
    endpoint: string;
    headers: Readonly<Record<string, string>>;
    /** What became of each batch. */
    onSent: (spans: number, error: string | undefined) => void;
    deadlineMs?: number;
  }) {
    this.#url = tracesUrl(options.endpoint);
    this.#headers = options.headers;
    this.#onSent = options.onSent;
    this.#deadlineMs = options.deadlineMs ?? sendDeadlineMs;
  }

  export(spans: ReadableSpan[], done: (result: ExportResult) => void): void {
    this.#send(spans).then(
      () => {
        this.#onSent(spans.length, undefined);
        done({ code: ExportResultCode.SUCCESS });
      },
      (error) => {
        this.#onSent(spans.length, reasonOf(error));
        done({ code: ExportResultCode.FAILED });
      },
    );
  }

  /** Ends what is under way. */
  shutdown(): Promise<void> {
    this.#stopped.abort(new Error("the service stopped"));
    return Promise.resolve();
  }

  /** All attempts together take no longer than the deadline. */
  async #send(spans: ReadableSpan[]): Promise<void> {
    const body = JsonTraceSerializer.serializeRequest(spans);
    if (body === undefined) throw new Error("the spans cannot be told as OTLP");
    const signal = AbortSignal.any([this.#stopped.signal, AbortSignal.timeout(this.#deadlineMs)]);
    for (const pauseMs of [...retryPausesMs, undefined]) {
      try {
        return await this.#attempt(Buffer.from(body), spans.length, signal);
      } catch (error) {
        if (pauseMs === undefined || signal.aborted || error instanceof Refused) throw error;
      }
      await pause(pauseMs, undefined, { signal, ref: false });
    }
  }

  async #attempt(body: Buffer<ArrayBuffer>, count: number, signal: AbortSignal): Promise<void> {
    const response = await fetch(this.#url, {
      method: "POST",
      headers: { ...this.#headers, "content-type": "application/json" },
      body,
      // Who redirects would be sent the collector's key.
      redirect: "error",
      signal,
    });
    const answer = await beginningOf(response);
    if (!response.ok) {
      const message = `the collector answered ${response.status}`;
      throw retryable.has(response.status) ? new Error(message) : new Refused(message);
    }
    const rejected = rejectedSpans(answer);
    if (rejected > 0) throw new Refused(`the collector refused ${rejected} of ${count} spans`);
  }
}

/** The same again would be refused again. */
class Refused extends Error {}

/** The endpoint is the collector's; a whole address of its traces is taken too. */
export function tracesUrl(endpoint: string): string {
  const url = new URL(endpoint);
  const path = url.pathname.replace(/\/+$/, "");
  url.pathname = path.endsWith("/v1/traces") ? path : `${path}/v1/traces`;
  return url.href;
}

async function beginningOf(response: Response): Promise<string> {
  if (response.body === null) return "";
  const pieces: Uint8Array[] = [];
  let length = 0;
  for await (const piece of response.body) {
    pieces.push(piece);
    length += piece.length;
    if (length > answerBytes) break;
  }
  return Buffer.concat(pieces).toString("utf8");
}

/** Of an answer of 200 that says that not all was taken; what is no such answer says nothing. */
function rejectedSpans(answer: string): number {
  try {
    const { partialSuccess } = JSON.parse(answer) as { partialSuccess?: { rejectedSpans?: unknown } };
    const rejected = Number(partialSuccess?.rejectedSpans ?? 0);
    return Number.isFinite(rejected) ? rejected : 0;
  } catch {
    return 0;
  }
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return "unknown";
  if (error.name === "TimeoutError") return "the collector did not answer in time";
  // Of fetch, what went wrong is in the cause.
  return error.cause instanceof Error ? messageOf(error.cause) : messageOf(error);
}
