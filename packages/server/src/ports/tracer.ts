/** What is told of a span beside its name and times: no keys, owners, command lines, environments or contents. docs/operations/traces.md. */
export type SpanAttributes = Readonly<Record<string, string | number | boolean>>;

/** A piece of work and how long it took, part of the trace of the request it was done for. */
export interface Span {
  readonly traceId: string;
  readonly spanId: string;
  /** The W3C header for whoever is called on behalf of this. */
  readonly traceparent: string;
  /** Begins a part of it. @param options.startedMs monotonic; default: now. */
  child(
    name: string,
    options?: { attributes?: SpanAttributes; startedMs?: number; kind?: "internal" | "client" },
  ): Span;
  set(attributes: SpanAttributes): void;
  /**
   * The work is done; a second end is ignored.
   * @param options.error class of what went wrong, such as an error code. @param options.endedMs monotonic; default: now.
   */
  end(options?: { error?: string; attributes?: SpanAttributes; endedMs?: number }): void;
}

/** Begins traces. Never throws and never waits: what cannot be told is dropped. */
export interface Tracer {
  /** Goes on with the caller's trace when `traceparent` is one. @param options.startedMs monotonic. */
  request(options: {
    name: string;
    attributes: SpanAttributes;
    traceparent?: string | undefined;
    tracestate?: string | undefined;
    startedMs: number;
  }): Span;
}
