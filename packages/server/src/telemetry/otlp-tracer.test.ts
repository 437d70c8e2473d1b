import { Writable } from "node:stream";
import { pino } from "pino";
import { expect, test } from "vitest";
import { type Behaviour, Collector } from "../../test/support/collector.ts";
import { eventually } from "../../test/support/http.ts";
import { systemClock } from "../platform/system-clock.ts";
import type { Span } from "../ports/tracer.ts";
import { OtlpTracer } from "./otlp-tracer.ts";

interface Line {
  event?: string;
  spans?: number;
}

function open(
  endpoint: string,
  options: { sendDeadlineMs?: number; closeWithinMs?: number; sampleRatio?: number } = {},
) {
  const lines: Line[] = [];
  const write = (chunk: unknown, _encoding: unknown, done: () => void) => {
    lines.push(JSON.parse(String(chunk)));
    done();
  };
  const tracer = new OtlpTracer({
    settings: {
      otlpEndpoint: endpoint,
      otlpHeaders: "",
      sampleRatio: options.sampleRatio ?? 1,
      serviceName: "s",
    },
    logger: pino({ level: "info" }, new Writable({ write })),
    clock: systemClock,
    version: "1",
    instanceId: "i",
    closeWithinMs: options.closeWithinMs ?? 1_000,
    ...(options.sendDeadlineMs === undefined ? {} : { sendDeadlineMs: options.sendDeadlineMs }),
  });
  const begin = (name = "work"): Span =>
    tracer.request({ name, attributes: {}, startedMs: performance.now() });
  return { tracer, begin, lines };
}

test("what waits for a collector that hangs is bounded, what found no place is told as lost, and the rest arrives", async () => {
  await using collector = await Collector.start(() => undefined);
  const { tracer, begin, lines } = open(collector.url, { sendDeadlineMs: 300 });
  for (let count = 0; count < 10_000; count++) begin().end();
  await eventually(() => (collector.requests.length > 0 ? true : undefined));
  collector.behaviour = undefined;
  await eventually(() => {
    begin("later").end();
    return collector.named("later").length > 0 ? true : undefined;
  });
  await tracer[Symbol.asyncDispose]();
  expect(collector.named("work").length).toBeLessThanOrEqual(2_048);
  const [lost] = lines.filter(({ event }) => event === "traces.lost");
  expect(lost?.spans).toBeGreaterThanOrEqual(512);
});

test("a batch that met a collector's restart arrives", async () => {
  let refused = 2;
  await using collector = await Collector.start((_request, response) => {
    if (--refused === 0) collector.behaviour = undefined;
    response.writeHead(503).end();
  });
  const { tracer, begin, lines } = open(collector.url, { closeWithinMs: 5_000 });
  begin().end();
  await tracer[Symbol.asyncDispose]();
  expect(collector.named("work")).toHaveLength(1);
  expect(lines).toEqual([]);
});

test("of an answer without end the beginning is read", async () => {
  await using collector = await Collector.start((_request, response) => {
    response.on("error", () => undefined);
    const more = () => {
      while (!response.destroyed && response.write(Buffer.alloc(65_536, 120)));
      if (!response.destroyed) response.once("drain", more);
    };
    more();
  });
  const { tracer, begin } = open(collector.url, { sendDeadlineMs: 60_000, closeWithinMs: 100 });
  await eventually(() => {
    begin().end();
    return collector.requests.length > 1 ? true : undefined;
  });
  await tracer[Symbol.asyncDispose]();
});

test("a stop sends what is left, and leaves a collector that hangs after its time", async () => {
  await using collector = await Collector.start(() => undefined);
  const { tracer, begin } = open(collector.url, { closeWithinMs: 100 });
  begin().end();
  const startedMs = performance.now();
  await tracer[Symbol.asyncDispose]();
  expect(performance.now() - startedMs).toBeLessThan(1_000);
  expect(collector.requests).toHaveLength(1);
});

test("all that is lost is told: what came in the quiet minute at the end, or when spans arrive again", async () => {
  const refuse: Behaviour = (_request, response) => void response.writeHead(400).end();
  await using collector = await Collector.start(refuse);
  const lost = async (again: boolean) => {
    const { tracer, begin, lines } = open(collector.url);
    for (let batch = 0; batch < 3; batch++) {
      const before = collector.requests.length;
      for (let count = 0; count < 10; count++) begin().end();
      await eventually(() => (collector.requests.length > before ? true : undefined));
    }
    if (again) {
      collector.behaviour = undefined;
      begin().end();
    }
    await tracer[Symbol.asyncDispose]();
    return lines.map(({ event, spans }) => [event, spans]);
  };
  expect(await lost(false)).toEqual([
    ["traces.lost", 10],
    ["traces.lost", 20],
  ]);
  expect(await lost(true)).toEqual([
    ["traces.lost", 10],
    ["traces.lost", 20],
    ["traces.sent", undefined],
  ]);
});

test("a span that has ended takes nothing more, and has parts still", async () => {
  await using collector = await Collector.start();
  const { tracer, begin } = open(collector.url);
  const span = begin();
  span.end({ attributes: { first: true } });
  span.end({ attributes: { second: true }, error: "late" });
  span.set({ third: true });
  span.child("part").end();
  await tracer[Symbol.asyncDispose]();
  expect(collector.named("work")).toMatchObject([{ status: 0, attributes: { first: true } }]);
  expect(Object.keys(collector.named("work")[0]?.attributes ?? {})).toEqual(["first"]);
  expect(collector.named("part")[0]?.parentSpanId).toBe(span.spanId);
});

test("the ratio decides for those whose caller has not, and whoever is called goes on with the trace", async () => {
  await using collector = await Collector.start();
  const { tracer, begin } = open(collector.url, { sampleRatio: 0.5 });
  const spans = Array.from({ length: 1_000 }, () => begin());
  for (const span of spans) span.end();
  await tracer[Symbol.asyncDispose]();
  expect(collector.spans.length).toBeGreaterThan(400);
  expect(collector.spans.length).toBeLessThan(600);
  const told = new Set(collector.spans.map(({ spanId }) => spanId));
  for (const { traceId, spanId, traceparent } of spans)
    expect(traceparent).toBe(`00-${traceId}-${spanId}-${told.has(spanId) ? "01" : "00"}`);
});
