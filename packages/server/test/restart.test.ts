import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { eventually, lines, openRequest, said, TestClient } from "./support/http.ts";
import { type NativeHome, nativeHome } from "./support/native.ts";
import { nativeMissing } from "./support/native-factory.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer } from "./support/test-server.ts";

const skip = await nativeMissing();

describe.skipIf(skip !== undefined)(`a restart${skip === undefined ? "" : ` (skipped: ${skip})`}`, () => {
  let home: NativeHome;
  beforeAll(async () => {
    home = await nativeHome();
  });
  afterAll(() => home.remove());
  const start = () =>
    startTestServer({
      provider: async () => home.open(),
      dataDir: home.dataDir,
      env: { ALCOVE_EXEC_DISCONNECT_GRACE: "1s", ALCOVE_SERVER_SHUTDOWN_GRACE: "0s" },
    });

  test("commands go on; detached ones are found, others are given a fresh grace", async () => {
    let sandbox = "";
    let path = "";
    {
      await using first = await start();
      const client = new TestClient(first.url);
      sandbox = await client.spawn({ ttl: "10m" });
      path = `/api/v1/sandboxes/${sandbox}`;
      for (const [id, command] of [
        ["ex-detached00", "echo before; sleep 2; echo after"],
        ["ex-forever000", "sleep 100"],
      ]) {
        const { status } = await client.call("POST", `${path}/execs`, { command, exec_id: id });
        expect(status).toBe(201);
      }
      for (const id of ["ex-attached00", "ex-rescued000"]) {
        await openRequest(`${first.url}${path}/exec`, {
          method: "POST",
          body: { command: "echo up; sleep 3; echo done", exec_id: id, stream: true },
        });
      }
    }
    await using second = await start();
    const client = new TestClient(second.url);
    expect((await client.call("GET", path)).json.state).toBe("running");
    const rescued = client.call("GET", `${path}/execs/ex-rescued000/output?follow=true`);
    const detached = await client.call("GET", `${path}/execs/ex-detached00/output?follow=true`);
    expect(said(detached.text, "stdout")).toBe("before\nafter\n");
    expect(lines((await rescued).text).at(-1)).toMatchObject({ reason: "exited" });
    expect(said((await rescued).text, "stdout")).toBe("up\ndone\n");
    const attached = await eventually(async () => {
      const { json } = await client.call("GET", `${path}/execs/ex-attached00`);
      return json.state === "exited" ? json : undefined;
    });
    expect(attached.reason).toBe("cancelled");
    expect((await client.call("GET", `${path}/execs/ex-forever000`)).json.state).toBe("running");
    await client.call("DELETE", path);
  });
});

describe("a stop", () => {
  test("ends event streams at once, lets short calls finish, ends long ones with a reason", async () => {
    const server = await startTestServer({
      provider: mockProvider,
      env: { ALCOVE_SERVER_SHUTDOWN_GRACE: "4s" },
    });
    const client = new TestClient(server.url);
    const sandbox = await client.spawn();
    const events = await fetch(`${server.url}/api/v1/events`);
    const ended = (async () => {
      for await (const chunk of events.body ?? []) void chunk;
      return performance.now();
    })();
    const short = client.exec(sandbox, { command: "sleep 0.4; echo finished" });
    const long = client.exec(sandbox, { command: "sleep 60" });
    const stream = client.exec(sandbox, { command: "echo up; sleep 60", stream: true }).catch(() => "cut");
    await eventually(() => (server.execs.running === 3 ? true : undefined));
    const stoppedMs = performance.now();
    const closing = server[Symbol.asyncDispose]();
    expect((await ended) - stoppedMs).toBeLessThan(1_000);
    expect((await short).json).toMatchObject({ stdout: "finished\n" });
    const answer = await long;
    expect([answer.status, answer.json.code]).toEqual([503, "unavailable"]);
    expect(answer.json.message).toContain("shutting down");
    const cut = await stream;
    if (typeof cut !== "string") expect(lines(cut.text).map((line) => line.stream)).not.toContain("exit");
    await closing;
    expect(performance.now() - stoppedMs).toBeLessThan(15_000);
  });
});
