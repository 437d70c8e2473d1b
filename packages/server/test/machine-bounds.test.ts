import { expect, test } from "vitest";
import { TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const sandboxes = "/api/v1/sandboxes";
const start = (settings: Record<string, string>): Promise<TestServer> =>
  startTestServer({
    provider: mockProvider,
    env: {
      ALCOVE_DEFAULTS_MAX_SANDBOXES: "0",
      ALCOVE_DEFAULTS_MAX_MEMORY_MB: "1024",
      ALCOVE_DEFAULTS_MAX_VCPUS: "4",
      ...settings,
    },
  });

test("memory and processors of all sandboxes together are bounded, and what is given back can be had again", async () => {
  await using server = await start({});
  const client = new TestClient(server.url);
  const first = await client.spawn({ memory_mb: 1_000 });
  const refused = await client.call("POST", sandboxes, { memory_mb: 25 });
  expect(refused.status).toBe(429);
  expect(refused.headers.get("retry-after")).toBe("5");
  expect(refused.json).toMatchObject({ code: "resource_limit", reason: "max_memory_mb" });
  expect(refused.json.message).toMatch(/may hold 1024 MB of memory and has 1000/);
  expect((await client.call("POST", `${sandboxes}/admission`, { memory_mb: 25 })).json).toMatchObject({
    allowed: false,
    queueable: false,
    reason: "max_memory_mb",
  });
  await client.spawn({ memory_mb: 24, vcpus: 3 });
  await client.call("DELETE", `${sandboxes}/${first}`);
  expect((await client.call("POST", sandboxes, { memory_mb: 500, vcpus: 2 })).json.reason).toBe("max_vcpus");
  await client.spawn({ memory_mb: 1_000 });
});

test("one that is larger than there is can never be, and is told what there is", async () => {
  await using server = await start({ ALCOVE_DEFAULTS_SPAWN_OVERFLOW: "queue" });
  const client = new TestClient(server.url);
  for (const [body, message] of [
    [{ memory_mb: 1_025 }, /memory_mb 1025 is more than there is: a sandbox can have 1024 MB/],
    [{ vcpus: 5 }, /vcpus 5 is more than there are: a sandbox can have 4/],
  ] as const)
    for (const path of [sandboxes, `${sandboxes}/admission`]) {
      const { status, json } = await client.call("POST", path, body);
      expect([status, json.message]).toEqual([400, expect.stringMatching(message)]);
    }
});

test("without a number it is the machine that bounds", async () => {
  await using server = await start({
    ALCOVE_DEFAULTS_MAX_MEMORY_MB: "0",
    ALCOVE_DEFAULTS_MAX_VCPUS: "0",
    ALCOVE_DEFAULTS_VCPU_OVERCOMMIT: "1",
  });
  const client = new TestClient(server.url);
  expect((await client.call("POST", sandboxes, { memory_mb: 1_048_576 })).status).toBe(400);
  expect((await client.call("POST", sandboxes, { vcpus: 1_024 })).status).toBe(400);
  const answers = await Promise.all(
    Array.from({ length: 300 }, () => client.call("POST", sandboxes, { memory_mb: 16 })),
  );
  const made = answers.filter(({ status }) => status === 201).length;
  const { availableParallelism } = await import("node:os");
  expect(made).toBe(Math.min(300, availableParallelism()));
});

const sizes = Array.from({ length: 200 }, (_, index) => ({
  memory_mb: [64, 100, 200][index % 3] ?? 0,
  owner_id: `o${index % 7}`,
}));

test("of two hundred that race for memory as many are made as fit, and none beyond", async () => {
  await using server = await start({ ALCOVE_DEFAULTS_MAX_VCPUS: "1000" });
  const client = new TestClient(server.url);
  const answers = await Promise.all(sizes.map((size) => client.call("POST", sandboxes, size)));
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([201, 429]));
  const held = answers.reduce((sum, { json }) => sum + (json.memory_mb ?? 0), 0);
  expect(held).toBeLessThanOrEqual(1_024);
  expect(held).toBeGreaterThan(1_024 - 64);
});

test("with a queue all of them are served as memory is given back", async () => {
  await using server = await start({
    ALCOVE_DEFAULTS_MAX_VCPUS: "1000",
    ALCOVE_DEFAULTS_SPAWN_OVERFLOW: "queue",
    ALCOVE_DEFAULTS_MAX_SPAWN_QUEUE: "1000",
  });
  const client = new TestClient(server.url);
  await Promise.all(
    sizes.map(async (size) => client.call("DELETE", `${sandboxes}/${await client.spawn(size)}`)),
  );
  expect((await client.call("GET", sandboxes)).json).toEqual([]);
}, 60_000);
