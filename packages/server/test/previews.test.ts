import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocketServer } from "ws";
import { eventually, TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { PreviewClient } from "./support/preview-client.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

describe("previews that anybody may see", () => {
  const ports = new TestPorts();
  let server: TestServer;
  let api: TestClient;
  let id: string;
  let preview: PreviewClient;

  beforeAll(async () => {
    server = await startTestServer({ provider: ports.factory });
    api = new TestClient(server.url);
    id = await api.spawn();
    preview = new PreviewClient(server.url, `3000-${id}.localhost`);
  });
  afterAll(async () => {
    const { callsUnderWay } = server.app;
    const left = await eventually(() => (callsUnderWay.size === 0 ? 0 : undefined)).catch(
      () => callsUnderWay.size,
    );
    await server[Symbol.asyncDispose]();
    expect(left, "calls left under way").toBe(0);
    await eventually(() => (ports.open.size === 0 ? true : undefined));
  });

  const program = (handler: http.RequestListener) => ports.listen(3000, http.createServer(handler));
  /** What the program was told, as JSON. */
  const echo: http.RequestListener = (request, response) => {
    const body: Buffer[] = [];
    request.on("data", (chunk) => body.push(chunk));
    request.on("end", () => {
      const { method, url, rawHeaders: raw, headers } = request;
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify({ method, url, raw, headers, body: Buffer.concat(body).toString() }));
    });
  };

  /** A connection of a client's own, to the service. */
  const connect = async (head: string) => {
    const socket = net.connect({ port: preview.port, host: "127.0.0.1", allowHalfOpen: true });
    socket.on("error", () => undefined).write(`${head}\r\n\r\n`);
    await once(socket, "connect");
    return socket;
  };

  test("one who reads no answer before everything is sent gets the refusal of a host", async () => {
    const bytes = 8 * 1_048_576;
    const socket = await connect(`POST / HTTP/1.1\r\nHost: ${preview.host}\r\nContent-Length: ${bytes}`);
    await new Promise((resolve, reject) =>
      socket.write(Buffer.alloc(bytes), (error) => (error ? reject(error) : resolve(undefined))),
    );
    socket.end();
    const answer = String(Buffer.concat(await socket.toArray()));
    expect(answer).toMatch(/^HTTP\/1\.1 502 /);
    expect(answer).toContain("nothing listens on port 3000");
  });

  test.each([
    ["on a host", () => `GET / HTTP/1.1\r\nHost: ${preview.host}`, ""],
    ["on a host, having said something", () => `GET / HTTP/1.1\r\nHost: ${preview.host}`, "x"],
    [
      "by path",
      () => `GET /api/v1/sandboxes/${id}/ports/3000/ HTTP/1.1\r\nHost: localhost\r\nX-Alcove-Client: 1`,
      "",
    ],
  ])(
    "who asks %s for a WebSocket that is not answered and leaves gives the place back",
    async (_how, ask, said) => {
      using _program = await ports.listen(
        3000,
        net.createServer().on("connection", (socket) => socket.resume()),
      );
      const { dials } = ports;
      const socket = await connect(`${ask()}\r\nConnection: Upgrade\r\nUpgrade: websocket`);
      await eventually(() => (ports.dials > dials ? true : undefined));
      socket.end(said);
      await eventually(() => (ports.open.size === 0 ? true : undefined), 5_000);
      socket.destroy();
    },
  );

  test("a request reaches the program as it was asked, and its answer comes back", async () => {
    using _program = await program((request, response) => {
      response.writeHead(207, ["X-Two", "a", "X-Two", "b", "Content-Type", "text/plain"]);
      response.end(`${request.method} ${request.url}`);
    });
    const answer = await preview.get("/a%20b/../c?x=1&x=2&&y", { headers: { accept: "*/*" } });
    expect(answer).toMatchObject({ status: 207, text: "GET /a%20b/../c?x=1&x=2&&y" });
    expect(answer.headers["x-two"]).toBe("a, b");
    expect(answer.headers["content-type"]).toBe("text/plain");
    expect(answer.headers["x-request-id"]).toBeUndefined();
  });

  test("bodies go through: with a length, chunked, with any method, and none at all", async () => {
    using _program = await program(echo);
    const told = async (options: Parameters<PreviewClient["get"]>[1]) =>
      JSON.parse((await preview.get("/", options)).text);
    const sized = await told({ method: "POST", body: "four", headers: { "content-length": "4" } });
    expect(sized.body).toBe("four");
    expect(sized.headers["content-length"]).toBe("4");
    expect(sized.headers["transfer-encoding"]).toBeUndefined();
    const chunked = await told({
      method: "PUT",
      body: "pieces",
      headers: { "transfer-encoding": "chunked" },
    });
    expect(chunked.body).toBe("pieces");
    expect(chunked.headers["content-length"]).toBeUndefined();
    const got = await told({ method: "GET", body: "odd", headers: { "content-length": "3" } });
    expect([got.method, got.body]).toEqual(["GET", "odd"]);
    const empty = await told({ method: "POST", headers: { "content-length": "0" } });
    expect([empty.body, empty.headers["content-length"]]).toEqual(["", "0"]);
    expect(await told({ method: "PROPFIND" })).toMatchObject({ method: "PROPFIND", body: "" });
  });

  test("the program learns who asks and how, and nothing that is for the service", async () => {
    using _program = await program(echo);
    const { text } = await preview.get("/", {
      headers: {
        "x-api-key": "the program's own",
        "x-worker-token": "token",
        "x-forwarded-for": "6.6.6.6",
        "x-forwarded-host": "evil.example",
        "x-forwarded-anything": "1",
        forwarded: "for=6.6.6.6",
        "x-real-ip": "6.6.6.6",
        cookie: "a=1; alcove-preview=x.y; __Host-alcove-preview=z; b=2",
        authorization: "Basic dXNlcjpwYXNz",
        te: "trailers",
        "keep-alive": "timeout=5",
        "proxy-authorization": "Basic x",
        connection: "close, X-Hop, x-forwarded-for, cookie",
        "x-hop": "1",
        "x-end": "1",
      },
    });
    const { headers, raw } = JSON.parse(text);
    expect(headers).toMatchObject({
      host: preview.host,
      "x-forwarded-for": "127.0.0.1",
      "x-forwarded-host": preview.host,
      "x-forwarded-proto": "http",
      authorization: "Basic dXNlcjpwYXNz",
      "x-api-key": "the program's own",
      cookie: "a=1; b=2",
      "x-end": "1",
    });
    const names = raw
      .filter((_: string, index: number) => index % 2 === 0)
      .map((name: string) => name.toLowerCase());
    for (const gone of [
      ...["x-worker-token", "forwarded", "x-real-ip", "x-forwarded-anything"],
      ...["te", "keep-alive", "proxy-authorization", "x-hop"],
    ])
      expect(names).not.toContain(gone);
    expect(names.filter((name: string) => name === "host")).toHaveLength(1);
  });

  test("a program sets cookies for its own host alone, and says nothing about others", async () => {
    using _program = await program((_request, response) => {
      response.writeHead(200, [
        ...["Set-Cookie", "a=1; Domain=localhost; Path=/; HttpOnly"],
        ...["Set-Cookie", "b=2;domain=.preview.example"],
        ...["Set-Cookie", "alcove-preview=mine; Path=/"],
        ...["Set-Cookie", "__Host-alcove-preview=mine; Secure; Path=/"],
        ...["Set-Cookie", "c=3; Max-Age=5"],
        ...["Strict-Transport-Security", "max-age=1; includeSubDomains"],
        ...["Clear-Site-Data", '"*"'],
        ...["Alt-Svc", 'h2="evil.example:443"'],
        ...["NEL", "{}"],
        ...["Connection", "X-Hop, Set-Cookie"],
        ...["X-Hop", "1"],
        ...["Keep-Alive", "timeout=99"],
        ...["Content-Length", "2"],
      ]);
      response.end("ok");
    });
    const answer = await preview.get("/");
    expect(answer.headers["set-cookie"]).toEqual(["a=1; Path=/; HttpOnly", "b=2", "c=3; Max-Age=5"]);
    for (const name of ["strict-transport-security", "clear-site-data", "alt-svc", "nel", "x-hop"])
      expect(answer.headers[name]).toBeUndefined();
    expect(answer.headers["keep-alive"]).not.toBe("timeout=99");
  });

  test("HEAD, 204 and 304 have no body, and what they say of one stays", async () => {
    using _program = await program((request, response) => {
      const status = Number(request.url?.slice(1));
      response.writeHead(status, status === 204 ? [] : ["Content-Length", "5", "ETag", '"x"']);
      response.end(request.method === "HEAD" || status !== 200 ? undefined : "12345");
    });
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    const head = await preview.get("/200", { method: "HEAD", agent });
    expect([head.status, head.headers["content-length"], head.text]).toEqual([200, "5", ""]);
    expect(await preview.get("/204", { agent })).toMatchObject({ status: 204, text: "" });
    expect(await preview.get("/304", { agent })).toMatchObject({ status: 304, headers: { etag: '"x"' } });
    expect(await preview.get("/200", { agent })).toMatchObject({ status: 200, text: "12345" });
    agent.destroy();
  });

  test("server-sent events arrive one by one, and the program sees its reader leave", async () => {
    const { promise: left, resolve: leave } = Promise.withResolvers<void>();
    const { promise: next, resolve: goOn } = Promise.withResolvers<void>();
    using _program = await program((_request, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.flushHeaders();
      void next.then(() => response.write("data: 1\n\n"));
      response.on("close", () => leave());
    });
    const { response, request } = await preview.open("/events");
    expect(response.headers["content-type"]).toBe("text/event-stream");
    goOn();
    const [chunk] = await once(response, "data");
    expect(String(chunk)).toBe("data: 1\n\n");
    request.destroy();
    response.on("error", () => undefined);
    await left;
  });

  test("WebSockets carry messages both ways, with subprotocol and origin", async () => {
    const sockets = new WebSocketServer({ noServer: true, handleProtocols: () => "chat" });
    const web = http.createServer();
    let told: http.IncomingHttpHeaders = {};
    web.on("upgrade", (request, socket, head) => {
      told = request.headers;
      sockets.handleUpgrade(request, socket, head, (client) => {
        client.on("message", (data, binary) => client.send(data, { binary }));
      });
    });
    using _program = await ports.listen(3000, web);
    const socket = preview.socket("/chat?x=1", {
      protocols: ["chat"],
      headers: { origin: "http://app.example", "x-api-key": "key", cookie: "alcove-preview=x" },
    });
    await once(socket, "open");
    expect(socket.protocol).toBe("chat");
    const large = Buffer.alloc(300_000, 7);
    socket.send("hello");
    const [first] = await once(socket, "message");
    socket.send(large);
    const [second] = await once(socket, "message");
    expect([String(first), Buffer.compare(second as Buffer, large)]).toEqual(["hello", 0]);
    expect(told).toMatchObject({
      host: preview.host,
      origin: "http://app.example",
      "x-forwarded-proto": "http",
    });
    expect([told["x-api-key"], told.cookie]).toEqual(["key", undefined]);
    socket.close(1000);
    const [code] = await once(socket, "close");
    expect(code).toBe(1000);
    await eventually(() => (ports.open.size === 0 ? true : undefined));
    sockets.close();
  });

  test("a program that does not want to speak WebSocket says so, and others never switch", async () => {
    using _program = await program((request, response) => {
      response.writeHead(403, { "content-length": "5" }).end(`no ${request.url}`);
    });
    const socket = preview.socket("/w");
    const [, response] = await once(socket, "unexpected-response");
    expect(response.statusCode).toBe(403);
    response.resume();
    socket.on("error", () => undefined).terminate();
    // A client that offers HTTP/2 in passing is answered in HTTP/1.1.
    const text = await preview.raw(
      "POST /x HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nContent-Length: 2\r\n\r\nok",
    );
    expect(text).toMatch(/^HTTP\/1\.1 403 [\s\S]*no \/x$/);
  });

  test.each([
    ["text/html,*/*", "text/html"],
    ["application/json", "application/json"],
  ])("a port that nobody listens on is told to who accepts %s", async (accept, type) => {
    const answer = await preview.get("/", { headers: { accept } });
    expect([answer.status, answer.headers["content-type"]]).toEqual([502, `${type}; charset=utf-8`]);
    expect(answer.text).toContain("nothing listens on port 3000 of sandbox");
    expect(answer.headers).toMatchObject({ "cache-control": "no-store", "retry-after": "1" });
    expect(answer.headers["content-security-policy"]).toContain("default-src 'none'");
    expect(answer.text.includes('http-equiv="refresh"')).toBe(type === "text/html");
  });

  test("a sandbox that is gone, was never there or is still being made is told", async () => {
    const gone = await api.spawn();
    await api.call("DELETE", `/api/v1/sandboxes/${gone}`);
    const at = (name: string) => new PreviewClient(server.url, `${name}.localhost`);
    expect((await at(`3000-${gone}`).get("/")).status).toBe(404);
    expect((await at("3000-sb-000000000000").get("/")).status).toBe(404);
    for (const name of [
      "0-sb-000000000000",
      "65536-sb-000000000000",
      "03000-sb-000000000000",
      "3000-x",
      `3000-${id}x.y`,
    ])
      expect([name, (await at(name).get("/api/v1/live")).status]).toEqual([
        name,
        name.includes(".") ? 200 : 404,
      ]);
    const delayed = api.call("POST", "/api/v1/sandboxes", {
      name: "slow",
      metadata: { "mock.spawn_delay": "1s" },
    });
    const row = await eventually(
      async () =>
        (await api.call("GET", "/api/v1/sandboxes?state=creating")).json[0] as { id: string } | undefined,
    );
    const starting = await at(`3000-${row.id}`).get("/", { headers: { accept: "text/html" } });
    expect([starting.status, starting.headers["retry-after"]]).toEqual([503, "1"]);
    expect(starting.text).toContain('http-equiv="refresh"');
    await delayed;
  });

  test("nothing of the API is on the host of a preview, whatever it is asked for", async () => {
    using _program = await program((_request, response) => response.end("the program"));
    for (const path of ["/api/v1/sandboxes", "/docs", "/live", "/api/v1/openapi.json"])
      expect([path, (await preview.get(path)).text]).toEqual([path, "the program"]);
    const posted = await preview.get("/api/v1/sandboxes", { method: "POST", body: "{}" });
    expect(posted.text).toBe("the program");
  });

  test("what could be read as two different requests is refused", async () => {
    let asked = 0;
    using _program = await program((_request, response) => {
      asked += 1;
      response.end("the program");
    });
    const lines = (...more: string[]) =>
      `GET / HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n${more.join("\r\n")}\r\n\r\n`;
    const refused = [
      lines("Content-Length: 4", "Transfer-Encoding: chunked"),
      lines("Content-Length: 4", "Content-Length: 5"),
      lines("Transfer-Encoding: chunked, identity"),
      lines("Content-Length: +4"),
      lines("Transfer-Encoding : chunked"),
      lines("X: a\n b"),
      lines("X: a\rb"),
      lines("Host: 80-sb-000000000000.localhost"),
      lines("X\0: a"),
      "GET http://localhost/api/v1/sandboxes HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
      "OPTIONS * HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
      "TRACE / HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
      "GET / HTTP/1.1\r\n\r\n",
    ];
    for (const request of refused)
      expect([request, (await preview.raw(request)).slice(0, 12)]).toEqual([request, "HTTP/1.1 400"]);
    expect(await preview.raw("CONNECT localhost:22 HTTP/1.1\r\nHost: HOST\r\n\r\n")).not.toMatch(
      /^HTTP\/1\.1 2/,
    );
    expect(asked).toBe(0);
    const large = await preview.raw(lines(`X: ${"a".repeat(20_000)}`));
    expect(large.slice(0, 12)).toMatch(/HTTP\/1.1 4/);
  });

  test("many requests use few connections, and none after a program went away", async () => {
    const before = ports.dials;
    const first = await program((_request, response) => response.end("one"));
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    for (let count = 0; count < 20; count++) expect((await preview.get("/", { agent })).text).toBe("one");
    expect(ports.dials - before).toBe(1);
    // What is not safe to repeat has a connection of its own.
    expect((await preview.get("/", { method: "POST", body: "x", agent })).text).toBe("one");
    expect(ports.dials - before).toBe(2);
    first[Symbol.dispose]();
    using _second = await program((_request, response) => response.end("two"));
    expect((await preview.get("/", { agent })).text).toBe("two");
    agent.destroy();
  });

  test("a program that serves many at once keeps a connection for each that asks", async () => {
    const of = new PreviewClient(server.url, preview.host.replace("3000", "3001").replace(/:.*/, ""));
    let made = 0;
    const program = http.createServer((_request, response) => void setImmediate(() => response.end("here")));
    program.on("connection", () => {
      made += 1;
    });
    using _program = await ports.listen(3001, program);
    const agent = new http.Agent({ keepAlive: true });
    const ask = async () => {
      for (let times = 0; times < 50; times += 1) expect((await of.get("/", { agent })).text).toBe("here");
    };
    await Promise.all([ask(), ask(), ask(), ask()]);
    expect(made).toBeLessThan(20);
    agent.destroy();
  });

  test("a program that serves one connection at a time is not kept waiting by the one that it had", async () => {
    let turn = Promise.resolve();
    const inner = http.createServer({ keepAliveTimeout: 0 }, (request, response) => {
      request.resume().on("end", () => response.end(request.method));
    });
    using _program = await ports.listen(
      3000,
      net.createServer({ pauseOnConnect: true }, (socket) => {
        socket.on("error", () => undefined);
        turn = turn.then(async () => {
          if (socket.destroyed) return;
          const closed = once(socket, "close");
          inner.emit("connection", socket);
          socket.resume();
          await closed;
        });
      }),
    );
    const agent = new http.Agent({ keepAlive: true });
    const methods = ["GET", "POST", "GET", "POST", "GET", "POST"];
    const ask = async (method: string) => {
      const body = method === "POST" ? { body: "x" } : {};
      // Programs close their connections, browsers keep them.
      for (const by of [{}, { agent }])
        expect((await preview.get("/", { method, ...body, ...by })).text).toBe(method);
    };
    const begunMs = performance.now();
    for (const method of methods) await ask(method);
    await Promise.all(methods.map(ask));
    await Promise.all(methods.map(() => ask("GET")));
    expect(performance.now() - begunMs).toBeLessThan(2_500);
    agent.destroy();
  });

  test("a program that serves two connections at a time is kept waiting by none that it had", async () => {
    const of = new PreviewClient(server.url, preview.host.replace("3000", "3002").replace(/:.*/, ""));
    let served = 0;
    const waiting: (() => void)[] = [];
    const inner = http.createServer({ keepAliveTimeout: 0 }, (_request, response) => {
      setTimeout(() => response.end("here"), 5);
    });
    const outer = net.createServer({ pauseOnConnect: true }, async (socket) => {
      socket.on("error", () => undefined);
      if (served === 2) await new Promise<void>((resolve) => waiting.push(resolve));
      else served += 1;
      socket.once("close", () => {
        const next = waiting.shift();
        if (next === undefined) served -= 1;
        else next();
      });
      if (socket.destroyed) return void socket.emit("close");
      inner.emit("connection", socket);
      socket.resume();
    });
    using _program = await ports.listen(3002, outer);
    const agent = new http.Agent({ keepAlive: true });
    const begunMs = performance.now();
    for (const clients of [2, 6, 1, 4]) {
      const ask = async () => {
        for (let times = 0; times < 5; times += 1) expect((await of.get("/", { agent })).text).toBe("here");
      };
      await Promise.all(Array.from({ length: clients }, ask));
    }
    expect(performance.now() - begunMs).toBeLessThan(2_500);
    agent.destroy();
  });
});

test("nobody is told to repeat what the program may have carried out", async () => {
  const ports = new TestPorts();
  const server = await startTestServer({
    provider: ports.factory,
    env: { ALCOVE_SERVER_SHUTDOWN_GRACE: "100ms" },
  });
  const api = new TestClient(server.url);
  const asked: string[] = [];
  using _program = await ports.listen(
    3000,
    http.createServer((request) => void asked.push(request.method ?? "")),
  );
  const [ends, stays] = [await api.spawn(), await api.spawn()];
  const ask = (id: string, method: string) => {
    const preview = new PreviewClient(server.url, `3000-${id}.localhost`);
    const path = `/api/v1/sandboxes/${id}/ports/3000/`;
    const byPath = new PreviewClient(server.url, "127.0.0.1").get(path, {
      method,
      headers: { "x-alcove-client": "1" },
    });
    return Promise.all([preview.get("/", { method }), byPath]);
  };
  const told = async (answers: ReturnType<typeof ask>) =>
    (await answers).map(({ status, headers, text }) => [status, headers["retry-after"], JSON.parse(text)]);
  const inDoubt = (method: string) => [
    502,
    undefined,
    {
      code: "bad_gateway",
      message: expect.stringMatching(new RegExp(`; the ${method} may have been carried out$`)),
    },
  ];

  const ended = told(ask(ends, "POST"));
  await eventually(() => (asked.length === 2 ? true : undefined));
  await api.call("DELETE", `/api/v1/sandboxes/${ends}`);
  expect(await ended).toMatchObject([inDoubt("POST"), inDoubt("POST")]);

  const changed = told(ask(stays, "PUT"));
  const read = told(ask(stays, "GET"));
  await eventually(() => (asked.length === 6 ? true : undefined));
  await server[Symbol.asyncDispose]();
  expect(await changed).toMatchObject([inDoubt("PUT"), inDoubt("PUT")]);
  const again = [503, "1", { code: "unavailable" }];
  expect(await read).toMatchObject([again, again]);
});
