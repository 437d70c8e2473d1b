import { createHash } from "node:crypto";
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

test("one owner's events alone, for a key of everybody's; a key of one owner may not ask for another's", async () => {
  const hash = createHash("sha256").update("key-of-ann").digest("hex");
  const env = {
    ALCOVE_AUTH_API_KEY: "gateway-key",
    ALCOVE_AUTH_KEYS: JSON.stringify([{ name: "ann", hash, owner: "ann" }]),
  };
  await using server = await startTestServer({ provider: async () => new ScriptedProvider(), env });
  for (const ownerId of ["ann", "bob", "ann"])
    server.events.emit({ type: "file.read", sandboxId: `sb-${ownerId}`, ownerId });
  await server.events.flush();
  const ask = (owner: string, key: string) =>
    fetch(`${server.url}/api/v1/events?type=file.read&owner_id=${owner}`, {
      headers: { "x-api-key": key, "last-event-id": "0" },
      signal: AbortSignal.timeout(20_000),
    });
  for (const [owner, key, number] of [
    ["ann", "gateway-key", 2],
    ["bob", "gateway-key", 1],
    ["", "gateway-key", 3],
    ["ann", "key-of-ann", 2],
  ] as const) {
    const answer = await ask(owner, key);
    server.events.emit({ type: "file.read", sandboxId: "the end", ownerId: owner });
    await server.events.flush();
    let text = "";
    for await (const piece of answer.body ?? []) {
      text += Buffer.from(piece).toString();
      if (text.includes("the end")) break;
    }
    const seen = [...text.matchAll(/"sandbox_id":"sb-(\w+)"/g)].map(([, whose]) => whose);
    expect(seen).toHaveLength(number);
    if (owner !== "") expect(new Set(seen)).toEqual(new Set([owner]));
  }
  expect((await ask("bob", "key-of-ann")).status).toBe(403);
});

test("one key has a bounded number of readers, whatever owners it names; the largest gives way to another of its owners", async () => {
  const hash = createHash("sha256").update("key-of-ann").digest("hex");
  const env = {
    ALCOVE_AUTH_API_KEY: "gateway-key",
    ALCOVE_AUTH_KEYS: JSON.stringify([{ name: "ann", hash, owner: "ann" }]),
  };
  await using server = await startTestServer({ provider: async () => new ScriptedProvider(), env });
  const enough = new AbortController();
  const open = async (key: string, owner?: string) => {
    const headers = { "x-api-key": key, ...(owner === undefined ? {} : { "x-user-id": owner }) };
    const answer = await fetch(`${server.url}/api/v1/events`, { headers, signal: enough.signal });
    const ended = (async () => {
      for await (const _ of answer.body ?? []);
    })().catch(() => undefined);
    return { status: answer.status, ended };
  };
  const owners = { noisy: 300, busy: 200 };
  const noisy: Awaited<ReturnType<typeof open>>[] = [];
  for (const [owner, readers] of Object.entries(owners))
    for (let count = 0; count < readers; count += 20) {
      const opened = await Promise.all(Array.from({ length: 20 }, () => open("gateway-key", owner)));
      expect(opened.map(({ status }) => status)).toEqual(Array(20).fill(200));
      if (owner === "noisy") noisy.push(...opened);
    }
  expect((await open("gateway-key", "noisy")).status).toBe(429);
  expect((await open("key-of-ann")).status).toBe(200);
  expect((await open("gateway-key", "late")).status).toBe(200);
  await Promise.race(noisy.map(({ ended }) => ended));
  expect(server.events.subscribers).toBe(501);
  enough.abort();
}, 90_000);
