import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

let server: TestServer;
let client: TestClient;

beforeAll(async () => {
  server = await startTestServer({ provider: mockProvider, env: {} });
  client = new TestClient(server.url);
  await client.spawn();
});
afterAll(() => server[Symbol.asyncDispose]());

// A page takes up to fifteen milliseconds, and any number of connections may ask for one in the same turn of the loop.
test.each([
  ["GET", "/sandboxes?metadata.a=b"],
  ["GET", "/sandboxes/stats"],
  ["DELETE", "/sandboxes"],
  ["GET", "/templates"],
  ["GET", "/quotas"],
  ["GET", "/admin/quotas"],
  ["GET", "/admin/keys"],
  ["GET", "/admin/audit"],
])("%s %s waits for its caller's turn before it looks through what there is", async (method, path) => {
  const asked = Promise.withResolvers<void>();
  const turn = Promise.withResolvers<void>();
  const next = vi.spyOn(server.app.turns, "next").mockImplementation(() => {
    asked.resolve();
    return turn.promise;
  });
  try {
    let status: number | undefined;
    const answered = client.call(method, `/api/v1${path}`).then((answer) => {
      status = answer.status;
    });
    await Promise.race([asked.promise, answered]);
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(status).toBeUndefined();
    turn.resolve();
    await answered;
    expect(status).toBe(200);
  } finally {
    next.mockRestore();
  }
});
