import net from "node:net";
import fc from "fast-check";
import { expect, test } from "vitest";
import type { Subject } from "./black-box.ts";

/** Values that are wrong for nearly every field. */
const strange: unknown[] = [null, true, 0, -1, 1.5, "", "x", [], {}, [[]], { a: 1 }, "\u0000", "💥", 1e308];

export function malformedSuite(on: Subject): void {
  const routes = () => {
    const sandbox = `/api/v1/sandboxes/${on.sandbox}`;
    return [
      { method: "POST", path: "/api/v1/sandboxes", body: { image: "", metadata: {} } },
      { method: "POST", path: "/api/v1/sandboxes/admission", body: { ttl: "1m" } },
      { method: "POST", path: `${sandbox}/extend`, body: { ttl: "5m" } },
      { method: "POST", path: `${sandbox}/exec`, body: { command: "true" } },
      { method: "POST", path: `${sandbox}/execs`, body: { command: "true" } },
      { method: "POST", path: `${sandbox}/execs/ex-00000000/stdin`, body: { data: "x" } },
      { method: "POST", path: `${sandbox}/execs/ex-00000000/signal`, body: { signal: "TERM" } },
      { method: "POST", path: `${sandbox}/files`, body: { path: "/tmp/m", content: "x" } },
      { method: "POST", path: `${sandbox}/files/move`, body: { old_path: "/none", new_path: "/tmp/n" } },
      { method: "POST", path: `${sandbox}/files/chmod`, body: { path: "/none", mode: "644" } },
    ];
  };
  const count = async () => (await on.client.call("GET", "/api/v1/sandboxes")).json.length;

  test("bodies that are no JSON object are 400 on every route and create nothing", async () => {
    const before = await count();
    for (const { method, path } of routes()) {
      for (const body of [
        "{",
        "null",
        "[]",
        '"text"',
        "5",
        "true",
        "{}x",
        '{"a":',
        "\u0000",
        '{"__proto__":{}}',
      ]) {
        const { status, json } = await on.client.call(method, path, body);
        expect([path, body, status, json?.code]).toEqual([path, body, 400, "bad_request"]);
      }
    }
    expect(await count()).toBe(before);
  });

  test.each([
    ["lists within lists", () => `{"metadata":${"[".repeat(4_000_000)}${"]".repeat(4_000_000)}}`],
    ["objects within objects", () => `{"metadata":${'{"a":'.repeat(1_000_000)}1${"}".repeat(1_000_000)}}`],
    ["labels without end", () => `{"metadata":{${'"":"",'.repeat(1_000_000)}"a":"b"}}`],
    ["unknown fields without end", () => `{${'"":1,'.repeat(1_000_000)}"a":1}`],
    ["hidden prototypes", () => `${'{"__pr\\u006fto__":'.repeat(300_000)}1${"}".repeat(300_000)}`],
  ])("a body of %s is refused before it is parsed", async (_name, body) => {
    const { status, json } = await on.client.call("POST", `/api/v1/sandboxes/${on.sandbox}/exec`, body());
    expect([status, json.code]).toEqual([400, "bad_request"]);
    expect(json.message).toContain("the body is more than any request needs: it ");
  });

  test("a text that is none is refused by its field on every route, and creates nothing", async () => {
    const before = await count();
    const templates = ["POST /api/v1/templates", "PUT /api/v1/templates/no-text"].map((route) => {
      const [method = "", path = ""] = route.split(" ");
      return { method, path, body: { name: "no-text", image: "host" } };
    });
    for (const { method, path, body } of [...routes(), ...templates])
      for (const [fields, named, wrong] of [
        [{ env: { A: "\ud800" } }, "env.A", "half of a surrogate pair"],
        [{ "a\udfff": 1 }, "a\ufffd", "half of a surrogate pair"],
        [{ env: { A: "\ufffd" } }, "env.A", "bytes that are no UTF-8"],
      ] as const) {
        const text = Buffer.from(JSON.stringify({ ...body, ...fields }));
        const sent = wrong.startsWith("bytes")
          ? Buffer.from(text.toString("latin1").replace("\u00ef\u00bf\u00bd", "\u00ff"), "latin1")
          : text;
        const { status, json } = await on.client.call(method, path, sent);
        expect([path, status, json.code]).toEqual([path, 400, "bad_request"]);
        expect(json.message).toMatch(new RegExp(`^${named} in the body holds ${wrong}`));
      }
    expect(await count()).toBe(before);
  });

  test("unknown fields are refused by name on every route", async () => {
    const before = await count();
    for (const { method, path, body } of routes()) {
      const { status, json } = await on.client.call(method, path, { ...body, surprise: 1 });
      expect([path, status]).toEqual([path, 400]);
      expect(json.message).toContain("surprise");
    }
    expect(await count()).toBe(before);
  });

  test.each([
    ["memory_mb", "512"],
    ["memory_mb", 1.5],
    ["memory_mb", -1],
    ["memory_mb", 1e12],
    ["memory_mb", 1],
    ["vcpus", "1"],
    ["vcpus", -1],
    ["ttl", 30],
    ["ttl", "30"],
    ["ttl", "-5m"],
    ["ttl", "0s"],
    ["ttl", "1e3s"],
    ["ttl", " 5m"],
    ["ttl", "5M"],
    ["metadata", []],
    ["metadata", { a: 1 }],
    ["metadata", { "a\nb": 1 }],
    ["env", { A: null }],
    ["env", { "A=B": "x" }],
    ["env", { "": "x" }],
    ["env", { A: "x\u0000" }],
    ["owner_id", 7],
    ["image", 7],
    ["image", "-rf"],
    ["workdir", "relative"],
    ["network", "everything"],
  ])("a spawn with %s = %j is 400, names the field and creates nothing", async (field, value) => {
    const before = await count();
    const { status, json } = await on.client.call("POST", "/api/v1/sandboxes", { [field]: value });
    expect([status, json.code]).toEqual([400, "bad_request"]);
    expect(json.message).toContain(field);
    expect(await count()).toBe(before);
  });

  test("what memory a sandbox may have is told alike, in a spawn, a preflight and a template, whatever is wrong", async () => {
    for (const path of ["sandboxes", "sandboxes/admission", "templates"])
      for (const memory_mb of [-1, 1, 1e12]) {
        const body = { ...(path === "templates" ? { name: "memory" } : {}), image: "host", memory_mb };
        const { status, json } = await on.client.call("POST", `/api/v1/${path}`, body);
        expect([path, status, json.message]).toEqual([
          path,
          400,
          `memory_mb must be a whole number from 16 to 1048576, not ${memory_mb}`,
        ]);
      }
  });

  test.each(["constructor", "__proto__", "toString"])(
    "an image called %s is a name like any other, in a spawn and in a template",
    async (image) => {
      const before = await count();
      const spawned = await on.client.call("POST", "/api/v1/sandboxes", { image });
      // The simulation has every image there is.
      expect([201, 400, 404]).toContain(spawned.status);
      if (spawned.status === 201) await on.client.call("DELETE", `/api/v1/sandboxes/${spawned.json.id}`);
      const template = await on.client.call("POST", "/api/v1/templates", { name: "own-names", image });
      expect([201, 400]).toContain(template.status);
      if (template.status === 201) {
        const made = await on.client.call("POST", `/api/v1/templates/own-names/spawn`, {});
        expect([201, 400, 404]).toContain(made.status);
        if (made.status === 201) await on.client.call("DELETE", `/api/v1/sandboxes/${made.json.id}`);
        await on.client.call("DELETE", `/api/v1/templates/own-names`);
      }
      expect(await count()).toBe(before);
    },
  );

  test.each([
    ["command", ""],
    ["command", null],
    ["command", ["ls"]],
    ["command", "a\u0000b"],
    ["args", "x"],
    ["args", [1]],
    ["args", ["a\u0000"]],
    ["env", { "A=": "x" }],
    ["env", { A: 1 }],
    ["workdir", "relative"],
    ["workdir", "/a\u0000"],
    ["timeout", 5],
    ["timeout", "5"],
    ["stream", "true"],
    ["mode", "bash"],
    ["exec_id", "EX-1"],
    ["exec_id", "ex-short"],
    ["exec_id", "ex-has space"],
  ])("an exec with %s = %j is 400 and names the field", async (field, value) => {
    const { status, json } = await on.client.exec(on.sandbox, { command: "true", [field]: value });
    expect([status, json.code]).toEqual([400, "bad_request"]);
    expect(json.message).toContain(field);
  });

  test.each([
    "/logs?lines=0",
    "/logs?lines=-1",
    "/logs?lines=ten",
    "/logs?lines=1.5",
    "/files/list?path=%00",
    "/files/stat",
    "/files/glob",
    "/files?path=",
    "/files/watch?path=/tmp&recursive=maybe",
    "/execs/ex-00000000/output?from=-1",
    "/execs/ex-00000000/output?follow=7",
  ])("GET …%s is 400", async (rest) => {
    const { status, json } = await on.client.call("GET", `/api/v1/sandboxes/${on.sandbox}${rest}`);
    expect([status, json.code]).toEqual([400, "bad_request"]);
  });

  test.each([
    "limit=0",
    "limit=x",
    "limit=5000",
    "state=nice",
    "cursor=%ff%ff",
    "metadata.a=1&metadata.a=2",
    Array.from({ length: 17 }, (_, n) => `metadata.m${n}=1`).join("&"),
  ])("GET /sandboxes?%s is 400", async (query) => {
    const { status, json } = await on.client.call("GET", `/api/v1/sandboxes?${query}`);
    expect([status, json.code]).toEqual([400, "bad_request"]);
  });

  test("unknown query parameters are ignored, empty ones are not given", async () => {
    const list = await on.client.call("GET", "/api/v1/sandboxes?foo=bar&limit=&state=&owner_id=");
    expect(list.status).toBe(200);
    const logs = await on.client.call("GET", `/api/v1/sandboxes/${on.sandbox}/logs?lines=&x=1`);
    expect(logs.status).toBe(200);
  });

  test("a body of another type is 415, one above what its route takes 413, and the refusal says how much that is", async () => {
    const xml = await on.client.call("POST", "/api/v1/sandboxes", "<a/>", { "content-type": "text/xml" });
    expect([xml.status, xml.json.code]).toEqual([415, "unsupported_media_type"]);
    const large = await on.client.call(
      "POST",
      `/api/v1/sandboxes/${on.sandbox}/files`,
      JSON.stringify({ path: "/tmp/large", content: "x".repeat(33 * 1_048_576) }),
    );
    expect([large.status, large.json.code]).toEqual([413, "too_large"]);
    expect(large.json.message).toMatch(
      / 32 MiB that POST \/api\/v1\/sandboxes\/:id\/files takes; PUT the bytes/,
    );
    const spawn = await on.client.call(
      "POST",
      "/api/v1/sandboxes",
      `{"image":"${"x".repeat(2 * 1_048_576)}"}`,
    );
    expect([spawn.status, spawn.json.code]).toEqual([413, "too_large"]);
    expect(spawn.json.message).toMatch(
      / 2 MiB that POST \/api\/v1\/sandboxes takes; no request here needs more/,
    );
  });

  test.each([
    ["POST", "/api/v1/sandboxes/sb-1/exec/stream", 404, "not_found"],
    ["POST", "/api/v1/health", 405, "method_not_allowed"],
  ])("%s %s is refused as such, however long its body is", async (method, path, status, code) => {
    const body = JSON.stringify({ command: "x".repeat(3 * 1_048_576) });
    const refused = await on.client.call(method, path, body);
    expect([refused.status, refused.json.code]).toEqual([status, code]);
  });

  test.each([
    "/api/v1/sandboxes/%zz",
    "/%",
    "//",
    "/api/v1/%c0%ae%c0%ae/",
    "/api/v1/sandboxes/sb-1/../../health",
  ])("the path %s is refused as JSON", async (path) => {
    const { head, body } = await rawRequest(on.client.url, `GET ${path} HTTP/1.1`);
    expect(head).toMatch(/^HTTP\/1\.1 40[04]/);
    expect(JSON.parse(body)).toMatchObject({ code: expect.any(String), message: expect.any(String) });
  });

  test("what is no HTTP at all is a JSON 400", async () => {
    const { head, body } = await rawRequest(on.client.url, "NONSENSE");
    expect(head).toMatch(/^HTTP\/1\.1 400/);
    expect(JSON.parse(body).code).toBe("bad_request");
  });

  test("no JSON value in any field makes a 500, a stack trace or a sandbox", async () => {
    const before = await count();
    const field = fc.constantFrom(
      ...["image", "provider", "memory_mb", "vcpus", "ttl", "metadata", "owner_id", "env", "user", "workdir"],
      ...[
        "network",
        "command",
        "args",
        "timeout",
        "stream",
        "mode",
        "exec_id",
        "path",
        "content",
        "encoding",
      ],
      ...["old_path", "new_path", "signal", "data", "close", "tty", "cols", "rows", "tag"],
    );
    const value = fc.oneof(fc.constantFrom(...strange), fc.jsonValue({ maxDepth: 2 }));
    await fc.assert(
      fc.asyncProperty(fc.nat(), fc.dictionary(field, value, { minKeys: 1 }), async (pick, body) => {
        const all = routes();
        const route = all[pick % all.length];
        if (route === undefined) return;
        const answer = await on.client.call(route.method, route.path, { ...route.body, ...body });
        expect(answer.text).not.toMatch(/\bat .*\.(ts|js):\d+/);
        expect(answer.status).not.toBe(500);
        if (answer.status === 201 && answer.json.id !== undefined)
          await on.client.call("DELETE", `/api/v1/sandboxes/${answer.json.id}`);
        if (answer.status === 201 && answer.json.exec_id !== undefined)
          await on.client.call("DELETE", `/api/v1/sandboxes/${on.sandbox}/execs/${answer.json.exec_id}`);
        if (answer.status >= 400)
          expect(answer.json).toMatchObject({ code: expect.any(String), message: expect.any(String) });
      }),
      { numRuns: 300 },
    );
    expect(await count()).toBe(before);
  });
}

/** Sends a request that no client library would. */
function rawRequest(url: string, line: string): Promise<{ head: string; body: string }> {
  const { hostname, port } = new URL(url);
  return new Promise((resolve, reject) => {
    const socket = net.connect(Number(port), hostname, () =>
      socket.write(`${line}\r\nHost: ${hostname}\r\nConnection: close\r\n\r\n`),
    );
    let text = "";
    socket.on("data", (chunk) => {
      text += chunk;
    });
    socket.on("error", reject);
    socket.on("close", () => {
      const [head = "", body = ""] = text.split("\r\n\r\n");
      resolve({ head, body });
    });
  });
}
