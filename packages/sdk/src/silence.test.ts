import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout } from "node:timers/promises";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type WebSocket, WebSocketServer } from "ws";
import { AlcoveClient } from "./client.ts";

/** What the service does every 15 s on each connection. */
let signsOfLife: (() => void)[];
let sockets: WebSocket[];
let server: http.Server;
let client: AlcoveClient;
beforeEach(async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  signsOfLife = [];
  sockets = [];
  server = http.createServer((_request, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" }).write(": opened\n\n");
    signsOfLife.push(() => response.write(": heartbeat\n\n"));
  });
  // Who answers pings is not silent.
  new WebSocketServer({ server, autoPong: false }).on("connection", (socket) => {
    sockets.push(socket);
    signsOfLife.push(() => socket.ping());
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  client = new AlcoveClient({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });
});
afterEach(async () => {
  vi.useRealTimers();
  client[Symbol.dispose]();
  for (const socket of sockets) socket.terminate();
  server.close();
  server.closeAllConnections();
  await once(server, "close");
});

/** Each opens a stream. @returns what it fails with. */
const streams: [string, (signal: AbortSignal) => Promise<{ failed: Promise<unknown> }>][] = [
  [
    "openExec",
    async (signal) => {
      const exec = await client.openExec("sb-a", { command: "sleep 1" }, { signal });
      return { failed: failure(exec.messages().next()) };
    },
  ],
  [
    "openTunnel",
    async (signal) => {
      const tunnel = await client.openTunnel("sb-a", 1, { signal });
      return { failed: new Promise((resolve) => tunnel.resume().once("error", resolve)) };
    },
  ],
  [
    "files.watch",
    async (signal) => {
      const changes = await client.files.watch("sb-a", "/", { signal });
      return { failed: failure(changes.next()) };
    },
  ],
  [
    "events",
    async (signal) => {
      const opened = once(server, "request");
      const failed = new Promise((resolve) => {
        void client.events({ signal, onReconnect: resolve }).next();
      });
      await opened;
      return { failed };
    },
  ],
];

test.each(streams)("%s is cut when nothing comes any more, and not before", async (_, open) => {
  const enough = new AbortController();
  const { failed } = await open(enough.signal);
  let told: unknown;
  void failed.then((error) => {
    told = error;
  });
  for (let interval = 0; interval < 10; interval += 1) {
    for (const sign of signsOfLife) sign();
    await afterInterval();
  }
  for (let interval = 0; interval < 2; interval += 1) await afterInterval();
  expect(told).toBeUndefined();
  await afterInterval();
  await failed;
  expect(told).toMatchObject({
    name: "AlcoveError",
    code: "cut",
    message: expect.stringContaining("nothing has come over it for 45 s"),
  });
  enough.abort();
});

test.each(streams.slice(0, 2))(
  "%s stays open behind a proxy that keeps the service's pings and answers the client's",
  async (_, open) => {
    const enough = new AbortController();
    const { failed } = await open(enough.signal);
    for (const socket of sockets) socket.on("ping", () => socket.pong());
    for (let interval = 0; interval < 10; interval += 1) await afterInterval();
    enough.abort();
    expect(await failed).toMatchObject({ code: "cancelled" });
  },
);

test("a reader that takes nothing is not cut: it would have nothing of what has come", async () => {
  const tunnel = await client.openTunnel("sb-a", 1);
  const sent = Buffer.alloc(32 * 1_048_576, "to the end ");
  sockets[0]?.send(sent.subarray(0, 1_048_576));
  sockets[0]?.send(sent.subarray(1_048_576));
  for (let interval = 0; interval < 10; interval += 1) await afterInterval();
  sockets[0]?.send("end");
  expect(Buffer.concat(await tunnel.toArray()).equals(sent)).toBe(true);
});

async function afterInterval(): Promise<void> {
  await setTimeout(20);
  vi.advanceTimersByTime(15_000);
  await setTimeout(20);
}

function failure(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    () => "no failure",
    (error: unknown) => error,
  );
}
