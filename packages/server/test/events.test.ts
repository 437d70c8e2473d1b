import { expect, test } from "vitest";
import { ScriptedProvider } from "../src/core/testing/scripted-provider.ts";
import { eventually, openRequest } from "./support/http.ts";
import { startTestServer } from "./support/test-server.ts";

test("a reader of events that does not read is cut off, and its connection closed", async () => {
  await using server = await startTestServer({ provider: async () => new ScriptedProvider() });
  const { response, close } = await openRequest(`${server.url}/api/v1/events`, { method: "GET" });
  response.pause();
  const connections = () =>
    new Promise<number>((resolve, reject) =>
      server.app.server.getConnections((error, count) => (error === null ? resolve(count) : reject(error))),
    );
  expect(await connections()).toBe(1);
  const filler = "x".repeat(8_192);
  // More than the buffers of both ends hold, what may wait besides, and some that are missed.
  for (let round = 0; round < 12; round++) {
    for (let count = 0; count < 500; count++)
      server.events.emit({ type: "operation.failed", sandboxId: "sb-1", ownerId: "", data: { filler } });
    await server.events.flush();
  }
  // It may take nothing for ten seconds.
  await eventually(async () => {
    for (let count = 0; count < 5; count++)
      server.events.emit({ type: "operation.failed", sandboxId: "sb-1", ownerId: "", data: { filler } });
    await server.events.flush();
    return (await connections()) === 0 ? true : undefined;
  }, 60_000);
  close();
}, 90_000);
