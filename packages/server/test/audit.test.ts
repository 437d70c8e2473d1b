import { cp, mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import type { AuditRecord } from "@alcove/wire";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { silentLogger } from "../src/platform/logger.ts";
import { StorageFull } from "../src/ports/errors.ts";
import { SqliteStore } from "../src/stores/sqlite/index.ts";
import { SqliteAudit } from "../src/stores/sqlite/sqlite-audit.ts";
import { eventually, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const keys = { ALCOVE_AUTH_API_KEY: "client-key", ALCOVE_AUTH_ADMIN_API_KEY: "admin-key" };
const admin = { "x-admin-api-key": "admin-key" };
const client = { "x-api-key": "client-key" };

afterEach(() => vi.restoreAllMocks());

test("refused calls that a full disk keeps out of the history are told when the service stops", async () => {
  vi.spyOn(SqliteAudit.prototype, "append").mockRejectedValue(new StorageFull("the disk is full"));
  const warn = vi.spyOn(silentLogger, "warn");
  {
    await using server = await startTestServer({ provider: mockProvider, env: keys });
    for (let left = 3; left > 0; left -= 1)
      expect((await new TestClient(server.url).call("GET", "/api/v1/admin/audit")).status).toBe(401);
  }
  const told = (warn.mock.calls as unknown[][]).filter(([fields]) =>
    JSON.stringify(fields).includes('"event":"audit.'),
  );
  expect(told.at(-1)).toEqual([
    { event: "audit.suspended", calls: 3 },
    expect.stringContaining("the service stops, and so many refused calls"),
  ]);
});

describe("the audit history of a service with keys", () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer({
      provider: mockProvider,
      env: { ...keys, ALCOVE_SERVER_TRUSTED_PROXIES: "127.0.0.1" },
    });
  });
  afterAll(() => server[Symbol.asyncDispose]());
  const call = (method: string, at: string, headers: Record<string, string>, body?: unknown) =>
    new TestClient(server.url).call(method, `/api/v1${at}`, body, headers);
  const records = async (query: string): Promise<AuditRecord[]> => {
    const { status, json } = await call("GET", `/admin/audit?${query}`, admin);
    expect(status).toBe(200);
    return json;
  };

  test("names the key, and nobody where none is known; refused calls are told too", async () => {
    const at = "/admin/quotas/who";
    expect((await call("PUT", at, {}, {})).status).toBe(401);
    expect((await call("PUT", at, { "x-api-key": "guessed-key" }, {})).status).toBe(401);
    expect((await call("PUT", at, client, {})).status).toBe(401);
    expect((await call("PUT", at, admin, {})).status).toBe(200);
    expect((await call("GET", "/admin/who", {})).status).toBe(401);
    expect((await call("DELETE", "/quotas/who", {})).status).toBe(401);
    expect((await call("DELETE", "/quotas/who", client)).status).toBe(200);
    const found = await records("path=who");
    expect(found.map(({ actor, method, status }) => `${actor} ${method} ${status}`).reverse()).toEqual([
      "anonymous PUT 401",
      "anonymous PUT 401",
      "api_key PUT 401",
      "admin_api_key PUT 200",
      "anonymous GET 401",
      "anonymous DELETE 401",
      "api_key DELETE 200",
    ]);
    expect(await records("path=who&actor=api_key")).toHaveLength(2);
    expect(JSON.stringify(await records("limit=500"))).not.toMatch(/client-key|admin-key|guessed-key/);
  });

  test("takes the admin key", async () => {
    expect((await call("GET", "/admin/audit", {})).status).toBe(401);
    expect((await call("GET", "/admin/audit", client)).status).toBe(401);
    expect((await call("GET", "/admin/audit?format=csv", client)).status).toBe(401);
    for (const at of ["/admin/providers", "/admin/providers/mock"]) {
      expect((await call("GET", at, client)).status).toBe(401);
      expect((await call("GET", at, admin)).status).toBe(200);
    }
    expect((await call("POST", "/admin/providers/test", client)).status).toBe(401);
    expect((await call("POST", "/admin/providers/test", admin)).status).toBe(200);
  });

  test("tells the address that a trusted proxy names", async () => {
    await call("GET", "/admin/quotas/proxied/usage", { ...admin, "x-forwarded-for": "203.0.113.7" });
    expect((await records("path=proxied"))[0]?.remote_addr).toBe("203.0.113.7");
  });

  test("keeps what callers choose short and without control characters", async () => {
    const headers = {
      ...admin,
      "user-agent": `\u0085${"x".repeat(5_000)}`,
      "x-forwarded-for": "y".repeat(900),
    };
    await call("GET", `/admin/${"long".repeat(1_000)}`, headers);
    const [record] = await records("path=longlong");
    expect(record?.path).toHaveLength(256);
    expect(record?.user_agent).toBe(` ${"x".repeat(255)}`);
    expect(record?.remote_addr.length).toBeLessThanOrEqual(64);
  });

  test("keeps no password of an absolute address", async () => {
    const socket = net.connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.end(
      "GET http://me:hidden@127.0.0.1/api/v1/admin/absolute?key=hidden HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    );
    await eventually(() => (socket.resume().readableEnded ? true : undefined));
    const [record] = await records("path=absolute");
    expect(record?.path).toBe("/api/v1/admin/absolute");
  });

  test("tells a call whose caller left before its answer", async () => {
    const socket = net.connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.write(
      'PUT /api/v1/admin/quotas/left HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: admin-key\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"max_',
      () => setTimeout(() => socket.destroy(), 100),
    );
    const found = await eventually(async () => (await records("path=left"))[0]);
    expect([found.actor, found.status]).toEqual(["admin_api_key", 499]);
    expect((await call("GET", "/quotas/left", admin)).status).toBe(404);
  });

  test("is written before the answer is sent", async () => {
    const gate = Promise.withResolvers<void>();
    const append = SqliteAudit.prototype.append;
    const spied = vi.spyOn(SqliteAudit.prototype, "append").mockImplementation(async function (
      this: SqliteAudit,
      entry,
    ) {
      await gate.promise;
      await append.call(this, entry);
    });
    let answered = false;
    const answer = call("PUT", "/quotas/held", admin, {}).finally(() => {
      answered = true;
    });
    await eventually(() => (spied.mock.calls.length === 1 ? true : undefined));
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(answered).toBe(false);
    gate.resolve();
    expect((await answer).status).toBe(200);
  });

  test("a store that takes no record does not undo what was done, nor deny it", async () => {
    vi.spyOn(SqliteAudit.prototype, "append").mockRejectedValue(new Error("disk I/O error"));
    expect((await call("PUT", "/quotas/unrecorded", admin, { max_sandboxes: 7 })).status).toBe(200);
    expect((await call("GET", "/admin/quotas", {})).status).toBe(401);
    vi.restoreAllMocks();
    expect((await call("GET", "/quotas/unrecorded", admin)).json.max_sandboxes).toBe(7);
  });
});

test("the audit history is read to its end page by page, as JSON and as CSV", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const to = new TestClient(server.url);
  for (let index = 0; index < 5; index++) await to.call("GET", `/api/v1/admin/quotas/p-${index}/usage`);
  const seen: string[] = [];
  let cursor: string | null = "";
  let pages = 0;
  for (; cursor !== null; pages++) {
    const query = `method=GET&path=/quotas/p-&limit=2&cursor=${cursor}`;
    const page = await fetch(`${server.url}/api/v1/admin/audit?${query}`);
    const csv = await fetch(`${server.url}/api/v1/admin/audit?${query}&format=csv`);
    await csv.text();
    seen.push(...((await page.json()) as AuditRecord[]).map((record) => record.path.split("/")[5] ?? ""));
    cursor = page.headers.get("x-next-cursor");
    expect(csv.headers.get("x-next-cursor")).toBe(cursor);
  }
  expect([pages, seen]).toEqual([3, ["p-4", "p-3", "p-2", "p-1", "p-0"]]);
});

test("what was answered is in the audit history after a crash", async () => {
  await using server = await startTestServer({ provider: mockProvider, env: keys });
  const to = new TestClient(server.url, admin);
  const crashed = await mkdtemp(path.join(tmpdir(), "alcove-crashed-"));
  try {
    const owners = Array.from({ length: 20 }, (_, index) => `crash-${index}`);
    await Promise.all(owners.map((owner) => to.call("PUT", `/api/v1/quotas/${owner}`, {})));
    const { path: file } = server.config.database;
    // As a crash leaves it: nothing was closed.
    await cp(path.dirname(file), crashed, { recursive: true, filter: (name) => !/\.sock$/.test(name) });
    await using store = await SqliteStore.open({ path: path.join(crashed, path.basename(file)) });
    const found = await store.audit.list({ path: "crash-", limit: 500 });
    expect(found.map((row) => path.basename(row.path)).sort()).toEqual(owners.sort());
  } finally {
    await rm(crashed, { recursive: true, force: true });
  }
});

test("the newest store.max_audit records are kept", async () => {
  await using server = await startTestServer({
    provider: mockProvider,
    env: { ALCOVE_STORE_MAX_AUDIT: "5" },
  });
  const to = new TestClient(server.url);
  for (let index = 0; index < 12; index++) await to.call("GET", `/api/v1/admin/quotas/n-${index}/usage`);
  // The first may share a pass that was under way before.
  await server.reconciler.reconcile();
  await server.reconciler.reconcile();
  const { json } = await to.call("GET", "/api/v1/admin/audit");
  expect(json.map(({ path }: AuditRecord) => path)).toEqual(
    [11, 10, 9, 8, 7].map((index) => `/api/v1/admin/quotas/n-${index}/usage`),
  );
});

test("refused calls of keys without scope admin push out no record of an administrator, nor of what was done", async () => {
  await using server = await startTestServer({
    provider: mockProvider,
    env: { ...keys, ALCOVE_STORE_MAX_AUDIT: "50" },
  });
  const to = new TestClient(server.url);
  const call = (method: string, at: string, headers: Record<string, string>, body?: unknown) =>
    to.call(method, `/api/v1${at}`, body, headers);
  const made = await call("POST", "/admin/keys", admin, { name: "ro", owner_id: "a", scopes: ["read"] });
  const bound = { "x-api-key": made.json.key as string };
  for (let index = 0; index < 8; index++) await call("PUT", `/quotas/done-${index}`, admin, {});
  expect((await call("GET", "/admin/nothing", admin)).status).toBe(404);
  expect((await call("DELETE", "/quotas/done-0", client)).status).toBe(200);
  const refused = new Set<number>();
  for (let index = 0; index < 20; index++) {
    const calls = [
      call("GET", "/admin/quotas", bound),
      call("PUT", "/quotas/b", bound, {}),
      call("GET", "/admin/nothing", bound),
      call("DELETE", "/quotas/nobody", client),
      call("PUT", "/quotas/b", client, { max_sandboxes: "none" }),
    ];
    for (const { status } of await Promise.all(calls)) refused.add(status);
  }
  expect([...refused].sort()).toEqual([400, 401, 403, 404]);
  await server.reconciler.reconcile();
  await server.reconciler.reconcile();
  const { json } = await call("GET", "/admin/audit?limit=500", admin);
  const told = json.map(({ actor, status }: AuditRecord) => `${actor} ${status}`) as string[];
  expect(told.slice(5)).toEqual([
    "api_key 200",
    "admin_api_key 404",
    ...Array.from({ length: 8 }, () => "admin_api_key 200"),
    expect.stringMatching(/^admin_api_key 20[01]$/),
  ]);
});

test("records are forgotten after auth.admin_audit_retention", async () => {
  await using server = await startTestServer({
    provider: mockProvider,
    env: { ALCOVE_AUTH_ADMIN_AUDIT_RETENTION: "1s" },
  });
  const to = new TestClient(server.url);
  await to.call("GET", "/api/v1/admin/quotas/old/usage");
  const left = await eventually(async () => {
    await server.reconciler.reconcile();
    const { json } = await to.call("GET", "/api/v1/admin/audit?path=old/usage");
    return json.length === 0 ? json : undefined;
  });
  expect(left).toEqual([]);
});
