import { once } from "node:events";
import net from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type WebSocket from "ws";
import { eventually, TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { PreviewClient } from "./support/preview-client.ts";
import { realAgent } from "./support/real-agent.ts";
import { describeWith } from "./support/requirements.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

await describeWith(["agent"], "ports through an agent", () => {
  let agent: Awaited<ReturnType<typeof realAgent>>;
  let ports: TestPorts;
  let server: TestServer;
  let id: string;
  /** Ways to the port 3000: by path and by host. */
  let ways: [PreviewClient, string][];

  beforeAll(async () => {
    agent = await realAgent();
    ports = new TestPorts((port, options) => agent.client.dialPort(port, options));
    server = await startTestServer({ provider: ports.factory });
    id = await new TestClient(server.url).spawn();
    ways = [
      [new PreviewClient(server.url, "127.0.0.1"), `/api/v1/sandboxes/${id}/ports/3000/`],
      [new PreviewClient(server.url, `3000-${id}.localhost`), "/"],
    ];
  });
  afterAll(async () => {
    await server[Symbol.asyncDispose]();
    await agent[Symbol.asyncDispose]();
  });

  /** Says something to who has said something, and then breaks the connection or ends it, with more to come unread. */
  const program = (text: string, how: "breaks" | "ends") =>
    ports.listen(
      3000,
      net.createServer({ allowHalfOpen: true }, (socket) => {
        socket.on("error", () => undefined);
        socket.once("readable", () => {
          socket.read(1);
          if (how === "ends") socket.end(text, () => socket.resetAndDestroy());
          else socket.write(text, () => socket.resetAndDestroy());
        });
      }),
    );
  const headers = { "x-alcove-client": "test" };

  test("an answer whose end is the connection's is cut where that breaks, and whole where it ends", async () => {
    const answer = "HTTP/1.1 200 OK\r\n\r\nhello";
    for (const [preview, path] of ways) {
      for (const how of ["breaks", "ends"] as const) {
        using _program = await program(answer, how);
        const { response } = await preview.open(path, { headers });
        const text: Buffer[] = [];
        response.on("data", (piece) => text.push(piece)).on("error", () => undefined);
        await new Promise((resolve) => response.once("close", resolve));
        expect([how, response.complete]).toEqual([how, how === "ends"]);
        if (how === "ends") expect(String(Buffer.concat(text))).toBe("hello");
      }
    }
  });

  test.each([
    ["with a length", "Content-Length: 1000\r\n\r\nhello"],
    ["in chunks", "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n1\r\nl\r\n2\r\nlo\r\n"],
  ])("what a program said of an answer %s before it ended the connection arrives", async (_what, rest) => {
    const ends = net.createServer((socket) => {
      socket.on("error", () => undefined);
      socket.once("data", () => socket.end(`HTTP/1.1 200 OK\r\n${rest}`));
    });
    using _program = await ports.listen(3000, ends);
    for (const [preview, path] of ways) {
      for (let turn = 0; turn < 10; turn += 1) {
        const { response } = await preview.open(path, { headers });
        const text: Buffer[] = [];
        response.on("data", (piece) => text.push(piece)).on("error", () => undefined);
        await new Promise((resolve) => response.once("close", resolve));
        expect([String(Buffer.concat(text)), response.complete]).toEqual(["hello", false]);
      }
    }
  });

  test("all of a large answer arrives that is none to the WebSocket that was asked for, however slowly it is read", async () => {
    const body = Buffer.alloc(32 << 20, "x");
    const plain = net.createServer((socket) => {
      socket.on("error", () => undefined);
      socket.once("data", () => {
        socket.write(`HTTP/1.1 404 Not Found\r\nContent-Length: ${body.length}\r\n\r\n`);
        socket.end(body);
      });
    });
    using _program = await ports.listen(3000, plain);
    const asks = {
      ...headers,
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-version": "13",
      "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    };
    for (const [preview, path] of ways) {
      const { response } = await preview.open(path, { headers: asks });
      expect(response.statusCode).toBe(404);
      let bytes = 0;
      for await (const piece of response) {
        if (bytes === 0) await delay(200);
        bytes += piece.length;
      }
      expect(bytes).toBe(body.length);
    }
  });

  test("a program that breaks the connection before it answers is 502", async () => {
    using _program = await program("", "breaks");
    for (const [preview, path] of ways) expect((await preview.get(path, { headers })).status).toBe(502);
  });

  test.each(["breaks", "ends"] as const)(
    "the answer of a program that then %s the connection is not lost with the rest of an upload",
    async (how) => {
      const answer = "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
      using _program = await program(answer, how);
      const body = Buffer.alloc(10_000_000);
      const answers = await Promise.all(
        [...ways, ...ways, ...ways, ...ways].map(async ([preview, path]) => {
          const { response } = await preview.open(path, { method: "POST", body, headers });
          response.resume().on("error", () => undefined);
          return response.statusCode;
        }),
      );
      expect(answers).toEqual(answers.map(() => 413));
      await eventually(() => (ports.open.size === 0 ? true : undefined));
    },
  );

  test.each([
    ["breaks", 1011],
    ["ends", 1000],
  ] as const)("a tunnel to a program that %s the connection is closed with %i", async (how, code) => {
    using _program = await program("hello", how);
    const [[preview]] = ways as [[PreviewClient, string]];
    const socket: WebSocket = preview.socket(`/api/v1/sandboxes/${id}/tunnels/3000`);
    const said: string[] = [];
    socket.on("message", (data) => said.push(String(data)));
    await once(socket, "open");
    const closed = once(socket, "close");
    socket.send(Buffer.alloc(1));
    if (how === "ends") await eventually(() => (said.includes("end") ? true : undefined));
    if (how === "ends") socket.send(Buffer.alloc(1));
    expect([(await closed)[0], said]).toEqual([code, how === "ends" ? ["hello", "end"] : ["hello"]]);
  });
});
