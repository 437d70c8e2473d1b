import { execFile } from "node:child_process";
import { once } from "node:events";
import net from "node:net";
import { Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { pino } from "pino";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { loggerSettings } from "../src/platform/logger.ts";
import { type Behaviour, type CollectedSpan, Collector } from "./support/collector.ts";
import { eventually, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

interface Line {
  level: number;
  event?: string;
  [field: string]: unknown;
}

let lines: Line[];
const logger = () =>
  pino(
    loggerSettings("info"),
    new Writable({
      write: (chunk, _encoding, done) => {
        lines.push(JSON.parse(String(chunk)));
        done();
      },
    }),
  );
const traced = (endpoint: string, env: Record<string, string> = {}): Promise<TestServer> =>
  startTestServer({
    provider: mockProvider,
    logger: logger(),
    env: { ALCOVE_TELEMETRY_OTLP_ENDPOINT: endpoint, ...env },
  });

const caller = { trace: "4bf92f3577b34da6a3ce929d0e0e4736", span: "00f067aa0ba902b7" };
const traceparent = (flags: "00" | "01") => `00-${caller.trace}-${caller.span}-${flags}`;

beforeEach(() => {
  lines = [];
});

describe("with a collector", () => {
  let collector: Collector;
  beforeEach(async () => {
    collector = await Collector.start();
  });
  afterEach(() => collector[Symbol.asyncDispose]());

  /** Does `work` at a service that is stopped behind it, which sends what is left. */
  async function trace(
    work: (client: TestClient, server: TestServer) => Promise<void>,
    env?: Record<string, string>,
  ): Promise<void> {
    await using server = await traced(collector.url, env);
    await work(new TestClient(server.url), server);
  }
  const only = (name: string): CollectedSpan => {
    const [span, ...more] = collector.named(name);
    if (span === undefined || more.length > 0)
      throw new Error(`${more.length + 1} or no spans ${name} of ${collector.spans.map((one) => one.name)}`);
    return span;
  };
  const partsOf = (whole: CollectedSpan) =>
    collector.spans.filter(({ parentSpanId }) => parentSpanId === whole.spanId).map(({ name }) => name);

  test("a spawn is a span with its stages below it, those of the provider below the provider", async () => {
    let id = "";
    let port = 0;
    await trace(async (client) => {
      port = Number(new URL(client.url).port);
      const spawn = { metadata: { "mock.spawn_delay": "30ms" } };
      const answer = await client.call("POST", "/api/v1/sandboxes?x=1", spawn, { "x-request-id": "spawn-1" });
      id = answer.json.id;
    });
    const request = only("POST /api/v1/sandboxes");
    expect(request).toMatchObject({ kind: 2, parentSpanId: undefined, status: 0 });
    expect(request.attributes).toEqual({
      "http.request.method": "POST",
      "http.route": "/api/v1/sandboxes",
      "url.path": "/api/v1/sandboxes",
      "url.scheme": "http",
      "server.address": "127.0.0.1",
      "server.port": port,
      "network.protocol.version": "1.1",
      "http.response.status_code": 201,
      "alcove.operation": "spawnSandbox",
      "alcove.outcome": "ok",
      "alcove.request.id": "spawn-1",
    });
    expect(request.resource).toMatchObject({
      "service.name": "alcove",
      "service.version": expect.any(String),
    });
    expect(partsOf(request)).toEqual(["spawn admission", "spawn provider", "spawn commit"]);
    const provider = only("spawn provider");
    expect(provider.attributes).toEqual({ "alcove.sandbox.id": id, "alcove.provider": "mock" });
    expect(partsOf(provider)).toEqual(["spawn delay"]);
    for (const part of collector.spans) {
      expect(part.traceId).toBe(request.traceId);
      expect(part.startMs).toBeGreaterThanOrEqual(request.startMs);
      expect(part.endMs).toBeLessThanOrEqual(request.endMs);
    }
    expect(provider.endMs - provider.startMs).toBeGreaterThanOrEqual(29);
    expect(Math.abs(request.startMs - Date.now())).toBeLessThan(60_000);
  });

  test("an exec is a span in every form of it, until the command ends", async () => {
    const ids: string[] = [];
    await trace(async (client, server) => {
      const id = await client.spawn();
      ids.push((await client.exec(id, { command: "exit 3" })).headers.get("x-exec-id") ?? "");
      await client.exec(id, { command: "true", stream: true });
      await client.exec(id, { command: "sleep 60", timeout: "50ms" });
      await client.call("POST", `/api/v1/sandboxes/${id}/execs`, { command: "sleep 0.3" });
      const socket = new WebSocket(`${server.url.replace("http", "ws")}/api/v1/sandboxes/${id}/exec/ws`);
      await once(socket, "open");
      socket.send(JSON.stringify({ type: "start", command: "true" }));
      await once(socket, "close");
      await client.call("POST", `/api/v1/sandboxes/${id}/execs`, { command: "sleep 60" });
      await eventually(async () => (server.execs.running === 1 ? true : undefined));
    });
    const [buffered, streamed, late, detached, socket, left] = collector
      .named("exec")
      .sort((a, b) => a.startMs - b.startMs);
    expect(buffered?.attributes).toEqual({
      "alcove.exec.id": ids[0],
      "alcove.exec.detached": false,
      "alcove.exec.reason": "exited",
      "alcove.operation": "exec",
      "alcove.provider": "mock",
      "alcove.sandbox.id": expect.stringMatching(/^sb-/),
      "process.exit.code": 3,
    });
    expect(buffered).toMatchObject({ status: 0 });
    expect(streamed?.attributes).toMatchObject({ "alcove.operation": "exec_stream", "process.exit.code": 0 });
    expect(late).toMatchObject({
      status: 2,
      attributes: { "error.type": "timeout", "alcove.exec.reason": "timeout" },
    });
    expect(detached?.attributes).toMatchObject({ "alcove.exec.detached": true, "process.exit.code": 0 });
    expect(left?.attributes).toMatchObject({ "alcove.exec.goes_on": true });
    const started = collector.named("POST /api/v1/sandboxes/:id/execs")[0];
    expect(detached?.parentSpanId).toBe(started?.spanId);
    expect(detached?.endMs).toBeGreaterThan(started?.endMs ?? Number.POSITIVE_INFINITY);
    const handshake = only("GET /api/v1/sandboxes/:id/exec/ws");
    expect(socket?.parentSpanId).toBe(handshake.spanId);
    expect(handshake.attributes).toMatchObject({ "http.response.status_code": 101 });
    for (const span of [buffered, streamed, late]) {
      const request = collector.spans.find(({ spanId }) => spanId === span?.parentSpanId);
      expect(request?.name).toBe("POST /api/v1/sandboxes/:id/exec");
    }
  });

  test("a caller's trace is gone on with, and its decision holds whatever the ratio is", async () => {
    await trace(
      async (client) => {
        const path = "/api/v1/providers";
        await client.call("GET", path, undefined, { traceparent: traceparent("01"), tracestate: "a=1" });
        await client.call("GET", path, undefined, { traceparent: traceparent("00") });
        await client.call("GET", path);
      },
      { ALCOVE_TELEMETRY_SAMPLE_RATIO: "0" },
    );
    expect(collector.spans).toMatchObject([{ traceId: caller.trace, parentSpanId: caller.span }]);
    expect(collector.bodies.join()).toContain("a=1");
  });

  test("a caller that decided against it is not traced, though everybody else is", async () => {
    await trace(async (client) => {
      await client.call("GET", "/api/v1/providers", undefined, { traceparent: traceparent("00") });
      await client.call("GET", "/api/v1/templates");
    });
    expect(collector.spans.map(({ name }) => name)).toEqual(["GET /api/v1/templates"]);
    const unsampled = lines.find(({ path }) => path === "/api/v1/providers");
    expect(unsampled).toMatchObject({ trace_id: caller.trace });
  });

  test.each([
    "",
    "x",
    `00-${"0".repeat(32)}-${caller.span}-01`,
    `00-${caller.trace}-${"0".repeat(16)}-01`,
    `00-${caller.trace.toUpperCase()}-${caller.span}-01`,
    `ff-${caller.trace}-${caller.span}-01`,
    `00-${caller.trace}-${caller.span}-01-more`,
    `00-${caller.trace}-${caller.span}-01, 00-${caller.trace}-${caller.span}-01`,
    "9".repeat(8_000),
  ])("a traceparent that is none begins a trace of its own: %j", async (header) => {
    await trace(async (client) => {
      const answer = await client.call("GET", "/api/v1/providers", undefined, { traceparent: header });
      expect(answer.status).toBe(200);
    });
    expect(only("GET /api/v1/providers")).toMatchObject({ parentSpanId: undefined });
    expect(only("GET /api/v1/providers").traceId).not.toBe(caller.trace);
  });

  test("who is refused is no error of the service's, and what fails is", async () => {
    await trace(async (client, server) => {
      await client.call("GET", "/api/v1/sandboxes/sb-nothere");
      await client.call("POST", "/api/v1/sandboxes", {
        metadata: { "mock.spawn_error": "provider_error: it broke" },
      });
      const leaving = new AbortController();
      const id = await client.spawn();
      const gone = fetch(`${server.url}/api/v1/sandboxes/${id}/exec`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ command: "sleep 60" }),
        signal: leaving.signal,
      });
      await eventually(async () => (server.execs.running === 1 ? true : undefined));
      leaving.abort();
      await expect(gone).rejects.toThrow();
      await eventually(async () => (server.app.callsUnderWay.size === 0 ? true : undefined));
    });
    expect(only("GET /api/v1/sandboxes/:id")).toMatchObject({
      status: 0,
      attributes: {
        "http.response.status_code": 404,
        "error.type": "not_found",
        "alcove.outcome": "refused",
      },
    });
    const failed = collector.spans.filter(({ status }) => status === 2);
    expect(failed.map(({ name, attributes }) => [name, attributes["error.type"]])).toEqual(
      expect.arrayContaining([
        ["spawn provider", "provider_error"],
        ["POST /api/v1/sandboxes", "provider_error"],
        ["POST /api/v1/sandboxes/:id/exec", "caller_gone"],
      ]),
    );
  });

  test("keys, owners, commands, environments, contents and unknown paths are told to nobody", async () => {
    const key = "key-hidden-0123456789";
    await trace(
      async (_, server) => {
        const client = new TestClient(server.url, { "x-api-key": key, "x-user-id": "owner-hidden" });
        const env = { HIDDEN: "env-hidden" };
        const id = await client.spawn({ env, metadata: { label: "label-hidden" } });
        await client.exec(id, { command: "echo command-hidden; false", env, stdin: "stdin-hidden" });
        const file = { path: "/workspace/path-hidden", content: "content-hidden" };
        await client.call("POST", `/api/v1/sandboxes/${id}/files`, file);
        await client.call("GET", `/api/v1/sandboxes/${id}/files?path=/workspace/path-hidden`);
        await client.call("PUT", "/api/v1/quotas/owner-hidden", { max_sandboxes: 3 });
        await client.call("GET", "/api/v1/admin/quotas/owner-hidden/usage");
        await client.call("GET", "/api/v1/keys-hidden/abc");
        await client.call("GET", `/api/v1/sandboxes/${id}/ports/80/page-hidden`);
        await client.call("GET", "/api/v1/sandboxes", undefined, { "x-api-key": "wrong-hidden" });
        await client.call("POST", "/api/v1/sandboxes", { provider: "provider-hidden" });
      },
      { ALCOVE_AUTH_API_KEY: key, ALCOVE_TELEMETRY_OTLP_HEADERS: "Authorization: Bearer collector-hidden" },
    );
    expect(collector.spans.length).toBeGreaterThan(10);
    expect(collector.named("GET /api/v1/admin/quotas/:ownerID/usage")).toHaveLength(1);
    expect(collector.named("GET").map(({ attributes }) => attributes["http.response.status_code"])).toEqual([
      404,
    ]);
    expect(collector.bodies.join("\n").match(/.{60}hidden.{20}/g)).toBeNull();
    expect(collector.requests[0]).toMatchObject({ method: "POST", path: "/v1/traces" });
    expect(collector.requests[0]?.headers).toMatchObject({ authorization: "Bearer collector-hidden" });
    expect(JSON.stringify(lines)).not.toContain("collector-hidden");
  });

  test("log lines name the trace, and the part of it they are of", async () => {
    await trace(async (client) => {
      await client.call("POST", "/api/v1/sandboxes", {}, { "x-request-id": "spawn-1" });
      await eventually(() => lines.find(({ event }) => event === "request"));
    });
    const request = only("POST /api/v1/sandboxes");
    expect(lines.find(({ event }) => event === "request")).toMatchObject({
      trace_id: request.traceId,
      span_id: request.spanId,
    });
    expect(lines.find(({ event }) => event === "sandbox.spawn")).toMatchObject({
      request_id: "spawn-1",
      trace_id: request.traceId,
    });
  });

  test("probes are not traced", async () => {
    await trace(async (client) => {
      for (const path of ["/live", "/api/v1/ready", "/api/v1/health"]) await client.call("GET", path);
      await client.call("GET", "/api/v1/providers");
    });
    expect(collector.spans.map(({ name }) => name)).toEqual(["GET /api/v1/providers"]);
  });

  test("an address with a path is the collector's own, and a redirect gets neither spans nor key", async () => {
    await using elsewhere = await Collector.start();
    collector.behaviour = (_request, response) => {
      response.writeHead(307, { location: `${elsewhere.url}/v1/traces` }).end();
    };
    await using server = await traced(`${collector.url}/otlp/`, {
      ALCOVE_TELEMETRY_OTLP_HEADERS: "x-key: collector-key",
    });
    await new TestClient(server.url).call("GET", "/api/v1/providers");
    await eventually(() => lines.find(({ event }) => event === "traces.lost"));
    expect(collector.requests[0]?.path).toBe("/otlp/v1/traces");
    expect(elsewhere.requests).toEqual([]);
  });
});

describe("a collector that fails", () => {
  const drip: Behaviour = (_request, response) => {
    response.writeHead(200);
    const timer = setInterval(() => response.write(" "), 20);
    response.on("close", () => clearInterval(timer));
  };
  const flood: Behaviour = (_request, response) => {
    response.writeHead(200);
    const more = () => {
      while (!response.destroyed && response.write(Buffer.alloc(65_536, 120)));
      if (!response.destroyed) response.once("drain", more);
    };
    more();
  };
  test.each<[string, Behaviour | "down" | "deaf" | "garbage"]>([
    ["is down", "down"],
    ["takes connections and says nothing", "deaf"],
    ["speaks no HTTP", "garbage"],
    ["hangs", () => undefined],
    ["drips its answer", drip],
    ["answers without end", flood],
    ["answers 500", (_request, response) => void response.writeHead(500).end("no")],
    ["answers 503", (_request, response) => void response.writeHead(503, { "retry-after": "3600" }).end()],
    ["answers garbage", (_request, response) => void response.end("<html>")],
  ])("%s: requests go on, and a stop waits no longer than its grace", async (_what, behaviour) => {
    await using place = await (typeof behaviour === "string"
      ? rawPlace(behaviour)
      : Collector.start(behaviour));
    const server = await traced(place.url, { ALCOVE_SERVER_SHUTDOWN_GRACE: "500ms" });
    const client = new TestClient(server.url);
    const startedMs = performance.now();
    for (let count = 0; count < 30; count++)
      expect((await client.call("GET", "/api/v1/providers")).status).toBe(200);
    expect(performance.now() - startedMs).toBeLessThan(3_000);
    const stoppedMs = performance.now();
    await server[Symbol.asyncDispose]();
    expect(performance.now() - stoppedMs).toBeLessThan(2_000);
  });

  test("that spans are lost is told once, and that they arrive again", async () => {
    await using collector = await Collector.start((_request, response) => void response.writeHead(500).end());
    await using server = await traced(collector.url);
    const client = new TestClient(server.url);
    const batches = async (count: number) => {
      await client.call("GET", "/api/v1/providers");
      await eventually(() => (collector.requests.length >= count ? true : undefined));
    };
    await batches(1);
    await batches(2);
    expect(lines.filter(({ event }) => event === "traces.lost")).toMatchObject([
      { level: 40, spans: 1, error: "the collector answered 500" },
    ]);
    expect(lines.find(({ event }) => event === "traces.lost")).not.toHaveProperty("request_id");
    collector.behaviour = undefined;
    await batches(3);
    await eventually(() => lines.find(({ event }) => event === "traces.sent"));
  });
});

test("a service that is not traced loads nothing of OpenTelemetry, one that is does", {
  timeout: 60_000,
}, async () => {
  const program = (endpoint: string) => `
    import { registerHooks } from "node:module";
    const loaded = [];
    registerHooks({ load: (url, context, next) => { loaded.push(url); return next(url, context); } });
    await import("./packages/server/src/main.ts");
    const { openTracer } = await import("./packages/server/src/telemetry/open-tracer.ts");
    const settings = { otlpEndpoint: ${JSON.stringify(endpoint)}, otlpHeaders: "", sampleRatio: 1, serviceName: "" };
    const tracer = await openTracer({ settings, version: "", instanceId: "", closeWithinMs: 1 });
    console.log(JSON.stringify({ opened: tracer !== undefined, loaded: loaded.filter((url) => url.includes("opentelemetry")) }));
  `;
  const run = async (endpoint: string) => {
    const root = fileURLToPath(new URL("../../..", import.meta.url));
    const { stdout } = await promisify(execFile)(
      process.execPath,
      ["--input-type=module", "-e", program(endpoint)],
      { cwd: root },
    );
    return JSON.parse(stdout) as { opened: boolean; loaded: string[] };
  };
  expect(await run("")).toEqual({ opened: false, loaded: [] });
  const traced = await run("http://127.0.0.1:1");
  expect(traced.opened).toBe(true);
  expect(traced.loaded.length).toBeGreaterThan(0);
});

/** A place that is no collector: nobody listens, or what does never answers, or answers in another tongue. */
async function rawPlace(kind: "down" | "deaf" | "garbage"): Promise<{ url: string } & AsyncDisposable> {
  const sockets = new Set<net.Socket>();
  const server = net.createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => undefined);
    if (kind === "garbage") socket.end("SSH-2.0-OpenSSH_9.2\r\n");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const close = async () => {
    for (const socket of sockets) socket.destroy();
    if (server.listening) await new Promise((resolve) => server.close(resolve));
  };
  if (kind === "down") await close();
  return { url: `http://127.0.0.1:${port}`, [Symbol.asyncDispose]: close };
}
