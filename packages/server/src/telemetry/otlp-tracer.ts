import {
  type Context,
  diag,
  type Span as OtelSpan,
  type Tracer as OtelTracer,
  ROOT_CONTEXT,
  type SpanContext,
  SpanKind,
  SpanStatusCode,
  TraceFlags,
  trace,
} from "@opentelemetry/api";
import { parseTraceParent, setGlobalErrorHandler, TraceState } from "@opentelemetry/core";
import { resourceFromAttributes } from "@opentelemetry/resources";
import {
  BatchSpanProcessor,
  ParentBasedSampler,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from "@opentelemetry/sdk-trace";
import type { Config } from "../config/config.ts";
import { parseOtlpHeaders } from "../config/otlp-headers.ts";
import type { Logger } from "../platform/logger.ts";
import { outsideRequests } from "../platform/request-scope.ts";
import type { Clock } from "../ports/clock.ts";
import type { Span, SpanAttributes, Tracer } from "../ports/tracer.ts";
import { ExportReports } from "./export-reports.ts";
import { OtlpExporter } from "./otlp-exporter.ts";
import { TraceClock } from "./trace-clock.ts";

/** Spans that wait to be sent; what comes beyond is dropped. A few megabytes. */
const queueSpans = 2_048;
const batchSpans = 512;
const batchDelayMs = 2_000;
/** Characters of an attribute: paths are the caller's. */
const attributeLength = 256;
const droppedPattern = /^Dropped (\d+) spans/;

/** Traces through OpenTelemetry's SDK. Nothing is registered globally but the logger of its complaints. docs/operations/traces.md. */
export class OtlpTracer implements Tracer, AsyncDisposable {
  readonly #clock: Clock;
  readonly #tracer: OtelTracer;
  readonly #exporter: OtlpExporter;
  readonly #provider: TracerProvider;
  readonly #reports: ExportReports;
  readonly #closeWithinMs: number;

  constructor(options: {
    settings: Config["telemetry"];
    logger: Logger;
    clock: Clock;
    version: string;
    instanceId: string;
    closeWithinMs: number;
    /** For tests. */
    sendDeadlineMs?: number;
  }) {
    const { settings, logger, clock, version } = options;
    const reports = new ExportReports({ logger, clock });
    this.#clock = clock;
    this.#reports = reports;
    this.#closeWithinMs = options.closeWithinMs;
    this.#exporter = new OtlpExporter({
      endpoint: settings.otlpEndpoint,
      headers: parseOtlpHeaders(settings.otlpHeaders),
      onSent: (spans, error) => reports.sent(spans, error),
      ...(options.sendDeadlineMs === undefined ? {} : { deadlineMs: options.sendDeadlineMs }),
    });
    // What a batch that was not taken comes to is told by the exporter.
    setGlobalErrorHandler(() => undefined);
    diag.setLogger(complaints(reports, logger), { suppressOverrideMessage: true });
    this.#provider = new TracerProvider({
      resource: resourceFromAttributes({
        "service.name": settings.serviceName,
        "service.version": version,
        "service.instance.id": options.instanceId,
      }),
      sampler: new ParentBasedSampler({ root: new TraceIdRatioBasedSampler(settings.sampleRatio) }),
      spanLimits: { attributeValueLengthLimit: attributeLength },
      spanProcessors: [
        new BatchSpanProcessor({
          exporter: this.#exporter,
          maxQueueSize: queueSpans,
          maxExportBatchSize: batchSpans,
          scheduledDelayMillis: batchDelayMs,
        }),
      ],
    });
    this.#tracer = this.#provider.getTracer("alcove", version);
  }

  request(options: {
    name: string;
    attributes: SpanAttributes;
    traceparent?: string | undefined;
    tracestate?: string | undefined;
    startedMs: number;
  }): Span {
    const parent = parentOf(options);
    const context = parent === undefined ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, parent);
    const times = new TraceClock(this.#clock.now(), this.#clock.monotonicMs());
    const { name, attributes } = options;
    const span = this.#tracer.startSpan(
      name,
      { kind: SpanKind.SERVER, attributes, startTime: times.at(options.startedMs) },
      context,
    );
    return new OtlpSpan(span, { tracer: this.#tracer, clock: this.#clock, times });
  }

  /** Sends what is left; what the collector has not taken in time is lost. */
  async [Symbol.asyncDispose](): Promise<void> {
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, this.#closeWithinMs);
    await Promise.race([this.#provider.shutdown().catch(() => undefined), late]);
    clearTimeout(timer);
    await this.#exporter.shutdown();
    // What was under way is lost by then, which is told a turn later.
    await new Promise((resolve) => setImmediate(resolve));
    this.#reports.tellRest();
  }
}

class OtlpSpan implements Span {
  readonly #span: OtelSpan;
  readonly #shared: { tracer: OtelTracer; clock: Clock; times: TraceClock };
  #context: Context | undefined;
  #ended = false;

  constructor(span: OtelSpan, shared: { tracer: OtelTracer; clock: Clock; times: TraceClock }) {
    this.#span = span;
    this.#shared = shared;
  }

  get traceId(): string {
    return this.#span.spanContext().traceId;
  }

  get spanId(): string {
    return this.#span.spanContext().spanId;
  }

  get traceparent(): string {
    const { traceId, spanId, traceFlags } = this.#span.spanContext();
    return `00-${traceId}-${spanId}-${(traceFlags & TraceFlags.SAMPLED) === 0 ? "00" : "01"}`;
  }

  child(
    name: string,
    options: { attributes?: SpanAttributes; startedMs?: number; kind?: "internal" | "client" } = {},
  ): Span {
    const { tracer, clock, times } = this.#shared;
    this.#context ??= trace.setSpan(ROOT_CONTEXT, this.#span);
    const { attributes = {}, startedMs = clock.monotonicMs() } = options;
    const kind = options.kind === "client" ? SpanKind.CLIENT : SpanKind.INTERNAL;
    const span = tracer.startSpan(name, { kind, attributes, startTime: times.at(startedMs) }, this.#context);
    return new OtlpSpan(span, this.#shared);
  }

  set(attributes: SpanAttributes): void {
    if (!this.#ended) this.#span.setAttributes(attributes);
  }

  end(options: { error?: string; attributes?: SpanAttributes; endedMs?: number } = {}): void {
    if (this.#ended) return;
    this.#ended = true;
    if (options.attributes !== undefined) this.#span.setAttributes(options.attributes);
    if (options.error !== undefined) {
      this.#span.setAttribute("error.type", options.error);
      this.#span.setStatus({ code: SpanStatusCode.ERROR });
    }
    const { clock, times } = this.#shared;
    // What waits to send it waits for nobody's request.
    const endedMs = options.endedMs ?? clock.monotonicMs();
    outsideRequests(() => this.#span.end(times.at(endedMs)));
  }
}

/** The caller's span; undefined when its header is none, which is as if it had sent none. */
function parentOf(headers: {
  traceparent?: string | undefined;
  tracestate?: string | undefined;
}): SpanContext | undefined {
  const parsed = headers.traceparent === undefined ? null : parseTraceParent(headers.traceparent);
  if (parsed === null) return undefined;
  const { tracestate } = headers;
  return {
    ...parsed,
    isRemote: true,
    ...(tracestate === undefined ? {} : { traceState: new TraceState(tracestate) }),
  };
}

/** What the SDK says of itself: spans for which there was no room are told as lost, the rest is for who debugs. */
function complaints(reports: ExportReports, logger: Logger) {
  const debug = (message: string) => logger.debug({ event: "traces.sdk" }, message);
  return {
    error: debug,
    warn: (message: string) => {
      const dropped = droppedPattern.exec(message)?.[1];
      if (dropped === undefined) debug(message);
      else reports.lost(Number(dropped), "more was traced than the collector takes");
    },
    info: () => undefined,
    debug: () => undefined,
    verbose: () => undefined,
  };
}
