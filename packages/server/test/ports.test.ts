import { hash } from "node:crypto";
import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import { Writable } from "node:stream";
import { pino } from "pino";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import WebSocket, { WebSocketServer } from "ws";
import { loggerSettings } from "../src/platform/logger.ts";
import { eventually, TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { PreviewClient } from "./support/preview-client.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const key = { "x-api-key": "admin-key" };
const webSocketGuid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

describe("ports by path", () => {
  const ports = new TestPorts();
  let server: TestServer;
  let api: TestClient;
  let client: PreviewClient;
  let id: string;

  beforeAll(async () => {
    server = await startTestServer({
      provider: ports.factory,
      env: { ALCOVE_AUTH_ADMIN_API_KEY: "admin-key", ALCOVE_PREVIEW_RESPONSE_TIMEOUT: "1s" },
    });
    api = new TestClient(server.url, key);
    client = new PreviewClient(server.url, "127.0.0.1");
    id = await api.spawn({ owner_id: "ann" });
  });
  afterAll(async () => {
    const left = await eventually(() => (server.app.callsUnderWay.size === 0 ? 0 : undefined)).catch(
      () => -1,
    );
    await server[Symbol.asyncDispose]();
    expect(left, "calls left under way").toBe(0);
    await eventually(() => (ports.open.size === 0 ? true : undefined));
  });
  const at = (rest: string, port = 3000) => `/api/v1/sandboxes/${id}/ports/${port}${rest}`;

  test("what programs answer, or fail to, counts as no answer of the service", async () => {
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => response.writeHead(500).end()),
    );
    const counted = async () => {
      const { text } = await api.call("GET", "/api/v1/metrics/prometheus");
      return /service_responses_total\{class="5xx"\} (\d+)/.exec(text)?.[1];
    };
    const before = await counted();
    expect(before).toMatch(/\d/);
    expect((await client.get(at("/"), { headers: key })).status).toBe(500);
    expect((await client.get(at("/", 9), { headers: key })).status).toBe(502);
    expect(await counted()).toBe(before);
  });

  test.each(["http://localhost", "%61pi"])(
    "a target that is not written as its path is 400 (%s)",
    async (how) => {
      using _program = await ports.listen(
        3000,
        http.createServer(({ url }, response) => response.end(url)),
      );
      const target = how.startsWith("http") ? `${how}${at("/a")}` : at("/a").replace("/ports/", "/%70orts/");
      const socket = net.connect(client.port, "127.0.0.1");
      socket.write(
        `GET ${target} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: admin-key\r\nConnection: close\r\n\r\n`,
      );
      const answer = String(Buffer.concat(await socket.toArray()));
      expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    },
  );

  test("a redirect leads within the program's own paths, or nowhere", async () => {
    using _program = await ports.listen(
      3000,
      http.createServer((request, response) => {
        const to = new URL(request.url ?? "", "http://program").searchParams.get("to") ?? "";
        response.writeHead(307, { Location: to }).end();
      }),
    );
    for (const [to, path] of [
      ["/new?x=1#a", "/new?x=1#a"],
      ["sibling", "/deep/sibling"],
      ["http://localhost:3000/own", "/own"],
      ["/../../../sb-other/exec", "/sb-other/exec"],
      ["../../../../sb-other/exec", "/sb-other/exec"],
      ["/%2e%2e/%2e%2e/exec", "/exec"],
      ["https://evil.example/", undefined],
      ["//evil.example/", undefined],
      ["/\\evil.example/", undefined],
      ["http://127.0.0.1/api/v1/sandboxes", undefined],
      ["javascript:alert(1)", undefined],
    ] as const) {
      const { headers } = await client.get(at(`/deep/page?to=${encodeURIComponent(to)}`), { headers: key });
      const told = [headers.location, headers["x-alcove-location"]];
      expect([to, ...told]).toEqual(path === undefined ? [to, undefined, to] : [to, at(path), undefined]);
    }
  });

  test("an upgrade that comes before an earlier request is answered ends its connection, and nothing else", async () => {
    for (const host of [`3000-${id}.localhost`, "localhost"]) {
      const socket = net.connect(client.port, "127.0.0.1").on("error", () => undefined);
      const closed = once(socket, "close");
      const upgrade = `GET /api/v1/sandboxes/${id}/tunnels/3000 HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n`;
      socket
        .resume()
        .write(`GET /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: admin-key\r\n\r\n${upgrade}`);
      await closed;
      expect((await api.call("GET", "/live")).status).toBe(200);
    }
  });

  test.each([
    ["of a length", { "content-length": "5" }],
    ["in chunks", { "transfer-encoding": "chunked" }],
  ])("a GET with a body %s is given whole to the program", async (_how, headers) => {
    using _program = await ports.listen(
      3000,
      http.createServer(async (request, response) => {
        response.end(Buffer.concat(await request.toArray()));
      }),
    );
    const answer = await client.get(at("/_search"), { headers: { ...key, ...headers }, body: "query" });
    expect([answer.status, answer.text]).toEqual([200, "query"]);
  });

  test("a program is asked for what follows the port, and answers as a page of nowhere", async () => {
    using _program = await ports.listen(
      3000,
      http.createServer(async (request, response) => {
        const body = Buffer.concat(await request.toArray()).toString();
        response.writeHead(201, [
          ...["Set-Cookie", "a=1", "Content-Security-Policy", "default-src *", "Service-Worker-Allowed", "/"],
          ...["Access-Control-Allow-Origin", "https://evil.example", "Refresh", "0; url=/docs", "X-Own", "1"],
          ...[
            "Location",
            "/new?x=1",
            "Clear-Site-Data",
            '"*"',
            "X-Alcove-Source",
            "service",
            "X-Request-ID",
            "x",
          ],
          ...["Content-Type", "text/html"],
        ]);
        const { method, url, headers } = request;
        response.end(JSON.stringify({ method, url, headers, body }));
      }),
    );
    const path = `/a%2Fb/../c${"d".repeat(2_000)}?x=1&y`;
    const answer = await client.get(at(path), {
      method: "PATCH",
      body: "text",
      headers: {
        ...key,
        cookie: "a=1",
        authorization: "Bearer admin-key",
        "content-type": "application/json",
        "content-length": "4",
        "content-encoding": "gzip",
        "x-user-id": "ann",
      },
    });
    expect(answer.status).toBe(201);
    const told = JSON.parse(answer.text);
    expect(told).toMatchObject({ method: "PATCH", url: path, body: "text" });
    expect(told.headers).toMatchObject({
      host: "localhost:3000",
      "content-type": "application/json",
      "content-encoding": "gzip",
      "x-forwarded-host": "localhost:3000",
    });
    for (const name of ["x-api-key", "authorization", "cookie"]) expect(told.headers[name]).toBeUndefined();
    expect(answer.headers).toMatchObject({
      "content-security-policy": "sandbox",
      "x-content-type-options": "nosniff",
      "cross-origin-resource-policy": "same-origin",
      "x-alcove-source": "program",
      "x-own": "1",
      location: at("/new?x=1"),
      "access-control-allow-origin": "*",
    });
    expect(answer.headers["x-request-id"]).not.toBe("x");
    for (const name of ["set-cookie", "service-worker-allowed", "refresh", "clear-site-data"])
      expect(answer.headers[name]).toBeUndefined();
  });

  test("what a browser would do or keep for the API's host is not passed on, or under another name", async () => {
    const dropped = [
      ...["Speculation-Rules", "SourceMap", "X-SourceMap", "Reporting-Endpoints", "Report-To", "NEL"],
      ...["Clear-Site-Data", "Service-Worker-Allowed", "Accept-CH", "Critical-CH", "Use-As-Dictionary"],
      ...["Set-Login", "Secure-Session-Registration", "Sec-Session-Registration", "Timing-Allow-Origin"],
    ];
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => {
        response.writeHead(401, [
          ...dropped.flatMap((name) => [name, '"x"']),
          ...["WWW-Authenticate", 'Basic realm="the service"', "www-authenticate", "Bearer"],
          ...["Link", "</items?page=2>; rel=next", "ETag", '"1"'],
        ]);
        response.end();
      }),
    );
    const { headers } = await client.get(at("/items"), { headers: key });
    for (const name of [...dropped, "WWW-Authenticate", "Link"])
      expect([name, headers[name.toLowerCase()]]).toEqual([name, undefined]);
    expect(headers).toMatchObject({
      "x-alcove-www-authenticate": 'Basic realm="the service", Bearer',
      "x-alcove-link": "</items?page=2>; rel=next",
      etag: '"1"',
    });
  });

  test("uploads and downloads go through as they come", async () => {
    using _program = await ports.listen(
      3000,
      http.createServer((request, response) => request.pipe(response)),
    );
    const body = Buffer.alloc(3_000_000, "0123456789");
    const answer = await client.get(at("/"), {
      method: "PUT",
      body,
      headers: { ...key, "transfer-encoding": "chunked" },
    });
    expect([answer.status, answer.text.length]).toEqual([200, body.length]);
  });

  test("refusals of the service are its own, as everywhere", async () => {
    const ask = async (path: string, headers: Record<string, string> = key, method = "GET") => {
      const answer = await client.get(path, { method, headers });
      expect(answer.headers["x-alcove-source"]).toBeUndefined();
      return [answer.status, JSON.parse(answer.text).code];
    };
    expect(await ask(at("/"), {})).toEqual([401, "unauthorized"]);
    expect(await ask(at("/", 4000))).toEqual([502, "bad_gateway"]);
    expect(await ask(at("/", 4000), key, "POST")).toEqual([502, "bad_gateway"]);
    expect(await ask(at("/", 0))).toEqual([400, "bad_request"]);
    expect(await ask(at("/x", "x" as unknown as number))).toEqual([400, "bad_request"]);
    expect(await ask("/api/v1/sandboxes/sb-000000000000/ports/80/")).toEqual([404, "not_found"]);
    const { status, text } = await client.get(`${at("")}?x=1`, { headers: key });
    expect([status, JSON.parse(text).message]).toEqual([404, `there is no ${at("")}; add a "/": ${at("/")}`]);
    using _silent = await ports.listen(4001, net.createServer());
    expect(await ask(at("/", 4001))).toEqual([504, "gateway_timeout"]);
  });

  test("keys bound to another owner, or without write, do not reach a port", async () => {
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => response.end("hi")),
    );
    const make = async (name: string, more: object) =>
      (await api.call("POST", "/api/v1/admin/keys", { name, ...more })).json.key as string;
    const statuses = async (made: string) => [
      (await client.get(at("/"), { headers: { "x-api-key": made } })).status,
      (await client.get(`/api/v1/sandboxes/${id}/preview/3000`, { headers: { "x-api-key": made } })).status,
      await handshake(tunnelOf(id, 3000, { "x-api-key": made })),
      await handshake(socketAt(at("/"), { "x-api-key": made })),
    ];
    expect(await statuses(await make("ann", { owner_id: "ann" }))).toEqual([200, 200, 101, 200]);
    expect(await statuses(await make("bob", { owner_id: "bob" }))).toEqual([404, 404, 404, 404]);
    expect(await statuses(await make("reader", { scopes: ["read"] }))).toEqual([403, 403, 403, 403]);
    expect(await statuses("wrong")).toEqual([401, 401, 401, 401]);
  });

  const socketAt = (path: string, headers: Record<string, string>) =>
    new WebSocket(server.url.replace("http", "ws") + path, { headers });
  const tunnelOf = (sandbox: string, port: number, headers: Record<string, string> = key) =>
    socketAt(`/api/v1/sandboxes/${sandbox}/tunnels/${port}`, headers);
  /** @returns the status that a WebSocket's handshake was answered with. */
  async function handshake(socket: WebSocket): Promise<number> {
    socket.on("error", () => undefined);
    const status = await new Promise<number>((resolve) => {
      socket.once("open", () => resolve(101));
      socket.once("unexpected-response", (_request, response) => resolve(response.resume().statusCode ?? 0));
    });
    socket.terminate();
    return status;
  }

  test("a WebSocket goes by path too, until its key is taken back", async () => {
    const sockets = new WebSocketServer({ noServer: true });
    const web = http.createServer();
    web.on("upgrade", (request, socket, head) =>
      sockets.handleUpgrade(request, socket, head, (accepted) => {
        accepted.on("message", (data) => accepted.send(`${request.url} ${data}`));
      }),
    );
    using _program = await ports.listen(3000, web);
    const made = (await api.call("POST", "/api/v1/admin/keys", { name: "short" })).json.key;
    const socket = socketAt(at("/ws?x=1"), { "x-api-key": made });
    socket.on("error", () => undefined);
    await once(socket, "open");
    socket.send("hello");
    const [said] = await once(socket, "message");
    expect(String(said)).toBe("/ws?x=1 hello");
    const closed = once(socket, "close");
    await api.call("DELETE", "/api/v1/admin/keys/short");
    await closed;
    sockets.close();
  });

  test("an answer that goes on ends when its key is taken back", async () => {
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => response.writeHead(200).write("x")),
    );
    const made = (await api.call("POST", "/api/v1/admin/keys", { name: "brief" })).json.key;
    const { response } = await client.open(at("/"), { headers: { "x-api-key": made } });
    const cut = expect(response.toArray()).rejects.toThrow("aborted");
    await api.call("DELETE", "/api/v1/admin/keys/brief");
    await cut;
  });

  test.each([
    ["a tunnel", () => tunnelOf(id, 3000)],
    ["a WebSocket by path", () => socketAt(at("/ws"), key)],
  ])("of what nobody takes little is read ahead: %s", async (what, connect) => {
    using _program = await ports.listen(
      3000,
      what === "a tunnel"
        ? net.createServer((socket) => socket.pause())
        : http.createServer().on("upgrade", (request, socket) => {
            const accept = hash("sha1", `${request.headers["sec-websocket-key"]}${webSocketGuid}`, "base64");
            const head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
            socket.pause().write(`${head}Sec-WebSocket-Accept: ${accept}\r\n\r\n`);
          }),
    );
    const accepted = once(server.app.server, "connection");
    const socket = connect();
    const [connection]: net.Socket[] = await accepted;
    await once(socket, "open");
    const data = Buffer.alloc(60_000);
    for (let sent = 0; sent < 16_777_216; sent += data.length) socket.send(data);
    // What the client cannot get rid of is what nobody takes.
    let before = -1;
    let quiet = 0;
    await eventually(() => {
      quiet = socket.bufferedAmount === before ? quiet + 1 : 0;
      before = socket.bufferedAmount;
      return quiet === 10 ? true : undefined;
    });
    expect(before).toBeGreaterThan(0);
    expect(connection?.readableLength).toBeLessThanOrEqual(81_920);
    // Of a connection that is not read its end is not seen before the next ping.
    socket.terminate();
    connection?.destroy();
  });

  describe("tunnels", () => {
    test("bytes go both ways, and each direction ends by itself", async () => {
      const { promise: received, resolve } = Promise.withResolvers<string>();
      using _program = await ports.listen(
        3000,
        net.createServer({ allowHalfOpen: true }, (socket) => {
          let text = "";
          socket.write("hello ");
          socket.on("data", (bytes) => {
            text += bytes;
          });
          socket.on("end", () => {
            resolve(text);
            socket.end(`got ${text.length}`);
          });
        }),
      );
      const socket = tunnelOf(id, 3000);
      const messages: [string, boolean][] = [];
      socket.on("message", (data, binary) => messages.push([String(data), binary]));
      await once(socket, "open");
      const large = Buffer.alloc(2_000_000, 97);
      socket.send(large);
      socket.send("end");
      const [code] = await once(socket, "close");
      expect([code, (await received).length]).toEqual([1000, large.length]);
      expect(
        messages
          .filter(([, binary]) => binary)
          .map(([text]) => text)
          .join(""),
      ).toBe("hello got 2000000");
      expect(messages.at(-1)).toEqual(["end", false]);
    });

    test("a reader that stops holds the program back", async () => {
      let sent = 0;
      using _program = await ports.listen(
        3000,
        net.createServer((socket) => {
          const more = () => {
            while (sent < 512 * 1_048_576) {
              sent += 1_048_576;
              if (!socket.write(Buffer.alloc(1_048_576))) return void socket.once("drain", more);
            }
          };
          socket.on("error", () => undefined);
          more();
        }),
      );
      const socket = tunnelOf(id, 3000);
      await once(socket, "open");
      socket.pause();
      let last = -1;
      await eventually(async () => {
        const stands = sent === last;
        last = sent;
        await new Promise((wake) => setTimeout(wake, 200));
        return stands || undefined;
      });
      expect(sent).toBeLessThan(64 * 1_048_576);
      socket.terminate();
    });

    test.each(["ping", "pong"] as const)("a client that sends %ss without end is cut off", async (frame) => {
      using _program = await ports.listen(
        3000,
        net.createServer((socket) => socket.resume()),
      );
      const socket = tunnelOf(id, 3000);
      await once(socket, "open");
      const closed = once(socket, "close");
      const send = async (frames: number) => {
        for (let n = 1; n <= frames && socket.readyState === WebSocket.OPEN; n++) {
          socket[frame]();
          if (n % 500 === 0) await new Promise((resolve) => setTimeout(resolve, 10));
        }
      };
      await send(4_000);
      expect(socket.readyState).toBe(WebSocket.OPEN);
      await send(4_000);
      expect((await closed)[0]).toBe(1008);
    });

    test("what cannot be is refused in the handshake, or closes the tunnel", async () => {
      expect(await handshake(tunnelOf(id, 4000))).toBe(502);
      expect(await handshake(tunnelOf("sb-000000000000", 80))).toBe(404);
      expect(await handshake(tunnelOf(id, 80, {}))).toBe(401);
      const plain = await client.get(`/api/v1/sandboxes/${id}/tunnels/80`, { headers: key });
      expect([plain.status, plain.headers.upgrade]).toEqual([426, "websocket"]);
      expect(plain.headers.connection).toMatch(/\bupgrade$/);
      using _program = await ports.listen(
        3000,
        net.createServer((socket) => socket.resume().on("error", () => undefined)),
      );
      for (const bad of ["hello", "{}"]) {
        const socket = tunnelOf(id, 3000);
        await once(socket, "open");
        socket.send(bad);
        expect((await once(socket, "close"))[0]).toBe(1008);
      }
      const late = tunnelOf(id, 3000);
      await once(late, "open");
      late.send("end");
      late.send(Buffer.from("x"));
      expect([1000, 1008]).toContain((await once(late, "close"))[0]);
    });

    test("a ticket opens one, and a key that is taken back, or a sandbox that ends, closes it", async () => {
      using _program = await ports.listen(
        3000,
        net.createServer((socket) => socket.on("error", () => undefined)),
      );
      const { json } = await api.call("POST", "/api/v1/tickets", { sandbox_id: id });
      const ticketed = socketAt(`/api/v1/sandboxes/${id}/tunnels/3000?ticket=${json.ticket}`, {});
      expect(await handshake(ticketed)).toBe(101);

      const made = (await api.call("POST", "/api/v1/admin/keys", { name: "lent" })).json.key;
      const revoked = tunnelOf(id, 3000, { "x-api-key": made });
      await once(revoked, "open");
      const revokedClose = once(revoked, "close");
      await api.call("DELETE", "/api/v1/admin/keys/lent");
      expect((await revokedClose)[0]).toBe(1008);

      const ending = await api.spawn();
      const gone = tunnelOf(ending, 3000);
      await once(gone, "open");
      const goneClose = once(gone, "close");
      await api.call("DELETE", `/api/v1/sandboxes/${ending}`);
      expect((await goneClose)[0]).toBe(1011);
    });

    test("a client that vanishes during the handshake leaves nothing behind", async () => {
      using _program = await ports.listen(
        3000,
        net.createServer((socket) => socket.on("error", () => undefined)),
      );
      for (let count = 0; count < 20; count++) {
        const socket = net.connect({ host: "127.0.0.1", port: client.port });
        socket.on("error", () => undefined);
        socket.write(
          `GET /api/v1/sandboxes/${id}/tunnels/3000 HTTP/1.1\r\nHost: x\r\nX-API-Key: admin-key\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n`,
        );
        await new Promise((wake) => setTimeout(wake, count % 5));
        socket.destroy();
      }
      await eventually(() => (ports.open.size === 0 ? true : undefined));
    });
  });

  test("a page of a listed origin asks with a key, by each method, and reads what the service says of the answer", async () => {
    const ports = new TestPorts();
    const origin = "https://app.example";
    await using server = await startTestServer({
      provider: ports.factory,
      env: { ALCOVE_AUTH_ADMIN_API_KEY: "admin-key", ALCOVE_SERVER_CORS_ALLOWED_ORIGINS: origin },
    });
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => response.end("hi")),
    );
    const id = await new TestClient(server.url, key).spawn();
    const client = new PreviewClient(server.url, "127.0.0.1");
    const path = `/api/v1/sandboxes/${id}/ports/3000/`;
    for (const method of ["GET", "POST", "PUT", "PATCH", "DELETE"]) {
      const preflight = await client.get(path, {
        method: "OPTIONS",
        headers: {
          origin,
          "access-control-request-method": method,
          "access-control-request-headers": "x-api-key",
        },
      });
      expect(preflight.headers["access-control-allow-origin"]).toBe(origin);
      expect(String(preflight.headers["access-control-allow-methods"]).split(", ")).toContain(method);
      const answer = await client.get(path, { method, headers: { ...key, origin } });
      expect(answer.headers["access-control-allow-origin"]).toBe(origin);
      expect(String(answer.headers["access-control-expose-headers"]).split(", ")).toEqual(
        expect.arrayContaining([
          ...["X-Alcove-Source", "X-Alcove-Location", "X-Alcove-Link", "X-Alcove-WWW-Authenticate"],
          "X-Request-ID",
        ]),
      );
    }
  });
});

describe("ports by path without keys", () => {
  test("a page cannot ask by itself, a program says that it is none", async () => {
    const ports = new TestPorts();
    await using server = await startTestServer({ provider: ports.factory });
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => response.end("hi")),
    );
    const id = await new TestClient(server.url).spawn();
    const client = new PreviewClient(server.url, "localhost");
    const path = `/api/v1/sandboxes/${id}/ports/3000/`;
    const status = async (headers: Record<string, string>, method = "GET") =>
      (await client.get(path, { method, headers })).status;
    expect(await status({})).toBe(403);
    expect(await status({ "x-alcove-client": "curl" })).toBe(200);
    expect(await status({ "x-alcove-client": "1", origin: `http://80-${id}.localhost:${client.port}` })).toBe(
      403,
    );
    const preflight = await client.get(path, {
      method: "OPTIONS",
      headers: {
        origin: `http://80-${id}.localhost:${client.port}`,
        "access-control-request-method": "GET",
        "access-control-request-headers": "x-alcove-client",
      },
    });
    expect(preflight.headers["access-control-allow-origin"]).toBeUndefined();
    const upgrade = { connection: "Upgrade", upgrade: "websocket" };
    expect(await status(upgrade)).toBe(403);
  });

  test("a provider without ports says so", async () => {
    await using server = await startTestServer({ provider: mockProvider });
    const api = new TestClient(server.url, { "x-alcove-client": "test" });
    const id = await api.spawn();
    for (const path of ["preview/80", "ports/80/"]) {
      const { status, json } = await api.call("GET", `/api/v1/sandboxes/${id}/${path}`);
      expect([path, status, json.message]).toEqual([path, 400, expect.stringContaining('provider "mock"')]);
    }
  });
});

test("a WebSocket by path and a tunnel each leave a line in the log when they end", async () => {
  const lines: { event?: string; path?: string; status?: number; outcome?: string }[] = [];
  const sink = new Writable({
    write: (line, _encoding, done) => {
      lines.push(JSON.parse(String(line)));
      done();
    },
  });
  const ports = new TestPorts();
  await using server = await startTestServer({
    provider: ports.factory,
    logger: pino(loggerSettings("info"), sink),
  });
  const id = await new TestClient(server.url).spawn();
  const web = http.createServer();
  new WebSocketServer({ server: web });
  using _program = await ports.listen(3000, web);
  const paths = [`/api/v1/sandboxes/${id}/ports/3000/`, `/api/v1/sandboxes/${id}/tunnels/3000`];
  for (const path of paths) {
    const socket = new WebSocket(`${server.url.replace("http", "ws")}${path}`, {
      headers: { "x-alcove-client": "1" },
    });
    await once(socket, "open");
    socket.close();
    const told = await eventually(() => lines.find((line) => line.event === "request" && line.path === path));
    expect(told).toMatchObject({ status: 101, outcome: "ok" });
  }
  expect(lines.filter(({ status }) => status === 101)).toHaveLength(2);
});
