import { SpawnRequest } from "@alcove/wire";
import { expect, test, vi } from "vitest";
import { eventually } from "../support/http.ts";
import type { Subject } from "./black-box.ts";

const sandboxes = "/api/v1/sandboxes";

export function sandboxSuite(on: Subject): void {
  test("POST /sandboxes answers 201 and what was asked for, GET and the list agree", async () => {
    const spawned = await on.client.call("POST", sandboxes, {
      ttl: "10m",
      memory_mb: 256,
      vcpus: 1,
      metadata: { purpose: "suite", "k\n": "v" },
      owner_id: "acme",
    });
    expect(spawned.status).toBe(201);
    const { json } = spawned;
    expect(json).toMatchObject({
      id: expect.stringMatching(/^sb-[a-z0-9]{12}$/),
      state: "running",
      provider: on.server.provider.name,
      memory_mb: 256,
      vcpus: 1,
      metadata: { purpose: "suite", "k\n": "v" },
      preview_domain: "localhost",
      owner_id: "acme",
      worker_id: "local",
    });
    expect(Date.parse(json.expires_at) - Date.parse(json.created_at)).toBe(600_000);
    expect(spawned.headers.get("server-timing")).toMatch(/dur=/);
    expect(spawned.headers.get("location")).toBe(`${sandboxes}/${json.id}`);
    const got = await on.client.call("GET", `${sandboxes}/${json.id}`);
    expect(got.json).toEqual(json);
    const listed = await on.client.call("GET", `${sandboxes}?owner_id=acme&metadata.purpose=suite`);
    expect(listed.json).toEqual([json]);
    expect((await on.client.call("GET", `${sandboxes}?metadata.purpose=other`)).json).toEqual([]);
    for (const query of ["metadata.purpose=%ff", "metadata.%ff=suite"]) {
      const { status, json } = await on.client.call("GET", `${sandboxes}?${query}`);
      expect([query, status, json.message]).toEqual([query, 400, expect.stringContaining("not UTF-8")]);
    }
    await on.client.call("DELETE", `${sandboxes}/${json.id}`);
  });

  test("an empty body, an empty object and empty fields all mean the defaults", async () => {
    for (const body of [
      undefined,
      {},
      { image: "", provider: "", ttl: "", owner_id: "", user: "", workdir: "", memory_mb: 0, vcpus: 0 },
    ]) {
      const { status, json } = await on.client.call("POST", sandboxes, body);
      expect([status, json.memory_mb, json.vcpus]).toEqual([201, 512, 1]);
      expect(json.owner_id).toBeUndefined();
      await on.client.call("DELETE", `${sandboxes}/${json.id}`);
    }
    const empty = await on.client.call("POST", sandboxes, "", { "content-type": "application/json" });
    expect(empty.status).toBe(201);
    await on.client.call("DELETE", `${sandboxes}/${empty.json.id}`);
  });

  test("every field of a spawn reaches what decides about it", async () => {
    const samples: Record<keyof SpawnRequest, unknown> = {
      name: "another",
      image: "another:1",
      provider: "another",
      memory_mb: 64,
      vcpus: 2,
      ttl: "7m",
      metadata: { another: "label" },
      owner_id: "another",
      env: { ANOTHER: "1" },
      user: "1",
      workdir: "/tmp",
      network: "none",
      template: "another",
    };
    expect(Object.keys(samples).sort()).toEqual(Object.keys(SpawnRequest.properties).sort());
    const key = { "idempotency-key": "walk" };
    using spawns = vi.spyOn(on.server.provider, "spawn");
    /** What became of a spawn: what the provider was told and what the client was, without what no two spawns share. */
    const outcome = async (body: Partial<SpawnRequest>) => {
      spawns.mockClear();
      const { status, json } = await on.client.call("POST", sandboxes, body);
      if (status !== 201) return { status, message: json.message };
      // What one answer shows of it the others do: alone, and in a list.
      const { status: _status, ...again } = (await on.client.call("GET", `${sandboxes}/${json.id}`)).json;
      expect(again).toMatchObject(json);
      const { json: listed } = await on.client.call("GET", sandboxes);
      expect(listed.find(({ id }: { id: string }) => id === json.id)).toMatchObject(json);
      await on.client.call("DELETE", `${sandboxes}/${json.id}`);
      const { id: _id, created_at, expires_at, ...shown } = json;
      const {
        runtimeId: _runtimeId,
        sandboxId: _sandboxId,
        expiresInMs: _ms,
        birth: _birth,
        ...told
      } = spawns.mock.calls[0]?.[0] ?? { expiresInMs: 0, runtimeId: "", sandboxId: "", birth: undefined };
      return { ...shown, lives: Date.parse(expires_at) - Date.parse(created_at), told };
    };
    const plain = await outcome({});
    expect(await outcome({}), "two spawns that ask for the same").toEqual(plain);
    const first = await on.client.call("POST", sandboxes, {}, key);
    expect(first.status).toBe(201);
    for (const [field, value] of Object.entries(samples)) {
      // A field that was dropped on the way would make this a repetition of the first request.
      const answer = await on.client.call("POST", sandboxes, { [field]: value }, key);
      expect([field, answer.headers.get("idempotent-replayed")]).toEqual([field, null]);
      if (answer.status === 201) await on.client.call("DELETE", `${sandboxes}/${answer.json.id}`);
      expect(await outcome({ [field]: value }), `${field} changes nothing`).not.toEqual(plain);
    }
    await on.client.call("DELETE", `${sandboxes}/${first.json.id}`);
  });

  test("image is what was asked for, beside it what runs; a template that there is not is 404", async () => {
    const { json } = await on.client.call("POST", sandboxes, {});
    expect(json.image).toBeTypeOf("string");
    expect(json.image_resolved, "only where it differs").not.toBe(json.image);
    const again = await on.client.call("POST", sandboxes, { image: json.image });
    expect([again.json.image, again.json.image_resolved]).toEqual([json.image, json.image_resolved]);
    for (const { id } of [json, again.json]) await on.client.call("DELETE", `${sandboxes}/${id}`);
    const none = await on.client.call("POST", sandboxes, { template: "nothing" });
    expect([none.status, none.json.message]).toEqual([404, expect.stringContaining("nothing")]);
    expect((await on.client.call("POST", `${sandboxes}/admission`, { template: "nothing" })).status).toBe(
      404,
    );
  });

  test("X-User-ID is trimmed and overrides owner_id; an invalid one is 400", async () => {
    const { json } = await on.client.call(
      "POST",
      sandboxes,
      { owner_id: "other" },
      { "x-user-id": "  jane.doe@example.org " },
    );
    expect(json.owner_id).toBe("jane.doe@example.org");
    await on.client.call("DELETE", `${sandboxes}/${json.id}`);
    for (const owner of ["a b", "a/b", "a\\b", "x".repeat(129)]) {
      const refused = await on.client.call("POST", sandboxes, {}, { "x-user-id": owner });
      expect([refused.status, refused.json.code]).toEqual([400, "bad_request"]);
      const inBody = await on.client.call("POST", sandboxes, { owner_id: owner });
      expect([inBody.status, inBody.json.code]).toEqual([400, "bad_request"]);
    }
  });

  test("DELETE is safe to repeat; a destroyed sandbox is 404 to everything else", async () => {
    const id = await on.client.spawn();
    for (let time = 0; time < 3; time += 1) {
      const { status, json } = await on.client.call("DELETE", `${sandboxes}/${id}`);
      expect([status, json]).toEqual([200, { status: "destroyed" }]);
    }
    for (const [method, path, body] of [
      ["GET", "", undefined],
      ["POST", "/extend", { ttl: "5m" }],
      ["POST", "/exec", { command: "true" }],
      ["GET", "/logs", undefined],
      ["GET", "/files?path=/tmp/x", undefined],
      ["GET", "/execs", undefined],
      ["GET", "/stats", undefined],
    ] as const) {
      const { status, json } = await on.client.call(method, `${sandboxes}/${id}${path}`, body);
      expect([path, status, json.code]).toEqual([path, 404, "not_found"]);
    }
  });

  test("an id never seen is 404 on every route", async () => {
    const document = (await on.client.call("GET", "/api/v1/openapi.json")).json;
    const given: Readonly<Record<string, string>> = {
      command: "true",
      ttl: "5m",
      path: "/tmp/x",
      pattern: "/tmp/*",
      content: "",
      old_path: "/tmp/x",
      new_path: "/tmp/y",
      mode: "644",
      signal: "TERM",
      type: "start",
    };
    const filled = (names: readonly string[]) =>
      Object.fromEntries(names.map((name) => [name, given[name] ?? ""]));
    interface Described {
      parameters?: { in: string; name: string; required?: boolean }[];
      requestBody?: { content: Record<string, { schema: { $ref?: string } }> };
    }
    const routes = Object.entries<Record<string, Described>>(document.paths).flatMap(([path, methods]) =>
      // A plain request of a WebSocket's route is refused as one.
      !path.includes("{id}") || path.endsWith("/ws") || path.includes("/tunnels/")
        ? []
        : Object.entries(methods).map(([method, { parameters = [], requestBody }]) => {
            const asked = parameters.filter((one) => one.in === "query" && one.required === true);
            const query = new URLSearchParams(filled(asked.map(({ name }) => name)));
            const name = requestBody?.content["application/json"]?.schema.$ref?.split("/").at(-1) ?? "";
            const required: string[] = document.components.schemas[name]?.required ?? [];
            const body: object | undefined = name === "" ? undefined : filled(required);
            return {
              method: method.toUpperCase(),
              path: path.replace("{execId}", "ex-00000000").replace("{port}", "3000"),
              query,
              body,
            };
          }),
    );
    expect(routes.length).toBeGreaterThan(20);
    const streamed = { command: "true", stream: true };
    routes.push({
      method: "POST",
      path: `${sandboxes}/{id}/exec`,
      query: new URLSearchParams(),
      body: streamed,
    });
    for (const id of ["sb-000000000000", "nonsense", "sb_x", "%00", "..%2f..", "a".repeat(200)]) {
      for (const { method, path, query, body } of routes) {
        const at = `${path.replace("{id}", id)}${query.size > 0 ? `?${query}` : ""}`;
        const raw = method === "PUT" ? { "content-type": "application/octet-stream" } : {};
        const { status, json } = await on.client.call(method, at, method === "PUT" ? "x" : body, raw);
        expect([id, method, path, status, json?.code]).toEqual([id, method, path, 404, "not_found"]);
      }
    }
  });

  test("extend sets now + ttl; above max_ttl is 429 and changes nothing", async () => {
    const id = await on.client.spawn({ ttl: "5m" });
    const before = Date.now();
    const { status, json } = await on.client.call("POST", `${sandboxes}/${id}/extend`, { ttl: "1h30m" });
    expect(status).toBe(200);
    expect(Date.parse(json.expires_at) - before).toBeGreaterThanOrEqual(5_400_000 - 5);
    const refused = await on.client.call("POST", `${sandboxes}/${id}/extend`, { ttl: "25h" });
    expect([refused.status, refused.json.code]).toEqual([429, "resource_limit"]);
    expect((await on.client.call("GET", `${sandboxes}/${id}`)).json.expires_at).toBe(json.expires_at);
    await on.client.call("DELETE", `${sandboxes}/${id}`);
    const spawn = await on.client.call("POST", sandboxes, { ttl: "25h" });
    expect([spawn.status, spawn.json.code]).toEqual([429, "resource_limit"]);
  });

  test("admission answers exactly its eight keys and creates nothing", async () => {
    const before = (await on.client.call("GET", sandboxes)).json.length;
    const { status, json } = await on.client.call("POST", `${sandboxes}/admission`, { ttl: "5m" });
    expect(status).toBe(200);
    expect(Object.keys(json).sort()).toEqual([
      "active_owner_sandboxes",
      "active_sandboxes",
      "allowed",
      "max_owner_sandboxes",
      "max_sandboxes",
      "max_ttl",
      "queueable",
      "reason",
    ]);
    expect(json).toMatchObject({ allowed: true, queueable: false, reason: "", max_ttl: "24h0m0s" });
    const denied = await on.client.call("POST", `${sandboxes}/admission`, { ttl: "25h" });
    expect(denied.json).toMatchObject({ allowed: false, queueable: false, reason: "max_ttl" });
    expect((await on.client.call("GET", sandboxes)).json.length).toBe(before);
  });

  test("an Idempotency-Key gives the same sandbox for the same body, 409 for another", async () => {
    const headers = { "idempotency-key": `key-${Math.random()}` };
    const first = await on.client.call("POST", sandboxes, { metadata: { a: "1", b: "2" } }, headers);
    const again = await on.client.call("POST", sandboxes, { metadata: { b: "2", a: "1" } }, headers);
    expect([again.status, again.json.id]).toEqual([201, first.json.id]);
    expect(again.headers.get("idempotent-replayed")).toBe("true");
    expect(first.headers.get("idempotent-replayed")).toBeNull();
    const other = await on.client.call("POST", sandboxes, { metadata: { a: "2" } }, headers);
    expect([other.status, other.json.code]).toEqual([409, "conflict"]);
    await on.client.call("DELETE", `${sandboxes}/${first.json.id}`);
  });

  test("the list pages with a cursor, newest first", async () => {
    const ids: string[] = [];
    for (let made = 0; made < 3; made++) {
      ids.push(await on.client.spawn());
      // Those of one millisecond are in no order.
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    const seen: string[] = [];
    let cursor: string | null = "";
    do {
      const page = await on.client.call("GET", `${sandboxes}?limit=1&cursor=${encodeURIComponent(cursor)}`);
      expect(page.json.length).toBeLessThanOrEqual(1);
      seen.push(...page.json.map((sandbox: { id: string }) => sandbox.id));
      cursor = page.headers.get("x-next-cursor");
    } while (cursor !== null);
    expect(seen.slice(0, 3)).toEqual(ids.reverse());
    expect(new Set(seen).size).toBe(seen.length);
    for (const id of ids) await on.client.call("DELETE", `${sandboxes}/${id}`);
  });

  test("logs is an array of lines, stats an object, prune a count", async () => {
    const logs = await on.client.call("GET", `${sandboxes}/${on.sandbox}/logs?lines=5`);
    expect(logs.status).toBe(200);
    expect(Array.isArray(logs.json)).toBe(true);
    const stats = await on.client.call("GET", `${sandboxes}/${on.sandbox}/stats`);
    expect([stats.status, typeof stats.json]).toEqual([200, "object"]);
    expect(stats.json.commands).toBe(0);
    const start = `${sandboxes}/${on.sandbox}/execs`;
    const { exec_id } = (await on.client.call("POST", start, { command: "sleep 60" })).json;
    expect((await on.client.call("GET", `${sandboxes}/${on.sandbox}/stats`)).json.commands).toBe(1);
    await on.client.call("DELETE", `${start}/${exec_id}`);
    const commandsLeft = async () =>
      (await on.client.call("GET", `${sandboxes}/${on.sandbox}/stats`)).json.commands === 0 || undefined;
    await eventually(commandsLeft);
    const pruned = await on.client.call("DELETE", sandboxes);
    expect(pruned.json).toEqual({ pruned: expect.any(Number) });
  });

  test("stats of all are the list with what each uses, page by page", async () => {
    const id = await on.client.spawn();
    const one = await on.client.call("GET", `${sandboxes}/stats?limit=1`);
    expect(one.json).toEqual([
      { sandbox: expect.objectContaining({ id }), stats: expect.objectContaining({ commands: 0 }) },
    ]);
    const cursor = one.headers.get("x-next-cursor");
    const rest = await on.client.call("GET", `${sandboxes}/stats?state=running&cursor=${cursor}`);
    const ids = rest.json.map(({ sandbox }: { sandbox: { id: string } }) => sandbox.id);
    expect(ids).toContain(on.sandbox);
    expect(ids).not.toContain(id);
    await on.client.call("DELETE", `${sandboxes}/${id}`);
    for (const query of ["limit=101", "limit=0", "state=nope", "cursor=nope"])
      expect((await on.client.call("GET", `${sandboxes}/stats?${query}`)).status, query).toBe(400);
  });

  test("a provider or an image that does not exist is refused and leaves nothing", async () => {
    const before = (await on.client.call("GET", sandboxes)).json.length;
    const provider = await on.client.call("POST", sandboxes, { provider: "nope" });
    expect([provider.status, provider.json.code, provider.json.what]).toEqual([404, "not_found", "provider"]);
    expect((await on.client.call("GET", sandboxes)).json.length).toBe(before);
  });
}
