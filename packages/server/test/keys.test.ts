import { once } from "node:events";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { WebSocket } from "ws";
import { type Answer, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const api = "/api/v1";

describe("keys that are made while the service runs", () => {
  let server: TestServer;
  let admin: TestClient;
  beforeAll(async () => {
    server = await startTestServer({
      provider: mockProvider,
      env: { ALCOVE_AUTH_API_KEY: "client-key", ALCOVE_AUTH_ADMIN_API_KEY: "admin-key" },
    });
    admin = new TestClient(server.url, { "x-admin-api-key": "admin-key" });
  });
  afterAll(() => server[Symbol.asyncDispose]());
  const make = async (body: Record<string, unknown>): Promise<Answer["json"]> => {
    const { status, json, text } = await admin.call("POST", `${api}/admin/keys`, body);
    expect(status, text).toBe(201);
    return json;
  };
  const revoke = (name: string) => admin.call("DELETE", `${api}/admin/keys/${name}`);
  const withKey = (key: string) => new TestClient(server.url, { "x-api-key": key });

  test("are told once, work at once, are listed without themselves, and end when they are revoked", async () => {
    const made = await make({ name: "ci", owner_id: "acme", ttl: "1h" });
    expect(made).toMatchObject({
      name: "ci",
      owner_id: "acme",
      scopes: ["read", "write"],
      configured: false,
    });
    expect(Date.parse(made.expires_at) - Date.parse(made.created_at)).toBe(3_600_000);
    const ci = withKey(made.key);
    expect((await ci.call("GET", `${api}/sandboxes`)).status).toBe(200);
    const listed = await admin.call("GET", `${api}/admin/keys`);
    expect(listed.text).not.toContain(made.key);
    expect(listed.json.map(({ name }: { name: string }) => name)).toEqual(["admin_api_key", "api_key", "ci"]);
    expect(listed.json[0]).toMatchObject({ configured: true, scopes: ["read", "write", "admin"] });
    expect(Date.parse(listed.json[2].last_used_at)).toBeGreaterThanOrEqual(Date.parse(made.created_at));
    expect((await revoke("ci")).json).toEqual({ status: "revoked" });
    expect((await ci.call("GET", `${api}/sandboxes`)).status).toBe(401);
    expect((await revoke("ci")).status).toBe(404);
  });

  test("an answer with a key is kept by nobody on the way, and the history tells who made it, not the key", async () => {
    const { key } = await make({ name: "told" });
    const { json } = await admin.call("GET", `${api}/admin/audit?path=/admin/keys&method=POST&limit=1`);
    expect(json[0]).toMatchObject({ actor: "admin_api_key", path: `${api}/admin/keys`, status: 201 });
    expect(JSON.stringify(json)).not.toContain(key);
    const again = await admin.call("POST", `${api}/admin/keys`, { name: "other" });
    expect(again.headers.get("cache-control")).toBe("no-store");
    await revoke("told");
    await revoke("other");
  });

  test.each([
    [{}, 400],
    [{ name: "" }, 400],
    [{ name: "x", scopes: [] }, 400],
    [{ name: "x", scopes: ["all"] }, 400],
    [{ name: "x", scopes: ["read", "read"] }, 400],
    [{ name: "x", owner_id: "a b" }, 400],
    [{ name: "x", owner_id: "" }, 400],
    [{ name: "x", owner_id: " " }, 400],
    [{ name: "x", owner_id: "a", scopes: ["admin"] }, 400],
    [{ name: "x", ttl: "0s" }, 400],
    [{ name: "x", key: "mine" }, 400],
    [{ name: "api_key" }, 409],
  ])("%j is refused: %d", async (body, status) => {
    expect((await admin.call("POST", `${api}/admin/keys`, body)).status).toBe(status);
  });

  test("one of the configuration cannot be revoked here", async () => {
    const { status, json } = await revoke("api_key");
    expect([status, json.message]).toEqual([409, expect.stringMatching(/configuration.*SIGHUP/)]);
  });

  test("a stream, and a WebSocket that a ticket opened, end with their key; those of others do not", async () => {
    const { key } = await make({ name: "ending", owner_id: "acme" });
    const { key: staying } = await make({ name: "staying" });
    const sandbox = await withKey(key).spawn();
    const { json } = await withKey(key).call("POST", `${api}/tickets`, { sandbox_id: sandbox });
    const events = await fetch(`${server.url}${api}/events`, { headers: { "x-api-key": key } });
    const kept = await fetch(`${server.url}${api}/events`, { headers: { "x-api-key": staying } });
    const socket = new WebSocket(`${socketUrl(server, sandbox)}?ticket=${json.ticket}`);
    await once(socket, "open");
    const closed = once(socket, "close");
    await revoke("ending");
    await events.text();
    expect((await closed)[0]).toBe(1008);
    const reader = kept.body?.getReader();
    await reader?.read();
    await reader?.cancel();
    await revoke("staying");
  });

  test("events of keys are told to who may list keys, and to the owner whose key it is", async () => {
    const unbound = await make({ name: "unbound" });
    const bound = await make({ name: "bound", owner_id: "acme" });
    await make({ name: "nobodys" });
    await make({ name: "ours", owner_id: "acme" });
    await make({ name: "theirs", owner_id: "other" });
    await admin.call("PUT", `${api}/quotas/acme`, {});
    const told = async (key: string) => {
      const enough = new AbortController();
      const events = await fetch(`${server.url}${api}/events`, {
        headers: { "x-api-key": key, "last-event-id": "0" },
        signal: enough.signal,
      });
      let text = "";
      for await (const chunk of events.body ?? []) {
        text += Buffer.from(chunk).toString();
        if (text.includes("quota.saved")) break;
      }
      enough.abort();
      return ["nobodys", "ours", "theirs"].filter((name) => text.includes(`"name":"${name}"`));
    };
    expect(await told("admin-key")).toEqual(["nobodys", "ours", "theirs"]);
    expect(await told(bound.key)).toEqual(["ours"]);
    expect(await told(unbound.key)).toEqual([]);
    for (const name of ["unbound", "bound", "nobodys", "ours", "theirs"]) await revoke(name);
  });

  test("a ticket opens one WebSocket to its sandbox without a key, in the query or as a subprotocol", async () => {
    const client = withKey("client-key");
    const [sandbox, other] = [await client.spawn(), await client.spawn()];
    const ticket = async () =>
      (await client.call("POST", `${api}/tickets`, { sandbox_id: sandbox })).json.ticket as string;
    const url = socketUrl(server, sandbox);
    const first = await ticket();
    expect(await opened(`${url}?ticket=${first}`)).toBe("open");
    expect(await opened(`${url}?ticket=${first}`)).toBe(401);
    expect(await opened(url, ["alcove", `ticket.${await ticket()}`])).toBe("open alcove");
    expect(await opened(`${socketUrl(server, other)}?ticket=${await ticket()}`)).toBe(401);
    expect(await opened(`${url}?ticket=guessed`)).toBe(401);
    expect(await opened(url)).toBe(401);
    const plain = await new TestClient(server.url).call(
      "GET",
      `${api}/sandboxes/${sandbox}?ticket=${await ticket()}`,
    );
    expect(plain.status).toBe(401);
  });

  test("a ticket of a key that was revoked meanwhile opens nothing", async () => {
    const { key } = await make({ name: "gone" });
    const sandbox = await withKey(key).spawn();
    const { json } = await withKey(key).call("POST", `${api}/tickets`, { sandbox_id: sandbox });
    await revoke("gone");
    expect(await opened(`${socketUrl(server, sandbox)}?ticket=${json.ticket}`)).toBe(401);
  });

  test("a handshake that waits for its sandbox does not outlive its key", async () => {
    const { key } = await make({ name: "waiting" });
    const sandbox = await withKey(key).spawn();
    const go = Promise.withResolvers<void>();
    const arrived = Promise.withResolvers<void>();
    const locate = server.sandboxes.locate.bind(server.sandboxes);
    // As after a restart, while the sandbox is being taken in.
    vi.spyOn(server.sandboxes, "locate").mockImplementationOnce(async (...args) => {
      arrived.resolve();
      await go.promise;
      return locate(...args);
    });
    const outcome = opened(socketUrl(server, sandbox), [], { "x-api-key": key });
    await arrived.promise;
    await revoke("waiting");
    go.resolve();
    expect(await outcome).toBe(401);
  });

  test("an owner is known by its name in any encoding of the header", async () => {
    const { key } = await make({ name: "zoe", owner_id: "zoë" });
    for (const encoding of ["utf8", "latin1"] as const) {
      const header = Buffer.from("zoë", encoding).toString("latin1");
      const { status } = await withKey(key).call("GET", `${api}/sandboxes`, undefined, {
        "x-user-id": header,
      });
      expect([encoding, status]).toEqual([encoding, 200]);
    }
    await revoke("zoe");
  });

  test("nobody gets a ticket for another owner's sandbox", async () => {
    const { key } = await make({ name: "ann", owner_id: "ann" });
    const foreign = await withKey("client-key").spawn({ owner_id: "bob" });
    for (const id of [foreign, "sb-000000000000", "nothing"]) {
      const { status, json } = await withKey(key).call("POST", `${api}/tickets`, { sandbox_id: id });
      expect([status, json.message]).toEqual([
        404,
        expect.stringMatching(`^sandbox "${id}" does not exist or was destroyed`),
      ]);
    }
    await revoke("ann");
  });

  test("a browser's page may send a key: its preflight is answered, for every method", async () => {
    for (const method of ["GET", "POST", "PUT", "DELETE"]) {
      const { status, headers } = await new TestClient(server.url).call(
        "OPTIONS",
        `${api}/sandboxes`,
        undefined,
        {
          origin: "https://app.example",
          "access-control-request-method": method,
          "access-control-request-headers": "x-api-key,x-user-id,content-type,idempotency-key",
        },
      );
      expect(status).toBe(204);
      expect(headers.get("access-control-allow-methods")).toContain(method);
      expect(headers.get("access-control-allow-headers")?.toLowerCase()).toContain("x-api-key");
    }
  });
});

test("without auth a key would guard nothing and is not made; tickets do no harm", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const client = new TestClient(server.url);
  const { status, json } = await client.call("POST", `${api}/admin/keys`, { name: "ci" });
  expect([status, json.message]).toEqual([
    409,
    expect.stringMatching(/auth is off: set auth.admin_api_key_file/),
  ]);
  const sandbox = await client.spawn();
  const ticket = (await client.call("POST", `${api}/tickets`, { sandbox_id: sandbox })).json.ticket;
  expect(await opened(`${socketUrl(server, sandbox)}?ticket=${ticket}`)).toBe("open");
});

function socketUrl(server: TestServer, sandbox: string): string {
  return `${server.url.replace("http", "ws")}${api}/sandboxes/${sandbox}/exec/ws`;
}

/** @returns `open` with the subprotocol that was chosen, or the status it was refused with. */
function opened(
  url: string,
  protocols: string[] = [],
  headers: Record<string, string> = {},
): Promise<string | number | undefined> {
  return new Promise((resolve) => {
    const socket = new WebSocket(url, protocols, { headers });
    socket.on("unexpected-response", (_request, response) => resolve(response.statusCode));
    socket.on("open", () => {
      resolve(`open ${socket.protocol}`.trim());
      socket.close();
    });
    socket.on("error", () => undefined);
  });
}
