import { readdir } from "node:fs/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { eventually, lines, openRequest, said, TestClient } from "./support/http.ts";
import { nativeMissing, nativeProvider } from "./support/native-factory.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const skip = await nativeMissing();

/** A reader that has stopped may let this much pile up between the command and itself: pipes, journal, sockets. */
const longestPileUpBytes = 48 * 1_048_576;

describe.skipIf(skip !== undefined)(
  `streams of real commands${skip === undefined ? "" : ` (skipped: ${skip})`}`,
  () => {
    let server: TestServer;
    let client: TestClient;
    let sandbox: string;
    let path: string;
    beforeAll(async () => {
      server = await startTestServer({
        provider: nativeProvider,
        env: { ALCOVE_EXEC_DISCONNECT_GRACE: "0s" },
      });
      client = new TestClient(server.url);
      sandbox = await client.spawn();
      path = `/api/v1/sandboxes/${sandbox}`;
    });
    afterAll(() => server[Symbol.asyncDispose]());

    const record = async (execId: string) => (await client.call("GET", `${path}/execs/${execId}`)).json;
    const stream = (command: string) =>
      openRequest(`${server.url}${path}/exec`, { method: "POST", body: { command, stream: true } });
    /** The output of a command once it stands still, because nobody reads. */
    const stalledBytes = (execId: string) => {
      let before = -1;
      return eventually(async () => {
        await new Promise((resolve) => setTimeout(resolve, 250));
        const { output_bytes: now } = await record(execId);
        const stalled = now > 0 && now === before;
        before = now;
        return stalled ? now : undefined;
      });
    };

    test("a reader that stops reading stops the command, and memory stays flat", async () => {
      const open = await stream("yes");
      const execId = String(open.response.headers["x-exec-id"]);
      open.response.pause();
      expect(await stalledBytes(execId)).toBeLessThan(longestPileUpBytes);
      open.response.resume();
      await eventually(async () =>
        (await record(execId)).output_bytes > longestPileUpBytes ? true : undefined,
      );
      open.close();
      expect(await eventually(async () => (await record(execId)).reason)).toBe("cancelled");
    });

    test("a WebSocket that is not read stops the command", async () => {
      const socket = new WebSocket(`${server.url.replace("http", "ws")}${path}/exec/ws`);
      let execId = "";
      socket.on("upgrade", (response) => {
        execId = String(response.headers["x-exec-id"]);
      });
      await new Promise((resolve) => socket.on("open", resolve));
      socket.send(JSON.stringify({ type: "start", command: "yes" }));
      await new Promise((resolve) => socket.once("message", resolve));
      socket.pause();
      expect(await stalledBytes(execId)).toBeLessThan(longestPileUpBytes);
      socket.terminate();
      expect(await eventually(async () => (await record(execId)).reason)).toBe("cancelled");
    });

    test("a stdin that nobody reads does not pile up, and a signal still ends the command", async () => {
      const socket = new WebSocket(`${server.url.replace("http", "ws")}${path}/exec/ws`);
      await new Promise((resolve) => socket.on("open", resolve));
      const closed = new Promise((resolve) => socket.on("close", resolve));
      socket.send(JSON.stringify({ type: "start", command: "echo up; exec sleep 60" }));
      await new Promise((resolve) => socket.once("message", resolve));
      const chunk = JSON.stringify({ type: "stdin", data: "x".repeat(100_000) });
      for (let sent = 0; sent < 5; sent += 1) socket.send(chunk);
      socket.send(JSON.stringify({ type: "signal", signal: "KILL" }));
      expect(await closed).toBe(1000);
    });

    test("megabytes without a line break come through whole", async () => {
      const answer = await client.exec(sandbox, {
        command: "head -c 5000000 /dev/zero | tr '\\0' x",
        stream: true,
      });
      expect(said(answer.text, "stdout")).toBe("x".repeat(5_000_000));
      expect(lines(answer.text).at(-1)).toMatchObject({ stream: "exit", exit_code: 0 });
    });

    test("bytes that are no UTF-8 are replaced, in every form", async () => {
      const command = "printf '\\377\\376ok\\303'";
      expect((await client.exec(sandbox, { command })).json.stdout).toBe("\ufffd\ufffdok\ufffd");
      const streamed = await client.exec(sandbox, { command, stream: true });
      expect(said(streamed.text, "stdout")).toBe("\ufffd\ufffdok\ufffd");
    });

    test("control characters, quotes and random bytes give valid JSON lines", async () => {
      const answer = await client.exec(sandbox, {
        command: "head -c 300000 /dev/urandom; printf '\\001\\b\\f\"\\\\\\n\\177'",
        stream: true,
      });
      expect(said(answer.text, "stdout").endsWith('\u0001\b\f"\\\n\u007f')).toBe(true);
    });

    test("1,000 clients that leave mid-stream leave nothing", { timeout: 120_000 }, async () => {
      const descriptors = async () => (await readdir("/proc/self/fd")).length;
      const before = await descriptors();
      let left = 1_000;
      const leave = async () => {
        while (left > 0) {
          left -= 1;
          const open = await stream("echo here; sleep 100");
          await new Promise((resolve) => open.response.once("data", resolve));
          open.close();
        }
      };
      await Promise.all(Array.from({ length: 20 }, leave));
      await eventually(() => (server.execs.running === 0 ? true : undefined));
      await eventually(() => (server.app.callsUnderWay.size === 0 ? true : undefined));
      const { json } = await client.call("GET", `${path}/execs`);
      expect(json.filter((exec: { state: string }) => exec.state === "running")).toEqual([]);
      // Idle connections to the sandbox close by themselves within fifteen seconds.
      await eventually(async () => ((await descriptors()) <= before + 10 ? true : undefined), 25_000);
    });

    test("a background process does not hold a command's answer", async () => {
      const { json } = await client.exec(sandbox, { command: "sleep 30 & echo done", timeout: "10s" });
      expect(json).toMatchObject({ stdout: "done\n", exit_code: 0 });
    });
  },
);
