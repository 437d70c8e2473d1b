import { expect, test } from "vitest";
import { TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

test.each([
  [200, 2_000_000],
  [100, 6_000_000],
])(
  "%d commands of one owner that write %d bytes each at once are all answered whole",
  async (count, bytes) => {
    await using server = await startTestServer({ provider: mockProvider });
    const client = new TestClient(server.url);
    const spawned = await client.call("POST", "/api/v1/sandboxes", {
      owner_id: "ann",
      metadata: { "mock.output_bytes": String(bytes) },
    });
    const run = async () => {
      const { status, json } = await client.exec(spawned.json.id, { command: "true" });
      return status === 200 && json.stdout.length === bytes ? "whole" : `${status} ${json.code}`;
    };
    const ends = await Promise.all(Array.from({ length: count }, run));
    const counts = new Map<string, number>();
    for (const end of ends) counts.set(end, (counts.get(end) ?? 0) + 1);
    expect(counts).toEqual(new Map([["whole", count]]));
  },
  120_000,
);
