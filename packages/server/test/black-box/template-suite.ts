import { expect, test } from "vitest";
import type { Subject } from "./black-box.ts";

let made = 0;
const newName = () => `template-${++made}`;

/** docs/api/templates.md. */
export function templateSuite(on: Subject): void {
  const call = (...of: Parameters<Subject["client"]["call"]>) => on.client.call(...of);
  const at = "/api/v1/templates";
  const destroy = (id: string) => call("DELETE", `/api/v1/sandboxes/${id}`);
  const image = async () => (await call("GET", `/api/v1/sandboxes/${on.sandbox}`)).json.image as string;

  test("create, look, list, replace, delete", async () => {
    const name = newName();
    const fields = { description: "for tests", image: "host", memory_mb: 64, ttl: "90s", env: { A: "1" } };
    const created = await call("POST", at, { name, ...fields, provider: "", user: "", vcpus: 0 });
    expect([created.status, created.json]).toEqual([
      201,
      { name, ...fields, ttl: "1m30s", created_at: expect.any(String), updated_at: expect.any(String) },
    ]);
    expect(created.headers.get("location")).toBe(`${at}/${name}`);
    expect((await call("GET", `${at}/${name}`)).json).toEqual(created.json);
    expect((await call("GET", at)).json).toContainEqual(created.json);
    const again = await call("POST", at, { name, image: "host" });
    expect([again.status, again.json.code]).toEqual([409, "conflict"]);
    expect((await call("GET", `${at}/${name}`)).json).toEqual(created.json);
    const replaced = await call("PUT", `${at}/${name}`, { ...created.json, description: "", ttl: "2m" });
    expect([replaced.status, replaced.json]).toEqual([
      200,
      {
        name,
        image: "host",
        memory_mb: 64,
        env: { A: "1" },
        ttl: "2m0s",
        created_at: created.json.created_at,
        updated_at: expect.any(String),
      },
    ]);
    expect((await call("DELETE", `${at}/${name}`)).json).toEqual({ status: "deleted" });
    for (const method of ["GET", "DELETE"])
      expect([method, (await call(method, `${at}/${name}`)).status]).toEqual([method, 404]);
    expect((await call("PUT", `${at}/${name}`, { image: "host" })).status).toBe(404);
    const none = await call("POST", `${at}/${name}/spawn`);
    expect([none.status, none.json.what]).toEqual([404, "template"]);
  });

  test("pages of templates miss none and repeat none", async () => {
    const names = [newName(), newName(), newName()];
    for (const name of names) await call("POST", at, { name, image: "host" });
    const seen: string[] = [];
    for (let cursor: string | null = ""; cursor !== null; ) {
      const page = await call("GET", `${at}?limit=2&cursor=${cursor}`);
      seen.push(...page.json.map(({ name }: { name: string }) => name));
      cursor = page.headers.get("x-next-cursor");
    }
    expect(seen).toEqual([...new Set(seen)].sort());
    expect(seen).toEqual(expect.arrayContaining(names));
    for (const name of names) await call("DELETE", `${at}/${name}`);
  });

  test("a spawn takes what the template says, in both ways, and its own fields override it", async () => {
    const name = newName();
    const metadata = { team: "red", kept: "yes" };
    await call("POST", at, {
      name,
      image: await image(),
      memory_mb: 64,
      ttl: "5m",
      metadata,
      env: { FROM: "template", BOTH: "template" },
    });
    const plain = await call("POST", `${at}/${name}/spawn`, undefined, { "x-user-id": "tess" });
    expect([plain.status, plain.json]).toMatchObject([
      201,
      { memory_mb: 64, owner_id: "tess", metadata: { ...metadata, template: name } },
    ]);
    expect(Date.parse(plain.json.expires_at) - Date.parse(plain.json.created_at)).toBe(300_000);
    const own = {
      memory_mb: 128,
      ttl: "1m",
      metadata: { team: "blue", template: "mine" },
      env: { BOTH: "body" },
    };
    for (const [path, body] of [
      [`${at}/${name}/spawn`, own],
      ["/api/v1/sandboxes", { template: name, ...own }],
    ] as const) {
      const { status, json } = await call("POST", path, body);
      expect([status, json]).toMatchObject([
        201,
        { memory_mb: 128, metadata: { team: "blue", kept: "yes", template: name } },
      ]);
      expect(Date.parse(json.expires_at) - Date.parse(json.created_at)).toBe(60_000);
      const printed = await on.client.exec(json.id, { command: "echo $FROM $BOTH" });
      expect(printed.json.stdout).toBe("template body\n");
      await destroy(json.id);
    }
    await destroy(plain.json.id);
    await call("DELETE", `${at}/${name}`);
  });

  test("admission takes a template as the spawn does", async () => {
    const name = newName();
    await call("POST", at, { name, image: "host", ttl: "48h" });
    const decision = await call("POST", "/api/v1/sandboxes/admission", { template: name });
    expect(decision.json).toMatchObject({ allowed: false, reason: "max_ttl" });
    expect((await call("POST", `${at}/${name}/spawn`)).status).toBe(429);
    await call("DELETE", `${at}/${name}`);
  });

  test("an idempotency key leads to the same sandbox, also when the template has changed since", async () => {
    const name = newName();
    const key = { "idempotency-key": `from-${name}` };
    await call("POST", at, { name, image: await image() });
    const first = await call("POST", `${at}/${name}/spawn`, {}, key);
    await call("DELETE", `${at}/${name}`);
    const second = await call("POST", `${at}/${name}/spawn`, {}, key);
    expect([second.status, second.json.id]).toEqual([201, first.json.id]);
    expect(second.headers.get("idempotent-replayed")).toBe("true");
    await destroy(first.json.id);
  });

  test.each([
    [{ image: "host" }],
    [{ name: "x" }],
    [{ name: "x", image: "" }],
    [{ name: "", image: "host" }],
    [{ name: "a b", image: "host" }],
    [{ name: "a/b", image: "host" }],
    [{ name: ".hidden", image: "host" }],
    [{ name: "x".repeat(129), image: "host" }],
    [{ name: "x", image: "No Image" }],
    [{ name: "x", image: "host", memory_mb: 1 }],
    [{ name: "x", image: "host", vcpus: -1 }],
    [{ name: "x", image: "host", ttl: "soon" }],
    [{ name: "x", image: "host", ttl: "0s" }],
    [{ name: "x", image: "host", env: { "A=B": "1" } }],
    [{ name: "x", image: "host", metadata: { a: 1 } }],
    [{ name: "x", image: "host", workdir: "relative" }],
    [{ name: "x", image: "host", memroy_mb: 64 }],
  ])("%j is 400 and makes nothing", async (body) => {
    const { status, json } = await call("POST", at, body);
    expect([status, json.code]).toEqual([400, "bad_request"]);
    expect((await call("GET", `${at}/x`)).status).toBe(404);
  });
}
