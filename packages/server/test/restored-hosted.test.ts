import { cp, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { loadConfig } from "../src/config/load.ts";
import { type RunningService, serve } from "../src/main.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { restore } from "../src/restore.ts";
import { ExampleBackend } from "./support/custom-backend.ts";
import { eventually, TestClient } from "./support/http.ts";

let home: string;
let backend: ExampleBackend;
const open = new Set<RunningService>();

beforeEach(async () => {
  home = await mkdtemp(path.join(tmpdir(), "alcove-restored-"));
  backend = await ExampleBackend.start("minimal.mjs");
});
afterEach(async () => {
  for (const service of [...open]) await stop(service);
  await backend[Symbol.asyncDispose]();
  await rm(home, { recursive: true, force: true });
});

const configOf = (dataDir: string) =>
  loadConfig({
    env: {
      ALCOVE_DATA_DIR: dataDir,
      ALCOVE_SERVER_PORT: "0",
      ALCOVE_PROVIDERS_DEFAULT: "custom",
      ALCOVE_PROVIDERS_NATIVE_ENABLED: "false",
      ALCOVE_PROVIDERS_DOCKER_ENABLED: "false",
      ALCOVE_PROVIDERS_PROOT_ENABLED: "false",
      ALCOVE_PROVIDERS_CUSTOM_ENABLED: "true",
      ALCOVE_PROVIDERS_CUSTOM_URL: backend.url,
      ALCOVE_PROVIDERS_CUSTOM_API_KEY: ExampleBackend.key,
      ALCOVE_PROVIDERS_CUSTOM_DEFAULT_IMAGE: "host",
    },
    cwd: home,
  });

async function start(dataDir: string) {
  const service = await serve({ config: configOf(dataDir), logger: silentLogger });
  open.add(service);
  await service.ready;
  return { service, client: new TestClient(service.url) };
}

async function stop(service: RunningService) {
  open.delete(service);
  await service.close();
}

test("a copy that was restored ends nothing of the original's at the backend of both", async () => {
  const [dataDir, copy] = [path.join(home, "original"), path.join(home, "copy")];
  const first = await start(dataDir);
  const [kept, asked] = [await first.client.spawn(), await first.client.spawn()];
  await stop(first.service);
  await cp(dataDir, copy, { recursive: true, preserveTimestamps: true });
  const original = await start(dataDir);
  await restore({ config: configOf(copy) });
  const second = await start(copy);
  expect((await second.client.call("DELETE", `/api/v1/sandboxes/${asked}`)).status).toBe(200);
  await eventually(async () => {
    const { json } = await second.client.call("GET", `/api/v1/sandboxes/${kept}`);
    return json.state === "error" ? json : undefined;
  });
  // What is left of a runtime is removed behind that.
  await stop(second.service);
  for (const id of [kept, asked])
    expect((await original.client.exec(id, { command: "echo alive" })).json).toMatchObject({
      stdout: "alive\n",
    });
});
