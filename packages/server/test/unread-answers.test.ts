import type { IncomingMessage, ServerResponse } from "node:http";
import net from "node:net";
import { afterEach, expect, test, vi } from "vitest";
import { eventually } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const key = "0123456789abcdef-key";
const stalledMs = 30_000;
const open: net.Socket[] = [];

afterEach(() => {
  vi.restoreAllMocks();
  for (const socket of open.splice(0)) socket.destroy();
});

const startServer = () => startTestServer({ provider: mockProvider, env: { ALCOVE_AUTH_API_KEY: key } });

/** Connections watched from the service's end: how many answers were begun on them, and taken by the network. */
class Watched {
  readonly answers: ServerResponse[] = [];
  taken = 0;

  constructor(server: TestServer) {
    server.app.server.on("request", (_request: IncomingMessage, response: ServerResponse) => {
      this.answers.push(response);
      response.once("finish", () => {
        this.taken += 1;
      });
    });
  }

  /** Until the network takes no more of any answer. */
  async standsStill(): Promise<void> {
    let before: string | undefined;
    await eventually(async () => {
      await new Promise((resolve) => setTimeout(resolve, 200));
      const now = `${this.answers.length} ${this.taken}`;
      const same = now === before;
      before = now;
      return same ? true : undefined;
    });
  }
}

/** A client that sends and reads nothing. */
function silent(server: TestServer): net.Socket {
  const { hostname, port } = new URL(server.url);
  const socket = net.connect(Number(port), hostname).on("error", () => undefined);
  socket.pause();
  open.push(socket);
  return socket;
}

const get = (path: string) => `GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`;

test.each(["/docs/swagger-ui.js", "/api/v1/openapi.json"])(
  "%s, which nobody needs a key for, takes no memory for each who does not read it",
  { timeout: 30_000 },
  async (path) => {
    await using server = await startServer();
    expect((await fetch(server.url + path, { headers: { "accept-encoding": "identity" } })).status).toBe(200);
    const watched = new Watched(server);
    const before = process.memoryUsage().arrayBuffers;
    const connections = 30;
    for (let count = 0; count < connections; count++) silent(server).write(get(path).repeat(30));
    await eventually(() => (watched.answers.length >= connections ? true : undefined));
    await watched.standsStill();
    expect(watched.answers.filter((answer) => !answer.writableFinished).length).toBeGreaterThanOrEqual(
      connections,
    );
    const { arrayBuffers } = process.memoryUsage();
    expect((arrayBuffers - before) / 2 ** 20).toBeLessThan(8);
  },
);

/** The service's connection, once the answer to the last request on it stands still: nothing waits behind that. */
async function stuck(server: TestServer, path: string): Promise<net.Socket> {
  const connected = new Promise<net.Socket>((resolve) => server.app.server.once("connection", resolve));
  const watched = new Watched(server);
  const client = silent(server);
  const socket = await connected;
  for (let asked = 1; watched.taken === watched.answers.length; asked++) {
    client.write(get(path));
    await eventually(() => (watched.answers.length === asked ? true : undefined));
    await watched.standsStill();
  }
  return socket;
}

test("an answer that needs no key and that nobody takes ends its connection", {
  timeout: 30_000,
}, async () => {
  const set = globalThis.setInterval;
  vi.spyOn(globalThis, "setInterval").mockImplementation(((act: () => void, ms: number) =>
    set(act, ms === stalledMs ? 3_000 : ms)) as typeof setInterval);
  await using server = await startServer();
  const socket = await stuck(server, "/docs/swagger-ui.js");
  expect(socket.destroyed).toBe(false);
  await eventually(() => (socket.destroyed ? true : undefined));
});
