import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { setTimeout } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { AlcoveClient } from "./client.ts";

/** What the service takes for requests: their lines, and their bodies where they are whole. */
let seen: { line: string; body: string | undefined }[];
let server: http.Server;
let client: AlcoveClient;
beforeEach(async () => {
  seen = [];
  server = http.createServer(async (request, response) => {
    const line = `${request.method} ${request.url?.replace("/api/v1/sandboxes/sb-a", "")}`;
    const body = await request.toArray().then(
      (chunks) => Buffer.concat(chunks).toString(),
      () => undefined,
    );
    seen.push({ line, body });
    response.writeHead(200, { "x-alcove-source": "program" }).end("{}");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  client = new AlcoveClient({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });
});
afterEach(async () => {
  client[Symbol.dispose]();
  server.close();
  server.closeAllConnections();
  await once(server, "close");
});

const smuggled = "DELETE /api/v1/sandboxes/sb-victim HTTP/1.1\r\nHost: x\r\n\r\n";

describe("a stream whose length is announced", () => {
  test.each([
    ["more, at once", [`0123456789${smuggled}`], "more"],
    ["more, later", ["01234", "56789", smuggled], "more"],
    ["more than nothing", [smuggled], "more", 0],
    ["less", ["01234", "5678"], "less"],
    ["nothing", [], "less"],
  ])("fails the call when it has %s, and nothing is written", async (_, chunks, has, length = 10) => {
    const body = later(chunks);
    await expect(client.files.write("sb-a", "/x", body, { length })).rejects.toMatchObject({
      name: "AlcoveError",
      code: "bad_request",
      message: `the body has ${has} than the ${length} bytes announced for it`,
    });
    if (!body.closed) await new Promise((resolve) => body.once("close", resolve));
    await client.live();
    await setTimeout(50);
    expect(seen.filter(({ body }) => body !== undefined)).toEqual([{ line: "GET /api/v1/live", body: "" }]);
  });

  test.each([[["01234", "56789"]], [["0123456789", ""]], [["0123456789"]]])("is sent: %j", async (chunks) => {
    await client.files.write("sb-a", "/x", later(chunks), { length: 10 });
    expect(seen).toEqual([{ line: "PUT /files?path=%2Fx", body: "0123456789" }]);
  });

  describe("and that has it and does not end", () => {
    let body: Readable;
    beforeEach(() => {
      // Of the client alone: those of node:timers/promises go on.
      vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
      body = new Readable({ read: () => undefined });
    });
    afterEach(() => {
      vi.useRealTimers();
    });

    test.each(["0123456789", ""])("fails the call, and nothing is written: %j", async (content) => {
      body.push(content);
      const { length } = content;
      const failed = client.files.write("sb-a", "/x", body, { length }).catch((error: unknown) => error);
      await setTimeout(50);
      vi.advanceTimersByTime(30_000);
      expect(await Promise.race([failed, setTimeout(1_000, "hangs")])).toMatchObject({
        name: "AlcoveError",
        code: "bad_request",
        message: `the body has the ${length} bytes announced for it and has not ended 30 s later: a stream must end`,
      });
      await client.live();
      await setTimeout(50);
      expect(body.destroyed).toBe(true);
      expect(seen.filter((request) => request.body !== undefined)).toEqual([
        { line: "GET /api/v1/live", body: "" },
      ]);
    });

    test("is sent when it ends before that", async () => {
      body.push("0123456789");
      const written = client.files.write("sb-a", "/x", body, { length: 10 });
      await setTimeout(50);
      vi.advanceTimersByTime(29_000);
      body.push(null);
      await written;
      expect(seen).toEqual([{ line: "PUT /files?path=%2Fx", body: "0123456789" }]);
      expect(vi.getTimerCount()).toBe(0);
    });
  });

  test("of no bytes is sent", async () => {
    await client.files.write("sb-a", "/x", later([]), { length: 0 });
    expect(seen).toEqual([{ line: "PUT /files?path=%2Fx", body: "" }]);
  });

  test.each([Number.NaN, -1, 1.5])("has no length of %d", async (length) => {
    const refused = expect.objectContaining({ name: "AlcoveError", code: "bad_request" });
    const body = later(["0"]);
    await expect(client.files.write("sb-a", "/x", body, { length })).rejects.toEqual(refused);
    expect(seen).toEqual([]);
    expect(body.destroyed).toBe(true);
  });
});

describe("what is sent to a port", () => {
  test.each(["GET", "HEAD", "DELETE", "POST"] as const)("as a stream with %s is its body", async (method) => {
    (await client.requestPort("sb-a", 3000, "/", { method, body: later([smuggled]) })).body.resume();
    await client.live();
    expect(seen).toEqual([
      { line: `${method} /ports/3000/`, body: smuggled },
      { line: "GET /api/v1/live", body: "" },
    ]);
  });

  test("ends where its body ends, whatever headers say", async () => {
    const headers = { "Content-Length": "3", "Transfer-Encoding": "identity" };
    const request = { method: "POST", headers } as const;
    await expect(client.requestPort("sb-a", 3000, "/", request)).rejects.toMatchObject({
      code: "bad_request",
      message: "a body of 3 bytes is announced and none given",
    });
    const surplus = client.requestPort("sb-a", 3000, "/", { ...request, body: later(["abc", smuggled]) });
    await expect(surplus).rejects.toMatchObject({ code: "bad_request" });
    for (const body of ["more than three", later(["a", "bc"])])
      (await client.requestPort("sb-a", 3000, "/", { ...request, body })).body.resume();
    await client.live();
    expect(seen.flatMap(({ body }) => body ?? [])).toEqual(["more than three", "abc", ""]);
  });
});

/** Each chunk some time after the one before, as from a disk. */
function later(chunks: string[]): Readable {
  return Readable.from(
    (async function* () {
      for (const chunk of chunks) {
        await setTimeout(5);
        yield Buffer.from(chunk);
      }
    })(),
  );
}
