import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import { Writable } from "node:stream";
import pino from "pino";
import { expect, test } from "vitest";
import { WebSocket, WebSocketServer } from "ws";
import { loggerSettings } from "../src/platform/logger.ts";
import { readExposition } from "./support/exposition.ts";
import { eventually, TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { PreviewClient } from "./support/preview-client.ts";
import { startTestServer } from "./support/test-server.ts";

test("what becomes of requests for ports is counted, in both forms of the metrics", async () => {
  const ports = new TestPorts();
  await using server = await startTestServer({ provider: ports.factory });
  const api = new TestClient(server.url);
  const preview = new PreviewClient(server.url, `3000-${await api.spawn()}.localhost`);
  const web = http.createServer(({ url }, response) => {
    if (url === "/open") response.writeHead(200).write("x");
    else response.end("x");
  });
  web.on("upgrade", (_request, socket) => {
    socket.resume().once("end", () => socket.end());
    socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
  });
  using _program = await ports.listen(3000, web);
  const figures = async () => (await api.call("GET", "/api/v1/metrics")).json.previews;
  const none = { connections: 0, answered_total: 0, cut_total: 0, refused_total: 0, websockets_total: 0 };
  expect(await figures()).toEqual(none);

  for (let count = 0; count < 3; count++) await preview.get("/");
  await new PreviewClient(server.url, "3000-sb-000000000000.localhost").get("/");
  const { request } = await preview.open("/open");
  const upgrade = http.get({
    port: preview.port,
    host: "127.0.0.1",
    headers: { host: preview.host, connection: "Upgrade", upgrade: "websocket" },
  });
  const [, socket] = await once(upgrade, "upgrade");
  expect(await figures()).toEqual({
    ...none,
    connections: 2,
    answered_total: 3,
    refused_total: 1,
    websockets_total: 1,
  });
  request.on("error", () => undefined).destroy();
  socket.destroy();
  const ended = await eventually(async () => {
    const now = await figures();
    return now.connections === 0 ? now : undefined;
  });
  expect(ended.cut_total + ended.answered_total).toBe(5);
  const scraped = readExposition((await api.call("GET", "/api/v1/metrics/prometheus")).text);
  expect([
    scraped.get("service_preview_connections"),
    scraped.get("service_preview_websockets_total"),
    ...["answered", "cut", "refused"].map((one) =>
      scraped.get(`service_preview_requests_total{outcome="${one}"}`),
    ),
  ]).toEqual([0, 1, ended.answered_total, ended.cut_total, 1]);
});

/** What it is told and how it takes it: "break" breaks the connection, "close" closes it in order. */
function obey(said: string, { socket, inOrder }: { socket: net.Socket; inOrder: () => void }): void {
  if (said === "break") socket.resetAndDestroy();
  if (said === "close") inOrder();
}

/** Each way a connection ends, and what it counts as. */
const ends = [
  ["the client closes it", "whole", (socket: WebSocket) => socket.close()],
  ["the program closes it", "whole", (socket: WebSocket) => socket.send(Buffer.from("close"))],
  ["the program breaks it", "cut", (socket: WebSocket) => socket.send(Buffer.from("break"))],
  ["the client breaks it", "cut", (socket: WebSocket) => breakOff(socket)],
] as const;

function breakOff(socket: WebSocket): void {
  (socket as unknown as { _socket: net.Socket })._socket.resetAndDestroy();
}

test("WebSockets and tunnels count as answered where they ended in order, else as cut, and so says the log", async () => {
  const lines: { event?: string; status?: number; host?: string; outcome?: string }[] = [];
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
  const api = new TestClient(server.url);
  const id = await api.spawn();
  const preview = new PreviewClient(server.url, `3000-${id}.localhost`);
  const web = http.createServer();
  new WebSocketServer({ server: web }).on("connection", (socket, { socket: below }) => {
    socket.on("message", (said) => obey(String(said), { socket: below, inOrder: () => socket.close() }));
  });
  const plain = net.createServer((socket) => {
    socket.on("error", () => undefined);
    socket.on("data", (said) => obey(String(said), { socket, inOrder: () => socket.end() }));
  });
  using _web = await ports.listen(3000, web);
  using _plain = await ports.listen(3001, plain);
  const byPath = { headers: { "x-alcove-client": "1" } };
  const at = `${server.url.replace("http", "ws")}/api/v1/sandboxes/${id}`;
  const ways = [
    ["preview", () => preview.socket("/")],
    ["by path", () => new WebSocket(`${at}/ports/3000/`, byPath)],
    ["tunnel", () => new WebSocket(`${at}/tunnels/3001`)],
  ] as const;
  const figures = async () => (await api.call("GET", "/api/v1/metrics")).json.previews;
  for (const [way, open] of ways)
    for (const [how, outcome, end] of ends) {
      const before = await figures();
      const socket = open();
      // The other direction of a tunnel is the client's to end.
      socket.on("message", (data, isBinary) => {
        if (!isBinary && String(data) === "end") socket.send("end");
      });
      socket.on("error", () => undefined);
      await once(socket, "open");
      lines.length = 0;
      end(socket);
      const after = await eventually(async () => {
        const now = await figures();
        return now.connections === 0 ? now : undefined;
      });
      const [whole, cut] = [after.answered_total - before.answered_total, after.cut_total - before.cut_total];
      expect([way, how, whole, cut]).toEqual([way, how, ...(outcome === "whole" ? [1, 0] : [0, 1])]);
      if (way !== "preview") continue;
      const told = await eventually(() => lines.find(({ status }) => status === 101));
      expect([how, told.outcome]).toEqual([how, outcome === "whole" ? "ok" : "gone"]);
    }
});
