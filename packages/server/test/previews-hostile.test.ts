import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import { Duplex } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { heldBytes } from "../src/platform/testing/held-memory.ts";
import type { PortConnection } from "../src/ports/sandbox-operations.ts";
import { eventually, TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { PreviewClient } from "./support/preview-client.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

describe("previews of programs that mean no good", () => {
  const ports = new TestPorts();
  let server: TestServer;
  let api: TestClient;
  let id: string;
  let preview: PreviewClient;

  beforeAll(async () => {
    server = await startTestServer({
      provider: ports.factory,
      env: { ALCOVE_PREVIEW_RESPONSE_TIMEOUT: "1s", ALCOVE_PREVIEW_MAX_CONNECTIONS_PER_SANDBOX: "3" },
    });
    api = new TestClient(server.url);
    id = await api.spawn();
    preview = new PreviewClient(server.url, `3000-${id}.localhost`);
  });
  afterAll(() => server[Symbol.asyncDispose]());

  /** Answers every connection with these bytes, once something was asked. */
  const saying = (...parts: string[]) =>
    ports.listen(
      3000,
      net.createServer((socket) => {
        socket
          .on("error", () => undefined)
          .once("data", async () => {
            for (const part of parts) {
              socket.write(part, "latin1");
              await delay(10);
            }
            socket.end();
          });
      }),
    );
  const nothingIsLeft = async () => {
    await eventually(() => (ports.open.size === 0 ? true : undefined));
    await eventually(() => (server.app.callsUnderWay.size === 0 ? true : undefined));
  };

  test.each([
    ["nothing at all", "", "closed the connection before it answered"],
    ["no HTTP", "SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"],
    ["half a head", "HTTP/1.1 200 OK\r\nContent-Le", "closed the connection before it answered"],
    ["two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "not HTTP"],
    [
      "a length and chunks",
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "not HTTP",
    ],
    ["a bare line feed in a value", "HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: b\r\n\r\n", "not HTTP"],
    ["a folded value", "HTTP/1.1 200 OK\r\nX: a\r\n Set-Cookie: b\r\nContent-Length: 0\r\n\r\n", undefined],
    ["a NUL in a value", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n", "not HTTP"],
    ["a head of 100 kB", `HTTP/1.1 200 OK\r\nX: ${"a".repeat(100_000)}\r\n\r\n`, "more than 65536 bytes"],
    [
      "201 headers",
      `HTTP/1.1 200 OK\r\n${"a: b\r\n".repeat(200)}Content-Length: 0\r\n\r\n`,
      "more than 200 headers",
    ],
    ["1,500 headers", `HTTP/1.1 200 OK\r\n${"a: b\r\n".repeat(1_500)}\r\n`, "more than 200 headers"],
    [
      "many headers and a switch",
      `HTTP/1.1 101 X\r\n${"a: b\r\n".repeat(200)}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
      "more than 200 headers",
    ],
    [
      "a switch nobody asked for",
      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
      "",
    ],
    ["a status beyond any", "HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n", undefined],
  ])("one that answers %s", async (_what, bytes, told) => {
    using _program = await saying(bytes);
    const answer = await preview.get("/");
    if (told === undefined) {
      expect(answer.headers["set-cookie"]).toBeUndefined();
      expect(answer.status).not.toBe(500);
    } else {
      expect([answer.status, JSON.parse(answer.text)]).toEqual([
        502,
        { code: "bad_gateway", message: expect.stringContaining(told) },
      ]);
    }
    await nothingIsLeft();
  });

  test.each([
    ["a length", "Content-Length: 100\r\n\r\nabc"],
    ["chunks", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"],
  ])("of one that breaks off right behind its head, with %s, the head is heard", async (_what, rest) => {
    // Both come in one turn of the event loop, as from an agent.
    const broken = new TestPorts(async () => {
      const program: Duplex = new Duplex({
        read: () => undefined,
        write: (_bytes, _encoding, done) => {
          done();
          setImmediate(() => {
            program.push(`HTTP/1.1 200 OK\r\n${rest}`);
            program.destroy(new Error("reset"));
          });
        },
      });
      return program as PortConnection;
    });
    await using other = await startTestServer({ provider: broken.factory });
    const sandbox = await new TestClient(other.url).spawn();
    using _program = await broken.listen(3000, net.createServer());
    const socket = net.connect(Number(new URL(other.url).port), "127.0.0.1");
    socket.write(`GET / HTTP/1.1\r\nHost: 3000-${sandbox}.localhost\r\n\r\n`);
    const heard = Buffer.concat(await socket.toArray()).toString();
    expect(heard).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
    expect(heard).not.toMatch(/\r\n0\r\n\r\n$/);
  });

  test("one that never answers is given up", async () => {
    using _program = await ports.listen(
      3000,
      net.createServer(() => undefined),
    );
    const answer = await preview.get("/", { method: "POST", body: "x" });
    expect([answer.status, answer.text]).toEqual([504, expect.stringContaining("preview.response_timeout")]);
    await nothingIsLeft();
  });

  test("one that sends interim answers without end is given up after some", async () => {
    const hints = Buffer.from("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(1_600));
    using _program = await ports.listen(
      3000,
      net.createServer((socket) => {
        const more = () => {
          let goesOn = socket.writable;
          while (goesOn) goesOn = socket.write(hints);
        };
        socket.on("error", () => undefined).on("drain", more);
        socket.once("data", more);
      }),
    );
    const answer = await preview.get("/");
    expect([answer.status, answer.text]).toEqual([502, expect.stringContaining("interim answers")]);
    await nothingIsLeft();
  });

  test.each(["000", "099"])(
    "one that answers with %s, which is no status, is told as a broken one",
    async (status) => {
      using _program = await saying(`HTTP/1.1 ${status} Odd\r\nContent-Length: 2\r\n\r\nok`);
      const answer = await preview.get("/");
      expect([answer.status, answer.text]).toEqual([502, expect.stringContaining(`status ${status}`)]);
      await nothingIsLeft();
    },
  );

  test.each<Record<string, string>>([{}, { connection: "Upgrade", upgrade: "other" }])(
    "a 101 that nobody asked for, or that names no protocol, is told as a broken answer: %j",
    async (headers) => {
      using _program = await saying("HTTP/1.1 101 Odd\r\nContent-Length: 2\r\n\r\nok");
      const answer = await preview.get("/", { headers });
      expect([answer.status, answer.text]).toEqual([502, expect.stringContaining("101")]);
      await nothingIsLeft();
    },
  );

  test("a 101 to another protocol than the WebSocket that was asked for is told as a broken answer", async () => {
    using _program = await saying("HTTP/1.1 101 Odd\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n");
    const answer = await preview.get("/", { headers: { connection: "Upgrade", upgrade: "websocket" } });
    expect([answer.status, answer.text]).toEqual([502, expect.stringContaining("another protocol")]);
    await nothingIsLeft();
  });

  test("one that sends some interim answers is listened to", async () => {
    const hint = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    using _program = await saying(`${hint.repeat(16)}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`);
    expect(await preview.get("/")).toMatchObject({ status: 200, text: "ok" });
  });

  test("what comes behind an answer is nobody's, however many pieces it is", async () => {
    const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    using _program = await saying(`${answer}${answer.replace("ok", "no").repeat(1_000)}`);
    for (let count = 0; count < 5; count++)
      expect(await preview.get("/")).toMatchObject({ status: 200, text: "ok" });
    await nothingIsLeft();
  });

  test("one that takes a long upload slowly is not given up while it takes", async () => {
    using _program = await ports.listen(
      3000,
      http.createServer((request, response) => {
        let taken = 0;
        request.on("data", (chunk) => {
          taken += chunk.length;
        });
        request.on("end", () => response.end(String(taken)));
      }),
    );
    const request = http.request({
      port: preview.port,
      host: "127.0.0.1",
      method: "PUT",
      headers: { host: preview.host, "content-length": "4" },
      agent: false,
    });
    const answered = once(request, "response");
    for (let count = 0; count < 4; count++) {
      request.write("x");
      await delay(400);
    }
    request.end();
    const [response] = await answered;
    expect(String(await response.toArray())).toBe("4");
  });

  test.each([
    ["with a length", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"],
    ["in chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"],
    ["in a chunk that is none", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n"],
  ])("one that dies in the middle of an answer %s shows to the client", async (_what, bytes) => {
    using _program = await saying(bytes);
    const { response } = await preview.open("/");
    await expect(response.toArray()).rejects.toThrow("aborted");
    await nothingIsLeft();
  });

  test("one that answers a gigabyte is held back by a reader that stops, and let go of when it leaves", async () => {
    let sent = 0;
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => {
        const block = Buffer.alloc(1_048_576);
        const more = () => {
          while (sent < 1_024 * 1_048_576) {
            sent += block.length;
            if (!response.write(block)) return void response.once("drain", more);
          }
          response.end();
        };
        more();
      }),
    );
    const { response, request } = await preview.open("/");
    const before = process.memoryUsage().arrayBuffers;
    let last = -1;
    // It has stopped when nothing more was taken for a while.
    await eventually(async () => {
      const stands = sent === last;
      last = sent;
      await delay(200);
      return stands || undefined;
    });
    expect(sent).toBeLessThan(64 * 1_048_576);
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(32 * 1_048_576);
    response.on("error", () => undefined);
    request.destroy();
    await nothingIsLeft();
  });

  test("one that answers in chunks of a byte costs little more than their bytes when its reader stops", async () => {
    const chunks = Buffer.from("1\r\na\r\n".repeat(20_000));
    let sent = 0;
    using _program = await ports.listen(
      3000,
      net.createServer((socket) => {
        const more = () => {
          while (sent < 8_000_000) {
            sent += chunks.length;
            if (!socket.write(chunks)) return void socket.once("drain", more);
          }
        };
        socket
          .on("error", () => undefined)
          .once("data", () => {
            socket.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            more();
          });
      }),
    );
    const before = await heldBytes();
    const { response, request } = await preview.open("/");
    response.on("error", () => undefined);
    let last = -1;
    await eventually(async () => {
      const stands = sent === last;
      last = sent;
      await delay(200);
      return stands || undefined;
    });
    expect((await heldBytes()) - before).toBeLessThan(8 * 1_048_576);
    request.destroy();
    await nothingIsLeft();
  });

  test("one that answers before it was asked poisons nobody's answer", async () => {
    using _program = await saying(
      "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none",
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nextra",
    );
    expect((await preview.get("/")).text).toBe("one");
    await delay(50);
    expect((await preview.get("/")).text).toBe("one");
  });

  test("one that ends an upload early gives its answer, and the connection is not left in between", async () => {
    using _program = await saying(
      "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
    );
    const answer = await preview.get("/", {
      method: "POST",
      body: Buffer.alloc(200_000),
      headers: { "content-length": "200000" },
    });
    expect([answer.status, answer.text]).toEqual([413, "no"]);
    await nothingIsLeft();
  });

  test("more connections than a sandbox may have are refused, and there are places when some have ended", async () => {
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => response.writeHead(200).write("x")),
    );
    const open = await Promise.all([1, 2, 3].map(() => preview.open("/")));
    const refused = await preview.get("/");
    expect([refused.status, refused.headers["retry-after"]]).toEqual([503, "1"]);
    const other = await api.spawn();
    const elsewhere = await new PreviewClient(server.url, `3000-${other}.localhost`).open("/");
    for (const { response, request } of [...open, elsewhere]) {
      response.on("error", () => undefined);
      request.destroy();
    }
    await eventually(async () => {
      const { response, request } = await preview.open("/");
      response.on("error", () => undefined);
      request.destroy();
      return response.statusCode === 200 ? true : undefined;
    });
    await nothingIsLeft();
  });

  test("WebSockets take places as well, as long as they are open", async () => {
    const web = http.createServer((_request, response) => response.end());
    web.on("upgrade", (_request, socket) => {
      socket.resume().once("end", () => socket.end());
      socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    });
    using _program = await ports.listen(3000, web);
    const upgraded = async () => {
      const headers = { host: preview.host, connection: "Upgrade", upgrade: "websocket" };
      const [, socket] = await once(http.get({ port: preview.port, host: "127.0.0.1", headers }), "upgrade");
      return socket;
    };
    const open = [await upgraded(), await upgraded(), await upgraded()];
    const refused = await preview.get("/");
    expect([refused.status, refused.headers["retry-after"]]).toEqual([503, "1"]);
    for (const socket of open) socket.destroy();
    await eventually(async () => ((await preview.get("/")).status === 200 ? true : undefined));
    await nothingIsLeft();
  });

  test("a sandbox that ends, ends what goes through its ports", async () => {
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => response.writeHead(200).write("x")),
    );
    const ending = await api.spawn();
    const { response } = await new PreviewClient(server.url, `3000-${ending}.localhost`).open("/");
    const cut = expect(response.toArray()).rejects.toThrow("aborted");
    await api.call("DELETE", `/api/v1/sandboxes/${ending}`);
    await cut;
    await nothingIsLeft();
  });
});

test("a stop of the service ends what goes through ports, at once", async () => {
  const ports = new TestPorts();
  const server = await startTestServer({ provider: ports.factory });
  const id = await new TestClient(server.url).spawn();
  const web = http.createServer((_request, response) => response.writeHead(200).write("x"));
  web.on("upgrade", (_request, socket) =>
    socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
  );
  using _program = await ports.listen(3000, web);
  const preview = new PreviewClient(server.url, `3000-${id}.localhost`);
  const { response } = await preview.open("/");
  const request = http.get({
    port: preview.port,
    host: "127.0.0.1",
    headers: { host: preview.host, connection: "Upgrade", upgrade: "websocket" },
  });
  const [, socket] = await once(request, "upgrade");
  const cut = expect(response.toArray()).rejects.toThrow("aborted");
  const closed = once(socket.on("error", () => undefined).resume(), "close");
  const startedMs = performance.now();
  await server[Symbol.asyncDispose]();
  await Promise.all([cut, closed]);
  expect(performance.now() - startedMs).toBeLessThan(5_000);
});
