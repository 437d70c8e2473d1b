import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { eventually, TestClient } from "./support/http.ts";
import { PreviewClient } from "./support/preview-client.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

/** fetch() sets Host itself; this sends any. */
function statusWithHost(url: string, host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const request = http.get(
      `${url}/api/v1/sandboxes`,
      { headers: { host, "x-api-key": "client-key" }, agent: false },
      (response) => {
        response.resume();
        resolve(response.statusCode ?? 0);
      },
    );
    request.on("error", reject);
  });
}

/** As SIGHUP does once the file has another key. */
function useClientKey(server: TestServer, apiKey: string): void {
  server.keys.replaceConfigured({ ...server.config.auth, apiKey });
}

describe("with keys", () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer({
      provider: mockProvider,
      env: { ALCOVE_AUTH_API_KEY: "client-key", ALCOVE_AUTH_ADMIN_API_KEY: "admin-key" },
    });
  });
  afterAll(() => server[Symbol.asyncDispose]());
  const status = async (path: string, headers: Record<string, string> = {}, method = "GET") => {
    const answer = await new TestClient(server.url).call(method, path, undefined, headers);
    if (answer.status === 401) expect(answer.json.code).toBe("unauthorized");
    return answer.status;
  };

  test("probes, openapi.json and the docs need none", async () => {
    for (const path of ["/api/v1/live", "/api/v1/health", "/api/v1/ready", "/api/v1/openapi.json", "/docs"])
      expect([path, await status(path)]).toEqual([path, 200]);
  });

  test("everything else does, unknown paths and wrong methods too", async () => {
    for (const path of ["/api/v1/sandboxes", "/api/v1/events", "/api/v1/providers", "/nothing"])
      expect([path, await status(path)]).toEqual([path, 401]);
    expect(await status("/api/v1/sandboxes", {}, "PATCH")).toBe(401);
    expect(await status("/api/v1/sandboxes", {}, "POST")).toBe(401);
  });

  test("a client key beside the admin key takes nothing away from it", async () => {
    for (const headers of [
      { "x-api-key": "client-key", "x-admin-api-key": "admin-key" },
      { "x-api-key": "client-key", authorization: "Bearer admin-key" },
    ])
      expect(await status("/api/v1/admin/quotas", headers)).toBe(200);
    expect(await status("/api/v1/admin/quotas", { "x-api-key": "client-key" })).toBe(401);
  });

  test.each([
    { "x-api-key": "client-key" },
    { "x-api-key": "admin-key" },
    { "x-admin-api-key": "admin-key" },
    { authorization: "Bearer client-key" },
    { authorization: "bearer admin-key" },
    { "x-api-key": "wrong", authorization: "Bearer client-key" },
  ])("%j is accepted", async (headers) => {
    expect(await status("/api/v1/sandboxes", headers)).toBe(200);
  });

  test.each([
    { "x-api-key": "wrong" },
    { "x-api-key": "" },
    { "x-api-key": "client-key2" },
    { "x-api-key": "CLIENT-KEY" },
    { authorization: "Basic client-key" },
    { authorization: "client-key" },
    { authorization: "Bearer" },
    { cookie: "x-api-key=client-key" },
  ])("%j is refused", async (headers) => {
    expect(await status("/api/v1/sandboxes", headers)).toBe(401);
  });

  test("a key in the query is no key", async () => {
    expect(await status("/api/v1/sandboxes?api_key=client-key&x-api-key=client-key")).toBe(401);
  });

  test("a WebSocket needs a key at the handshake", async () => {
    const url = `${server.url.replace("http", "ws")}/api/v1/sandboxes/sb-000000000000/exec/ws`;
    const handshake = (headers: Record<string, string>) =>
      new Promise<number | undefined>((resolve) => {
        const socket = new WebSocket(url, { headers });
        socket.on("error", () => undefined);
        socket.on("unexpected-response", (_request, response) => {
          resolve(response.statusCode);
          socket.terminate();
        });
      });
    expect(await handshake({})).toBe(401);
    expect(await handshake({ "x-api-key": "client-key" })).toBe(404);
  });

  test("a key that is taken back ends its streams and WebSockets, and nobody else's", async () => {
    const withKey = (key: string) => ({ "x-api-key": key });
    const { json } = await new TestClient(server.url).call(
      "POST",
      "/api/v1/sandboxes",
      {},
      withKey("client-key"),
    );
    const events = (key: string) => fetch(`${server.url}/api/v1/events`, { headers: withKey(key) });
    const [revoked, kept] = [await events("client-key"), await events("admin-key")];
    const url = `${server.url.replace("http", "ws")}/api/v1/sandboxes/${json.id}/exec/ws`;
    const socket = new WebSocket(url, { headers: withKey("client-key") });
    await once(socket, "open");
    const closed = once(socket, "close");
    useClientKey(server, "new-key");
    try {
      await revoked.text();
      expect((await closed)[0]).toBe(1008);
      expect(await status("/api/v1/sandboxes", withKey("client-key"))).toBe(401);
      const reader = kept.body?.getReader();
      await reader?.read();
      const next = reader?.read();
      await new TestClient(server.url).call("POST", "/api/v1/sandboxes", {}, withKey("new-key"));
      expect((await next)?.done).toBe(false);
      await reader?.cancel();
    } finally {
      useClientKey(server, "client-key");
    }
  });

  test("a key that is taken back ends the upload it came with, and the old file stays", async () => {
    const admin = { "x-api-key": "admin-key" };
    const client = new TestClient(server.url);
    const { json } = await client.call("POST", "/api/v1/sandboxes", {}, admin);
    const files = `/api/v1/sandboxes/${json.id}/files`;
    await client.call("POST", files, { path: "/tmp/kept", content: "old" }, admin);
    const upload = http.request(`${server.url}${files}?path=/tmp/kept`, {
      method: "PUT",
      headers: { "x-api-key": "client-key", "transfer-encoding": "chunked" },
    });
    const ended = new Promise((resolve) => upload.once("error", resolve).once("response", resolve));
    const before = server.app.callsUnderWay.size;
    upload.write(Buffer.alloc(10_000, 2));
    await expect.poll(() => server.app.callsUnderWay.size, { timeout: 10_000 }).toBe(before + 1);
    useClientKey(server, "new-key");
    try {
      await ended;
      await expect.poll(() => server.app.callsUnderWay.size, { timeout: 10_000 }).toBe(before);
      expect((await client.call("GET", `${files}?path=/tmp/kept`, undefined, admin)).text).toBe("old");
    } finally {
      upload.destroy();
      useClientKey(server, "client-key");
    }
  });

  test("a key that is taken back while the body is still coming is refused when it has come", async () => {
    const body = JSON.stringify({ name: "from-a-slow-body" });
    const spawn = http.request(`${server.url}/api/v1/sandboxes`, {
      method: "POST",
      headers: {
        "x-api-key": "client-key",
        "content-type": "application/json",
        "content-length": body.length,
      },
    });
    const arrived = new Promise<void>((resolve) => server.app.server.once("request", () => resolve()));
    const answered = once(spawn, "response");
    spawn.write(body.slice(0, 5));
    await arrived;
    // By the time a later request is answered this one's key was looked at.
    expect(await status("/api/v1/sandboxes", { "x-api-key": "client-key" })).toBe(200);
    useClientKey(server, "new-key");
    try {
      spawn.end(body.slice(5));
      const [response] = (await answered) as [http.IncomingMessage];
      response.resume();
      expect(response.statusCode).toBe(401);
    } finally {
      spawn.destroy();
      useClientKey(server, "client-key");
    }
  });

  test("a preflight needs none; with keys any origin and any Host may call", async () => {
    const preflight = await new TestClient(server.url).call("OPTIONS", "/api/v1/sandboxes", undefined, {
      origin: "https://app.example",
      "access-control-request-method": "POST",
    });
    expect([preflight.status, preflight.headers.get("access-control-allow-origin")]).toEqual([204, "*"]);
    const spawned = await new TestClient(server.url).call(
      "POST",
      "/api/v1/sandboxes",
      {},
      { origin: "https://app.example", "x-api-key": "client-key" },
    );
    expect(spawned.status).toBe(201);
    expect(await statusWithHost(server.url, "alcove.example")).toBe(200);
  });
});

describe("without keys", () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer({
      provider: mockProvider,
      env: {
        ALCOVE_SERVER_PUBLIC_URL: "https://alcove.example",
        ALCOVE_SERVER_PREVIEW_DOMAIN: "preview.example",
        ALCOVE_SERVER_ALLOW_INSECURE: "true",
        ALCOVE_SERVER_CORS_ALLOWED_ORIGINS: "https://console.example,http://localhost:5173",
      },
    });
  });
  afterAll(() => server[Symbol.asyncDispose]());

  test.each([
    "localhost",
    "localhost:7423",
    "LOCALHOST",
    "127.0.0.1:9",
    "[::1]:7423",
    "alcove.example",
    "alcove.localhost",
  ])("Host %s is this service", async (host) => {
    expect(await statusWithHost(server.url, host)).toBe(200);
  });

  test.each([
    "3000-sb-1.preview.example",
    "3000-sb-1.localhost:7423",
    "3000-x.localhost",
    "anything.preview.example",
    "any.thing.preview.example:443",
  ])("Host %s is a preview's, never this service", async (host) => {
    expect(await statusWithHost(server.url, host)).toBe(404);
  });

  test.each([
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "169.254.169.254",
    "192.168.0.7:7423",
    "alcove.example.evil",
    // Where previews are below; the service has a name of its own.
    "preview.example",
    "[::2]",
  ])("Host %j is not", async (host) => {
    expect(await statusWithHost(server.url, host)).toBe(403);
  });

  test("who asks by a name that is not this service's is told which key would make it so", async () => {
    const refusal = async (host: string) => {
      const { status, text } = await new PreviewClient(server.url, host).get("/api/v1/sandboxes");
      return [status, JSON.parse(text).message];
    };
    expect(await refusal("evil.example")).toEqual([403, expect.stringContaining("set server.public_url")]);
    const preview = "3000-sb-0123456789ab.other.example";
    expect(await refusal(preview)).toEqual([
      403,
      expect.stringContaining('set server.preview_domain to "other.example"'),
    ]);
    expect(await refusal("anything.preview.example")).toEqual([
      404,
      expect.stringContaining("is no preview"),
    ]);
  });

  test("only listed origins and the service's own may change something", async () => {
    const client = new TestClient(server.url);
    const post = (origin: string) => client.call("POST", "/api/v1/sandboxes/admission", {}, { origin });
    for (const origin of [
      ...["https://console.example", "https://alcove.example"],
      ...["http://localhost:5173", server.url],
    ])
      expect([origin, (await post(origin)).status]).toEqual([origin, 200]);
    const refused = [
      ...[
        "https://evil.example",
        "http://console.example",
        "null",
        "file://",
        "chrome-extension://localhost",
      ],
      // What runs in a sandbox serves these pages.
      ...["http://3000-sb-0123456789ab.localhost:8080", "https://3000-sb-0123456789ab.preview.example"],
      ...["http://app.localhost:3000", "http://localhost.:3000.evil.example", "ws://localhost:3000"],
      // `alcove forward` leads them to a sandbox; the last ones have the service's port, or its name and another protocol.
      ...["http://localhost:3000", "http://127.0.0.1:3000", "http://[::1]:3000", "https://127.0.0.1"],
      ...["localhost", "[::1]", "127.0.0.2"].map((host) => `http://${host}:${new URL(server.url).port}`),
      server.url.replace("http:", "https:"),
    ];
    for (const origin of refused) expect([origin, (await post(origin)).status]).toEqual([origin, 403]);
  });

  test("a page of another site reads nothing, by whatever it asks", async () => {
    const client = new TestClient(server.url);
    const routes = [
      "/api/v1/sandboxes",
      "/api/v1/events",
      "/api/v1/providers",
      "/docs",
      "/api/v1/openapi.json",
      "/no",
    ];
    const foreign = [
      { origin: "https://evil.example" },
      { origin: "null" },
      { "sec-fetch-site": "cross-site" },
      // A page of another port, by an element.
      { "sec-fetch-site": "same-site" },
    ];
    for (const path of routes)
      for (const headers of foreign) {
        const answer = await client.call("GET", path, undefined, headers);
        expect([path, headers, answer.status]).toEqual([path, headers, 403]);
        expect(answer.headers.get("access-control-allow-origin")).toBeNull();
      }
  });

  test("probes answer whoever asks, and give away nothing to foreign pages", async () => {
    const client = new TestClient(server.url);
    for (const path of ["/api/v1/live", "/api/v1/health", "/api/v1/ready"]) {
      const headers = { origin: "https://evil.example", "sec-fetch-site": "cross-site" };
      const answer = await client.call("GET", path, undefined, headers);
      expect([path, answer.status]).toEqual([path, 200]);
      expect(answer.headers.get("access-control-allow-origin")).toBeNull();
    }
  });

  test("a listed page may read, though its browser calls it another site", async () => {
    const headers = { origin: "http://localhost:5173", "sec-fetch-site": "cross-site" };
    const answer = await new TestClient(server.url).call("GET", "/api/v1/sandboxes", undefined, headers);
    expect(answer.status).toBe(200);
    expect(answer.headers.get("access-control-allow-origin")).toBe("http://localhost:5173");
  });

  test("the page of the service itself may read and change", async () => {
    const client = new TestClient(server.url);
    for (const headers of [{}, { "sec-fetch-site": "none" }, { "sec-fetch-site": "same-origin" }])
      expect((await client.call("GET", "/docs", undefined, headers)).status).toBe(200);
    const headers = { origin: server.url, "sec-fetch-site": "same-origin" };
    expect((await client.call("POST", "/api/v1/sandboxes/admission", {}, headers)).status).toBe(200);
  });
});

describe("without keys and with origins left at their default", () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer({ provider: mockProvider });
  });
  afterAll(() => server[Symbol.asyncDispose]());
  const outcome = async (method: string, headers: Record<string, string>) => {
    const answer = await new TestClient(server.url).call(method, "/api/v1/sandboxes", undefined, headers);
    return [answer.status, answer.headers.get("access-control-allow-origin")];
  };

  test("only the service's own pages are allowed", async () => {
    expect(await outcome("GET", { origin: "https://evil.example" })).toEqual([403, null]);
    expect(await outcome("GET", { origin: server.url })).toEqual([200, server.url]);
    expect(await outcome("GET", {})).toEqual([200, null]);
  });

  test("a page of another port of this machine, as forwarded ones are, is foreign", async () => {
    const preflight = { "access-control-request-method": "DELETE" };
    for (const origin of ["http://localhost:3000", "http://127.0.0.1:3000", "http://[::1]:3000"]) {
      expect([origin, ...(await outcome("GET", { origin }))]).toEqual([origin, 403, null]);
      expect([origin, ...(await outcome("DELETE", { origin }))]).toEqual([origin, 403, null]);
      expect([origin, ...(await outcome("OPTIONS", { origin, ...preflight }))]).toEqual([origin, 403, null]);
    }
    expect(await outcome("OPTIONS", { origin: server.url, ...preflight })).toEqual([204, server.url]);
  });

  test("an OPTIONS that is no preflight is refused as any method that no route takes", async () => {
    const answer = await new TestClient(server.url).call("OPTIONS", "/api/v1/quotas");
    expect([answer.status, answer.json.code, answer.headers.get("allow")]).toEqual([
      405,
      "method_not_allowed",
      "GET, HEAD",
    ]);
    expect((await new TestClient(server.url).call("OPTIONS", "/api/v1/nothing")).status).toBe(404);
  });
});

describe("connections", () => {
  test("beyond the limit are closed, and taken again once others are gone", async () => {
    await using server = await startTestServer({
      provider: mockProvider,
      env: { ALCOVE_SERVER_MAX_CONNECTIONS: "2" },
    });
    const port = Number(new URL(server.url).port);
    const open = [net.connect(port, "127.0.0.1"), net.connect(port, "127.0.0.1")];
    await Promise.all(open.map((socket) => once(socket, "connect")));
    await eventually(async () => {
      const count = await new Promise((resolve) =>
        server.app.server.getConnections((_error, n) => resolve(n)),
      );
      return count === 2 ? true : undefined;
    });
    await expect(fetch(`${server.url}/api/v1/live`)).rejects.toThrow();
    for (const socket of open) socket.destroy();
    const status = await eventually(() =>
      fetch(`${server.url}/api/v1/live`).then(
        (response) => response.status,
        () => undefined,
      ),
    );
    expect(status).toBe(200);
  });

  test("are not kept open by bodies that never end of requests that were answered, whatever they asked for", async () => {
    await using server = await startTestServer({ provider: mockProvider });
    const port = Number(new URL(server.url).port);
    const asked = ["GET /live", "GET /docs", "OPTIONS /api/v1/sandboxes", "GET /nothing", "POST /live"];
    const bodies = ["Content-Length: 1000000", "Transfer-Encoding: chunked"];
    const sockets = asked.flatMap((line) =>
      bodies.map((head) => {
        const socket = net.connect(port, "127.0.0.1").on("error", () => undefined);
        socket.write(`${line} HTTP/1.1\r\nHost: 127.0.0.1\r\n${head}\r\n\r\n`);
        const drip = setInterval(() => socket.write(head.startsWith("T") ? "1\r\nx\r\n" : "x"), 200);
        socket.once("close", () => clearInterval(drip));
        return socket;
      }),
    );
    await Promise.all(sockets.map((socket) => once(socket, "data")));
    await Promise.all(sockets.map(closed));
  }, 60_000);
});

/** Resolves when a connection is closed; that it was reset is as good. */
function closed(socket: net.Socket): Promise<void> {
  if (socket.closed) return Promise.resolve();
  return new Promise((resolve) => socket.resume().once("close", () => resolve()));
}
