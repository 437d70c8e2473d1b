import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, test } from "vitest";
import { noCapacityLimits } from "../src/ports/capacity.ts";
import type { RuntimeId, SandboxId } from "../src/ports/ids.ts";
import { SqliteStore } from "../src/stores/sqlite/index.ts";
import { TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

test("calls to a sandbox of another worker are 503 unavailable; it is told as the store has it", async () => {
  await using stack = new AsyncDisposableStack();
  const dataDir = await mkdtemp(path.join(tmpdir(), "alcove-other-worker-"));
  stack.defer(() => rm(dataDir, { recursive: true, force: true }));
  const first = await startTestServer({ provider: mockProvider, dataDir });
  const { id } = (await new TestClient(first.url).call("POST", "/api/v1/sandboxes", {})).json;
  const row = first.sandboxes.running(id).row;
  const database = first.config.database.path;
  await first[Symbol.asyncDispose]();
  const far = { ...row, id: "sb-far" as SandboxId, runtimeId: "rt-far" as RuntimeId, workerId: "w2" };
  {
    await using store = await SqliteStore.open({ path: database });
    await store.sandboxes.reserve({
      row: far,
      limits: noCapacityLimits,
      fence: { holder: "w2", generation: 1 },
    });
  }
  const server = stack.use(await startTestServer({ provider: mockProvider, dataDir }));
  const client = new TestClient(server.url);
  const at = `/api/v1/sandboxes/${far.id}`;
  for (const [method, url, body] of [
    ["POST", `${at}/exec`, { command: "true" }],
    ["GET", `${at}/files?path=/`],
    ["GET", `${at}/logs`],
    ["POST", `${at}/extend`, { ttl: "1h" }],
    ["DELETE", at],
  ] as const) {
    const answer = await client.call(method, url, body);
    const json = { code: "unavailable", message: expect.stringContaining('worker "w2"') };
    expect({ method, url, status: answer.status, json: answer.json }).toMatchObject({
      status: 503,
      json,
    });
  }
  const { status, json } = await client.call("GET", at);
  expect({ status, json }).toMatchObject({ status: 200, json: { worker_id: "w2", state: "running" } });
});
