import { expect, test } from "vitest";
import { eventually, lines, openRequest, said } from "../support/http.ts";
import type { Subject } from "./black-box.ts";

const lostOrKilled = /^(lost|cancelled|signaled)$/;

export function execSuite(on: Subject): void {
  const run = (body: Record<string, unknown>) => on.client.exec(on.sandbox, body);
  const usage = {
    cpu_ms: expect.any(Number),
    max_memory_bytes: expect.any(Number),
    wall_ms: expect.any(Number),
  };

  test("a buffered command answers exit_code, stdout, stderr, duration and its id", async () => {
    const { status, json, headers } = await run({ command: "echo out; echo err >&2; exit 3" });
    expect(status).toBe(200);
    expect(json).toEqual({
      exit_code: 3,
      stdout: "out\n",
      stderr: "err\n",
      duration: expect.stringMatching(/^[\d.]+m?s$/),
      exec_id: expect.stringMatching(/^ex-[a-z0-9]{8,32}$/),
      reason: "exited",
      // Told where commands are processes of ours.
      ...(on.server.provider.capabilities.has("exec_usage") ? { usage } : {}),
    });
    expect(headers.get("x-exec-id")).toBe(json.exec_id);
    expect(headers.get("server-timing")).toMatch(/^start;dur=[\d.]+, run;dur=[\d.]+$/);
  });

  test("args are quoted and appended in mode shell, passed as they are in mode argv", async () => {
    const args = ["a b", "c'd", "$HOME", "*", '"', "-n", ""];
    const shell = await run({ command: "printf '<%s>'", args });
    expect(shell.json.stdout).toBe("<a b><c'd><$HOME><*><\"><-n><>");
    const argv = await run({ command: "echo", args: ["a  b", "$HOME"], mode: "argv" });
    expect(argv.json.stdout).toBe("a  b $HOME\n");
  });

  test("env, workdir and empty optional fields are taken as given", async () => {
    const { json } = await run({
      command: 'echo "$GREETING"; pwd',
      env: { GREETING: "grüß dich\tund $PATH" },
      workdir: "/tmp",
      user: "",
      timeout: "",
    });
    expect(json.stdout).toBe("grüß dich\tund $PATH\n/tmp\n");
  });

  test("the default working directory is /workspace", async () => {
    expect((await run({ command: "pwd" })).json.stdout).toBe("/workspace\n");
  });

  test("a missing workdir is 400 and runs nothing", async () => {
    const { status, json } = await run({ command: "echo ran", workdir: "/no/such/place" });
    expect([status, json.code]).toEqual([400, "bad_request"]);
    expect(json.message).toContain("/no/such/place");
  });

  test("a program that cannot be started has exit code 127", async () => {
    const { status, json } = await run({ command: "no-such-program-here", mode: "argv" });
    expect([status, json.exit_code]).toEqual([200, 127]);
    expect(json.stderr).not.toBe("");
  });

  test("a command killed by a signal has exit code 128 + n and the signal's name", async (context) => {
    if (!on.server.provider.capabilities.has("pty")) context.skip();
    const { json } = await run({ command: "kill -TERM $$; sleep 5" });
    expect(json).toMatchObject({ exit_code: 143, signal: "SIGTERM", reason: "signaled" });
  });

  test("a buffered deadline is 408 with what was written", async () => {
    const { status, json, headers } = await run({ command: "echo early; sleep 30", timeout: "400ms" });
    expect([status, json.code]).toEqual([408, "timeout"]);
    expect(json).toMatchObject({ stdout: "early\n", stderr: "", exec_id: expect.stringMatching(/^ex-/) });
    // All that its record has, as of a command that ended by itself.
    expect(json).toMatchObject({
      reason: "timeout",
      exit_code: expect.any(Number),
      duration: expect.any(String),
    });
    expect(headers.get("x-exec-id")).toBe(json.exec_id);
  });

  test.each([
    ["above the maximum", "2h", 429, "resource_limit"],
    ["unparsable", "soon", 400, "bad_request"],
    ["negative", "-5s", 400, "bad_request"],
    ["zero", "0s", 400, "bad_request"],
    ["without unit", "30", 400, "bad_request"],
  ])("a timeout %s is refused, streamed or not", async (_name, timeout, status, code) => {
    for (const stream of [false, true]) {
      const answer = await run({ command: "echo ran", timeout, stream });
      expect([answer.status, answer.json.code]).toEqual([status, code]);
      expect(answer.json.message).toContain("timeout");
    }
  });

  test("a client may choose the exec id; a running one is 409", async () => {
    const id = `ex-chosen${Math.random().toString(36).slice(2, 10)}00`;
    const started = await on.client.call("POST", `/api/v1/sandboxes/${on.sandbox}/execs`, {
      command: "sleep 30",
      exec_id: id,
    });
    expect([started.status, started.json.exec_id]).toEqual([201, id]);
    const twice = await run({ command: "true", exec_id: id });
    expect([twice.status, twice.json.code]).toEqual([409, "conflict"]);
    await on.client.call("DELETE", `/api/v1/sandboxes/${on.sandbox}/execs/${id}`);
  });

  test("output beyond exec.max_output is dropped and told as truncated", async () => {
    const { json } = await run({ command: "seq 1 40000; echo done >&2" });
    expect(json.stdout.length).toBe(65_536);
    expect(json).toMatchObject({ truncated: true, stderr: "done\n", exit_code: 0 });
  });

  test("much output comes whole in an answer that is sent in pieces, with a result and with a refusal", async () => {
    const text = Array.from({ length: 16_000 }, (_, index) => `${index + 1}\n`).join("");
    const result = await run({ command: "seq 1 16000" });
    expect(result.json).toMatchObject({ exit_code: 0, stderr: "", truncated: true });
    const refused = await run({ command: "seq 1 16000; sleep 60", timeout: "3s" });
    expect(refused.json).toMatchObject({ code: "timeout", reason: "timeout", stderr: "", truncated: true });
    expect([result.status, refused.status]).toEqual([200, 408]);
    for (const { json, headers } of [result, refused]) {
      expect(json.stdout).toBe(text.slice(0, 65_536));
      expect(headers.get("transfer-encoding")).toBe("chunked");
      expect(headers.get("content-type")).toBe("application/json; charset=utf-8");
      expect(headers.get("x-exec-id")).toBe(json.exec_id);
    }
  });

  test("stdin is the whole standard input, in text and base64, buffered and streamed", async () => {
    const text = await run({ command: "cat; echo end", stdin: "grüße\n" });
    expect(text.json).toMatchObject({ stdout: "grüße\nend\n", exit_code: 0 });
    const stdin = Buffer.from("two\n").toString("base64");
    const streamed = await run({ command: "cat", stdin, stdin_encoding: "base64", stream: true });
    expect(said(streamed.text, "stdout")).toBe("two\n");
    // Nothing given is an empty input; a command that reads none of it is fine, however much it is.
    expect((await run({ command: "cat" })).json.stdout).toBe("");
    expect((await run({ command: "true", stdin: "x".repeat(3_000_000) })).json.exit_code).toBe(0);
    for (const body of [{ stdin: "not base64!", stdin_encoding: "base64" }, { stdin_encoding: "base64" }]) {
      const refused = await run({ command: "cat", ...body });
      expect([refused.status, refused.json.code]).toEqual([400, "bad_request"]);
      expect(refused.json.message).toContain("stdin");
    }
  });

  test("with encoding base64 every byte passes, buffered, streamed and at a deadline", async (context) => {
    if (!on.server.provider.capabilities.has("pty")) context.skip();
    const bytes = Buffer.from(
      Array.from({ length: 40_000 }, (_, index) => (index * 7 + (index >> 8)) & 0xff),
    );
    const input = { stdin: bytes.toString("base64"), stdin_encoding: "base64", encoding: "base64" };
    const { json } = await run({ command: "cat; cat /nowhere", ...input });
    expect(json).toMatchObject({ encoding: "base64", stdout: bytes.toString("base64"), exit_code: 1 });
    expect(Buffer.from(json.stderr, "base64").toString()).toContain("/nowhere");
    const streamed = lines((await run({ command: "cat", ...input, stream: true })).text).slice(0, -1);
    let next = 0;
    for (const line of streamed) {
      expect(line).toMatchObject({ stream: "stdout", encoding: "base64", offset: next });
      next += Buffer.from(line.data, "base64").length;
    }
    expect(Buffer.concat(streamed.map((line) => Buffer.from(line.data, "base64"))).equals(bytes)).toBe(true);
    const late = await run({ command: "printf '\\377'; sleep 30", timeout: "400ms", encoding: "base64" });
    expect([late.status, late.json.stdout, late.json.encoding]).toEqual([408, "/w==", "base64"]);
    const text = await run({ command: "cat", stdin: input.stdin, stdin_encoding: "base64" });
    expect(text.json.stdout).toBe(bytes.toString());
    expect(text.json).not.toHaveProperty("encoding");
  });

  test("a command that exceeds a limit ends with reason limit and its name", async (context) => {
    if (!on.server.provider.capabilities.has("exec_usage")) {
      const refused = await run({ command: "true", limits: { output_bytes: 10 } });
      expect([refused.status, refused.json.code]).toEqual([400, "bad_request"]);
      expect(refused.json.message).toContain('"exec_usage"');
      context.skip();
    }
    const busy = await run({ command: "while :; do :; done", limits: { cpu_time: "200ms" }, timeout: "60s" });
    expect(busy.json).toMatchObject({ reason: "limit", limit: "cpu_time", exit_code: 137 });
    expect(busy.json.usage.cpu_ms).toBeGreaterThan(150);
    const { text } = await run({
      command: "yes",
      limits: { output_bytes: 1_000 },
      stream: true,
      timeout: "60s",
    });
    expect(lines(text).at(-1)).toMatchObject({ stream: "exit", reason: "limit", limit: "output_bytes" });
    const cut = await run({ command: "yes", limits: { output_bytes: 1_000 }, timeout: "60s" });
    expect(cut.json).toMatchObject({ reason: "limit", stdout: "y\n".repeat(500), truncated: true });
    const within = await run({ command: "echo in", limits: { output_bytes: 1_000, cpu_time: "10s" } });
    expect(within.json).toMatchObject({ reason: "exited", stdout: "in\n", usage });
    const record = await on.client.call("GET", `/api/v1/sandboxes/${on.sandbox}/execs/${busy.json.exec_id}`);
    expect(record.json).toMatchObject({ reason: "limit", limit: "cpu_time", usage });
    for (const limits of [
      { cpu_time: "0s" },
      { cpu_time: "x" },
      { output_bytes: 0 },
      { output_bytes: 1e33 },
      { memory_mb: 3 },
      { pids: 0 },
    ]) {
      const refused = await run({ command: "true", limits });
      expect([refused.status, refused.json.code]).toEqual([400, "bad_request"]);
      expect(refused.json.message).toContain(Object.keys(limits)[0]);
    }
  });

  test("a command has memory and processes of its own where the provider can limit them", async () => {
    if (!on.server.provider.capabilities.has("exec_limits")) {
      for (const limits of [{ memory_mb: 16 }, { pids: 4 }]) {
        const refused = await run({ command: "true", limits });
        expect([refused.status, refused.json.code]).toEqual([400, "bad_request"]);
        expect(refused.json.message).toContain(`limits.${Object.keys(limits)[0]}`);
        expect(refused.json.message).toContain("exec_limits");
      }
      return;
    }
    const hungry = await run({
      command: "dd bs=48M count=1 if=/dev/zero of=/dev/null; sleep 60",
      limits: { memory_mb: 16, pids: 8 },
      timeout: "90s",
    });
    expect(hungry.json).toMatchObject({ reason: "limit", limit: "memory_mb", oom_kills: 1 });
    const within = await run({ command: "echo in", limits: { memory_mb: 16, pids: 8 } });
    expect(within.json).toMatchObject({ reason: "exited", stdout: "in\n" });
  });

  test("what the service says in a stream is marked, and takes no place in the output", async () => {
    const { text } = await run({ command: "echo early; sleep 30", timeout: "300ms", stream: true });
    const all = lines(text);
    expect(all[0]).toEqual({ stream: "stdout", data: "early\n", offset: 0 });
    expect(all.at(-2)).toMatchObject({ stream: "stderr", offset: 6, notice: true });
  });

  test("a stream is NDJSON: chunks in order, then one exit line", async () => {
    const answer = await run({ command: "echo one; echo two >&2; echo three; exit 4", stream: true });
    expect(answer.status).toBe(200);
    expect(answer.headers.get("content-type")).toBe("application/x-ndjson");
    expect(answer.headers.get("x-exec-id")).toMatch(/^ex-/);
    expect(said(answer.text, "stdout")).toBe("one\nthree\n");
    expect(said(answer.text, "stderr")).toBe("two\n");
    const all = lines(answer.text);
    expect(all.at(-1)).toEqual({
      stream: "exit",
      data: "",
      exit_code: 4,
      reason: "exited",
      duration: expect.any(String),
      ...(on.server.provider.capabilities.has("exec_usage") ? { usage } : {}),
    });
    for (const chunk of all.slice(0, -1)) expect(Object.keys(chunk)).toEqual(["stream", "data", "offset"]);
  });

  test("a stream begins before its command ends, with its id in the head", async () => {
    const open = await openRequest(`${on.client.url}/api/v1/sandboxes/${on.sandbox}/exec`, {
      method: "POST",
      body: { command: "echo first; sleep 20", stream: true },
    });
    const execId = open.response.headers["x-exec-id"];
    const [first] = await new Promise<Buffer[]>((resolve) =>
      open.response.once("data", (chunk: Buffer) => resolve([chunk])),
    );
    expect(JSON.parse(String(first).split("\n")[0] ?? "")).toEqual({
      stream: "stdout",
      data: "first\n",
      offset: 0,
    });
    open.close();
    await on.client.call("DELETE", `/api/v1/sandboxes/${on.sandbox}/execs/${execId}`);
  });

  test("a streamed deadline says so on stderr before its exit line", async () => {
    const answer = await run({ command: "echo early; sleep 30", timeout: "300ms", stream: true });
    const all = lines(answer.text);
    expect(all.at(-1)).toMatchObject({ stream: "exit", exit_code: 137, reason: "timeout" });
    expect(all.at(-2)).toMatchObject({ stream: "stderr", data: expect.stringContaining("timed out") });
    expect(said(answer.text, "stdout")).toBe("early\n");
  });

  test("multi-byte text survives whole, in both forms", async () => {
    const text = "žluťoučký kůň 🐎 ".repeat(2_000);
    await on.client.call("POST", `/api/v1/sandboxes/${on.sandbox}/files`, {
      path: "/tmp/utf8",
      content: text,
    });
    const streamed = await run({ command: "cat /tmp/utf8", stream: true });
    expect(said(streamed.text, "stdout")).toBe(text);
    const short = text.slice(0, 5_000);
    await on.client.call("POST", `/api/v1/sandboxes/${on.sandbox}/files`, {
      path: "/tmp/utf8",
      content: short,
    });
    expect((await run({ command: "cat /tmp/utf8" })).json.stdout).toBe(short);
  });

  test("a caller that goes away leaves its command the grace, then it is cancelled", async () => {
    const open = await openRequest(`${on.client.url}/api/v1/sandboxes/${on.sandbox}/exec`, {
      method: "POST",
      body: { command: "sleep 60", stream: true },
    });
    const execId = open.response.headers["x-exec-id"];
    open.close();
    const ended = await eventually(async () => {
      const { json } = await on.client.call("GET", `/api/v1/sandboxes/${on.sandbox}/execs/${execId}`);
      return json.state === "exited" ? json : undefined;
    });
    expect(ended).toMatchObject({ reason: "cancelled", exit_code: 137 });
  });

  test("who reattaches within the grace keeps the command", async () => {
    const open = await openRequest(`${on.client.url}/api/v1/sandboxes/${on.sandbox}/exec`, {
      method: "POST",
      body: { command: "echo start; sleep 1.2; echo end", stream: true },
    });
    const execId = open.response.headers["x-exec-id"];
    open.close();
    const rest = await on.client.call(
      "GET",
      `/api/v1/sandboxes/${on.sandbox}/execs/${execId}/output?follow=true`,
    );
    expect(said(rest.text, "stdout")).toBe("start\nend\n");
    expect(lines(rest.text).at(-1)).toMatchObject({ stream: "exit", exit_code: 0, reason: "exited" });
  });

  test("a buffered caller that goes away leaves nothing running", async () => {
    const aborted = new AbortController();
    const call = fetch(`${on.client.url}/api/v1/sandboxes/${on.sandbox}/exec`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ command: "sleep 60", exec_id: "ex-abandoned0001" }),
      signal: aborted.signal,
    });
    await eventually(async () => {
      const { status } = await on.client.call(
        "GET",
        `/api/v1/sandboxes/${on.sandbox}/execs/ex-abandoned0001`,
      );
      return status === 200 ? true : undefined;
    });
    aborted.abort();
    await expect(call).rejects.toThrow();
    const ended = await eventually(async () => {
      const { json } = await on.client.call("GET", `/api/v1/sandboxes/${on.sandbox}/execs/ex-abandoned0001`);
      return json.state === "exited" ? json : undefined;
    });
    expect(ended.reason).toBe("cancelled");
  });

  test("a sandbox destroyed under its commands ends every form of them as lost", async () => {
    const id = await on.client.spawn();
    const path = `${on.client.url}/api/v1/sandboxes/${id}/exec`;
    const open = await openRequest(path, {
      method: "POST",
      body: { command: "echo up; sleep 60", stream: true },
    });
    const buffered = on.client.exec(id, { command: "sleep 60" });
    let text = "";
    const up = new Promise<void>((resolve) =>
      open.response.on("data", (chunk: Buffer) => {
        text += chunk;
        resolve();
      }),
    );
    const closed = new Promise<void>((resolve) => open.response.once("close", resolve));
    await up;
    // One that is being started when its sandbox ends was not there to be lost.
    await eventually(async () => {
      const { json } = await on.client.call("GET", `/api/v1/sandboxes/${id}/execs`);
      return json.filter(({ state }: { state: string }) => state === "running").length === 2
        ? true
        : undefined;
    });
    await on.client.call("DELETE", `/api/v1/sandboxes/${id}`);
    await closed;
    const ends = lines(text).filter((line) => line.stream === "exit");
    // The kill of its processes may be seen before the end of the sandbox.
    expect(ends).toEqual([expect.objectContaining({ reason: expect.stringMatching(lostOrKilled) })]);
    const { status, json } = await buffered;
    expect([404, 409], JSON.stringify(json)).toContain(status);
    expect(json).toMatchObject({ reason: "lost", exec_id: expect.stringMatching(/^ex-/) });
  });
}
