import http from "node:http";
import { connect } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { eventually, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

let server: TestServer;
let client: TestClient;
let files: string;

beforeAll(async () => {
  server = await startTestServer({ provider: mockProvider, env: { ALCOVE_FILES_MAX_UPLOAD: "1MiB" } });
  client = new TestClient(server.url);
  files = `/api/v1/sandboxes/${await client.spawn()}/files`;
});
afterAll(() => server[Symbol.asyncDispose]());

const put = (path: string, bytes: number) =>
  client.call("PUT", `${files}${path}`, Buffer.alloc(bytes, 1), {
    "content-type": "application/octet-stream",
  });

test("an upload above files.max_upload is 413 and leaves nothing", async () => {
  const refused = await put("?path=/tmp/large", 1_048_577);
  expect([refused.status, refused.json.code]).toEqual([413, "too_large"]);
  expect((await client.call("GET", `${files}/stat?path=/tmp/large`)).status).toBe(404);
  expect((await put("?path=/tmp/large", 1_048_576)).status).toBe(200);
});

test("an upload that breaks off leaves the old file", async () => {
  await client.call("POST", files, { path: "/tmp/kept", content: "old" });
  const request = http.request(`${server.url}${files}?path=/tmp/kept`, {
    method: "PUT",
    headers: { "content-length": 500_000 },
  });
  request.on("error", () => undefined);
  request.write(Buffer.alloc(100_000, 2));
  await eventually(() => (server.app.callsUnderWay.size > 0 ? true : undefined));
  request.destroy();
  await eventually(() => (server.app.callsUnderWay.size === 0 ? true : undefined));
  expect((await client.call("GET", `${files}?path=/tmp/kept`)).text).toBe("old");
});

test.each([
  ["to nowhere", () => "/api/v1/sandboxes/sb-000000000000/files?path=/tmp/x", "404", "not_found"],
  ["above the limit", () => `${files}?path=/tmp/x`, "413", "too_large"],
])(
  "one who reads no answer before everything is sent gets the refusal of an upload %s",
  async (_, path, status, code) => {
    const { hostname, port } = new URL(server.url);
    const socket = connect({ host: hostname, port: Number(port) });
    socket.on("error", () => undefined);
    // More than the buffers of a connection take.
    const size = 64 * 2 ** 20;
    const send = (bytes: string | Buffer) =>
      new Promise<void>((resolve, reject) => {
        socket.write(bytes, (error) => (error ? reject(error) : resolve()));
      });
    try {
      await send(`PUT ${path()} HTTP/1.1\r\nhost: ${hostname}:${port}\r\ncontent-length: ${size}\r\n\r\n`);
      const piece = Buffer.alloc(2 ** 20);
      for (let sent = 0; sent < size; sent += piece.length) await send(piece);
      let answer = "";
      for await (const chunk of socket) answer += chunk;
      expect(answer).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
      expect(answer).toContain(`"code":"${code}"`);
      expect(answer.toLowerCase()).toContain("connection: close");
    } finally {
      socket.destroy();
    }
  },
);

test("an upload to nowhere is answered, not cut", async () => {
  const missing = await client.call(
    "PUT",
    "/api/v1/sandboxes/sb-000000000000/files?path=/tmp/x",
    Buffer.alloc(2_000_000, 1),
    { "content-type": "application/octet-stream" },
  );
  expect([missing.status, missing.json.code]).toEqual([404, "not_found"]);
});
