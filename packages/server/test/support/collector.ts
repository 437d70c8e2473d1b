import http from "node:http";
import type { AddressInfo, Socket } from "node:net";

export interface CollectedSpan {
  name: string;
  traceId: string;
  spanId: string;
  parentSpanId: string | undefined;
  kind: number;
  startMs: number;
  endMs: number;
  /** 2 is an error. */
  status: number;
  attributes: Record<string, string | number | boolean>;
  resource: Record<string, string | number | boolean>;
}

/** How it answers a batch; default: as the protocol says. */
export type Behaviour = (request: http.IncomingMessage, response: http.ServerResponse) => void;

/** An OpenTelemetry collector for tests: takes OTLP in JSON over HTTP and keeps what it was told. */
export class Collector implements AsyncDisposable {
  readonly spans: CollectedSpan[] = [];
  /** Bodies, as they came. */
  readonly bodies: string[] = [];
  readonly requests: { method: string; path: string; headers: http.IncomingHttpHeaders }[] = [];
  behaviour: Behaviour | undefined;
  readonly #server: http.Server;
  readonly #sockets = new Set<Socket>();

  private constructor() {
    this.#server = http.createServer((request, response) => void this.#take(request, response));
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.on("error", () => undefined).on("close", () => this.#sockets.delete(socket));
    });
  }

  static async start(behaviour?: Behaviour): Promise<Collector> {
    const collector = new Collector();
    collector.behaviour = behaviour;
    await new Promise<void>((resolve) => collector.#server.listen(0, "127.0.0.1", resolve));
    return collector;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  named(name: string): CollectedSpan[] {
    return this.spans.filter((span) => span.name === name);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #take(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece as Buffer);
    const body = Buffer.concat(pieces).toString("utf8");
    this.bodies.push(body);
    const { method = "", url = "", headers } = request;
    this.requests.push({ method, path: url, headers });
    if (this.behaviour !== undefined) return this.behaviour(request, response);
    this.spans.push(...decode(body));
    response.setHeader("content-type", "application/json").end("{}");
  }
}

interface Attribute {
  key: string;
  value: { stringValue?: string; intValue?: string | number; doubleValue?: number; boolValue?: boolean };
}

/** OTLP, ExportTraceServiceRequest in JSON. @throws when it is none. */
function decode(body: string): CollectedSpan[] {
  const message = JSON.parse(body) as {
    resourceSpans: {
      resource: { attributes: Attribute[] };
      scopeSpans: {
        spans: {
          traceId: string;
          spanId: string;
          parentSpanId?: string;
          name: string;
          kind: number;
          startTimeUnixNano: string;
          endTimeUnixNano: string;
          attributes: Attribute[];
          status: { code?: number };
        }[];
      }[];
    }[];
  };
  return message.resourceSpans.flatMap(({ resource, scopeSpans }) =>
    scopeSpans.flatMap(({ spans }) =>
      spans.map((span) => ({
        name: span.name,
        traceId: hex(span.traceId, 32),
        spanId: hex(span.spanId, 16),
        parentSpanId: span.parentSpanId === undefined ? undefined : hex(span.parentSpanId, 16),
        kind: span.kind,
        startMs: Number(BigInt(span.startTimeUnixNano) / 1_000n) / 1_000,
        endMs: Number(BigInt(span.endTimeUnixNano) / 1_000n) / 1_000,
        status: span.status.code ?? 0,
        attributes: values(span.attributes),
        resource: values(resource.attributes),
      })),
    ),
  );
}

function hex(id: string, length: number): string {
  if (!new RegExp(`^[0-9a-f]{${length}}$`).test(id)) throw new Error(`${id} is no id of ${length} digits`);
  return id;
}

function values(attributes: readonly Attribute[]): Record<string, string | number | boolean> {
  return Object.fromEntries(
    attributes.map(({ key, value }) => {
      const { stringValue, intValue, doubleValue, boolValue } = value;
      const told =
        stringValue ?? doubleValue ?? boolValue ?? (intValue === undefined ? undefined : Number(intValue));
      if (told === undefined) throw new Error(`attribute ${key} has no value`);
      return [key, told];
    }),
  );
}
