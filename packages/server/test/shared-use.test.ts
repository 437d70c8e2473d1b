import { setTimeout } from "node:timers/promises";
import { expect, test, vi } from "vitest";
import { TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const sandboxes = "/api/v1/sandboxes";
const start = (settings: Record<string, string>): Promise<TestServer> =>
  startTestServer({ provider: mockProvider, env: settings });

test("owners who race at their limits from 64 connections never have one too many, and get all they may have", async () => {
  await using server = await start({
    ALCOVE_DEFAULTS_MAX_SANDBOXES: "12",
    ALCOVE_DEFAULTS_MAX_SANDBOXES_PER_OWNER: "5",
  });
  const client = new TestClient(server.url);
  const owners = ["ann", "bob", "cid"];
  const most = { all: 0, ann: 0, bob: 0, cid: 0 } as Record<string, number>;
  let over = false;
  const watching = (async () => {
    while (!over) {
      const { json } = await client.call("GET", sandboxes);
      most.all = Math.max(most.all ?? 0, json.length);
      for (const owner of owners) {
        const held = json.filter((row: { owner_id: string }) => row.owner_id === owner).length;
        most[owner] = Math.max(most[owner] ?? 0, held);
      }
      await setTimeout(2);
    }
  })();
  const refused = new Set<string>();
  await Promise.all(
    Array.from({ length: 64 }, async (_, connection) => {
      for (let round = 0; round < 5; round++) {
        const owner = owners[(connection + round) % owners.length] ?? "";
        const { status, json } = await client.call("POST", sandboxes, { owner_id: owner });
        if (status === 201) await client.call("DELETE", `${sandboxes}/${json.id}`);
        else refused.add(`${status} ${json.reason}`);
      }
    }),
  );
  over = true;
  await watching;
  expect(most.all).toBeLessThanOrEqual(12);
  for (const owner of owners) expect(most[owner]).toBeLessThanOrEqual(5);
  for (const why of refused) expect(why).toMatch(/^429 max_sandboxes(_per_owner)?$/);
  const made = await Promise.all(
    Array.from({ length: 24 }, (_, index) => client.call("POST", sandboxes, { owner_id: owners[index % 3] })),
  );
  expect(made.filter(({ status }) => status === 201)).toHaveLength(12);
}, 60_000);

test("a hundred whose clients vanish leave the queue, and the place goes to who is still there", async () => {
  await using server = await start({
    ALCOVE_DEFAULTS_MAX_SANDBOXES: "1",
    ALCOVE_DEFAULTS_SPAWN_OVERFLOW: "queue",
    ALCOVE_DEFAULTS_SPAWN_QUEUE_TIMEOUT: "60s",
    ALCOVE_DEFAULTS_MAX_SPAWN_QUEUE: "101",
  });
  const client = new TestClient(server.url);
  const holder = await client.spawn();
  const events: string[] = [];
  const listening = new AbortController();
  const told = (async () => {
    for await (const event of server.events.subscribe({ signal: listening.signal })) events.push(event.type);
  })();
  const leaving = new AbortController();
  const vanishing = Array.from({ length: 100 }, () =>
    fetch(server.url + sandboxes, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: "{}",
      signal: leaving.signal,
    }),
  );
  await vi.waitFor(() => expect(events.filter((type) => type === "spawn.queued")).toHaveLength(100), 20_000);
  const staying = client.call("POST", sandboxes, {});
  await vi.waitFor(() => expect(events.filter((type) => type === "spawn.queued")).toHaveLength(101), 20_000);
  leaving.abort();
  expect((await Promise.allSettled(vanishing)).every(({ status }) => status === "rejected")).toBe(true);
  await client.call("DELETE", `${sandboxes}/${holder}`);
  const { status, json } = await staying;
  expect(status).toBe(201);
  expect((await client.call("GET", sandboxes)).json.map(({ id }: { id: string }) => id)).toEqual([json.id]);
  expect(events.filter((type) => type === "spawn.queue_timeout")).toEqual([]);
  listening.abort();
  await told;
}, 60_000);
