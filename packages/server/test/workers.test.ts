import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, test } from "vitest";
import { eventually, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

const drained = { code: "unavailable", reason: "worker_unavailable" };
const local = "/api/v1/admin/workers/local";

test("GET /workers and /workers/{id} describe the service with every field of a worker", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const { status, json } = await client.call("GET", "/api/v1/workers");
  expect(status).toBe(200);
  const time = expect.stringMatching(/^\d{4}-.*Z$/);
  expect(json).toEqual([
    {
      id: "local",
      hostname: expect.any(String),
      status: "online",
      providers: ["mock"],
      capabilities: expect.arrayContaining(["api", "single_node", "spawn", "exec", "files"]),
      capacity: { max_sandboxes: 100, max_sandboxes_per_owner: 0 },
      last_heartbeat: time,
      created_at: time,
      updated_at: time,
      stale: false,
    },
  ]);
  const one = await client.call("GET", "/api/v1/workers/local");
  expect(one.json).toMatchObject({ ...json[0], last_heartbeat: time, updated_at: time });
  for (const [method, at] of [
    ["GET", "/api/v1/workers/w2"],
    ["DELETE", "/api/v1/admin/workers/w2"],
    ["POST", "/api/v1/admin/workers/w2/drain"],
    ["DELETE", "/api/v1/admin/workers/w2/drain"],
    ["POST", "/api/v1/admin/workers/w2/heartbeat"],
  ] as const) {
    const missing = await client.call(method, at);
    expect([missing.status, missing.json.code], `${method} ${at}`).toEqual([404, "not_found"]);
  }
});

test("a worker that is deleted is out of the registry until its heartbeat, and runs on", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  expect(await client.call("DELETE", local)).toMatchObject({ status: 200, json: { status: "deleted" } });
  expect((await client.call("GET", "/api/v1/workers")).json).toEqual([]);
  expect((await client.call("GET", "/api/v1/workers/local")).status).toBe(404);
  expect((await client.call("DELETE", local)).status).toBe(404);
  expect((await client.call("GET", "/api/v1/metrics")).json.workers).toMatchObject({ total: 0, items: [] });
  await client.spawn();
  for (const [method, status] of [
    ["POST", "draining"],
    ["DELETE", "online"],
  ] as const)
    expect(await client.call(method, `${local}/drain`), method).toMatchObject({
      status: 200,
      json: { status },
    });
  expect((await client.call("GET", "/api/v1/workers")).json).toEqual([]);
  expect(await client.call("POST", `${local}/heartbeat`)).toMatchObject({
    status: 200,
    json: { id: "local", status: "online" },
  });
  expect((await client.call("GET", "/api/v1/workers")).json).toHaveLength(1);
});

test("a heartbeat that makes no sense is refused, one that names a status has it", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const beat = (body: unknown) => client.call("POST", `${local}/heartbeat`, body);
  for (const body of [{ status: "gone" }, { hostname: 1 }, { providers: "mock" }, { nonsense: true }])
    expect((await beat(body)).status, JSON.stringify(body)).toBe(400);
  const report = { hostname: "elsewhere", status: "draining", providers: ["x"], capabilities: ["y"] };
  const told = await beat({ ...report, capacity: { max_sandboxes: 1, max_sandboxes_per_owner: 1 } });
  expect(told).toMatchObject({ status: 200, json: { status: "draining", providers: ["mock"] } });
  expect((await client.call("POST", "/api/v1/sandboxes", {})).status).toBe(503);
  expect((await beat({ status: "online" })).json.status).toBe("online");
  await client.spawn();
});

test("a drained service takes no new sandboxes, says so everywhere, and what it has lives on", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const key = { "idempotency-key": "before" };
  const made = await client.call("POST", "/api/v1/sandboxes", {}, key);
  const { id } = made.json;
  await client.call("POST", "/api/v1/sandboxes/acquire", { name: "web" });

  for (const _twice of [1, 2]) {
    const draining = await client.call("POST", `${local}/drain`);
    expect(draining).toMatchObject({ status: 200, json: { id: "local", status: "draining" } });
  }
  await client.call("POST", "/api/v1/templates", { name: "t", image: "host" });
  for (const [at, body] of [
    ["/sandboxes", {}],
    ["/sandboxes/acquire", { name: "new" }],
    ["/templates/t/spawn", {}],
  ] as const) {
    const { status, json } = await client.call("POST", `/api/v1${at}`, body);
    expect([status, json], at).toMatchObject([503, drained]);
    expect(json.message).toContain("alcove drain --end");
  }
  const admission = await client.call("POST", "/api/v1/sandboxes/admission", {});
  expect(admission.json).toMatchObject({ allowed: false, queueable: false, reason: "worker_unavailable" });
  expect(await client.call("GET", "/api/v1/ready")).toMatchObject({
    status: 503,
    json: { status: "not_ready", code: "unavailable", message: expect.stringContaining("drained since") },
  });
  const { workers, scheduler } = (await client.call("GET", "/api/v1/metrics")).json;
  expect(workers).toMatchObject({ total: 1, online: 0, stale: 0, unhealthy: 0 });
  expect(scheduler).toMatchObject({ selected_worker_id: "", eligible_workers: 0 });

  expect((await client.exec(id, { command: "echo alive" })).json.stdout).toBe("alive\n");
  expect((await client.call("POST", `/api/v1/sandboxes/${id}/extend`, { ttl: "1h" })).status).toBe(200);
  expect(await client.call("POST", "/api/v1/sandboxes/acquire", { name: "web" })).toMatchObject({
    status: 200,
  });
  const again = await client.call("POST", "/api/v1/sandboxes", {}, key);
  expect([again.status, again.json.id]).toEqual([201, id]);
  expect((await client.call("GET", "/api/v1/live")).status).toBe(200);

  for (const _twice of [1, 2])
    expect((await client.call("DELETE", `${local}/drain`)).json.status).toBe("online");
  expect((await client.call("GET", "/api/v1/ready")).status).toBe(200);
  await client.spawn();
});

test("a drain refuses the spawns that wait for a place, and outlasts a restart", async () => {
  await using stack = new AsyncDisposableStack();
  const dataDir = await mkdtemp(path.join(tmpdir(), "alcove-drain-"));
  stack.defer(() => rm(dataDir, { recursive: true, force: true }));
  const env = { ALCOVE_DEFAULTS_MAX_SANDBOXES: "1", ALCOVE_DEFAULTS_SPAWN_OVERFLOW: "queue" };
  const first = await startTestServer({ provider: mockProvider, dataDir, env });
  const client = new TestClient(first.url);
  const held = await client.spawn();
  const waiting = [1, 2, 3].map((owner) =>
    client.call("POST", "/api/v1/sandboxes", { owner_id: `owner-${owner % 2}` }),
  );
  await eventually(() => (first.sandboxes.figures.queueDepth === 3 ? true : undefined));
  expect((await client.call("POST", `${local}/drain`)).status).toBe(200);
  for (const one of await Promise.all(waiting)) expect([one.status, one.json]).toMatchObject([503, drained]);
  // A place that comes free is nobody's.
  await client.call("DELETE", `/api/v1/sandboxes/${held}`);
  expect((await client.call("POST", "/api/v1/sandboxes", {})).status).toBe(503);
  await first[Symbol.asyncDispose]();

  const second = stack.use(await startTestServer({ provider: mockProvider, dataDir, env }));
  const later = new TestClient(second.url);
  expect((await later.call("POST", "/api/v1/sandboxes", {})).json).toMatchObject(drained);
  expect((await later.call("GET", "/api/v1/workers/local")).json.status).toBe("draining");
  await later.call("DELETE", `${local}/drain`);
  await later.spawn();
});

test("a drain that cannot be written down is not begun", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const write = server.store.changeSetting.bind(server.store);
  server.store.changeSetting = async () => {
    throw new Error("disk I/O error");
  };
  expect((await client.call("POST", `${local}/drain`)).status).toBe(500);
  expect((await client.call("GET", "/api/v1/workers/local")).json.status).toBe("online");
  server.store.changeSetting = write;
  expect((await client.call("POST", `${local}/drain`)).json.status).toBe("draining");
});
