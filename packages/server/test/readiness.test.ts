import { expect, test, vi } from "vitest";
import { ScriptedProvider } from "../src/core/testing/scripted-provider.ts";
import { TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

test("GET /ready is 503 with the reason while the default provider takes no spawns", async () => {
  const provider = new ScriptedProvider();
  await using server = await startTestServer({ provider: async () => provider });
  const client = new TestClient(server.url);
  const ready = async () => {
    await client.call("POST", "/api/v1/providers/test");
    const { status, json } = await client.call("GET", "/api/v1/ready");
    return [status, json.status, json.message];
  };
  expect(await ready()).toEqual([200, "ready", undefined]);
  provider.checkResult = { healthy: true, notes: [], cannotSpawn: "12 MB were free below data_dir" };
  expect(await ready()).toEqual([503, "not_ready", "12 MB were free below data_dir"]);
  provider.checkResult = { healthy: false, notes: [], error: "the engine is down" };
  expect(await ready()).toEqual([503, "not_ready", expect.stringContaining("the engine is down")]);
  provider.checkResult = { healthy: true, notes: [] };
  expect(await ready()).toEqual([200, "ready", undefined]);
});

test("GET /ready is 503 while the database does not answer", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const ping = vi.spyOn(server.store, "ping").mockRejectedValue(new Error("disk I/O error"));
  expect(await client.call("GET", "/api/v1/ready")).toMatchObject({
    status: 503,
    json: { status: "not_ready", code: "unavailable", message: expect.stringContaining("disk I/O error") },
  });
  ping.mockRestore();
  expect((await client.call("GET", "/api/v1/ready")).status).toBe(200);
});

test("GET /ready is 503 while the store takes nothing new", async () => {
  let refusal: string | undefined = "the disk of the database is full";
  await using server = await startTestServer({ provider: mockProvider, storeRefusal: () => refusal });
  const client = new TestClient(server.url);
  const ready = async () => {
    const { status, json } = await client.call("GET", "/api/v1/ready");
    return [status, json.status, json.message];
  };
  // Whatever else keeps it from being ready: the database is told of by itself.
  const told = async () => (await client.call("GET", "/api/v1/diagnostics")).json.store.refusal;
  expect(await ready()).toEqual([503, "not_ready", refusal]);
  expect(await told()).toBe(refusal);
  refusal = undefined;
  expect(await ready()).toEqual([200, "ready", undefined]);
  expect(await told()).toBeUndefined();
});
