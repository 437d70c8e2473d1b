import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { Writable } from "node:stream";
import { setTimeout as pause } from "node:timers/promises";
import { pino } from "pino";
import { expect, test } from "vitest";
import { loggerSettings } from "../src/platform/logger.ts";
import { TestClient } from "./support/http.ts";
import { ModelService } from "./support/model.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

const key = "0123456789abcdef0123";
const limited = {
  ALCOVE_AUTH_API_KEY: key,
  ALCOVE_RATE_LIMIT_ENABLED: "true",
  ALCOVE_RATE_LIMIT_REQUESTS_PER_MINUTE: "1",
  ALCOVE_RATE_LIMIT_BURST: "5",
};

/** Sends bytes and resets the connection behind them: the service reads them when there is nobody any more. */
async function sendAndReset(url: string, bytes: string, options: { waitMs?: number } = {}): Promise<void> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname).on("error", () => undefined);
  const closed = once(socket, "close");
  await once(socket, "connect");
  if (options.waitMs !== undefined) await pause(options.waitMs);
  socket.write(bytes);
  socket.resetAndDestroy();
  await closed;
}

/** As `sendAndReset`, so many one after the other: some are reset before they are accepted, some after. */
async function sendAndResetAll(url: string, bytes: string, count: number): Promise<void> {
  for (let n = 0; n < count; n++) await sendAndReset(url, bytes, n % 2 === 0 ? {} : { waitMs: 20 });
}

const get = (target: string, headers = "") => `GET ${target} HTTP/1.1\r\nHost: localhost\r\n${headers}\r\n`;
const upgrade =
  "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

test.each<[name: string, env: Record<string, string>]>([
  ["limits requests", limited],
  ["limits requests behind a proxy", { ...limited, ALCOVE_SERVER_TRUSTED_PROXIES: "127.0.0.1" }],
  ["trusts a proxy", { ALCOVE_AUTH_API_KEY: key, ALCOVE_SERVER_TRUSTED_PROXIES: "127.0.0.1" }],
])("requests that are reset before they are read end no service that %s", async (_name, env) => {
  const home = await mkdtemp(path.join(tmpdir(), "alcove-reset-"));
  const service = new ModelService({
    ALCOVE_DATA_DIR: home,
    ALCOVE_SERVER_PORT: "0",
    ALCOVE_PROVIDERS_DEFAULT: "mock",
    ...env,
  });
  await service.start();
  try {
    const { url } = service.client;
    for (const target of ["/%ff", "/%zz", "/api/v1/admin/%zz", "/api/v1/sandboxes", `/${"x".repeat(300)}`])
      await sendAndResetAll(url, get(target), 6);
    await sendAndResetAll(url, get("/%zz", "X-Forwarded-For: 192.0.2.7\r\n"), 6);
    expect((await service.client.call("GET", "/api/v1/live")).status).toBe(200);
  } finally {
    expect(await service.stop()).toBe(0);
    await rm(home, { recursive: true, force: true });
  }
});

test("guesses of a key that are reset before they are read are counted, and leave no error in the log", async () => {
  const errors: unknown[] = [];
  const sink = new Writable({
    write: (chunk, _encoding, done) => {
      const line = JSON.parse(String(chunk));
      if (line.level >= 50) errors.push(line);
      done();
    },
  });
  await using server = await startTestServer({
    provider: mockProvider,
    env: limited,
    logger: pino(loggerSettings("info"), sink),
  });
  const guess = { "x-api-key": "guess" };
  for (let n = 0; n < 10; n++)
    await sendAndReset(server.url, get("/api/v1/sandboxes", "X-API-Key: guess\r\n"), { waitMs: 20 });
  await sendAndResetAll(server.url, get("/api/v1/sandboxes", "X-API-Key: guess\r\n"), 20);
  const { status } = await new TestClient(server.url).call("GET", "/api/v1/sandboxes", undefined, guess);
  expect(status).toBe(429);
  expect(errors).toEqual([]);
});

test("handshakes that are reset before they are read leave no call that a stop would wait for", async () => {
  const server = await startTestServer({
    provider: mockProvider,
    env: { ALCOVE_SERVER_SHUTDOWN_GRACE: "8s" },
  });
  let stopped = false;
  try {
    const id = await new TestClient(server.url).spawn();
    await sendAndResetAll(server.url, get(`/api/v1/sandboxes/${id}/exec/ws`, upgrade), 10);
    await pause(100);
    const beganMs = performance.now();
    stopped = true;
    await server[Symbol.asyncDispose]();
    expect(performance.now() - beganMs).toBeLessThan(4_000);
  } finally {
    if (!stopped) await server[Symbol.asyncDispose]();
  }
});
