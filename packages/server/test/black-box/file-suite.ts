import { createHash, randomBytes } from "node:crypto";
import { gzipSync, zstdCompressSync } from "node:zlib";
import { expect, test } from "vitest";
import { readEvents } from "../support/http.ts";
import type { Subject } from "./black-box.ts";

export function fileSuite(on: Subject): void {
  const path = (rest = "") => `/api/v1/sandboxes/${on.sandbox}/files${rest}`;
  const write = (body: Record<string, unknown>) => on.client.call("POST", path(), body);
  const bytes = async (url: string, headers: Record<string, string> = {}) => {
    const response = await fetch(on.client.url + url, { headers });
    return {
      status: response.status,
      headers: response.headers,
      body: Buffer.from(await response.arrayBuffer()),
    };
  };

  test("a raw body may be packed; what is not in its encoding, or in one unknown, is refused", async () => {
    const content = Buffer.from("packed ".repeat(5_000));
    const put = (to: string, body: Uint8Array, encoding: string) =>
      on.client.call("PUT", path(`?path=/tmp/packed/${to}`), body, {
        "content-type": "application/octet-stream",
        "content-encoding": encoding,
      });
    expect((await put("a", gzipSync(content), "gzip")).status).toBe(200);
    expect((await put("b", zstdCompressSync(content), "zstd")).status).toBe(200);
    for (const name of ["a", "b"])
      expect((await bytes(path(`?path=/tmp/packed/${name}`))).body.equals(content)).toBe(true);
    const broken = await put("c", Buffer.from("no gzip"), "gzip");
    expect([broken.status, broken.json.code]).toEqual([400, "bad_request"]);
    const cut = await put("c", gzipSync(content).subarray(0, 40), "gzip");
    expect(cut.status).toBe(400);
    expect((await bytes(path("?path=/tmp/packed/c"))).status).toBe(404);
    const unknown = await put("d", content, "compress");
    expect([unknown.status, unknown.json.code]).toEqual([415, "unsupported_media_type"]);
    const json = await on.client.call("POST", path(), "{}", { "content-encoding": "gzip" });
    expect(json.status).toBe(415);
  });

  test("what is written is read, listed, described, moved and deleted", async () => {
    const written = await write({ path: "/tmp/f/a.txt", content: "hello", mode: "640" });
    expect([written.status, written.json]).toEqual([200, { status: "written" }]);
    const read = await bytes(path("?path=/tmp/f/a.txt"));
    expect([read.status, String(read.body)]).toEqual([200, "hello"]);
    expect(read.headers.get("content-type")).toBe("application/octet-stream");
    expect(read.headers.get("content-length")).toBe("5");
    const stat = await on.client.call("GET", path("/stat?path=/tmp/f/a.txt"));
    expect(stat.json).toMatchObject({
      name: "a.txt",
      path: "/tmp/f/a.txt",
      size: 5,
      is_dir: false,
      mode: "0640",
      mod_time: expect.stringMatching(/^\d{4}-.*Z$/),
    });
    const list = await on.client.call("GET", path("/list?path=/tmp/f"));
    expect(list.json).toEqual([stat.json]);
    const chmod = await on.client.call("POST", path("/chmod"), { path: "/tmp/f/a.txt", mode: "755" });
    expect([chmod.status, chmod.json]).toEqual([200, { status: "chmod applied" }]);
    expect((await on.client.call("GET", path("/stat?path=/tmp/f/a.txt"))).json.mode).toBe("0755");
    const moved = await on.client.call("POST", path("/move"), {
      old_path: "/tmp/f/a.txt",
      new_path: "/tmp/f/sub/b.txt",
    });
    expect([moved.status, moved.json]).toEqual([200, { status: "moved" }]);
    const glob = await on.client.call("GET", path(`/glob?pattern=${encodeURIComponent("/tmp/f/**/*.txt")}`));
    expect(glob.json).toEqual(["/tmp/f/sub/b.txt"]);
    expect((await on.client.call("GET", path("/glob?pattern=/tmp/f/*.nope"))).json).toEqual([]);
    const full = await on.client.call("DELETE", path("?path=/tmp/f"));
    expect([full.status, full.json.code]).toEqual([409, "conflict"]);
    const deleted = await on.client.call("DELETE", path("?path=/tmp/f&recursive=true"));
    expect([deleted.status, deleted.json]).toEqual([200, { status: "deleted" }]);
    const gone = await on.client.call("DELETE", path("?path=/tmp/f&recursive=true"));
    expect([gone.status, gone.json.code]).toEqual([404, "not_found"]);
  });

  test("the directory that commands start in is neither removed, moved nor replaced", async () => {
    await write({ path: "/workspace/kept", content: "" });
    await on.client.exec(on.sandbox, { command: "mkdir -p /tmp/instead" });
    const asked = [
      ["DELETE", "?path=/workspace&recursive=true"],
      ["DELETE", "?path=/tmp/../workspace/"],
      ["POST", "/move", { old_path: "/workspace", new_path: "/tmp/away" }],
      ["POST", "/move", { old_path: "/tmp/instead", new_path: "/workspace/." }],
    ] as const;
    for (const [method, at, body] of asked) {
      const refused = await on.client.call(method, path(at), body);
      expect([at, refused.status, refused.json.code]).toEqual([at, 400, "bad_request"]);
      expect(refused.json.message).toContain("leads to /workspace, where commands start");
    }
    expect((await on.client.call("DELETE", path("?path=/workspace/kept"))).status).toBe(200);
  });

  test("a user that cannot be one is 400, also as bytes that are no UTF-8", async () => {
    for (const user of ["%ff", "a%20b", "%00"])
      for (const at of [`?path=/tmp/x&user=${user}`, `/archive?path=/tmp/x&user=${user}`]) {
        const { status, json } = await on.client.call("PUT", path(at), "");
        expect([at, status, json.message]).toEqual([
          at,
          400,
          expect.stringContaining("is not a name or uid[:gid]"),
        ]);
      }
  });

  test("the default mode is 0644, the default list is of /", async () => {
    await write({ path: "/tmp/plain", content: "" });
    expect((await on.client.call("GET", path("/stat?path=/tmp/plain"))).json).toMatchObject({
      mode: "0644",
      size: 0,
    });
    const root = await on.client.call("GET", path("/list"));
    expect(root.json.map((entry: { path: string }) => entry.path)).toContain("/tmp");
    expect(root.json.find((entry: { path: string }) => entry.path === "/tmp").is_dir).toBe(true);
  });

  test("base64 content and raw bytes survive, whatever they are", async () => {
    const content = Buffer.from(Array.from({ length: 512 }, (_, index) => index % 256));
    await write({ path: "/tmp/bin", content: content.toString("base64"), encoding: "base64" });
    expect((await bytes(path("?path=/tmp/bin"))).body).toEqual(content);
    const put = await on.client.call("PUT", path("?path=/tmp/raw&mode=600"), content, {
      "content-type": "application/json",
    });
    expect([put.status, put.json]).toEqual([200, { status: "written" }]);
    expect((await bytes(path("?path=/tmp/raw"))).body).toEqual(content);
    expect((await on.client.call("GET", path("/stat?path=/tmp/raw"))).json.mode).toBe("0600");
    const empty = await on.client.call("PUT", path("?path=/tmp/empty"));
    expect(empty.status).toBe(200);
    expect((await bytes(path("?path=/tmp/empty"))).body.length).toBe(0);
  });

  test("megabytes go up and down unchanged", async () => {
    const content = randomBytes(8 * 1_048_576);
    const put = await on.client.call("PUT", path("?path=/tmp/big"), content, {
      "content-type": "application/octet-stream",
    });
    expect(put.status).toBe(200);
    const { body } = await bytes(path("?path=/tmp/big"));
    expect(createHash("sha256").update(body).digest("hex")).toBe(
      createHash("sha256").update(content).digest("hex"),
    );
    await on.client.call("DELETE", path("?path=/tmp/big"));
  });

  test.each([
    ["bytes=0-3", 206, "0123", "bytes 0-3/10"],
    ["bytes=8-", 206, "89", "bytes 8-9/10"],
    ["bytes=8-100", 206, "89", "bytes 8-9/10"],
    ["bytes=-3", 206, "789", "bytes 7-9/10"],
    ["bytes=-100", 206, "0123456789", "bytes 0-9/10"],
    ["bytes=0-0,5-6", 200, "0123456789", null],
    ["bytes=5-2", 200, "0123456789", null],
    ["chars=0-1", 200, "0123456789", null],
  ])("Range %s answers %i", async (range, status, text, contentRange) => {
    await write({ path: "/tmp/range", content: "0123456789" });
    const part = await bytes(path("?path=/tmp/range"), { range });
    expect([part.status, String(part.body)]).toEqual([status, text]);
    expect(part.headers.get("content-range")).toBe(contentRange);
    expect(part.headers.get("content-length")).toBe(String(text.length));
  });

  // A backend may start a program for each.
  test("of many operations at once each is done", { timeout: 90_000 }, async () => {
    const at = (index: number) => `?path=/tmp/many/${index % 32}`;
    // Of 48 some wait for ten seconds and are refused where a machine that is busy starts two programs for each.
    const count = on.server.provider.capabilities.has("archives") ? 48 : 24;
    const all = (operation: (index: number) => Promise<{ status: number }>) =>
      Promise.all(Array.from({ length: count }, async (_, index) => (await operation(index)).status));
    const put = (index: number) =>
      on.client.call("PUT", path(at(index)), Buffer.from("some"), {
        "content-type": "application/octet-stream",
      });
    expect(new Set(await all(put))).toEqual(new Set([200]));
    const told = await Promise.all([
      all((index) => bytes(path(at(index)))),
      all((index) => on.client.call("GET", path(`/stat${at(index)}`))),
      all(() => on.client.call("GET", path("/list?path=/tmp/many"))),
    ]);
    expect(new Set(told.flat())).toEqual(new Set([200]));
  });

  test("a Range behind the end is 416 and names the size", async () => {
    await write({ path: "/tmp/range", content: "0123456789" });
    const part = await on.client.call("GET", path("?path=/tmp/range"), undefined, { range: "bytes=10-" });
    expect([part.status, part.json.code]).toEqual([416, "range_not_satisfiable"]);
    expect(part.headers.get("content-range")).toBe("bytes */10");
    const directory = await on.client.call("GET", path("?path=/tmp"), undefined, { range: "bytes=1000000-" });
    expect(directory.status).toBe(400);
  });

  test("a Range of a file whose size says nothing is all of it", async (context) => {
    if (!on.server.provider.capabilities.has("special_files")) context.skip();
    const all = await bytes(path("?path=/proc/version"), { range: "bytes=0-4" });
    expect([all.status, String(all.body.subarray(0, 5))]).toEqual([200, "Linux"]);
    await write({ path: "/tmp/nothing", content: "" });
    expect((await bytes(path("?path=/tmp/nothing"), { range: "bytes=0-4" })).status).toBe(416);
  });

  test("missing paths are 404, directories read as files 400", async () => {
    const packs = on.server.provider.capabilities.has("archives");
    for (const rest of [
      "?path=/tmp/none",
      "/stat?path=/tmp/none",
      "/list?path=/tmp/none",
      ...(packs ? ["/archive?path=/tmp/none"] : []),
    ]) {
      const { status, json } = await on.client.call("GET", path(rest));
      expect([rest, status, json.code, json.what]).toEqual([rest, 404, "not_found", "file"]);
    }
    const directory = await on.client.call("GET", path("?path=/tmp"));
    expect([directory.status, directory.json.code]).toEqual([400, "bad_request"]);
  });

  test.each([
    ["relative", "tmp/x"],
    ["empty", ""],
    ["with NUL", "/tmp/a\0b"],
    ["too long", `/${"x".repeat(4_097)}`],
  ])("a path that is %s is 400 everywhere", async (_name, bad) => {
    const query = encodeURIComponent(bad);
    for (const [method, rest, body] of [
      ["POST", "", { path: bad, content: "x" }],
      ["GET", `?path=${query}`, undefined],
      ["PUT", `?path=${query}`, "raw"],
      ["DELETE", `?path=${query}`, undefined],
      ["GET", `/stat?path=${query}`, undefined],
      ["POST", "/move", { old_path: bad, new_path: "/tmp/x" }],
      ["POST", "/move", { old_path: "/tmp/x", new_path: bad }],
      ["POST", "/chmod", { path: bad, mode: "644" }],
      ["GET", `/glob?pattern=${query}`, undefined],
      ["GET", `/archive?path=${query}`, undefined],
      ["GET", `/watch?path=${query}`, undefined],
    ] as const) {
      const { status, json } = await on.client.call(method, path(rest), body);
      expect([method, rest.split("?")[0], status, json.code]).toEqual([
        method,
        rest.split("?")[0],
        400,
        "bad_request",
      ]);
    }
  });

  test.each(["8", "888", "abc", "-644", "0x1ff", "77777", "6 44"])("mode %s is 400", async (mode) => {
    const chmod = await on.client.call("POST", path("/chmod"), { path: "/tmp/plain", mode });
    expect([chmod.status, chmod.json.code]).toEqual([400, "bad_request"]);
    const written = await write({ path: "/tmp/plain", content: "", mode });
    expect(written.status).toBe(400);
    expect(written.json.message).toContain("mode");
  });

  test("a directory goes out as a tar and comes back elsewhere", async (context) => {
    if (!on.server.provider.capabilities.has("archives")) {
      const refused = await on.client.call("GET", path("/archive?path=/tmp"));
      expect([refused.status, refused.json.code]).toEqual([400, "bad_request"]);
      expect(refused.json.message).toContain('"archives"');
      context.skip();
    }
    await write({ path: "/tmp/tree/x/one", content: "1" });
    await write({ path: "/tmp/tree/two", content: "22" });
    const tar = await bytes(path("/archive?path=/tmp/tree"));
    expect([tar.status, tar.headers.get("content-type")]).toEqual([200, "application/x-tar"]);
    const put = await on.client.call("PUT", path("/archive?path=/tmp/copy"), tar.body, {
      "content-type": "application/x-tar",
    });
    expect([put.status, put.json.status]).toEqual([200, "unpacked"]);
    expect(put.json.entries).toBeGreaterThanOrEqual(2);
    expect(String((await bytes(path("?path=/tmp/copy/x/one"))).body)).toBe("1");
    const garbage = await on.client.call("PUT", path("/archive?path=/tmp/copy"), "not a tar ".repeat(100), {
      "content-type": "application/x-tar",
    });
    expect([garbage.status, garbage.json.code]).toEqual([400, "bad_request"]);
  });

  test("a watch tells changes as server-sent events", async (context) => {
    if (!on.server.provider.capabilities.has("watch")) context.skip();
    await write({ path: "/tmp/watched/first", content: "" });
    const changes = await readEvents(`${on.client.url}${path("/watch?path=/tmp/watched")}`, {
      onOpen: () => write({ path: "/tmp/watched/second", content: "x" }),
      enough: (events) => events.length > 0,
    });
    expect(changes[0]).toMatchObject({ path: expect.stringContaining("/tmp/watched/") });
  });
}
