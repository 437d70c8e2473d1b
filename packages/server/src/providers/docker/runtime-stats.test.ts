import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Unavailable } from "../../ports/index.ts";
import type { AgentClient } from "../agent/index.ts";
import { answeredSoon } from "./answered-soon.ts";
import { Containers } from "./containers.ts";
import { EngineClient } from "./engine-client.ts";
import { runtimeStats } from "./runtime-stats.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-engine-"));
});
afterEach(async () => {
  vi.useRealTimers();
  await rm(folder, { recursive: true, force: true });
});

const forever = { signal: new AbortController().signal };
const inside = { pids: 3, memoryBytes: 4096, diskBytes: 1 << 30, diskLimitBytes: 1 << 40 };
const client = { stats: async () => inside } as unknown as AgentClient;

/** An engine that gives every question this answer; undefined: none. */
async function engineThatAnswers(answer: unknown) {
  const asked = Promise.withResolvers<void>();
  const server = createServer((_request, response) => {
    asked.resolve();
    if (answer !== undefined) response.end(JSON.stringify(answer));
  });
  const path = join(folder, "engine.sock");
  await once(server.listen(path), "listening");
  const engine = new EngineClient({ socket: `unix://${path}` });
  return {
    engine,
    asked: asked.promise,
    async [Symbol.asyncDispose]() {
      engine[Symbol.dispose]();
      server.closeAllConnections();
      await server[Symbol.asyncDispose]();
    },
  };
}

it("runtimeStats() leaves out the disk, which is the engine's, and counts of processes that nobody made", async () => {
  const counted = {
    cpu_stats: { cpu_usage: { total_usage: 7_000_000 } },
    memory_stats: { usage: 8192 },
    pids_stats: { current: 0, limit: 0 },
  };
  await using fake = await engineThatAnswers(counted);
  const stats = await runtimeStats({ engine: fake.engine, container: "c", client }, forever);
  expect(stats).toEqual({ cpuUsageMs: 7, memoryBytes: 8192, pids: 3 });
});

it("runtimeStats() takes the engine's count of processes where it has one", async () => {
  await using fake = await engineThatAnswers({ pids_stats: { current: 9, limit: 512 } });
  const stats = await runtimeStats({ engine: fake.engine, container: "c", client }, forever);
  expect(stats).toMatchObject({ pids: 9, pidsLimit: 512 });
});

it.each(["stats", "logs"])("%s of an engine that stands still are unavailable after 5 s", async (what) => {
  await using fake = await engineThatAnswers(undefined);
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  const asking =
    what === "stats"
      ? runtimeStats({ engine: fake.engine, container: "c", client }, forever)
      : answeredSoon("read a log", forever, (soon) =>
          new Containers({ engine: fake.engine }).logs("c", { ...soon, lines: 1 }),
        );
  const failure = asking.catch((error: unknown) => error);
  await fake.asked;
  vi.advanceTimersByTime(5_000);
  expect(await failure).toBeInstanceOf(Unavailable);
  expect(await failure).toMatchObject({ retryAfterS: 5 });
});

it("answeredSoon() ends with the caller's own reason", async () => {
  const caller = new AbortController();
  const asking = answeredSoon(
    "answer",
    caller,
    ({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
  );
  caller.abort(new Error("the caller left"));
  await expect(asking).rejects.toThrow("the caller left");
});
