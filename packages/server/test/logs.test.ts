import { createHash } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { get, request } from "node:http";
import { Readable, Writable } from "node:stream";
import { pino } from "pino";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { WebSocket } from "ws";
import { loggerSettings } from "../src/platform/logger.ts";
import { StorageFull } from "../src/ports/errors.ts";
import { MemoryFiles } from "../src/providers/mock/memory-files.ts";
import { eventually, openRequest, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

interface Line {
  level: number;
  event?: string;
  [field: string]: unknown;
}

const info = 30;
let lines: Line[];
let server: TestServer;
let client: TestClient;

beforeEach(async () => {
  lines = [];
  const sink = new Writable({
    write: (chunk, _encoding, done) => {
      lines.push(JSON.parse(String(chunk)));
      done();
    },
  });
  server = await startTestServer({ provider: mockProvider, logger: pino(loggerSettings("info"), sink) });
  client = new TestClient(server.url);
});
afterEach(() => server[Symbol.asyncDispose]());

const of = (event: string) => lines.filter((line) => line.event === event);
const requestLine = (requestId: string) =>
  eventually(() => of("request").find((line) => line.request_id === requestId));

test("a spawn tells what the machine calls its control groups, where that is another name than the runtime's", async () => {
  await client.call("POST", "/api/v1/sandboxes", {});
  Object.defineProperty(server.provider, "controlGroup", { value: () => "prepared-1" });
  await client.call("POST", "/api/v1/sandboxes", {});
  expect(of("sandbox.spawn").map((line) => line.control_group)).toEqual([undefined, "prepared-1"]);
});

test("one line for each thing that happens to a sandbox, with the request that asked for it", async () => {
  const answer = await client.call(
    "POST",
    "/api/v1/sandboxes",
    { owner_id: "acme", ttl: "1h" },
    { "x-request-id": "spawn-1" },
  );
  const id = answer.json.id;
  await client.call("POST", `/api/v1/sandboxes/${id}/extend`, { ttl: "2h" }, { "x-request-id": "extend-1" });
  await client.call("DELETE", `/api/v1/sandboxes/${id}`, undefined, { "x-request-id": "destroy-1" });
  const { items } = await server.sandboxes.list({ limit: 1, state: "destroyed" });
  const common = {
    level: info,
    outcome: "ok",
    sandbox_id: id,
    runtime_id: items[0]?.runtimeId,
    owner_id: "acme",
    provider: "mock",
  };
  const duration = expect.any(Number);
  expect(of("sandbox.spawn")).toMatchObject([{ ...common, request_id: "spawn-1", duration_ms: duration }]);
  expect(of("sandbox.extend")).toMatchObject([{ ...common, request_id: "extend-1" }]);
  expect(of("sandbox.destroy")).toMatchObject([
    { ...common, request_id: "destroy-1", reason: "requested", duration_ms: duration },
  ]);
});

test("an expiry is told as one, without a request", async () => {
  const id = await client.spawn({ ttl: "50ms" });
  const line = await eventually(() => of("sandbox.destroy")[0]);
  expect(line).toMatchObject({ sandbox_id: id, reason: "expired", outcome: "ok" });
  expect(line).not.toHaveProperty("request_id");
});

test("a refusal is one line at info without a stack", async () => {
  const bad = { image: "no such image" };
  await client.call("POST", "/api/v1/sandboxes", bad, { "x-request-id": "bad-1" });
  await client.call("GET", "/api/v1/sandboxes/sb-nothere", undefined, { "x-request-id": "bad-2" });
  expect(await requestLine("bad-1")).toMatchObject({
    level: info,
    outcome: "refused",
    status: 400,
    code: "bad_request",
    error: expect.stringContaining("no such image"),
  });
  expect(await requestLine("bad-2")).toMatchObject({
    status: 404,
    code: "not_found",
    sandbox_id: "sb-nothere",
  });
  expect(lines.filter(({ request_id }) => String(request_id).startsWith("bad-"))).toHaveLength(2);
  expect(JSON.stringify(lines)).not.toContain("    at ");
});

test("a failure of a provider is told once with its stack, beside the request's own line", async () => {
  server.provider.spawn = () => Promise.reject(new TypeError("made to fail"));
  const failed = await client.call("POST", "/api/v1/sandboxes", {}, { "x-request-id": "failed-1" });
  expect(failed.status).toBe(500);
  expect(await requestLine("failed-1")).toMatchObject({ outcome: "failed", status: 500 });
  const told = lines.filter(({ request_id }) => request_id === "failed-1");
  expect(told.filter((line) => JSON.stringify(line).includes("    at "))).toHaveLength(1);
  expect(told.find(({ event }) => event === "sandbox.spawn")).toMatchObject({ outcome: "failed" });
});

test("a disk that is full is told at warn and without a stack", async () => {
  server.provider.spawn = () => Promise.reject(new StorageFull("no sandbox can be made: 5 MB were free"));
  const failed = await client.call("POST", "/api/v1/sandboxes", {}, { "x-request-id": "full-1" });
  expect(failed.status).toBe(507);
  await requestLine("full-1");
  const told = lines.filter(({ request_id }) => request_id === "full-1");
  expect(told.find(({ msg }) => msg === "request failed")).toMatchObject({ level: 40, status: 507 });
  expect(JSON.stringify(told)).not.toContain("    at ");
});

test("a file or an archive that breaks off while it is read is told with why, for the request", async () => {
  const id = await client.spawn({ owner_id: "acme" });
  async function* broken(): AsyncGenerator<Buffer> {
    yield Buffer.alloc(1_000, "x");
    throw new Error("the disk failed");
  }
  const body = () => Readable.from(broken(), { objectMode: false });
  const info = { path: "/f", name: "f", type: "file", size: 2_000, mode: 0o644, modifiedAt: new Date(0) };
  vi.spyOn(MemoryFiles.prototype, "archive").mockImplementation(async () => body());
  vi.spyOn(MemoryFiles.prototype, "read").mockImplementation(
    async () => ({ info, length: 2_000, body: body() }) as never,
  );
  try {
    for (const [name, path] of [
      ["file", "files?path=/f"],
      ["archive", "files/archive?path=/"],
    ] as const) {
      const url = `/api/v1/sandboxes/${id}/${path}`;
      await expect(client.call("GET", url, undefined, { "x-request-id": name })).rejects.toThrow();
      expect(await requestLine(name)).toMatchObject({ outcome: "gone", status: 200 });
    }
    // A caller that leaves breaks off nothing.
    const endless = new Readable({ read: () => setTimeout(() => endless.push("x".repeat(1_000)), 5) });
    vi.spyOn(MemoryFiles.prototype, "archive").mockImplementation(async () => endless);
    const { close } = await openRequest(`${server.url}/api/v1/sandboxes/${id}/files/archive?path=/left`, {
      method: "GET",
      headers: { "x-request-id": "left" },
    });
    close();
    await requestLine("left");
    await eventually(() => (endless.closed ? true : undefined));
  } finally {
    vi.restoreAllMocks();
  }
  const common = { level: 40, outcome: "failed", sandbox_id: id, owner_id: "acme", provider: "mock" };
  const err = expect.objectContaining({ message: "the disk failed" });
  expect(of("file.cut")).toMatchObject([
    { ...common, request_id: "file", file_path: "/f", err },
    { ...common, request_id: "archive", file_path: "/", err },
  ]);
});

test("a request whose caller leaves has one line too, with what was answered by then", async () => {
  const path = `/api/v1/sandboxes/${await client.spawn()}`;
  const leave = async (name: string, method: string, url: string, body: string, length = body.length) => {
    const asked = request(`${server.url}${url}`, {
      method,
      agent: false,
      headers: { "x-request-id": name, "content-type": "application/json", "content-length": length },
    });
    asked.on("error", () => undefined).write(body);
    await eventually(() => (server.app.callsUnderWay.size === 1 ? true : undefined));
    asked.destroy();
  };
  await leave("exec", "POST", `${path}/exec`, JSON.stringify({ command: "sleep 60" }));
  const gone = { level: info, outcome: "gone", principal: "local" };
  expect(await requestLine("exec")).toMatchObject({ ...gone, method: "POST", status: 499 });
  await leave("upload", "PUT", `${path}/files?path=/cut`, "part", 1_000);
  expect(await requestLine("upload")).toMatchObject({ ...gone, path: `${path}/files`, status: 499 });
  for (const [name, method, url, body] of [
    ["events", "GET", "/api/v1/events", undefined],
    ["watch", "GET", `${path}/files/watch?path=/`, undefined],
    ["stream", "POST", `${path}/exec`, { command: "sleep 60", stream: true }],
  ] as const) {
    const headers = { "x-request-id": name };
    const { close } = await openRequest(`${server.url}${url}`, { method, headers, body });
    close();
    expect(await requestLine(name)).toMatchObject({ ...gone, status: 200 });
  }
  await client.call("GET", "/api/v1/sandboxes", undefined, { "x-request-id": "after" });
  await requestLine("after");
  const told = of("request").map(({ request_id }) => request_id);
  expect(told.slice(1)).toEqual(["exec", "upload", "events", "watch", "stream", "after"]);
});

test("streams to their end, WebSockets, and what is answered before any route have one line each", async () => {
  const path = `/api/v1/sandboxes/${await client.spawn()}`;
  const told = async (name: string) => {
    await requestLine(name);
    const lines = of("request").filter(({ request_id }) => request_id === name);
    return lines.map(({ outcome, status, code }) => [outcome, status, code]);
  };
  const body = { command: "echo", stream: true };
  await client.call("POST", `${path}/exec`, body, { "x-request-id": "stream" });
  expect(await told("stream")).toEqual([["ok", 200, undefined]]);
  const open = (name: string) =>
    new WebSocket(`${server.url.replace("http", "ws")}${path}/exec/ws`, {
      headers: { "x-request-id": name, ...(name === "foreign" && { origin: "http://a.example" }) },
    }).on("error", () => undefined);
  const socket = open("socket");
  socket.once("open", () => socket.close());
  expect(await told("socket")).toEqual([["ok", 101, undefined]]);
  open("foreign");
  expect(await told("foreign")).toEqual([["refused", 403, "forbidden"]]);
  await client.call("GET", "/%zz", undefined, { "x-request-id": "unread" });
  expect(await told("unread")).toEqual([["refused", 400, "bad_request"]]);
  await client.call("GET", "/nothing", undefined, { "x-request-id": "unknown" });
  expect(await told("unknown")).toEqual([["refused", 404, "not_found"]]);
});

test("probes get a line when their answer changes, not each time", async () => {
  for (let n = 0; n < 20; n++) await client.call("GET", "/api/v1/live");
  await client.call("GET", "/api/v1/sandboxes", undefined, { "x-request-id": "after" });
  await requestLine("after");
  expect(of("request").filter(({ path }) => path === "/api/v1/live")).toHaveLength(1);
});

test("a probe is the same one however its path is spelled", async () => {
  const { hostname, port } = new URL(server.url);
  for (const path of [
    "/api/v1/live",
    "/api/v1/l%69ve",
    "/api/v1/live?a",
    "/api/v1/live#b",
    "/api/v1/live#c",
    "http://ann:hunter2@elsewhere/api/v1/live",
  ]) {
    const [answer] = await once(request({ hostname, port, path }).end(), "response");
    expect(answer.resume().statusCode).toBe(200);
  }
  await client.call("GET", "/api/v1/sandboxes", undefined, { "x-request-id": "after" });
  await requestLine("after");
  expect(of("request").map(({ path }) => path)).toEqual(["/api/v1/live", "/api/v1/sandboxes"]);
  await once(request({ hostname, port, path: "http://ann:hunter2@elsewhere/nowhere?a" }).end(), "response");
  await eventually(() => of("request").find(({ path }) => path === "/nowhere"));
  expect(JSON.stringify(lines)).not.toContain("hunter2");
});

test("a path of many kilobytes is cut in the log, and in what its caller is told", async () => {
  const long = "a".repeat(12_000);
  for (const [id, path] of [
    ["unrouted", `/${long}`],
    ["parameter", `/api/v1/sandboxes/${long}`],
  ] as const) {
    const { json } = await client.call("GET", path, undefined, { "x-request-id": id });
    expect(JSON.stringify(json).length).toBeLessThan(1_000);
    expect(JSON.stringify(await requestLine(id)).length).toBeLessThan(4_000);
  }
});

test("no line has a field that is not documented", async () => {
  const page = readFileSync(new URL("../../../docs/operations/logs.md", import.meta.url), "utf8");
  const fields = page.slice(page.indexOf("## Fields"));
  const documented = [...fields.matchAll(/^\| `([a-z_]+)` \|/gm)].map(([, name = ""]) => name);
  const id = await client.spawn();
  await client.call("DELETE", `/api/v1/sandboxes/${id}`);
  await eventually(() => of("request").find(({ method }) => method === "DELETE"));
  const own = new Set([...documented, "level", "time", "pid", "hostname", "msg"]);
  for (const line of lines.filter(({ event }) => event !== undefined))
    expect(Object.keys(line).filter((name) => !own.has(name))).toEqual([]);
});

test("the log says who guesses keys, and for whom a request was made, also when it was refused", async () => {
  await server[Symbol.asyncDispose]();
  const sink = new Writable({
    write: (chunk, _encoding, done) => {
      lines.push(JSON.parse(String(chunk)));
      done();
    },
  });
  const bound = { name: "bound", hash: createHash("sha256").update("ann-key").digest("hex"), owner: "ann" };
  server = await startTestServer({
    provider: mockProvider,
    logger: pino(loggerSettings("info"), sink),
    env: {
      ALCOVE_AUTH_API_KEY: "client-key",
      ALCOVE_AUTH_ADMIN_API_KEY: "admin-key",
      ALCOVE_AUTH_KEYS: JSON.stringify([bound]),
      ALCOVE_SERVER_TRUSTED_PROXIES: "127.0.0.1",
    },
  });
  client = new TestClient(server.url, { "x-forwarded-for": "192.0.2.7" });
  const ask = async (id: string, headers: Record<string, string>, body?: unknown) => {
    await client.call(body === undefined ? "GET" : "POST", "/api/v1/sandboxes", body, {
      "x-request-id": id,
      ...headers,
    });
    return requestLine(id);
  };
  const address = { remote_addr: "192.0.2.7" };
  expect(await ask("guess", { "x-api-key": "guess" })).toMatchObject({ status: 401, ...address });
  expect(await ask("foreign", { "x-api-key": "ann-key", "x-user-id": "bob" })).toMatchObject({
    ...{ status: 403, owner_id: "ann", principal: "bound" },
    ...address,
  });
  const fine = await ask("fine", { "x-api-key": "client-key", "x-user-id": "zo\u00eb" });
  expect(fine).toMatchObject({ status: 200, owner_id: "zo\u00eb" });
  expect(fine).not.toHaveProperty("remote_addr");
  expect(
    await ask("body", { "x-api-key": "client-key" }, { owner_id: "bob", image: "no such" }),
  ).toMatchObject({
    ...{ status: 400, owner_id: "bob" },
  });
  expect(await ask("none", { "x-api-key": "client-key", "x-user-id": "a b" })).not.toHaveProperty("owner_id");
  const preflight = { origin: "http://a.example", "access-control-request-method": "GET" };
  await client.call("OPTIONS", "/docs", undefined, { "x-request-id": "preflight", ...preflight });
  expect(await requestLine("preflight")).toMatchObject({ outcome: "ok", status: 204 });
});

test("the log names the key and the template that a call was about", async () => {
  await client.call("POST", "/api/v1/templates", { name: "py", image: "host" }, { "x-request-id": "made" });
  await client.call("DELETE", "/api/v1/templates/py");
  const told = { level: info, outcome: "ok", name: "py", principal: "local" };
  expect(of("template.saved")).toMatchObject([{ ...told, request_id: "made" }]);
  expect(of("template.deleted")).toMatchObject([told]);
});

test("a request to a host of previews has its line, with sandbox and port in place of a path", async () => {
  const { json } = await client.call("POST", "/api/v1/sandboxes", {});
  const { hostname, port } = new URL(server.url);
  const visit = (host: string) =>
    new Promise<number | undefined>((resolve, reject) => {
      get({ hostname, port, path: "/secret?token=1", headers: { host } }, (answer) => {
        answer.resume();
        resolve(answer.statusCode);
      }).on("error", reject);
    });
  const host = `3000-${json.id}.localhost`;
  const status = await visit(host);
  expect(status).toBeGreaterThanOrEqual(400);
  const line = await eventually(() => of("request").find((one) => one.host === host));
  expect(line).toMatchObject({ level: info, method: "GET", status, sandbox_id: json.id, port: 3000 });
  expect(line).toMatchObject({ outcome: Number(status) >= 500 ? "failed" : "refused" });
  expect(JSON.stringify(line)).not.toContain("token");
  expect(await visit("3000-sb-000000000000.localhost")).toBe(404);
  const unknown = await eventually(() =>
    of("request").find((one) => one.host === "3000-sb-000000000000.localhost"),
  );
  expect(unknown).toMatchObject({
    status: 404,
    outcome: "refused",
    code: "not_found",
    remote_addr: "127.0.0.1",
  });
});

test("Node takes none of what waits for the end of an answer for a leak, with much input and output either", async () => {
  const warnings: string[] = [];
  const listen = ({ message }: Error) => warnings.push(message);
  process.on("warning", listen);
  try {
    const id = await client.spawn();
    const much = "x".repeat(100_000);
    const { json } = await client.exec(id, { command: "cat", stdin: much });
    expect(json.stdout).toBe(much);
    // It says so in a later turn.
    await new Promise((resolve) => setTimeout(resolve, 100));
  } finally {
    process.off("warning", listen);
  }
  expect(warnings).toEqual([]);
});
