import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { finish, startCli } from "../../cli/src/testing/run-cli.ts";
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
      // Nobody comes back to the first; on a busy machine the restart alone may take seconds.
      for (const [id, seconds] of [
        ["ex-attached00", 100],
        ["ex-rescued000", 3],
      ]) {
        await openRequest(`${first.url}${path}/exec`, {
          method: "POST",
          body: { command: `echo up; sleep ${seconds}; echo done`, exec_id: id, stream: true },
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

  test("planned under running commands is short, and every form of exec can be picked up after it", async () => {
    const ids = { buffered: "ex-buffered00", stream: "ex-streamed00", follow: "ex-followed00" };
    const command = "echo before; until [ -e /tmp/go ]; do sleep 0.1; done; echo after";
    let path = "";
    let socketId = "";
    {
      const first = await startTestServer({
        provider: async () => home.open(),
        dataDir: home.dataDir,
        env: { ALCOVE_SERVER_SHUTDOWN_GRACE: "30s" },
      });
      const client = new TestClient(first.url);
      path = `/api/v1/sandboxes/${await client.spawn({ ttl: "10m" })}`;
      const buffered = client.call("POST", `${path}/exec`, { command, exec_id: ids.buffered });
      const much = client.call("POST", `${path}/exec`, {
        command: `head -c 3000000 /dev/zero | tr '\\0' a; touch /tmp/much; ${command}`,
      });
      const streamed = await openRequest(`${first.url}${path}/exec`, {
        method: "POST",
        body: { command, exec_id: ids.stream, stream: true },
      });
      await client.call("POST", `${path}/execs`, { command, exec_id: ids.follow });
      const follow = client.call("GET", `${path}/execs/${ids.follow}/output?follow=true`).catch(() => "cut");
      const socket = await openSocket(`${first.url}${path}/exec/ws`, command);
      await eventually(() => (first.execs.running === 5 ? true : undefined));
      await client.exec(path.split("/").at(-1) ?? "", {
        command: "until [ -e /tmp/much ]; do sleep 0.1; done",
      });
      socketId = socket.execId;
      await eventually(() => (socket.messages.length > 0 ? true : undefined));
      const stoppedMs = performance.now();
      await first[Symbol.asyncDispose]();
      expect(performance.now() - stoppedMs).toBeLessThan(15_000);
      expect(await socket.closed).toBe(1001);
      expect(socket.messages.map(({ type }) => type)).not.toContain("error");
      const answer = await buffered;
      expect([answer.status, answer.json.exec_id]).toEqual([503, ids.buffered]);
      expect([answer.headers.get("x-exec-id"), answer.headers.get("retry-after")]).toEqual([
        ids.buffered,
        "1",
      ]);
      const { status, json } = await much;
      expect([status, json.stdout?.length > 2_900_000, json.next_offset > 2_900_000]).toEqual([
        503,
        true,
        true,
      ]);
      expect(await follow).toBe("cut");
      await eventually(() => (streamed.response.destroyed ? true : undefined));
    }
    await using second = await startTestServer({
      provider: async () => home.open(),
      dataDir: home.dataDir,
    });
    const client = new TestClient(second.url);
    expect((await client.exec(path.split("/").at(-1) ?? "", { command: "touch /tmp/go" })).status).toBe(200);
    const resumed = [...Object.values(ids), socketId].map(async (id) => {
      const { text } = await client.call("GET", `${path}/execs/${id}/output?follow=true`);
      expect(said(text, "stdout")).toBe("before\nafter\n");
      expect(lines(text).at(-1)).toMatchObject({ exit_code: 0, reason: "exited" });
    });
    await Promise.all(resumed);
    await client.call("DELETE", path);
  }, 60_000);

  test("planned under `alcove exec -i` leaves it going, with what it is given meanwhile", async () => {
    const open = () =>
      startTestServer({
        provider: async () => home.open(),
        dataDir: home.dataDir,
        env: { ALCOVE_SERVER_SHUTDOWN_GRACE: "30s" },
      });
    let target = "";
    // The address stays the same while the service behind it changes.
    const front = net.createServer((client) => {
      const server = net.connect(Number(new URL(target).port), "127.0.0.1");
      client.pipe(server).pipe(client);
      client.on("error", () => server.destroy());
      server.on("error", () => client.destroy());
      server.on("close", () => client.destroy());
      client.on("close", () => server.destroy());
    });
    front.listen(0, "127.0.0.1");
    await once(front, "listening");
    const url = `http://127.0.0.1:${(front.address() as net.AddressInfo).port}`;
    const first = await open();
    target = first.url;
    const sandbox = await new TestClient(first.url).spawn({ ttl: "10m" });
    const command = "echo ready; while read name; do echo hello $name; done; exit 3";
    const child = startCli(["exec", "-i", sandbox, command], { url });
    try {
      const ended = finish(child);
      await once(child.stdout, "data");
      await first[Symbol.asyncDispose]();
      child.stdin.write("you\n");
      await using second = await open();
      target = second.url;
      await once(child.stdout, "data");
      child.stdin.end("all\n");
      const { code, stdout, stderr } = await ended;
      expect({ code, stdout }).toEqual({ code: 3, stdout: "ready\nhello you\nhello all\n" });
      expect(stderr).toMatch(/^alcove: the connection broke; picking ex-\w+ up again\n$/);
      await new TestClient(second.url).call("DELETE", `/api/v1/sandboxes/${sandbox}`);
    } finally {
      child.kill("SIGKILL");
      front.close();
    }
  }, 60_000);

  test("a reader that is back at once gets all that follows, however much", async () => {
    const execId = "ex-backatonce";
    const open = () => startTestServer({ provider: async () => home.open(), dataDir: home.dataDir });
    let path = "";
    {
      await using first = await open();
      const client = new TestClient(first.url);
      path = `/api/v1/sandboxes/${await client.spawn({ ttl: "10m" })}`;
      // More than is kept for readers.
      const much = "head -c 6000000 /dev/zero | tr '\\0' x | fold -w 99";
      const { response } = await openRequest(`${first.url}${path}/exec`, {
        method: "POST",
        body: {
          command: `echo begun; while [ ! -e /tmp/back ]; do sleep 0.1; done; ${much}; echo; echo over`,
          exec_id: execId,
          stream: true,
          timeout: "5m",
        },
      });
      let text = "";
      response.on("error", () => undefined);
      response.on("data", (chunk: Buffer) => {
        text += chunk;
      });
      await eventually(() => (text.includes("begun") ? true : undefined));
    }
    await using second = await open();
    const client = new TestClient(second.url);
    const { response } = await openRequest(`${second.url}${path}/execs/${execId}/output?from=6&follow=true`, {
      method: "GET",
    });
    const read = response.toArray();
    expect((await client.call("POST", `${path}/exec`, { command: "touch /tmp/back" })).status).toBe(200);
    const text = Buffer.concat(await read).toString();
    expect(said(text, "stdout")).toHaveLength(6_000_000 + Math.floor(6_000_000 / 99) + "\nover\n".length);
    expect(lines(text).at(-1)).toMatchObject({ exit_code: 0, reason: "exited" });
    await client.call("DELETE", path);
  }, 60_000);
});

describe("a stop", () => {
  test("cuts streams at once, ends buffered commands with their id, refuses waiting spawns", async () => {
    const server = await startTestServer({
      provider: mockProvider,
      env: {
        ALCOVE_SERVER_SHUTDOWN_GRACE: "60s",
        ALCOVE_DEFAULTS_MAX_SANDBOXES: "1",
        ALCOVE_DEFAULTS_SPAWN_OVERFLOW: "queue",
        ALCOVE_DEFAULTS_SPAWN_QUEUE_TIMEOUT: "10m",
      },
    });
    const client = new TestClient(server.url);
    const sandbox = await client.spawn();
    const events = await fetch(`${server.url}/api/v1/events`);
    const ended = (async () => {
      for await (const chunk of events.body ?? []) void chunk;
      return "ended";
    })().catch(() => "cut");
    const long = client.exec(sandbox, { command: "sleep 60" });
    const stream = client.exec(sandbox, { command: "echo up; sleep 60", stream: true }).catch(() => "cut");
    const waiting = client.call("POST", "/api/v1/sandboxes", {});
    await eventually(() => (server.execs.running === 2 ? true : undefined));
    await eventually(() => (server.sandboxes.figures.queueDepth === 1 ? true : undefined));
    const stoppedMs = performance.now();
    const closing = server[Symbol.asyncDispose]();
    await ended;
    const answer = await long;
    expect([answer.status, answer.json.code]).toEqual([503, "unavailable"]);
    expect(answer.json.message).toContain("shutting down");
    expect(answer.headers.get("x-exec-id")).toBe(answer.json.exec_id);
    const refused = await waiting;
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([503, "1"]);
    const cut = await stream;
    if (typeof cut !== "string") expect(lines(cut.text).map((line) => line.stream)).not.toContain("exit");
    await closing;
    // The grace is for calls that cannot be repeated: nothing here waits for it.
    expect(performance.now() - stoppedMs).toBeLessThan(40_000);
  }, 60_000);
});

describe("what is asked during a stop", () => {
  test("is refused as everything is, on every route, and says when to come again", async () => {
    const server = await startTestServer({
      provider: mockProvider,
      env: { ALCOVE_SERVER_SHUTDOWN_GRACE: "60s" },
    });
    await using _ = server;
    const client = new TestClient(server.url);
    const id = await client.spawn();
    const { json: document } = await client.call("GET", "/api/v1/openapi.json");
    // An upload has all of the grace.
    const upload = http.request(`${server.url}/api/v1/sandboxes/${id}/files?path=/x`, {
      method: "PUT",
      headers: { "content-type": "application/octet-stream", "content-length": 2 },
      agent: false,
    });
    upload.on("error", () => undefined).write("a");
    await eventually(() => (server.app.callsUnderWay.size === 1 ? true : undefined));
    const closing = server[Symbol.asyncDispose]();
    await eventually(async () => ((await client.call("GET", "/live")).status === 503 ? true : undefined));
    const asked = Object.entries<object>(document.paths).flatMap(([path, operations]) =>
      Object.keys(operations)
        .filter((method) => /^(get|put|post|delete)$/.test(method))
        .map((method) => [method.toUpperCase(), path.replaceAll(/\{[^}]+\}/g, id)] as const),
    );
    expect(asked.length).toBeGreaterThan(40);
    for (const [method, path] of [...asked, ["GET", "/nothing"] as const, ["GET", "/docs"] as const]) {
      const { status, json, headers } = await client.call(method, path);
      expect([method, path, status, json?.code]).toEqual([method, path, 503, "unavailable"]);
      expect(json.message).toContain("shutting down");
      expect(headers.get("retry-after")).toBe("1");
      expect(headers.get("x-request-id")).toMatch(/./);
    }
    const answered = new Promise<number | undefined>((resolve) =>
      upload.once("response", (response) => resolve(response.statusCode)),
    );
    upload.end("b");
    expect(await answered).toBe(200);
    await closing;
  }, 60_000);
});

/** A command over a WebSocket, and everything the service says. */
async function openSocket(url: string, command: string) {
  const socket = new WebSocket(url.replace("http", "ws"));
  const messages: { type: string }[] = [];
  let execId = "";
  socket.on("upgrade", (response) => {
    execId = String(response.headers["x-exec-id"]);
  });
  socket.on("message", (data) => messages.push(JSON.parse(String(data))));
  const closed = new Promise<number>((resolve) => socket.on("close", resolve));
  await new Promise((resolve, reject) => {
    socket.on("open", resolve);
    socket.on("error", reject);
  });
  socket.send(JSON.stringify({ type: "start", command }));
  return { execId, messages, closed };
}
