import http from "node:http";
import { describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { type Answer, TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { PreviewClient } from "./support/preview-client.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const keys = { ALCOVE_AUTH_API_KEY: "client-key", ALCOVE_AUTH_ADMIN_API_KEY: "admin-key" };
/** Nothing comes back while a test runs. */
const limited = {
  ALCOVE_RATE_LIMIT_ENABLED: "true",
  ALCOVE_RATE_LIMIT_REQUESTS_PER_MINUTE: "1",
  ALCOVE_RATE_LIMIT_BURST: "3",
};
const start = (env: Record<string, string>): Promise<TestServer> =>
  startTestServer({ provider: mockProvider, env });
const get = (server: TestServer, path: string, headers: Record<string, string> = {}): Promise<Answer> =>
  new TestClient(server.url).call("GET", path, undefined, headers);
async function statuses(
  server: TestServer,
  requests: readonly [path: string, headers?: Record<string, string>][],
): Promise<number[]> {
  const found: number[] = [];
  for (const [path, headers] of requests) found.push((await get(server, path, headers)).status);
  return found;
}
const list = "/api/v1/sandboxes";

test("nothing is limited, and nothing said of limits, unless it is switched on", async () => {
  await using server = await start({ ALCOVE_RATE_LIMIT_BURST: "1" });
  for (let i = 0; i < 5; i++) {
    const { status, headers } = await get(server, list);
    expect([status, headers.get("x-ratelimit-limit")]).toEqual([200, null]);
  }
});

describe("a service that limits requests", () => {
  test("counts each owner apart, tells what is left, and when to come back", async () => {
    await using server = await start(limited);
    const ann = { "x-user-id": "ann" };
    for (const left of ["2", "1", "0"]) {
      const { status, headers } = await get(server, list, ann);
      expect([status, headers.get("x-ratelimit-limit"), headers.get("x-ratelimit-remaining")]).toEqual([
        200,
        "3",
        left,
      ]);
    }
    const { status, headers, json } = await get(server, list, ann);
    expect(status).toBe(429);
    expect(headers.get("x-ratelimit-limit")).toBe("3");
    expect(headers.get("x-ratelimit-remaining")).toBe("0");
    expect(Number(headers.get("retry-after"))).toBeGreaterThanOrEqual(50);
    expect(Number(headers.get("retry-after"))).toBeLessThanOrEqual(60);
    expect([json.code, json.reason]).toEqual(["resource_limit", "rate_limit"]);
    expect(json.message).toMatch(/of this owner.* 1 a minute and 3 at once; try again in \d+ s/);
    expect(await statuses(server, [[list, { "x-user-id": "bob" }], [list]])).toEqual([200, 200]);
  });

  test("counts what changes, what does not exist and what is malformed, and does nothing beyond the limit", async () => {
    await using server = await start(limited);
    const client = new TestClient(server.url);
    expect(await statuses(server, [["/api/v1/nothing"], [`${list}?limit=x`]])).toEqual([404, 400]);
    expect((await client.call("POST", list, {})).status).toBe(201);
    expect((await client.call("POST", list, {})).status).toBe(429);
    expect((await get(server, list, { "x-user-id": "other" })).json).toHaveLength(1);
  });

  test("does not count probes", async () => {
    await using server = await start(limited);
    const probes = ["/live", "/ready", "/health", "/api/v1/live", "/api/v1/ready", "/api/v1/health"];
    const all = [...probes, ...probes].map((path): [string] => [path]);
    expect(await statuses(server, all)).toEqual(all.map(() => 200));
  });

  test("by key, two owners with one key share; the key that was accepted counts, not those beside it", async () => {
    await using server = await start({ ...keys, ...limited, ALCOVE_RATE_LIMIT_KEY_BY: "api_key" });
    const as = (owner: string, beside: string): [string, Record<string, string>] => [
      list,
      { "x-user-id": owner, "x-api-key": beside, authorization: "Bearer client-key" },
    ];
    const requests = [as("a", "1"), as("b", "2"), as("c", "1"), as("d", "2")];
    expect(await statuses(server, requests)).toEqual([200, 200, 200, 429]);
    expect((await get(server, list, { "x-api-key": "admin-key" })).status).toBe(200);
  });

  test("by address, forwarded addresses count where the proxy is trusted alone", async () => {
    const byAddress = { ...limited, ALCOVE_RATE_LIMIT_KEY_BY: "ip", ALCOVE_RATE_LIMIT_BURST: "1" };
    const requests = ["192.0.2.1", "192.0.2.2", "192.0.2.1"].map(
      (address): [string, Record<string, string>] => [list, { "x-forwarded-for": address }],
    );
    {
      await using server = await start({
        ...byAddress,
        ALCOVE_SERVER_TRUSTED_PROXIES: "127.0.0.1",
        ALCOVE_SERVER_ALLOW_INSECURE: "true",
      });
      expect(await statuses(server, requests)).toEqual([200, 200, 429]);
    }
    await using server = await start(byAddress);
    expect(await statuses(server, requests)).toEqual([200, 429, 429]);
  });

  test("keys cannot be guessed at speed, and a guess that hits tells nothing", async () => {
    await using server = await start({ ...keys, ...limited });
    const guesses = ["a", "b", "c", "d", "client-key"].map((key): [string, Record<string, string>] => [
      list,
      { "x-api-key": key },
    ]);
    expect(await statuses(server, guesses)).toEqual([401, 401, 401, 429, 429]);
    expect((await get(server, "/api/v1/live")).status).toBe(200);
  });

  test("keys that are offered beside one that lets in are guesses too, and one that hits tells nothing", async () => {
    await using server = await start({ ...keys, ...limited });
    const beside = (key: string, owner: string): [string, Record<string, string>] => [
      "/api/v1/admin/keys",
      { "x-api-key": "client-key", "x-admin-api-key": key, "x-user-id": owner },
    ];
    const guesses = ["a", "b", "c", "d", "admin-key"].map((key) => beside(key, `o-${key}`));
    expect(await statuses(server, guesses)).toEqual([401, 401, 401, 429, 429]);
    // Those that are always sent along cost nothing more.
    expect(await statuses(server, [beside("a", "p"), [list, { "x-api-key": "client-key" }]])).toEqual([
      401, 200,
    ]);
  });

  test("what a program is given tells keys no faster, and notes no use of them", async () => {
    const ports = new TestPorts();
    await using server = await startTestServer({
      provider: ports.factory,
      env: { ...keys, ...limited, ALCOVE_PREVIEW_ACCESS: "public" },
    });
    const admin = { "x-admin-api-key": "admin-key" };
    const api = new TestClient(server.url, admin);
    const id = await api.spawn();
    const { json: spare } = await api.call("POST", "/api/v1/admin/keys", { name: "spare" });
    const told = (request: http.IncomingMessage) =>
      request.rawHeaders.filter((_, index, raw) => /^(x-api-key|authorization)$/i.test(raw[index - 1] ?? ""));
    using _program = await ports.listen(
      3000,
      http.createServer((request, response) => response.end(JSON.stringify(told(request)))),
    );
    const visitor = new PreviewClient(server.url, `3000-${id}.localhost`);
    const shown = async (headers: Record<string, string | string[]>) => {
      const { status, text } = await visitor.get("/", { headers });
      return status === 200 ? JSON.parse(text) : status;
    };
    const digest = { authorization: 'Digest username="ann", response="1"' };
    expect(await shown(digest)).toEqual([digest.authorization]);
    expect(await shown({ "x-api-key": ["own", "client-key"], authorization: "Bearer its" })).toEqual([
      "own",
      "Bearer its",
    ]);
    for (const key of ["another", spare.key])
      expect(await shown({ authorization: `Bearer ${key}` })).toBe(429);
    expect(await shown({ "x-api-key": ["own", "client-key"] })).toEqual(["own"]);
    expect(await shown(digest)).toEqual([digest.authorization]);
    const path = `/api/v1/sandboxes/${id}/ports/3000/`;
    expect(await statuses(server, [[path, { ...admin, authorization: "guess" }]])).toEqual([429]);
    const { json } = await get(server, "/api/v1/admin/keys", { ...admin, "x-user-id": "ann" });
    const used = json.filter((key: { last_used_at?: string }) => key.last_used_at !== undefined);
    expect(used.map(({ name }: { name: string }) => name)).toEqual(["admin_api_key"]);
  });

  test("visitors of programs shut out no client, nor clients visitors", async () => {
    const ports = new TestPorts();
    await using server = await startTestServer({
      provider: ports.factory,
      env: { ...keys, ...limited, ALCOVE_PREVIEW_ACCESS: "public" },
    });
    const id = await new TestClient(server.url, { "x-admin-api-key": "admin-key" }).spawn();
    using _program = await ports.listen(
      3000,
      http.createServer((_request, response) => response.end()),
    );
    const visitor = new PreviewClient(server.url, `3000-${id}.localhost`);
    const visits = async (tokens: readonly string[]) => {
      const found: number[] = [];
      for (const token of tokens)
        found.push((await visitor.get("/", { headers: { authorization: `Bearer ${token}` } })).status);
      return found;
    };
    expect(await visits(["a", "b"])).toEqual([200, 200]);
    expect(await statuses(server, [[list], [list], [list], [list]])).toEqual([401, 401, 401, 429]);
    expect(await visits(["c", "d", "client-key"])).toEqual([200, 429, 429]);
    // What is refused there is refused whatever the other bucket holds: one that hits would show.
    expect((await get(server, list, { "x-api-key": "client-key" })).status).toBe(429);
  });

  test("where there are no keys, programs' own count as no guesses", async () => {
    const ports = new TestPorts();
    await using server = await startTestServer({
      provider: ports.factory,
      env: { ...limited, ALCOVE_PREVIEW_ACCESS: "public" },
    });
    const id = await new TestClient(server.url).spawn();
    using _program = await ports.listen(
      3000,
      http.createServer((request, response) => response.end(request.headers.authorization)),
    );
    const visitor = new PreviewClient(server.url, `3000-${id}.localhost`);
    for (const token of ["a", "b", "c", "d", "e"]) {
      const { status, text } = await visitor.get("/", { headers: { authorization: `Bearer ${token}` } });
      expect([status, text]).toEqual([200, `Bearer ${token}`]);
    }
  });

  test("who has a key and used it is not shut out by guesses from the same address", async () => {
    await using server = await start({ ...keys, ...limited });
    const client = { "x-api-key": "client-key", "x-user-id": "ann" };
    const none: [string] = [list];
    expect(await statuses(server, [[list, client], none, none, none, none, [list, client]])).toEqual([
      200, 401, 401, 401, 429, 200,
    ]);
  });

  test("calls beyond the limit are not told in the audit history, so that nobody can push out what is", async () => {
    await using server = await start({ ...keys, ...limited });
    const at = "/api/v1/admin/quotas";
    const admin = { "x-admin-api-key": "admin-key" };
    expect(await statuses(server, [[at, admin], ...Array<[string]>(5).fill([at])])).toEqual([
      200, 401, 401, 401, 429, 429,
    ]);
    const { json } = await get(server, "/api/v1/admin/audit", admin);
    const told = json.map((record: { status: number }) => record.status).sort();
    expect(told).toEqual([200, 401, 401, 401]);
    for (let i = 0; i < 3; i++) expect((await get(server, "/api/v1/admin/%zz")).status).toBe(429);
    // The last is of the look at the history before.
    expect((await get(server, "/api/v1/admin/audit", admin)).json).toHaveLength(5);
  });

  test("a WebSocket beyond the limit is refused before it opens", async () => {
    await using server = await start(limited);
    await statuses(server, [[list], [list], [list]]);
    const url = `${server.url.replace("http", "ws")}${list}/sb-00000000/exec/ws`;
    const status = await new Promise((resolve, reject) => {
      const socket = new WebSocket(url);
      socket.on("unexpected-response", (_request, response) => resolve(response.statusCode));
      socket.on("open", () => reject(new Error("it opened")));
      socket.on("error", () => undefined);
    });
    expect(status).toBe(429);
  });

  test("a browser can read what is left", async () => {
    await using server = await start({ ...keys, ...limited });
    const { headers } = await get(server, list, { "x-api-key": "client-key", origin: "https://app.example" });
    expect(headers.get("access-control-expose-headers")).toMatch(/X-RateLimit-Remaining/);
  });
});
