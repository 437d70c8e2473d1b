import { describe, expect, test, vi } from "vitest";
import { eventually, readEvents, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServerOptions } from "./support/test-server.ts";

const rejected = { ALCOVE_POOL_ENABLED: "true", ALCOVE_POOL_MAX_VMS: "2", ALCOVE_POOL_MAX_USERS_PER_VM: "2" };
const start = (env: Record<string, string> = {}, more: Partial<TestServerOptions> = {}) =>
  startTestServer({ provider: mockProvider, env: { ...rejected, ...env }, ...more });

function user(url: string, name: string): TestClient {
  return new TestClient(url, { "x-user-id": Buffer.from(name).toString("latin1") });
}
const status = async (url: string) => (await new TestClient(url).call("GET", "/api/v1/pool/status")).json;
const spawn = (of: TestClient, body: Record<string, unknown> = {}) =>
  of.call("POST", "/api/v1/sandboxes", body);

describe("pool mode", () => {
  test("off, the status says so and nothing else", async () => {
    await using server = await startTestServer({ provider: mockProvider });
    expect(await status(server.url)).toEqual({ enabled: false });
    expect((await spawn(new TestClient(server.url))).status).toBe(201);
  });

  test("a spawn, an acquisition, a template and a preflight need the header; the body names nobody", async () => {
    await using server = await start();
    const nobody = new TestClient(server.url);
    await nobody.call("POST", "/api/v1/templates", { name: "plain", image: "mock" });
    const asked = [
      ["/api/v1/sandboxes", { owner_id: "ann" }],
      ["/api/v1/sandboxes/acquire", { name: "web", owner_id: "ann" }],
      ["/api/v1/sandboxes/admission", { owner_id: "ann" }],
      ["/api/v1/templates/plain/spawn", {}],
    ] as const;
    for (const [path, body] of asked) {
      const refused = await nobody.call("POST", path, body);
      expect([path, refused.status, refused.json.code]).toEqual([path, 400, "bad_request"]);
      expect(refused.json.message).toMatch(/X-User-ID/);
      const taken = await nobody.call("POST", path, body, { "x-user-id": "bob" });
      expect([path, [200, 201].includes(taken.status)]).toEqual([path, true]);
      if (taken.json.id !== undefined) expect(taken.json.owner_id).toBe("bob");
    }
    expect(await status(server.url)).toEqual({
      enabled: true,
      vms: 1,
      max_vms: 2,
      total_users: 1,
      max_users_per_vm: 2,
    });
  });

  test("slots are counted and freed; overflow reject answers 503, which the preflight says before", async () => {
    await using server = await start();
    const made = new Map<string, string>();
    for (const name of ["ann", "bob", "cyd", "dan"])
      made.set(name, (await spawn(user(server.url, name))).json.id);
    expect(await status(server.url)).toMatchObject({ vms: 2, total_users: 4 });
    const eve = user(server.url, "eve");
    const admission = async (of: TestClient) =>
      (await of.call("POST", "/api/v1/sandboxes/admission", {})).json;
    expect(await admission(eve)).toMatchObject({ allowed: false, queueable: false, reason: "pool_full" });
    const refused = await spawn(eve);
    expect([refused.status, refused.json.code]).toEqual([503, "unavailable"]);
    expect(refused.headers.get("retry-after")).not.toBeNull();
    const ann = user(server.url, "ann");
    expect(await admission(ann)).toMatchObject({ allowed: true, reason: "" });
    const second = (await spawn(ann)).json.id;
    expect(await status(server.url)).toMatchObject({ vms: 2, total_users: 4 });
    await ann.call("DELETE", `/api/v1/sandboxes/${made.get("ann")}`);
    expect((await spawn(eve)).status).toBe(503);
    await ann.call("DELETE", `/api/v1/sandboxes/${second}`);
    expect(await status(server.url)).toMatchObject({ vms: 2, total_users: 3 });
    expect((await spawn(eve)).status).toBe(201);
  });

  test("parallel spawns of many users never exceed what the VMs hold", async () => {
    await using server = await start();
    const answers = await Promise.all(
      Array.from({ length: 40 }, (_, index) => spawn(user(server.url, `user-${index % 20}`))),
    );
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([201, 503]));
    const users = new Set(answers.filter(({ status }) => status === 201).map(({ json }) => json.owner_id));
    expect(users.size).toBe(4);
    expect(await status(server.url)).toMatchObject({ vms: 2, total_users: 4 });
  });

  test("overflow queue lets a new user wait until somebody leaves, and times out with 429", async () => {
    const env = {
      ALCOVE_POOL_MAX_VMS: "1",
      ALCOVE_POOL_OVERFLOW: "queue",
      ALCOVE_DEFAULTS_SPAWN_QUEUE_TIMEOUT: "20s",
    };
    await using server = await start(env);
    const ann = (await spawn(user(server.url, "ann"))).json.id;
    await spawn(user(server.url, "bob"));
    const waiting = spawn(user(server.url, "cyd"));
    await eventually(() => (server.sandboxes.figures.queueDepth === 1 ? true : undefined));
    // Who has a slot is not held up by those who wait for one.
    expect((await spawn(user(server.url, "bob"))).status).toBe(201);
    await user(server.url, "ann").call("DELETE", `/api/v1/sandboxes/${ann}`);
    expect((await waiting).status).toBe(201);

    await using impatient = await start({ ...env, ALCOVE_DEFAULTS_SPAWN_QUEUE_TIMEOUT: "200ms" });
    for (const name of ["ann", "bob"]) await spawn(user(impatient.url, name));
    const late = await spawn(user(impatient.url, "cyd"));
    expect([late.status, late.json.code]).toEqual([429, "resource_limit"]);
    const told = await readEvents(`${impatient.url}/api/v1/events`, {
      headers: { "last-event-id": "0" },
      enough: (events) => events.some(({ type }) => type === "spawn.queue_timeout"),
    });
    expect(told.find(({ type }) => type === "spawn.queued")?.data).toMatchObject({ reason: "pool_full" });
  });

  test("expired users keep their slots until their runtimes have ended, so that no VM stands beside one too many", async () => {
    await using server = await start({ ALCOVE_POOL_MAX_VMS: "1" });
    const { provider } = server;
    const held = Promise.withResolvers<void>();
    const destroy = provider.destroy.bind(provider);
    vi.spyOn(provider, "destroy").mockImplementation(async (...args) => {
      await held.promise;
      return destroy(...args);
    });
    const runtimes = async () =>
      (await provider.inventory({ signal: AbortSignal.timeout(5_000) })).map(({ sandboxId }) => sandboxId);
    const spawnAll = async (names: string[], ttl: string) => {
      const answers = await Promise.all(names.map((name) => spawn(user(server.url, name), { ttl })));
      expect(answers.map(({ status }) => status)).toEqual(names.map(() => 201));
      return answers.map(({ json }) => json.id as string);
    };
    const expired = await spawnAll(["ann", "bob"], "1s");
    expect((await spawn(user(server.url, "cyd"))).status).toBe(503);
    const states = async () => {
      const { json } = await new TestClient(server.url).call("GET", "/api/v1/sandboxes");
      return json.map(({ state }: { state: string }) => state);
    };
    await eventually(async () => (String(await states()) === "expired,expired" ? true : undefined));
    expect(await status(server.url)).toMatchObject({ vms: 1, max_vms: 1, total_users: 2 });
    expect((await spawn(user(server.url, "cyd"))).status).toBe(503);
    expect((await runtimes()).toSorted()).toEqual(expired.toSorted());
    held.resolve();
    await eventually(async () => ((await status(server.url)).vms === 0 ? true : undefined));
    const made = await spawnAll(["cyd", "dan"], "10m");
    expect((await runtimes()).toSorted()).toEqual(made.toSorted());
  });

  test("a user takes a spawn that waits out of the queue, another user does not", async () => {
    await using server = await start({
      ALCOVE_POOL_MAX_VMS: "1",
      ALCOVE_POOL_MAX_USERS_PER_VM: "1",
      ALCOVE_POOL_OVERFLOW: "queue",
    });
    await spawn(user(server.url, "ann"));
    const waiting = spawn(user(server.url, "bob"));
    const [queued] = await readEvents(`${server.url}/api/v1/events?type=spawn.queued`, {
      headers: { "last-event-id": "0" },
      enough: (events) => events.length > 0,
    });
    const path = `/api/v1/sandboxes/${queued?.sandbox_id}`;
    expect((await user(server.url, "ann").call("DELETE", path)).status).toBe(404);
    expect((await user(server.url, "bob").call("DELETE", path)).status).toBe(200);
    expect((await waiting).status).toBe(409);
    expect(server.sandboxes.figures.queueDepth).toBe(0);
  });

  test("paths are those of the workspace, which is its user's alone", async () => {
    await using server = await start();
    const ann = user(server.url, "ann");
    const { id, user: own } = (await spawn(ann)).json;
    const files = `/api/v1/sandboxes/${id}/files`;
    await ann.call("POST", files, { path: "/notes/a", content: "one" });
    const read = async (path: string) =>
      (await ann.call("GET", `${files}?path=${encodeURIComponent(path)}`)).text;
    for (const path of ["/notes/a", "/workspace/notes/a", "/../notes/a", "/workspace/../notes/a"])
      expect([path, await read(path)]).toEqual([path, "one"]);
    expect((await ann.exec(id, { command: "cat notes/a; pwd" })).json.stdout).toBe("one/workspace\n");
    expect((await ann.exec(id, { command: "pwd", workdir: "/notes" })).json.stdout).toBe(
      "/workspace/notes\n",
    );
    const listed = (await ann.call("GET", `${files}/list?path=/`)).json;
    expect(listed.map(({ path }: { path: string }) => path)).toEqual(["/workspace/notes"]);
    expect((await ann.call("GET", `${files}/glob?pattern=/**/a`)).json).toEqual(["/workspace/notes/a"]);
    const top = (await ann.call("GET", `${files}/stat?path=/`)).json;
    expect(top).toMatchObject({ path: "/workspace", mode: "0700" });
    for (const path of ["/", "/workspace", "/notes/../.."])
      expect((await ann.call("DELETE", `${files}?path=${path}&recursive=true`)).status).toBe(400);
    for (const body of [
      { old_path: "/", new_path: "/notes/x" },
      { old_path: "/notes", new_path: "/" },
    ])
      expect((await ann.call("POST", `${files}/move`, body)).status).toBe(400);
    expect((await ann.exec(id, { command: "pwd" })).json.stdout).toBe("/workspace\n");
    expect(own).toBeUndefined();
    for (const body of [{ user: "root" }, { user: "10002" }]) {
      expect((await ann.exec(id, { command: "true", ...body })).status).toBe(400);
      expect((await ann.call("POST", files, { path: "/b", content: "", ...body })).status).toBe(400);
      expect((await spawn(ann, body)).status).toBe(400);
    }
  });

  test("a user's sandboxes are run by one id, each in a workspace of its own; another user's id is another", async () => {
    await using server = await start();
    const [ann, bob] = [user(server.url, "ann"), user(server.url, "bob")];
    const [one, two] = [(await spawn(ann)).json.id, (await spawn(ann)).json.id];
    const other = (await spawn(bob)).json.id;
    const idOf = async (of: TestClient, id: string) => (await of.exec(id, { command: "id -u" })).json.stdout;
    const own = await idOf(ann, one);
    expect(await idOf(ann, two)).toBe(own);
    expect(await idOf(bob, other)).not.toBe(own);
    await ann.exec(one, { command: "echo x >mine" });
    expect((await ann.exec(two, { command: "cat mine" })).json.exit_code).not.toBe(0);
  });

  test("a request that says whose it is reaches that user's sandboxes alone; one that says nothing, all", async () => {
    await using server = await start();
    const [ann, bob] = [user(server.url, "änn"), user(server.url, "bob")];
    const { id } = (await ann.call("POST", "/api/v1/sandboxes", {})).json;
    const path = `/api/v1/sandboxes/${id}`;
    const asked = [
      ["GET", path],
      ["POST", `${path}/exec`, { command: "true" }],
      ["GET", `${path}/files?path=/`],
      ["GET", `${path}/stats`],
      ["POST", `${path}/extend`, { ttl: "1m" }],
      ["DELETE", path],
    ] as const;
    for (const [method, at, body] of asked) {
      const refused = await bob.call(method, at, body);
      expect([at, refused.status]).toEqual([at, 404]);
      expect(refused.json.message).toBe(`sandbox "${id}" does not exist or was destroyed`);
    }
    const other = (await spawn(bob)).json.id;
    const listed = async (of: TestClient) =>
      (await of.call("GET", "/api/v1/sandboxes")).json.map((each: { id: string }) => each.id);
    expect([await listed(bob), await listed(new TestClient(server.url))]).toEqual([[other], [other, id]]);
    expect((await bob.call("GET", `/api/v1/sandboxes?owner_id=${encodeURIComponent("änn")}`)).status).toBe(
      403,
    );
    const told = await readEvents(`${server.url}/api/v1/events?type=sandbox.running`, {
      headers: { "last-event-id": "0", "x-user-id": "bob" },
      enough: (events) => events.length > 0,
    });
    expect(told.map(({ sandbox_id }) => sandbox_id)).toEqual([other]);
    expect((await bob.call("GET", "/api/v1/sandboxes", undefined, { "x-user-id": "a/b" })).status).toBe(400);
    expect((await ann.exec(id, { command: "true" })).status).toBe(200);
    expect((await new TestClient(server.url).call("GET", path)).json.owner_id).toBe("änn");
  });

  test("a part is no larger than a user's share", async () => {
    await using server = await start({ ALCOVE_POOL_MEMORY_MB: "256", ALCOVE_POOL_VCPUS: "2" });
    const ann = user(server.url, "ann");
    expect((await spawn(ann)).json).toMatchObject({ memory_mb: 128, vcpus: 2 });
    expect((await spawn(ann, { memory_mb: 64, vcpus: 1 })).json).toMatchObject({ memory_mb: 64, vcpus: 1 });
    for (const body of [{ memory_mb: 129 }, { vcpus: 3 }]) expect((await spawn(ann, body)).status).toBe(400);
    await expect(start({ ALCOVE_POOL_MEMORY_MB: "16" })).rejects.toThrow(/pool\.memory_mb 16/);
  });
});
