import { once } from "node:events";
import http from "node:http";
import { expect, test } from "vitest";
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
