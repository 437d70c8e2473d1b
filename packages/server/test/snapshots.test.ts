import { expect, test } from "vitest";
import type { ImageSnapshot } from "../src/ports/index.ts";
import { TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

test("GET /snapshots is empty where no provider makes any", async () => {
  await using server = await startTestServer({ provider: mockProvider });
  const answer = await new TestClient(server.url).call("GET", "/api/v1/snapshots");
  expect([answer.status, answer.json]).toEqual([200, []]);
});

test("GET /snapshots lists what providers have made, newest first", async () => {
  const made = (image: string, hour: number): ImageSnapshot => ({
    image,
    kernel: "vmlinux-6.1",
    sizeBytes: 4_096,
    createdAt: new Date(Date.UTC(2030, 0, 1, hour)),
  });
  const provider = Object.assign(new TestPorts(), {
    snapshots: () => Promise.resolve([made("old:1", 1), made("new:1", 2)]),
  });
  await using server = await startTestServer({ provider: provider.factory });
  const answer = await new TestClient(server.url).call("GET", "/api/v1/snapshots");
  const shown = { kernel: "vmlinux-6.1", size_bytes: 4_096, provider: "mock" };
  expect(answer.json).toEqual([
    { ...shown, image: "new:1", created_at: "2030-01-01T02:00:00.000Z" },
    { ...shown, image: "old:1", created_at: "2030-01-01T01:00:00.000Z" },
  ]);
});
