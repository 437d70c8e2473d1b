import { createHash } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { readEvents, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

/**
 * What each operation asks of a key, written down apart from the table that the service goes by
 * (`api/access.ts`): scope, and how far the key of an owner reaches. `open`: no key.
 */
const operations: Record<string, readonly [scope: "open" | "read" | "write" | "admin", reach?: string]> = {
  getLiveness: ["open"],
  getReadiness: ["open"],
  getHealth: ["open"],
  spawnSandbox: ["write", "own"],
  acquireSandbox: ["write", "own"],
  checkAdmission: ["read", "own"],
  listSandboxes: ["read", "own"],
  listSandboxStats: ["read", "own"],
  pruneSandboxes: ["write", "own"],
  getSandbox: ["read", "sandbox"],
  destroySandbox: ["write", "sandbox"],
  extendSandbox: ["write", "sandbox"],
  getSandboxLogs: ["read", "sandbox"],
  getSandboxStats: ["read", "sandbox"],
  exec: ["write", "sandbox"],
  execWebSocket: ["write", "sandbox"],
  startExec: ["write", "sandbox"],
  listExecs: ["read", "sandbox"],
  getPreview: ["write", "sandbox"],
  openTunnel: ["write", "sandbox"],
  requestPort: ["write", "sandbox"],
  getExec: ["read", "sandbox"],
  killExec: ["write", "sandbox"],
  getExecOutput: ["read", "sandbox"],
  signalExec: ["write", "sandbox"],
  writeExecStdin: ["write", "sandbox"],
  writeFile: ["write", "sandbox"],
  readFile: ["read", "sandbox"],
  uploadFile: ["write", "sandbox"],
  deleteFile: ["write", "sandbox"],
  readArchive: ["read", "sandbox"],
  writeArchive: ["write", "sandbox"],
  chmodFile: ["write", "sandbox"],
  globFiles: ["read", "sandbox"],
  listFiles: ["read", "sandbox"],
  moveFile: ["write", "sandbox"],
  statFile: ["read", "sandbox"],
  watchFiles: ["read", "sandbox"],
  createTicket: ["write", "own"],
  streamEvents: ["read", "own"],
  listProviders: ["read", "shared"],
  getProvider: ["read", "shared"],
  testProviders: ["write", "all"],
  adminListProviders: ["admin", "shared"],
  adminGetProvider: ["admin", "shared"],
  adminTestProviders: ["admin", "all"],
  createTemplate: ["write", "all"],
  listTemplates: ["read", "shared"],
  getTemplate: ["read", "shared"],
  replaceTemplate: ["write", "all"],
  deleteTemplate: ["write", "all"],
  spawnFromTemplate: ["write", "own"],
  getPoolStatus: ["read", "shared"],
  listSnapshots: ["read", "shared"],
  getMetrics: ["read", "all"],
  getPrometheusMetrics: ["read", "all"],
  getDiagnostics: ["read", "all"],
  adminGetMetrics: ["admin", "all"],
  adminGetPrometheusMetrics: ["admin", "all"],
  adminGetDiagnostics: ["admin", "all"],
  listQuotas: ["read", "all"],
  getQuotaSummary: ["read", "all"],
  getQuota: ["read", "owner"],
  getQuotaUsage: ["read", "owner"],
  saveQuota: ["write", "all"],
  deleteQuota: ["write", "all"],
  adminListQuotas: ["admin", "all"],
  adminGetQuotaSummary: ["admin", "all"],
  adminGetQuota: ["admin", "owner"],
  adminGetQuotaUsage: ["admin", "owner"],
  adminSaveQuota: ["admin", "all"],
  adminDeleteQuota: ["admin", "all"],
  listWorkers: ["read", "all"],
  getWorker: ["read", "all"],
  deleteWorker: ["admin", "all"],
  reportWorker: ["admin", "all"],
  drainWorker: ["admin", "all"],
  endDrainOfWorker: ["admin", "all"],
  listAudit: ["admin", "all"],
  createKey: ["admin", "all"],
  listKeys: ["admin", "all"],
  revokeKey: ["admin", "all"],
};

/** Routes that take no key, whether the OpenAPI page has them or not. */
const openRoutes = [
  "GET /api/v1/health",
  "GET /api/v1/live",
  "GET /api/v1/openapi.json",
  "GET /api/v1/ready",
  "GET /docs",
  "GET /docs/start.js",
  "GET /docs/swagger-ui.css",
  "GET /docs/swagger-ui.js",
  "HEAD /api/v1/health",
  "HEAD /api/v1/live",
  "HEAD /api/v1/openapi.json",
  "HEAD /api/v1/ready",
  "HEAD /docs",
  "HEAD /docs/start.js",
  "HEAD /docs/swagger-ui.css",
  "HEAD /docs/swagger-ui.js",
];

type Scope = "read" | "write" | "admin";
interface Key {
  readonly name: string;
  /** Undefined: not accepted. */
  readonly scopes?: readonly Scope[];
  readonly owner?: string;
}
const keys: readonly Key[] = [
  { name: "none" },
  { name: "wrong" },
  { name: "expired" },
  { name: "revoked" },
  { name: "reader", scopes: ["read"] },
  { name: "writer", scopes: ["write"] },
  { name: "client-key", scopes: ["read", "write"] },
  { name: "administrator", scopes: ["admin"] },
  { name: "admin-key", scopes: ["read", "write", "admin"] },
  { name: "ann-reader", scopes: ["read"], owner: "ann" },
  { name: "ann-writer", scopes: ["write"], owner: "ann" },
  { name: "ann", scopes: ["read", "write"], owner: "ann" },
  { name: "bob", scopes: ["read", "write"], owner: "bob" },
];
const targets = ["ann", "bob"] as const;
type Target = (typeof targets)[number];

/** What comes of a request that is about something of `target`. */
function expected(operation: string, key: Key, target: Target): "let in" | 401 | 403 | 404 {
  const [scope, reach] = operations[operation] ?? [];
  if (scope === "open") return "let in";
  if (key.scopes === undefined) return 401;
  if (scope === "admin" && !key.scopes.includes("admin")) return 401;
  if (scope !== undefined && !key.scopes.includes(scope)) return 403;
  if (key.owner === undefined) return "let in";
  if (reach === "all") return 403;
  return target === key.owner || !["sandbox", "owner"].includes(reach ?? "") ? "let in" : 404;
}

describe("every key on every operation", () => {
  let server: TestServer;
  let admin: TestClient;
  let routes: { operation: string; method: string; path: string }[];
  const sandboxes = new Map<Target, string>();

  const textOf = (key: Key) => (key.name.endsWith("-key") ? key.name : `key-of-${key.name}`);
  beforeAll(async () => {
    const listed = keys
      .filter(({ name }) => !name.endsWith("-key") && !["none", "wrong", "revoked"].includes(name))
      .map((key) => ({
        name: key.name,
        hash: createHash("sha256").update(textOf(key)).digest("hex"),
        scopes: key.scopes ?? ["read", "write", "admin"],
        ...(key.owner === undefined ? {} : { owner: key.owner }),
        ...(key.name === "expired" ? { expires: "2020-01-01T00:00:00Z" } : {}),
      }));
    server = await startTestServer({
      provider: mockProvider,
      env: {
        ALCOVE_AUTH_API_KEY: "client-key",
        ALCOVE_AUTH_ADMIN_API_KEY: "admin-key",
        ALCOVE_AUTH_KEYS: JSON.stringify(listed),
        ALCOVE_DEFAULTS_MAX_SANDBOXES: "0",
      },
    });
    admin = new TestClient(server.url, { "x-api-key": "admin-key" });
    const { json } = await admin.call("GET", "/api/v1/openapi.json");
    const told = Object.entries<Record<string, { operationId: string }>>(json.paths).flatMap(
      ([path, methods]) =>
        Object.entries(methods).map(([method, { operationId }]) => ({
          operation: operationId,
          method: method.toUpperCase(),
          path,
        })),
    );
    const hidden = server.app.routeTable.routes.flatMap(({ method, url, schema }) =>
      schema?.hide === true
        ? [method].flat().map((each) => ({
            operation: schema.operationId ?? url,
            method: each,
            path: url.replaceAll(/:(\w+)/g, "{$1}"),
          }))
        : [],
    );
    routes = [...told, ...hidden];
  });
  afterAll(() => server[Symbol.asyncDispose]());

  async function sandboxOf(target: Target): Promise<string> {
    const id = sandboxes.get(target);
    if (id !== undefined) return id;
    const made = await admin.call("POST", "/api/v1/sandboxes", { owner_id: target });
    sandboxes.set(target, made.json.id);
    return made.json.id;
  }

  /** Streams are left at their first byte; a body that makes no sense is refused after the key was looked at. */
  async function ask(route: { method: string; path: string }, key: Key, target: Target) {
    const path = route.path
      .replace("{ownerID}", target)
      .replace("{id}", await sandboxOf(target))
      .replaceAll(/\{\w+\}/g, "nothing");
    const leaving = new AbortController();
    const response = await fetch(server.url + path, {
      method: route.method,
      headers: {
        ...(key.name === "none" ? {} : { "x-api-key": textOf(key) }),
        "content-type": "application/json",
      },
      ...(["GET", "HEAD"].includes(route.method) ? {} : { body: "[]" }),
      signal: leaving.signal,
    });
    const text = response.status >= 400 ? await response.text() : "";
    leaving.abort();
    return { status: response.status, text };
  }

  test("the table has a row for each operation, and none for what is not there", () => {
    const asked = new Map(routes.map(({ operation, path, method }) => [`${path} ${method}`, operation]));
    const ofMethods = new Set(
      routes.filter(({ path }) => path.endsWith("/*")).map(({ operation }) => operation),
    );
    const once = [...asked.values()].filter((operation) => !ofMethods.has(operation));
    expect(Object.keys(operations).sort()).toEqual([...once, ...ofMethods].sort());
  });

  test.each(Object.keys(operations))("%s", async (operation) => {
    // One, but where a path takes what a program makes of it.
    const ways = routes.filter((each) => each.operation === operation);
    expect(ways).not.toEqual([]);
    for (const [route, key, target] of ways.flatMap((way) =>
      keys.flatMap((key) => targets.map((target) => [way, key, target] as const)),
    )) {
      const { status, text } = await ask(route, key, target);
      const about = `${route.method} ${operation} of ${target} with ${key.name}: ${status} ${text}`;
      const want = expected(operation, key, target);
      if (want === 404) {
        expect(status, about).toBe(404);
        if (route.method !== "HEAD")
          expect(text, about).toMatch(/does not exist or was destroyed|has no quota/);
      } else if (want !== "let in") expect(status, about).toBe(want);
      else {
        expect([401, 403], about).not.toContain(status);
        expect(status, about).not.toBe(500);
        if (key.owner !== undefined) expect(text, about).not.toMatch(/sandbox ".*" does not exist or was/);
      }
      if (operation === "destroySandbox" && status === 200) sandboxes.delete(target);
    }
  });

  test("no route but the known ones lets anybody in without a key", async () => {
    const none = keys.find(({ name }) => name === "none") as Key;
    const letIn: string[] = [];
    for (const { method: methods, url } of server.app.routeTable.routes)
      for (const method of [methods].flat()) {
        const path = url.replaceAll(/:(\w+)/g, "{$1}");
        if ((await ask({ method, path }, none, "ann")).status !== 401) letIn.push(`${method} ${url}`);
      }
    expect(letIn.sort()).toEqual(openRoutes);
  });

  test("what an owner's key can look at as its own shows nothing of another's", async () => {
    const looked = routes.filter(
      ({ method, operation }) => method === "GET" && operations[operation]?.[1] === "own",
    );
    expect(looked.length).toBeGreaterThan(0);
    for (const route of looked) {
      const [mine, other] = [await sandboxOf("ann"), await sandboxOf("bob")];
      const leaving = new AbortController();
      // Of a stream, what is there from the beginning on: an id before the first replays everything.
      const response = await fetch(server.url + route.path, {
        headers: { "x-api-key": "key-of-ann", "last-event-id": "0" },
        signal: leaving.signal,
      });
      let text = "";
      const decoder = new TextDecoder();
      for await (const piece of response.body ?? []) {
        text += decoder.decode(piece, { stream: true });
        if (route.path === "/api/v1/events" && text.includes(mine)) break;
      }
      leaving.abort();
      expect(text, route.operation).not.toContain(other);
      expect(text, route.operation).not.toMatch(/\bbob\b/);
    }
  });

  test("the key of an owner is told whose it is when it asks for another's quota, and nothing of that", async () => {
    const ann = new TestClient(server.url, { "x-api-key": "key-of-ann" });
    for (const path of ["bob", "bob/usage", "nobody"]) {
      const { status, json } = await ann.call("GET", `/api/v1/quotas/${path}`);
      expect([path, status, json.what, json.message]).toEqual([
        path,
        404,
        "quota",
        `owner "${path.split("/")[0]}" has no quota that key "ann" may see: it is bound to owner "ann"`,
      ]);
    }
  });

  test("the key of an owner is told how many sandboxes a provider runs of that owner's alone", async () => {
    await Promise.all([sandboxOf("ann"), sandboxOf("bob")]);
    const countsFor = async (key: string) => {
      const client = new TestClient(server.url, { "x-api-key": key });
      const [one, list] = [
        await client.call("GET", "/api/v1/providers/mock"),
        await client.call("GET", "/api/v1/providers"),
      ];
      const listed = (list.json as unknown as { runtime_count?: number }[])[0];
      return [one.json.sandbox_count, one.json.health.runtime_count, listed?.runtime_count];
    };
    const all = await countsFor("admin-key");
    expect(all[0]).toBeGreaterThan(1);
    const own = (await admin.call("GET", "/api/v1/sandboxes?owner_id=ann")).json.length;
    expect(own).toBeLessThan(all[0]);
    expect(await countsFor("key-of-ann")).toEqual([own, own, own]);
  });

  test("the key of an owner is not told what a provider's sandboxes do without", async () => {
    const notesFor = async (key: string) => {
      const client = new TestClient(server.url, { "x-api-key": key });
      const { json } = await client.call("GET", "/api/v1/providers/mock");
      return json.health.notes;
    };
    expect(await notesFor("admin-key")).toEqual([expect.stringContaining("commands are simulated")]);
    expect(await notesFor("key-of-ann")).toBeUndefined();
  });

  test("the key of an owner cannot act for another, however it says so", async () => {
    const ann = new TestClient(server.url, { "x-api-key": "key-of-ann" });
    const bob = { "x-user-id": "bob" };
    const id = await sandboxOf("ann");
    const refused = [
      await ann.call("POST", "/api/v1/sandboxes", { owner_id: "bob" }),
      await ann.call("POST", "/api/v1/sandboxes", {}, bob),
      await ann.call("POST", "/api/v1/sandboxes/acquire", { name: "web", owner_id: "bob" }),
      await ann.call("POST", "/api/v1/sandboxes/acquire", { name: "web" }, bob),
      await ann.call("GET", "/api/v1/sandboxes?owner_id=bob"),
      await ann.call("GET", `/api/v1/sandboxes/${id}`, undefined, bob),
      await ann.call("POST", `/api/v1/sandboxes/${id}/exec`, { command: "true" }, bob),
      await ann.call("GET", "/api/v1/providers", undefined, bob),
    ];
    for (const { status, text } of refused) {
      expect(status, text).toBe(403);
      expect(text).toMatch(/key \\"ann\\" is bound to owner \\"ann\\" and cannot act for \\"bob\\"/);
    }
  });

  test("the key of an owner takes a spawn of its own out of the queue, and no other's", async () => {
    const hash = (text: string) => createHash("sha256").update(text).digest("hex");
    const listed = ["ann", "bob"].map((owner) => ({
      name: owner,
      hash: hash(`key-of-${owner}`),
      scopes: ["read", "write"],
      owner,
    }));
    await using queueing = await startTestServer({
      provider: mockProvider,
      env: {
        ALCOVE_AUTH_KEYS: JSON.stringify(listed),
        ALCOVE_DEFAULTS_MAX_SANDBOXES: "1",
        ALCOVE_DEFAULTS_SPAWN_OVERFLOW: "queue",
      },
    });
    const [ann, bob] = ["ann", "bob"].map(
      (owner) => new TestClient(queueing.url, { "x-api-key": `key-of-${owner}` }),
    ) as [TestClient, TestClient];
    await bob.spawn();
    const waiting = ann.call("POST", "/api/v1/sandboxes", {});
    const [queued] = await readEvents(`${queueing.url}/api/v1/events?type=spawn.queued`, {
      headers: { "x-api-key": "key-of-ann", "last-event-id": "0" },
      enough: (events) => events.length > 0,
    });
    const path = `/api/v1/sandboxes/${queued?.sandbox_id}`;
    const refused = await bob.call("DELETE", path);
    expect([refused.status, refused.json.message]).toEqual([
      404,
      `sandbox "${queued?.sandbox_id}" does not exist or was destroyed`,
    ]);
    expect((await ann.call("DELETE", path)).status).toBe(200);
    expect((await waiting).status).toBe(409);
    expect(queueing.sandboxes.figures.queueDepth).toBe(0);
  });

  test("the key of an owner sees, counts and prunes its own alone", async () => {
    const ann = new TestClient(server.url, { "x-api-key": "key-of-ann" });
    const [mine, other] = [await sandboxOf("ann"), await sandboxOf("bob")];
    const ids = async (path: string) =>
      ((await ann.call("GET", path)).json as { id: string }[]).map(({ id }) => id);
    expect(await ids("/api/v1/sandboxes")).toEqual([mine]);
    expect(await ids("/api/v1/sandboxes?owner_id=ann")).toEqual([mine]);
    const made = await ann.call("POST", "/api/v1/sandboxes", {});
    expect([made.status, made.json.owner_id]).toEqual([201, "ann"]);
    expect((await ann.call("DELETE", "/api/v1/sandboxes")).status).toBe(200);
    expect((await admin.call("GET", `/api/v1/sandboxes/${other}`)).status).toBe(200);
    await ann.call("DELETE", `/api/v1/sandboxes/${made.json.id}`);
  });
});
