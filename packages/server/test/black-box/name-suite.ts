import { expect, test } from "vitest";
import type { Subject } from "./black-box.ts";

let made = 0;
const newName = () => `name-${++made}`;

/** Names and acquisition: docs/api/sandboxes.md. */
export function nameSuite(on: Subject): void {
  const call = (...of: Parameters<Subject["client"]["call"]>) => on.client.call(...of);
  const at = "/api/v1/sandboxes";
  const acquire = (body: object, headers?: Record<string, string>) =>
    call("POST", `${at}/acquire`, body, headers);
  const destroy = (id: string) => call("DELETE", `${at}/${id}`);

  test("a name is one living sandbox's of its owner, and free once that is destroyed", async () => {
    const name = newName();
    const first = await call("POST", at, { name, owner_id: "nina" });
    expect([first.status, first.json.name]).toEqual([201, name]);
    expect((await call("GET", `${at}/${first.json.id}`)).json.name).toBe(name);
    const second = await call("POST", at, { name, owner_id: "nina" });
    expect([second.status, second.json.code]).toEqual([409, "conflict"]);
    expect(second.json.message).toContain(first.json.id);
    const others = await call("POST", at, { name }, { "x-user-id": "noel" });
    expect(others.status).toBe(201);
    const listed = async (query: string) =>
      (await call("GET", `${at}?name=${name}${query}`)).json.map(({ id }: { id: string }) => id);
    expect(await listed("")).toEqual([others.json.id, first.json.id]);
    expect(await listed("&owner_id=nina")).toEqual([first.json.id]);
    await destroy(first.json.id);
    const again = await call("POST", at, { name, owner_id: "nina" });
    expect(again.status).toBe(201);
    for (const { json } of [again, others]) await destroy(json.id);
    expect(await listed("")).toEqual([]);
  });

  test("a spawn from a template takes a name; admission looks at its form alone", async () => {
    const name = newName();
    const { image } = (await call("GET", `${at}/${on.sandbox}`)).json;
    await call("POST", "/api/v1/templates", { name, image });
    const spawned = await call("POST", `/api/v1/templates/${name}/spawn`, { name });
    expect([spawned.status, spawned.json.name]).toEqual([201, name]);
    const decision = await call("POST", `${at}/admission`, { name });
    expect(decision.json).toMatchObject({ allowed: true, reason: "" });
    expect((await call("POST", `${at}/admission`, { name: "Upper" })).status).toBe(400);
    await destroy(spawned.json.id);
    expect((await call("POST", "/api/v1/templates", { name: "x", image, sandbox: "x" })).status).toBe(400);
    await call("DELETE", `/api/v1/templates/${name}`);
  });

  test.each(["-a", "a-", "A", "a_b", "a.b", "ä", "a b", "x".repeat(64)])(
    "%j is no name: 400",
    async (name) => {
      for (const path of [at, `${at}/acquire`]) {
        const { status, json } = await call("POST", path, { name });
        expect([status, json.code]).toEqual([400, "bad_request"]);
      }
    },
  );

  test("names of 1 and of 63 characters are names; an empty one is none", async () => {
    for (const name of ["7", "x".repeat(63)]) {
      const { status, json } = await acquire({ name });
      expect([status, json.name]).toEqual([201, name]);
      await destroy(json.id);
    }
    const none = await call("POST", at, { name: "" });
    expect([none.status, none.json.name]).toEqual([201, undefined]);
    await destroy(none.json.id);
  });

  test("acquire makes what is not there and gives what is, as it is", async () => {
    const name = newName();
    const first = await acquire({ name, ttl: "5m", metadata: { a: "1" } });
    expect([first.status, first.json]).toMatchObject([201, { name, state: "running", metadata: { a: "1" } }]);
    expect(first.headers.get("location")).toBe(`${at}/${first.json.id}`);
    const second = await acquire({ name, ttl: "1h", metadata: { a: "2" }, image: "another" });
    expect([second.status, second.json]).toEqual([200, first.json]);
    const foreign = await acquire({ name }, { "x-user-id": "noel" });
    expect(foreign.status).toBe(201);
    await destroy(first.json.id);
    const next = await acquire({ name });
    expect(next.status).toBe(201);
    expect(next.json.id).not.toBe(first.json.id);
    for (const { json } of [next, foreign]) await destroy(json.id);
  });

  test("many who acquire at once get one sandbox, also while it is destroyed", async () => {
    const name = newName();
    const together = async (count: number) => {
      const answers = await Promise.all(Array.from({ length: count }, () => acquire({ name })));
      return {
        created: answers.filter(({ status }) => status === 201).length,
        given: answers.filter(({ status }) => status === 200).length,
        ids: [...new Set(answers.map(({ json }) => json.id))],
      };
    };
    const first = await together(64);
    expect(first).toEqual({ created: 1, given: 63, ids: [expect.stringMatching(/^sb-/)] });
    const [id = ""] = first.ids;
    const [raced, ended] = await Promise.all([together(16), destroy(id)]);
    expect(ended.status).toBe(200);
    // Those who came before the destroy were given the old one.
    expect(raced.created + raced.given).toBe(16);
    expect(raced.created).toBeLessThanOrEqual(1);
    const last = await acquire({ name });
    expect((await call("GET", `${at}/${last.json.id}`)).json.state).toBe("running");
    await destroy(last.json.id);
  });

  test.each([{}, { name: "" }, { name: "a", ttl: "soon" }, { name: "a", nmae: "b" }])(
    "acquire of %j is 400 and makes nothing",
    async (body) => {
      const { status, json } = await acquire(body);
      expect([status, json.code]).toEqual([400, "bad_request"]);
      expect((await call("GET", `${at}?name=a`)).json).toEqual([]);
    },
  );
}
