import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { loadConfig } from "../src/config/load.ts";
import { FakeClock } from "../src/core/testing/fake-clock.ts";
import { Harness } from "../src/core/testing/harness.ts";
import { ScriptedProvider } from "../src/core/testing/scripted-provider.ts";
import { type RunningService, serve } from "../src/main.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { SqliteStore } from "../src/stores/sqlite/index.ts";
import { eventually, TestClient } from "./support/http.ts";

let home: string;
beforeEach(async () => {
  home = await mkdtemp(path.join(tmpdir(), "alcove-silent-"));
});
afterEach(() => rm(home, { recursive: true, force: true }));

const info = { ServerVersion: "1", OSType: "linux", Runtimes: { runc: {} }, DefaultRuntime: "runc" };

/** An engine that takes every call and answers none until it is told to. */
async function silentEngine() {
  let silent = true;
  const waiting: (() => void)[] = [];
  const answer = (url: string, response: ServerResponse) =>
    response.end(JSON.stringify(url.startsWith("/info") ? info : url.startsWith("/containers") ? [] : {}));
  const server = createServer(({ url = "" }, response) => {
    if (silent) waiting.push(() => answer(url, response));
    else answer(url, response);
  });
  await once(server.listen(path.join(home, "engine.sock")), "listening");
  return {
    answers() {
      silent = false;
      for (const one of waiting.splice(0)) one();
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await server[Symbol.asyncDispose]();
    },
  };
}

const configOf = (wanted: string) =>
  loadConfig({
    env: {
      ALCOVE_DATA_DIR: path.join(home, "data"),
      ALCOVE_SERVER_PORT: "0",
      ALCOVE_PROVIDERS_DEFAULT: wanted,
      ALCOVE_PROVIDERS_NATIVE_ENABLED: "false",
      ALCOVE_PROVIDERS_DOCKER_SOCKET: `unix://${home}/engine.sock`,
    },
    cwd: home,
  });

/** Starts within the time that a silent engine used to take of each start. */
async function started(wanted: string): Promise<{ service: RunningService; startMs: number }> {
  const startedMs = performance.now();
  const service = await serve({ config: configOf(wanted), logger: silentLogger });
  return { service, startMs: performance.now() - startedMs };
}

const owing = (service: RunningService) => ({ [Symbol.asyncDispose]: () => service.close() });

test("an engine that does not answer holds up no start, and its provider takes part once it answers", async () => {
  await using engine = await silentEngine();
  const { service, startMs } = await started("mock");
  await using _ = owing(service);
  expect(startMs).toBeLessThan(8_000);
  expect(service).toMatchObject({
    providers: ["docker", "mock"],
    refused: expect.not.arrayContaining(["docker"]),
  });
  expect(service.failing).toMatchObject([{ name: "docker" }]);
  const client = new TestClient(service.url);
  const docker = async () => (await client.call("GET", "/api/v1/providers/docker")).json.healthy;
  expect(await docker()).toBe(false);
  const scraped = async () => (await client.call("GET", "/api/v1/metrics/prometheus")).text;
  expect(await scraped()).toContain('service_provider_healthy{provider="docker",default="false"} 0');
  engine.answers();
  await eventually(async () => ((await docker()) ? true : undefined), 20_000);
}, 60_000);

test("auto stays on the default of the last start whose engine does not answer, and moves to no other", async () => {
  {
    await using engine = await silentEngine();
    engine.answers();
    const { service } = await started("auto");
    await using _ = owing(service);
    expect(service.defaultProvider).toBe("docker");
  }
  {
    await using store = await SqliteStore.open({ path: configOf("auto").database.path });
    const provider = new ScriptedProvider({ name: "docker" });
    await using h = new Harness({ store, clock: new FakeClock(), provider });
    await h.start();
    await h.spawn();
  }
  await using engine = await silentEngine();
  const { service, startMs } = await started("auto");
  await using _ = owing(service);
  expect(startMs).toBeLessThan(8_000);
  expect(service).toMatchObject({ defaultProvider: "docker", failing: [{ name: "docker" }] });
  const client = new TestClient(service.url);
  expect((await client.call("GET", "/api/v1/ready")).status).toBe(503);
  engine.answers();
  const ready = async () => (await client.call("GET", "/api/v1/ready")).status;
  await eventually(async () => ((await ready()) === 200 ? true : undefined), 45_000);
}, 90_000);

test("a provider that was found not to work at the start is told as left out, with the reason", async () => {
  const { service } = await started("mock");
  await using _ = owing(service);
  const client = new TestClient(service.url);
  const { status, json } = await client.call("POST", "/api/v1/sandboxes", { provider: "docker" });
  expect([status, json.error ?? json.message]).toEqual([
    404,
    expect.stringMatching(
      /"docker" was left out at the start: .*engine.sock.*providers.docker.enabled: true/,
    ),
  ]);
}, 30_000);
