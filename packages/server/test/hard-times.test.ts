import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { ConnectionWatch } from "../src/ports/contract/provider/connection-watch.ts";
import { eventually, lines, openRequest, said, type TestClient } from "./support/http.ts";
import { nativeMissing } from "./support/native-factory.ts";
import { nativePlace, nativeService } from "./support/native-place.ts";
import { longestTurnMs, TurnWatch } from "./support/turn-watch.ts";

const skip = await nativeMissing();

/** Everything a command says on a stream that is being read. */
async function streamed(url: string, path: string, command: string) {
  const { response } = await openRequest(`${url}${path}/exec`, {
    method: "POST",
    body: { command, stream: true },
  });
  let text = "";
  response.on("data", (chunk: Buffer) => {
    text += chunk;
  });
  const ended = new Promise<string>((resolve) => response.on("close", () => resolve(text)));
  return { execId: String(response.headers["x-exec-id"]), ended, text: () => text };
}

describe.skipIf(skip !== undefined)(`hard times${skip === undefined ? "" : ` (skipped: ${skip})`}`, () => {
  let turns: TurnWatch | undefined;
  /** Starting a service is none of what has to be survived. */
  const watchedPlace = async () => {
    const place = await nativePlace();
    turns = new TurnWatch();
    return place;
  };
  afterEach(() => {
    turns?.[Symbol.dispose]();
    expect(turns?.longestMs ?? 0).toBeLessThan(longestTurnMs);
    turns = undefined;
  });

  test("an agent that stands still keeps its command and its reader, who is told one end", async () => {
    await using place = await watchedPlace();
    const { server, client, id, dataDir } = place;
    const path = `/api/v1/sandboxes/${id}`;
    const told: string[] = [];
    const stop = new AbortController();
    const telling = (async () => {
      for await (const { type } of server.events.subscribe({ sandboxId: id, signal: stop.signal }))
        told.push(type);
    })();
    const reading = await streamed(
      server.url,
      path,
      "echo up; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo over",
    );
    await eventually(() => (reading.text().includes("up") ? true : undefined));
    const agent = await agentOf(dataDir, server.sandboxes.running(id).row.runtimeId);
    process.kill(agent, "SIGSTOP");
    const stoppedAt = performance.now();
    try {
      void server.reconciler.reconcile();
      const state = async () => (await client.call("GET", path)).json.state;
      await eventually(async () => ((await state()) === "unhealthy" ? true : undefined), 60_000);
      expect((await client.exec(id, { command: "true" })).status).toBe(503);
      // Longer than any deadline or grace of the service.
      await delay(stoppedAt + 75_000 - performance.now());
      process.kill(agent, "SIGCONT");
      await eventually(async () => ((await state()) === "running" ? true : undefined), 60_000);
    } finally {
      process.kill(agent, "SIGCONT");
    }
    expect((await client.exec(id, { command: "touch /tmp/go" })).status).toBe(200);
    const text = await reading.ended;
    expect(said(text, "stdout")).toBe("up\nover\n");
    expect(lines(text).at(-1)).toMatchObject({ exit_code: 0, reason: "exited" });
    await eventually(() =>
      told.filter((type) => type === "exec.completed").length === 2 ? true : undefined,
    );
    stop.abort();
    await telling.catch(() => undefined);
    expect(told.filter((type) => /failed|error/.test(type))).toEqual([]);
    await client.call("DELETE", path);
  }, 240_000);

  test("connections to a sandbox that break cost a reader nothing: output goes on where it broke off", async () => {
    using connections = new ConnectionWatch();
    await using place = await watchedPlace();
    const { server, client, id } = place;
    const path = `/api/v1/sandboxes/${id}`;
    const script = "n=0; while [ ! -e /tmp/go ]; do n=$((n+1)); echo $n; sleep 0.05; done; echo over";
    const reading = await streamed(server.url, path, script);
    const buffered = client.exec(id, { command: "while [ ! -e /tmp/go ]; do sleep 0.05; done; echo done" });
    for (let round = 1; round <= 3; round++) {
      const before = reading.text().length;
      await eventually(
        () => (server.execs.running === 2 && reading.text().length > before + 100 ? true : undefined),
        30_000,
      );
      connections.breakLocal();
    }
    const touched = await eventually(async () => {
      const answer = await client.exec(id, { command: "touch /tmp/go" });
      return answer.status === 200 ? answer : undefined;
    }, 30_000);
    expect(touched.json.exit_code).toBe(0);
    const words = said(await reading.ended, "stdout")
      .trimEnd()
      .split("\n");
    expect(words.at(-1)).toBe("over");
    expect(words.slice(0, -1)).toEqual(
      Array.from({ length: words.length - 1 }, (_, index) => String(index + 1)),
    );
    expect((await buffered).json).toMatchObject({ stdout: "done\n", exit_code: 0 });
    await client.call("DELETE", path);
  }, 120_000);

  test("connections that break under standard input lose none of it and double none", async () => {
    using connections = new ConnectionWatch();
    await using place = await watchedPlace();
    const { client, id } = place;
    // Each line tells its place: whatever is missing, doubled or out of order changes the sum.
    const input = Array.from({ length: 250_000 }, (_, index) => `${index}\n`).join("");
    const sum = createHash("sha256").update(input).digest("hex");
    const command = "touch /tmp/up; while [ ! -e /tmp/go ]; do sleep 0.05; done; sha256sum";
    const fed = client.exec(id, { command, stdin: input });
    const posted = await client.call("POST", `/api/v1/sandboxes/${id}/execs`, {
      command: "cat > /tmp/posted",
    });
    const exec = `/api/v1/sandboxes/${id}/execs/${posted.json.exec_id}`;
    await eventually(async () => {
      const { json } = await client.exec(id, { command: "test -e /tmp/up" });
      return json.exit_code === 0 ? true : undefined;
    });
    for (let round = 0; round < 3; round += 1) {
      await connected(client, id);
      const data = `${round} ${"x".repeat(500_000)}\n`;
      let posting = client.call("POST", `${exec}/stdin`, { data });
      await new Promise((resolve) => setTimeout(resolve, 4 * round));
      connections.breakLocal();
      // Broken before it came, it is refused: nothing of it was sent.
      while ((await posting).json.message?.includes("not connected now")) {
        await connected(client, id);
        posting = client.call("POST", `${exec}/stdin`, { data });
      }
      expect((await posting).json).toEqual({ status: "written" });
    }
    await connected(client, id);
    expect((await client.call("POST", `${exec}/stdin`, { close: true })).status).toBe(200);
    // What was taken is written down once the program is through with it.
    await eventually(async () =>
      (await client.call("GET", exec)).json.state === "exited" ? true : undefined,
    );
    expect(
      (await client.exec(id, { command: "touch /tmp/go; cut -c1-3 /tmp/posted; wc -c < /tmp/posted" })).json
        .stdout,
    ).toBe("0 x\n1 x\n2 x\n1500009\n");
    const answer = await fed;
    expect([answer.status, answer.json.stdout]).toEqual([200, `${sum}  -\n`]);
    await client.call("DELETE", `/api/v1/sandboxes/${id}`);
  }, 60_000);

  test("input that is written in calls goes on at its offset, and any number of calls survive a break", async () => {
    using connections = new ConnectionWatch();
    await using place = await watchedPlace();
    const { client, id } = place;
    const started = await client.call("POST", `/api/v1/sandboxes/${id}/execs`, { command: "cat" });
    const exec = `/api/v1/sandboxes/${id}/execs/${started.json.exec_id}`;
    const write = (body: unknown) => client.call("POST", `${exec}/stdin`, body);
    for (let call = 0; call < 70; call += 1) expect((await write({ data: "." })).status).toBe(200);
    const breaking = write({ data: "!".repeat(400_000) });
    connections.breakLocal();
    expect((await breaking).json).toEqual({ status: "written" });
    await connected(client, id);
    const mine = (offset: number, data: string) => write({ input: "mine", offset, data });
    expect((await mine(0, "abc")).json.taken).toBe(3);
    expect((await mine(0, "abc")).json.taken).toBe(3);
    expect((await mine(2, "cde")).json.taken).toBe(5);
    const gap = await mine(9, "x");
    expect([gap.status, gap.json.taken]).toEqual([409, 5]);
    expect((await write({ offset: 1, data: "x" })).status).toBe(400);
    expect((await write({ input: "mine", offset: 5, data: "f", close: true })).json.taken).toBe(6);
    expect((await mine(3, "def")).json.taken).toBe(6);
    const output = await client.call("GET", `${exec}/output?follow=true`);
    expect(said(output.text, "stdout")).toBe(`${".".repeat(70)}${"!".repeat(400_000)}abcdef`);
  }, 60_000);

  test("starts whose connections break run once, and are answered", async () => {
    using connections = new ConnectionWatch();
    await using place = await watchedPlace();
    const { client, id } = place;
    const answers = [];
    for (let round = 0; round < 6; round += 1) {
      await connected(client, id);
      const started = [0, 1, 2].map(() =>
        client.exec(id, { command: "echo ran >> /tmp/runs; sleep 0.1; echo done" }),
      );
      // Somewhere between the dial and the answer.
      await new Promise((resolve) => setTimeout(resolve, round));
      connections.breakLocal();
      answers.push(...(await Promise.all(started)));
    }
    expect(answers.map(({ status, json }) => [status, json.stdout ?? json.message])).toEqual(
      answers.map(() => [200, "done\n"]),
    );
    const { json } = await client.exec(id, { command: "wc -l < /tmp/runs" });
    expect(json.stdout.trim()).toBe(String(answers.length));
    await client.call("DELETE", `/api/v1/sandboxes/${id}`);
  }, 120_000);

  describe("a service whose descriptors are used up", () => {
    let made: Awaited<ReturnType<typeof nativeService>>;
    beforeEach(async () => {
      made = await nativeService({ ALCOVE_SERVER_DESTROY_ON_EXIT: "true" });
    });
    afterEach(() => made.remove());

    test("loses no sandbox and no command, and works as before once there are some", async () => {
      const { client, pid } = made.service;
      const id = await client.spawn({ ttl: "10m" });
      const sandbox = `/api/v1/sandboxes/${id}`;
      const reading = await streamed(
        client.url,
        sandbox,
        "echo up; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo over",
      );
      await eventually(() => (reading.text().includes("up") ? true : undefined));
      const limit = (files: string) => execFileSync("prlimit", ["--pid", String(pid), `--nofile=${files}`]);
      const soft = execFileSync("prlimit", [
        "--pid",
        String(pid),
        "--nofile",
        "--noheadings",
        "--output",
        "SOFT",
      ]);
      // Below what it has open already: none can be added.
      limit("10:");
      try {
        // Each may fail; none may end what runs.
        const calls = Array.from({ length: 20 }, (_, index) => {
          const call = index % 2 === 0 ? client.exec(id, { command: "true" }) : client.spawn({ ttl: "10m" });
          return Promise.race([call, new Promise((resolve) => setTimeout(resolve, 3_000))]);
        });
        await Promise.allSettled(calls);
      } finally {
        limit(`${String(soft).trim()}:`);
      }
      const again = await eventually(async () => {
        const answer = await client.exec(id, { command: "touch /tmp/go; echo again" }).catch(() => undefined);
        return answer?.status === 200 ? answer : undefined;
      }, 60_000);
      expect(again.json.stdout).toBe("again\n");
      const text = await reading.ended;
      expect(said(text, "stdout")).toBe("up\nover\n");
      expect(lines(text).at(-1)).toMatchObject({ exit_code: 0, reason: "exited" });
      expect((await client.call("GET", sandbox)).json.state).toBe("running");
      await client.spawn({ ttl: "10m" });
      expect(await made.service.longestTurnMs()).toBeLessThan(longestTurnMs);
    }, 120_000);
  });
});

/** Waits until a sandbox whose connections broke takes calls again. */
async function connected(client: TestClient, id: string): Promise<void> {
  await eventually(async () => {
    const { status } = await client.exec(id, { command: "true" });
    return status === 200 ? true : undefined;
  }, 30_000);
}

/** The process id of a sandbox's agent, on this machine. */
async function agentOf(dataDir: string, runtimeId: string): Promise<number> {
  const file = path.join(dataDir, "runtimes", "native", runtimeId, "process.json");
  return JSON.parse(await readFile(file, "utf8")).pid;
}
