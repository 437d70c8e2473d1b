import { expect, test } from "vitest";
import { eventually } from "../support/http.ts";
import type { Subject } from "./black-box.ts";

let owners = 0;
/** Nobody else's. */
const someone = () => `owner-${++owners}`;

/** docs/api/quotas.md, on the paths of the administration too. */
export function quotaSuite(on: Subject): void {
  const call = (...of: Parameters<Subject["client"]["call"]>) => on.client.call(...of);
  const spawnFor = (owner: string, body: Record<string, unknown> = {}) =>
    call("POST", "/api/v1/sandboxes", { owner_id: owner, ...body });

  test.each(["/api/v1/quotas", "/api/v1/admin/quotas"])("%s: save, look, sum up, delete", async (at) => {
    const owner = someone();
    expect((await call("GET", `${at}/${owner}`)).status).toBe(404);
    const before = (await call("GET", `${at}/summary`)).json;
    const saved = await call("PUT", `${at}/${owner}`, { max_sandboxes: 2, max_ttl: "90m" });
    expect([saved.status, saved.json]).toEqual([
      200,
      {
        owner_id: owner,
        max_sandboxes: 2,
        max_ttl: "1h30m0s",
        max_exec_timeout: "0s",
        max_memory_mb: 0,
        max_vcpus: 0,
        created_at: expect.any(String),
        updated_at: expect.any(String),
      },
    ]);
    expect((await call("GET", `${at}/${owner}`)).json).toEqual(saved.json);
    expect((await call("GET", at)).json).toContainEqual(saved.json);
    expect((await call("GET", `${at}/summary`)).json).toEqual({
      total: before.total + 1,
      with_max_sandboxes: before.with_max_sandboxes + 1,
      with_max_ttl: before.with_max_ttl + 1,
      with_max_exec_timeout: before.with_max_exec_timeout,
    });
    const again = await call("PUT", `${at}/${owner}`, saved.json);
    expect([again.status, again.json.created_at]).toEqual([200, saved.json.created_at]);
    expect((await call("DELETE", `${at}/${owner}`)).json).toEqual({ status: "deleted" });
    expect((await call("DELETE", `${at}/${owner}`)).status).toBe(404);
  });

  test("usage tells what an owner has and may have, with a quota and without", async () => {
    const owner = someone();
    const usage = async () => (await call("GET", `/api/v1/quotas/${owner}/usage`)).json;
    const unset = await usage();
    expect(unset).toMatchObject({ owner_id: owner, active_sandboxes: 0, quota_configured: false });
    expect([unset.max_ttl, unset.max_exec_timeout]).toEqual(["24h0m0s", "1h0m0s"]);
    await call("PUT", `/api/v1/quotas/${owner}`, { max_sandboxes: 3, max_exec_timeout: "5s", max_vcpus: 9 });
    const { id } = (await spawnFor(owner, { memory_mb: 64 })).json;
    expect(await usage()).toEqual({
      owner_id: owner,
      active_sandboxes: 1,
      active_memory_mb: 64,
      active_vcpus: 1,
      max_sandboxes: 3,
      max_memory_mb: 0,
      max_vcpus: 9,
      max_ttl: "24h0m0s",
      max_exec_timeout: "5s",
      quota_configured: true,
    });
    await call("DELETE", `/api/v1/sandboxes/${id}`);
    expect((await usage()).active_sandboxes).toBe(0);
  });

  test("a quota bounds spawn, ttl, extension and the time of commands; deleted, it bounds nothing", async () => {
    const owner = someone();
    const at = `/api/v1/quotas/${owner}`;
    await call("PUT", at, { max_sandboxes: 1, max_ttl: "10m", max_exec_timeout: "2s" });
    const refused = await spawnFor(owner, { ttl: "11m" });
    expect([refused.status, refused.json.code, refused.json.reason]).toEqual([
      429,
      "resource_limit",
      "max_ttl",
    ]);
    const made = await spawnFor(owner);
    expect(made.status).toBe(201);
    const { id, created_at, expires_at } = made.json;
    expect(Date.parse(expires_at) - Date.parse(created_at)).toBe(600_000);
    const second = await spawnFor(owner);
    expect([second.status, second.json.reason]).toEqual([429, "max_sandboxes_per_owner"]);
    expect(second.json.message).toContain(`owner "${owner}" may hold 1 sandboxes and has 1`);
    expect((await call("POST", `/api/v1/sandboxes/${id}/extend`, { ttl: "11m" })).status).toBe(429);
    expect((await on.client.exec(id, { command: "true", timeout: "3s" })).status).toBe(429);
    expect((await on.client.exec(id, { command: "sleep 30" })).status).toBe(408);
    expect((await spawnFor("", {})).status).toBe(201);
    await call("DELETE", at);
    const free = await spawnFor(owner, { ttl: "11m" });
    expect(free.status).toBe(201);
    expect((await on.client.exec(id, { command: "true", timeout: "3s" })).status).toBe(200);
    for (const one of [id, free.json.id]) await call("DELETE", `/api/v1/sandboxes/${one}`);
  });

  test("admission says what a spawn would get, by the quota and by memory and processors", async () => {
    const owner = someone();
    await call("PUT", `/api/v1/quotas/${owner}`, { max_memory_mb: 100, max_vcpus: 2, max_ttl: "1h" });
    const meets = async (body: Record<string, unknown>) => {
      const asked = { owner_id: owner, ...body };
      const decision = (await call("POST", "/api/v1/sandboxes/admission", asked)).json;
      const spawned = await call("POST", "/api/v1/sandboxes", asked);
      if (spawned.status === 201) await call("DELETE", `/api/v1/sandboxes/${spawned.json.id}`);
      expect([decision.allowed, decision.reason]).toEqual([
        spawned.status === 201,
        spawned.json.reason ?? "",
      ]);
      return decision.reason;
    };
    expect(await meets({ memory_mb: 100, vcpus: 2 })).toBe("");
    expect(await meets({ memory_mb: 101 })).toBe("max_memory_mb_per_owner");
    expect(await meets({ memory_mb: 50, vcpus: 3 })).toBe("max_vcpus_per_owner");
    expect(await meets({ memory_mb: 50, ttl: "61m" })).toBe("max_ttl");
    await call("DELETE", `/api/v1/quotas/${owner}`);
  });

  test("what asks for more than the limit itself is refused without a word of waiting", async () => {
    const owner = someone();
    await call("PUT", `/api/v1/quotas/${owner}`, { max_memory_mb: 100 });
    const { status, headers, json } = await spawnFor(owner, { memory_mb: 101 });
    expect([status, json.reason, headers.get("retry-after")]).toEqual([429, "max_memory_mb_per_owner", null]);
    expect(json.message).toContain("may hold 100 MB of memory in all, fewer than this sandbox asks for");
    await call("DELETE", `/api/v1/quotas/${owner}`);
  });

  test.each([
    [{ max_sandboxes: -1 }],
    [{ max_sandboxes: 1.5 }],
    [{ max_sandboxes: "2" }],
    [{ max_ttl: "soon" }],
    [{ max_ttl: "-5s" }],
    [{ max_ttl: "500ms" }],
    [{ max_ttl: "1.5s" }],
    [{ max_ttl: "1s1ms" }],
    [{ max_exec_timeout: "0.5m0.0001s" }],
    [{ max_exec_timeout: 30 }],
    [{ max_memory_mb: -1 }],
    [{ max_vcpus: 1e12 }],
    [{ max_sandbox: 1 }],
  ])("%j is 400 and changes nothing", async (body) => {
    const owner = someone();
    const { status, json } = await call("PUT", `/api/v1/quotas/${owner}`, body);
    expect([status, json.code]).toEqual([400, "bad_request"]);
    const none = await call("GET", `/api/v1/quotas/${owner}`);
    expect([none.status, none.json.what]).toEqual([404, "quota"]);
  });

  test.each(["summary", "a%20b", "a%2Fb", "a%5Cb", "%00", "x".repeat(129), "%E2%80%A8"])(
    "owner %s is 400",
    async (owner) => {
      expect((await call("PUT", `/api/v1/quotas/${owner}`, { max_sandboxes: 1 })).status).toBe(400);
    },
  );

  test("a fraction that is whole seconds all the same is refused in those words", async () => {
    const { status, json } = await call("PUT", `/api/v1/quotas/${someone()}`, { max_ttl: "1.5h" });
    expect([status, json.message]).toEqual([
      400,
      "max_ttl takes whole numbers alone, such as 1h30m0s, not 1.5h; 0s inherits the default",
    ]);
  });

  test("0s and nothing inherit", async () => {
    const owner = someone();
    const { status, json } = await call("PUT", `/api/v1/quotas/${owner}`, { max_ttl: "0s" });
    expect([status, json.max_ttl, json.max_sandboxes]).toEqual([200, "0s", 0]);
    await call("DELETE", `/api/v1/quotas/${owner}`);
  });

  test("saving and deleting are told as events", async () => {
    const owner = someone();
    const told: unknown[] = [];
    const stop = new AbortController();
    const listening = (async () => {
      const filter = { types: ["quota.saved", "quota.deleted"] as const, signal: stop.signal };
      for await (const { type, data } of on.server.events.subscribe(filter))
        if (data?.owner_id === owner) told.push(type);
    })();
    await call("PUT", `/api/v1/quotas/${owner}`, {});
    await call("DELETE", `/api/v1/quotas/${owner}`);
    await eventually(() => (told.length === 2 ? true : undefined));
    expect(told).toEqual(["quota.saved", "quota.deleted"]);
    stop.abort();
    await listening;
  });
}
