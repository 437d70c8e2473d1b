import { describe, expect, test } from "vitest";
import { eventually, said, TestClient } from "./support/http.ts";
import { nativeHome } from "./support/native.ts";
import { nativeMissing } from "./support/native-factory.ts";
import { nativePlace } from "./support/native-place.ts";
import { startTestServer } from "./support/test-server.ts";

const skip = await nativeMissing();

/** More than a sandbox takes of an input before the command reads it. */
const stdin = "z".repeat(4_000_000);

describe.skipIf(skip !== undefined)(
  `an input given whole${skip === undefined ? "" : ` (skipped: ${skip})`}`,
  () => {
    test.each([false, true])(
      "arrives whole though its caller has left (streamed: %s)",
      async (stream) => {
        await using place = await nativePlace();
        const { client, server, id } = place;
        const exec = `/api/v1/sandboxes/${id}/execs/ex-leaving000`;
        const command = "while [ ! -e /tmp/go ]; do sleep 0.05; done; wc -c";
        const caller = new AbortController();
        const asked = fetch(`${server.url}/api/v1/sandboxes/${id}/exec`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ command, stdin, stream, exec_id: "ex-leaving000" }),
          signal: caller.signal,
        }).catch(() => undefined);
        await eventually(async () => ((await client.call("GET", exec)).status === 200 ? true : undefined));
        if (stream) await asked;
        caller.abort();
        await asked;
        const followed = client.call("GET", `${exec}/output?follow=true`);
        expect((await client.exec(id, { command: "touch /tmp/go" })).status).toBe(200);
        expect(said((await followed).text, "stdout").trim()).toBe(String(stdin.length));
      },
      60_000,
    );

    test("is held no longer than until its command has it", async () => {
      await using place = await nativePlace();
      const { client, id } = place;
      // Three of them leave of an owner's share of 128 MiB too little for a fourth, which is there twice while it is read.
      const stdin = "z".repeat(31_000_000);
      const running: Promise<unknown>[] = [];
      for (const turn of [1, 2, 3]) {
        const command = `cat > /dev/null; touch /tmp/read-${turn}; sleep 300`;
        running.push(client.exec(id, { command, stdin }).catch(() => undefined));
        const read = async () =>
          (await client.exec(id, { command: `ls /tmp/read-${turn}` })).json.exit_code === 0;
        await eventually(async () => (await read()) || undefined, 20_000);
      }
      const fourth = await client.exec(id, { command: "wc -c", stdin });
      expect([fourth.status, fourth.json.stdout?.trim()]).toEqual([200, String(stdin.length)]);
      await client.call("DELETE", `/api/v1/sandboxes/${id}`);
      await Promise.all(running);
    }, 60_000);

    test("takes its part of the memory of bodies also when its caller has left, until the command ends", async () => {
      await using place = await nativePlace();
      const { client, server, id } = place;
      const stdin = "z".repeat(31_000_000);
      const path = `/api/v1/sandboxes/${id}/execs`;
      // Three of them leave of a share of 128 MiB too little for a fourth, which is there twice while it is read.
      for (const turn of [1, 2, 3]) {
        const caller = new AbortController();
        const exec_id = `ex-unread000${turn}`;
        const asked = fetch(`${server.url}/api/v1/sandboxes/${id}/exec`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ command: "sleep 300", stdin, stream: true, exec_id }),
          signal: caller.signal,
        });
        await asked;
        caller.abort();
      }
      const command = { command: "wc -c", stdin };
      const refused = await client.exec(id, command);
      expect(refused).toMatchObject({ status: 503, json: { code: "unavailable" } });
      expect(refused.json.message).toContain("end commands that do not read their input");
      for (const turn of [1, 2, 3]) await client.call("DELETE", `${path}/ex-unread000${turn}`);
      expect((await client.exec(id, command)).json.stdout.trim()).toBe(String(stdin.length));
    }, 60_000);

    test("ends its command, in words, when the service that had it is gone and nobody gives it again", async () => {
      const home = await nativeHome();
      try {
        const env = { ALCOVE_SERVER_SHUTDOWN_GRACE: "0s", ALCOVE_EXEC_DISCONNECT_GRACE: "4s" };
        const { dataDir } = home;
        const start = () => startTestServer({ provider: async () => home.open(), dataDir, env });
        let path = "";
        const record = () => `${path}/execs/ex-forsaken00`;
        {
          await using first = await start();
          const client = new TestClient(first.url);
          path = `/api/v1/sandboxes/${await client.spawn({ ttl: "10m" })}`;
          const command = "while [ ! -e /tmp/go ]; do sleep 0.05; done; wc -c";
          const body = { command, stdin, exec_id: "ex-forsaken00", timeout: "5m" };
          void client.call("POST", `${path}/exec`, body).catch(() => undefined);
          await eventually(async () =>
            (await client.call("GET", record())).status === 200 ? true : undefined,
          );
        }
        await using second = await start();
        const client = new TestClient(second.url);
        const reading = client.call("GET", `${record()}/output?follow=true`);
        await client.call("POST", `${path}/exec`, { command: "touch /tmp/go" });
        const { text } = await reading;
        expect(said(text, "stdout")).toBe("");
        const exit = JSON.parse(text.trim().split("\n").at(-1) ?? "");
        expect(exit).toMatchObject({ stream: "exit", reason: "cancelled", exit_code: 137 });
        expect(exit.error).toMatch(/its input was lost: .* [0-9]{7} bytes of it/);
        expect(said(text, "stderr")).toContain("its input was lost");
        expect((await client.call("GET", record())).json.error).toBe(exit.error);
        await client.call("DELETE", path);
      } finally {
        await home.remove();
      }
    }, 60_000);

    test("keeps nobody from stopping the service when its command does not read it", async () => {
      const home = await nativeHome();
      try {
        const env = { ALCOVE_SERVER_SHUTDOWN_GRACE: "10m" };
        const server = await startTestServer({
          provider: async () => home.open(),
          dataDir: home.dataDir,
          env,
        });
        await using _ = server;
        const client = new TestClient(server.url);
        const id = await client.spawn({ ttl: "10m" });
        const caller = new AbortController();
        const asked = await fetch(`${server.url}/api/v1/sandboxes/${id}/exec`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ command: "sleep 300; wc -c", stdin, stream: true }),
          signal: caller.signal,
        });
        expect(asked.status).toBe(200);
        caller.abort();
        await eventually(() => (server.app.callsUnderWay.size === 0 ? true : undefined));
        // Ends long before the grace, or the test does.
        await server[Symbol.asyncDispose]();
      } finally {
        await home.remove();
      }
    }, 60_000);

    test.each([
      ["30s", "is handed over at a stop of the service"],
      ["0s", "can be given again when the service had no time for it"],
    ])(
      "with a grace of %s it %s",
      async (grace) => {
        const home = await nativeHome();
        try {
          const env = { ALCOVE_SERVER_SHUTDOWN_GRACE: grace };
          const { dataDir } = home;
          const start = () => startTestServer({ provider: async () => home.open(), dataDir, env });
          let path = "";
          {
            await using first = await start();
            const client = new TestClient(first.url);
            const id = await client.spawn({ ttl: "10m" });
            path = `/api/v1/sandboxes/${id}`;
            // Reads on for longer than a stop waits for one that does not.
            const command =
              grace === "0s"
                ? "sleep 4; wc -c"
                : "n=0; while c=$(head -c 400000 | wc -c); [ $c -gt 0 ]; do n=$((n+c)); sleep 0.25; done; echo $n";
            const asked = client.exec(id, { command, stdin, exec_id: "ex-stopping00" });
            const record = `${path}/execs/ex-stopping00`;
            await eventually(async () =>
              (await client.call("GET", record)).status === 200 ? true : undefined,
            );
            void asked.catch(() => undefined);
          }
          await using second = await start();
          const client = new TestClient(second.url);
          const reading = client.call("GET", `${path}/execs/ex-stopping00/output?follow=true`);
          if (grace === "0s") {
            const again = { input: "ex-stopping00", data: stdin, close: true };
            const { json } = await client.call("POST", `${path}/execs/ex-stopping00/stdin`, again);
            expect(json).toEqual({ status: "written", taken: stdin.length });
          }
          const followed = await reading;
          expect(said(followed.text, "stdout").trim()).toBe(String(stdin.length));
          await client.call("DELETE", path);
        } finally {
          await home.remove();
        }
      },
      60_000,
    );
  },
);
