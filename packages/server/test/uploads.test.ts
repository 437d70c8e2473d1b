import http from "node:http";
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

test("an upload to nowhere is answered, not cut", async () => {
  const missing = await client.call(
    "PUT",
    "/api/v1/sandboxes/sb-000000000000/files?path=/tmp/x",
    Buffer.alloc(2_000_000, 1),
    { "content-type": "application/octet-stream" },
  );
  expect([missing.status, missing.json.code]).toEqual([404, "not_found"]);
});
