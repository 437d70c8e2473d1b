import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { StoreFaults } from "./support/faulty-store.ts";
import { type Answer, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const api = "/api/v1";
const patience = { timeout: 20_000, interval: 50 };
/** No operation asks the store more often than this for itself. */
const mostCalls = 12;

interface Operation {
  name: string;
  /** What has to be there. @returns what `act` gets. */
  prepare?: (client: TestClient) => Promise<string>;
  act: (client: TestClient, prepared: string) => Promise<Answer>;
  done: number;
  /** What a repetition may be answered with, when the first had done it before it failed. */
  doneAlready?: number;
}

const spawn = (client: TestClient) => client.spawn({ owner_id: "ann" });
const quota = async (client: TestClient) => {
  await client.call("PUT", `${api}/quotas/ann`, { max_sandboxes: 50 });
  return "ann";
};
const template = async (client: TestClient) => {
  await client.call("POST", `${api}/templates`, { name: "t", image: "host" });
  return "t";
};
const key = async (client: TestClient) => {
  await client.call("POST", `${api}/admin/keys`, { name: "k" });
  return "k";
};

const operations: readonly Operation[] = [
  {
    name: "spawn",
    act: (client) => client.call("POST", `${api}/sandboxes`, { owner_id: "ann", name: "web" }),
    done: 201,
    doneAlready: 409,
  },
  {
    name: "spawn with a key",
    act: (client) =>
      client.call("POST", `${api}/sandboxes`, { owner_id: "ann" }, { "idempotency-key": "once" }),
    done: 201,
  },
  {
    name: "acquire",
    act: (client) => client.call("POST", `${api}/sandboxes/acquire`, { owner_id: "ann", name: "web" }),
    done: 201,
    doneAlready: 200,
  },
  {
    name: "destroy",
    prepare: spawn,
    act: (client, id) => client.call("DELETE", `${api}/sandboxes/${id}`),
    done: 200,
  },
  {
    name: "extend",
    prepare: spawn,
    act: (client, id) => client.call("POST", `${api}/sandboxes/${id}/extend`, { ttl: "1h" }),
    done: 200,
  },
  { name: "list", prepare: spawn, act: (client) => client.call("GET", `${api}/sandboxes`), done: 200 },
  { name: "prune", prepare: spawn, act: (client) => client.call("DELETE", `${api}/sandboxes`), done: 200 },
  {
    name: "admission",
    act: (client) => client.call("POST", `${api}/sandboxes/admission`, { owner_id: "ann" }),
    done: 200,
  },
  {
    name: "save a quota",
    act: (client) => client.call("PUT", `${api}/quotas/ann`, { max_sandboxes: 50 }),
    done: 200,
  },
  {
    name: "remove a quota",
    prepare: quota,
    act: (client) => client.call("DELETE", `${api}/quotas/ann`),
    done: 200,
    doneAlready: 404,
  },
  {
    name: "usage",
    prepare: quota,
    act: (client) => client.call("GET", `${api}/quotas/ann/usage`),
    done: 200,
  },
  {
    name: "make a template",
    act: (client) => client.call("POST", `${api}/templates`, { name: "t", image: "host" }),
    done: 201,
    doneAlready: 409,
  },
  {
    name: "replace a template",
    prepare: template,
    act: (client) => client.call("PUT", `${api}/templates/t`, { name: "t", image: "host", ttl: "1h" }),
    done: 200,
  },
  {
    name: "spawn from a template",
    prepare: template,
    act: (client) => client.call("POST", `${api}/templates/t/spawn`, { owner_id: "ann" }),
    done: 201,
  },
  {
    name: "remove a template",
    prepare: template,
    act: (client) => client.call("DELETE", `${api}/templates/t`),
    done: 200,
    doneAlready: 404,
  },
  {
    name: "make a key",
    act: (client) => client.call("POST", `${api}/admin/keys`, { name: "k" }),
    done: 201,
    doneAlready: 409,
  },
  {
    name: "revoke a key",
    prepare: key,
    act: (client) => client.call("DELETE", `${api}/admin/keys/k`),
    done: 200,
    doneAlready: 404,
  },
];

describe("a database that fails at any moment of an operation", () => {
  const faults = new StoreFaults();
  let server: TestServer;
  let client: TestClient;
  beforeEach(async () => {
    server = await startTestServer({
      provider: mockProvider,
      env: { ALCOVE_AUTH_ADMIN_API_KEY: "admin-key" },
      wrapStore: (store) => faults.wrap(store),
    });
    client = new TestClient(server.url, { "x-api-key": "admin-key" });
  });
  afterEach(async () => {
    faults.heal();
    await server[Symbol.asyncDispose]();
  });

  /** Ends everything; then memory, store, counters and provider hold nothing. */
  async function leavesNothing(about: string): Promise<void> {
    await vi.waitFor(async () => {
      const { json } = await client.call("GET", `${api}/sandboxes`);
      for (const { id } of json) await client.call("DELETE", `${api}/sandboxes/${id}`);
      expect(json, about).toEqual([]);
    }, patience);
    await vi.waitFor(async () => {
      const usage = await client.call("GET", `${api}/quotas/ann/usage`);
      expect(usage.json.active_sandboxes, about).toBe(0);
      expect(await server.provider.inventory({ signal: AbortSignal.timeout(5_000) }), about).toEqual([]);
    }, patience);
    for (const path of ["quotas/ann", "templates/t", "admin/keys/k"])
      await client.call("DELETE", `${api}/${path}`);
  }

  const failures = [
    { when: "once", begin: (call: number) => faults.failOnce(call) },
    { when: "from then on, until it works again", begin: (call: number) => faults.failFrom(call) },
  ];
  const cases = failures.flatMap((failure) => operations.map((operation) => ({ ...failure, ...operation })));
  test.each(cases)(
    "$name: $when",
    async ({ begin, prepare, act, done, doneAlready }) => {
      for (let call = 1; call <= mostCalls; call++) {
        const prepared = (await prepare?.(client)) ?? "";
        begin(call);
        const first = await act(client, prepared);
        const hit = faults.failed > 0;
        faults.heal();
        const about = `call ${call}: ${first.status} ${first.text}`;
        if (first.status !== done) {
          expect(first.status, about).toBe(503);
          expect(first.json, about).toMatchObject({
            code: "unavailable",
            message: expect.stringMatching(/database/),
          });
          await vi.waitFor(async () => {
            const again = await act(client, prepared);
            expect([done, doneAlready], `${about}; again: ${again.text}`).toContain(again.status);
          }, patience);
        }
        await leavesNothing(about);
        if (!hit) {
          expect(call, "it never asked the store").toBeGreaterThan(1);
          return;
        }
      }
      throw new Error(`asks the store more than ${mostCalls} times`);
    },
    120_000,
  );

  test("commands and files of what runs go on without it", async () => {
    const id = await spawn(client);
    faults.failFrom(1);
    expect((await client.exec(id, { command: "echo hi" })).json).toMatchObject({
      stdout: "hi\n",
      exit_code: 0,
    });
    const files = `${api}/sandboxes/${id}/files`;
    expect((await client.call("POST", files, { path: "/tmp/x", content: "kept" })).status).toBe(200);
    expect((await client.call("GET", `${files}?path=/tmp/x`)).text).toBe("kept");
    faults.heal();
    await leavesNothing("commands");
  });
});
