import { request } from "node:http";
import { setTimeout as delay } from "node:timers/promises";
import { expect, test } from "vitest";
import { sharedEngine } from "./support/docker-engine.ts";
import { openDocker } from "./support/docker-provider.ts";
import { eventually, lines, openRequest, said, TestClient } from "./support/http.ts";
import { describeWith } from "./support/requirements.ts";
import { startTestServer } from "./support/test-server.ts";
import { longestTurnMs, TurnWatch } from "./support/turn-watch.ts";

const pausedMs = 75_000;

await describeWith(["docker", "agent", "busybox"], "a container that is paused", () => {
  test("keeps its command and its reader, who is told everything and one end", async () => {
    const engine = await sharedEngine();
    const docker = await openDocker(engine);
    await using stack = new AsyncDisposableStack();
    stack.defer(() => docker.close());
    const server = stack.use(await startTestServer({ provider: async () => docker.provider }));
    const client = new TestClient(server.url);
    const id = await client.spawn({ image: docker.image, ttl: "10m" });
    const path = `/api/v1/sandboxes/${id}`;
    const command = "echo up; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo over";
    const { response } = await openRequest(`${server.url}${path}/exec`, {
      method: "POST",
      body: { command, stream: true },
    });
    let text = "";
    const ended = new Promise((resolve) => response.on("close", resolve));
    response.on("data", (chunk: Buffer) => {
      text += chunk;
    });
    await eventually(() => (text.includes("up") ? true : undefined));
    const { runtimeId } = server.sandboxes.running(id).row;
    const container = await containerOf(engine.socketPath, runtimeId);
    using turns = new TurnWatch();
    const pausedAt = performance.now();
    await ask(engine.socketPath, "POST", `/containers/${container}/pause`);
    try {
      void server.reconciler.reconcile();
      const state = async () => (await client.call("GET", path)).json.state;
      await eventually(async () => ((await state()) === "unhealthy" ? true : undefined), 60_000);
      expect((await client.exec(id, { command: "true" })).status).toBe(503);
      await delay(pausedAt + pausedMs - performance.now());
      await ask(engine.socketPath, "POST", `/containers/${container}/unpause`);
      await eventually(async () => ((await state()) === "running" ? true : undefined), 60_000);
    } finally {
      await ask(engine.socketPath, "POST", `/containers/${container}/unpause`);
    }
    expect((await client.exec(id, { command: "touch /tmp/go" })).status).toBe(200);
    await ended;
    expect(said(text, "stdout")).toBe("up\nover\n");
    expect(lines(text).filter((line) => "exit_code" in line)).toMatchObject([
      { exit_code: 0, reason: "exited" },
    ]);
    expect((await client.call("DELETE", path)).status).toBe(200);
    expect(turns.longestMs).toBeLessThan(longestTurnMs);
  }, 240_000);
});

async function containerOf(socketPath: string, runtimeId: string): Promise<string> {
  const all = JSON.parse(await ask(socketPath, "GET", "/containers/json")) as { Id: string }[];
  const found = all.find((container) => JSON.stringify(container).includes(runtimeId));
  if (found === undefined) throw new Error(`no container of ${runtimeId}`);
  return found.Id;
}

/** @returns what the engine answers, whatever it thinks of it. */
function ask(socketPath: string, method: string, path: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const call = request({ socketPath, method, path }, async (answer) =>
      resolve(Buffer.concat(await answer.toArray()).toString()),
    );
    call.on("error", reject).end();
  });
}
