import { randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { eventually, lines, openRequest, said } from "../support/http.ts";
import type { Subject } from "./black-box.ts";

export function execRecordSuite(on: Subject): void {
  const path = (rest = "") => `/api/v1/sandboxes/${on.sandbox}/execs${rest}`;
  const start = async (body: Record<string, unknown>): Promise<string> => {
    const { status, json, headers, text } = await on.client.call("POST", path(), body);
    expect([status, text]).toEqual([201, expect.any(String)]);
    expect(json).toEqual({ exec_id: expect.stringMatching(/^ex-/), pid: expect.any(Number) });
    expect(headers.get("x-exec-id")).toBe(json.exec_id);
    return json.exec_id;
  };
  const ended = (id: string) =>
    eventually(async () => {
      const { json } = await on.client.call("GET", path(`/${id}`));
      return json.state === "exited" ? json : undefined;
    });

  test("a detached command goes on without readers and keeps its record", async () => {
    const id = await start({ command: "echo kept; exit 7", args: [], tag: "job-1" });
    expect(await ended(id)).toMatchObject({
      exec_id: id,
      state: "exited",
      command: "echo kept; exit 7",
      args: [],
      tty: false,
      tag: "job-1",
      exit_code: 7,
      reason: "exited",
      output_bytes: 5,
      first_offset: 0,
      started_at: expect.stringMatching(/Z$/),
      ended_at: expect.stringMatching(/Z$/),
      duration: expect.any(String),
    });
    const listed = await on.client.call("GET", path());
    expect(listed.json.map((record: { exec_id: string }) => record.exec_id)).toContain(id);
  });

  test("output is replayed from an offset; lines carry offsets", async () => {
    const id = await start({ command: "printf abcdef" });
    await ended(id);
    const all = await on.client.call("GET", path(`/${id}/output`));
    expect(all.headers.get("content-type")).toBe("application/x-ndjson");
    expect(lines(all.text)[0]).toEqual({ stream: "stdout", data: "abcdef", offset: 0 });
    const tail = await on.client.call("GET", path(`/${id}/output?from=4&follow=true`));
    expect(lines(tail.text)[0]).toEqual({ stream: "stdout", data: "ef", offset: 4 });
    expect(lines(tail.text).at(-1)).toMatchObject({ stream: "exit", exit_code: 0 });
  });

  test("output that is not kept any more is told where it is missing", async () => {
    const id = await start({ command: "seq 1 400000" });
    const { output_bytes: written } = await ended(id);
    const read = await on.client.call("GET", path(`/${id}/output?encoding=base64&from=7`));
    let next = 7;
    let lost = 0;
    for (const line of lines(read.text)) {
      if (line.stream === "exit") {
        expect(next + (line.lost_bytes ?? 0)).toBe(written);
        continue;
      }
      expect(line.offset).toBe(next + (line.lost_bytes ?? 0));
      lost += line.lost_bytes ?? 0;
      next = line.offset + Buffer.from(line.data, "base64").length;
    }
    expect(lost).toBeGreaterThan(1_000_000);
    expect(lost).toBeLessThan(written);
  });

  test("a detached command is given its whole input at once, and its output is read as base64", async () => {
    const id = await start({
      command: "cat; printf '\\303\\251'",
      stdin: "b25lIA==",
      stdin_encoding: "base64",
    });
    await ended(id);
    const all = await on.client.call("GET", path(`/${id}/output?encoding=base64`));
    const output = lines(all.text).filter((line) => line.stream === "stdout");
    expect(Buffer.concat(output.map((line) => Buffer.from(line.data, "base64"))).toString()).toBe("one é");
    expect(output.every((line) => line.encoding === "base64")).toBe(true);
  });

  test("a detached command waits for a reader that asks it to: 20 MB go in and come back whole", async (context) => {
    if (!on.server.provider.capabilities.has("pty")) context.skip();
    const id = await start({ command: "cat" });
    const reading = await openRequest(
      `${on.client.url}${path(`/${id}/output?follow=true&lossless=true&encoding=base64`)}`,
      { method: "GET" },
    );
    const piece = randomBytes(1_000_000);
    const write = async () => {
      const data = piece.toString("base64");
      for (let written = 0; written < 20; written += 1)
        expect(
          (await on.client.call("POST", path(`/${id}/stdin`), { data, encoding: "base64" })).status,
        ).toBe(200);
      await on.client.call("POST", path(`/${id}/stdin`), { close: true });
    };
    const writing = write();
    // More than is kept for readers that come late is written before anything is read.
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    let text = "";
    for await (const chunk of reading.response) text += chunk;
    await writing;
    const all = lines(text);
    expect(all.filter((line) => line.lost_bytes !== undefined)).toEqual([]);
    expect(all.at(-1)).toMatchObject({ stream: "exit", exit_code: 0 });
    const output = Buffer.concat(all.map((line) => Buffer.from(line.data, "base64")));
    expect(output.equals(Buffer.concat(Array.from({ length: 20 }, () => piece)))).toBe(true);
  });

  test("standard input is written and closed by name, in text and base64", async () => {
    const id = await start({ command: "cat" });
    for (const body of [
      { data: "one " },
      { data: Buffer.from("two").toString("base64"), encoding: "base64" },
      { close: true },
    ]) {
      const { status, json } = await on.client.call("POST", path(`/${id}/stdin`), body);
      expect([status, json]).toEqual([200, { status: "written" }]);
    }
    expect((await ended(id)).exit_code).toBe(0);
    const output = await on.client.call("GET", path(`/${id}/output`));
    expect(said(output.text, "stdout")).toBe("one two");
    const late = await on.client.call("POST", path(`/${id}/stdin`), { data: "late" });
    expect([late.status, late.json.code]).toEqual([409, "conflict"]);
  });

  test("the calls of a named input are safe to repeat, the one that closes it too, and once its command has ended", async () => {
    const id = await start({ command: "cat; sleep 1" });
    const calls = [
      { input: "mine", offset: 0, data: "one " },
      { input: "mine", offset: 4, data: "two" },
      { input: "mine", offset: 7, close: true },
      { input: "mine", offset: 4, data: "two", close: true },
    ];
    const answers = async () =>
      Promise.all(
        calls.map(async (body) => {
          const { status, json } = await on.client.call("POST", path(`/${id}/stdin`), body);
          return [status, json.taken];
        }),
      );
    for (const [index, body] of calls.slice(0, 3).entries()) {
      const { json } = await on.client.call("POST", path(`/${id}/stdin`), body);
      expect(json.taken).toBe([4, 7, 7][index]);
    }
    const again = [
      [200, 7],
      [200, 7],
      [200, 7],
      [200, 7],
    ];
    expect(await answers()).toEqual(again);
    expect((await ended(id)).exit_code).toBe(0);
    expect(await answers()).toEqual(again);
    const late = await on.client.call("POST", path(`/${id}/stdin`), {
      input: "mine",
      offset: 7,
      data: "three",
    });
    expect([late.status, late.json.code]).toEqual([409, "conflict"]);
    const output = await on.client.call("GET", path(`/${id}/output`));
    expect(said(output.text, "stdout")).toBe("one two");
  });

  test("stdin: false leaves nothing to read", async () => {
    const id = await start({ command: "cat; echo over", stdin: false });
    expect((await ended(id)).exit_code).toBe(0);
  });

  test.each([["SIGTERM"], ["term"], [15], ["15"]])("signal %s ends a command", async (signal) => {
    const id = await start({ command: "sleep 60" });
    const sent = await on.client.call("POST", path(`/${id}/signal`), { signal });
    expect([sent.status, sent.json]).toEqual([200, { status: "signaled" }]);
    expect(await ended(id)).toMatchObject({ exit_code: 143, signal: "SIGTERM", reason: "signaled" });
    const late = await on.client.call("POST", path(`/${id}/signal`), { signal });
    expect([late.status, late.json.code]).toEqual([409, "conflict"]);
  });

  test("DELETE kills with reason cancelled and answers the record; it is safe to repeat", async () => {
    const id = await start({ command: "sleep 60" });
    for (let time = 0; time < 2; time += 1) {
      const { status, json } = await on.client.call("DELETE", path(`/${id}`));
      expect([status, json.exec_id, json.reason, json.exit_code]).toEqual([200, id, "cancelled", 137]);
    }
  });

  test("an unknown exec is 404, a malformed id 400", async () => {
    for (const [method, rest, body] of [
      ["GET", "", undefined],
      ["GET", "/output", undefined],
      ["POST", "/stdin", { data: "x" }],
      ["POST", "/signal", { signal: "TERM" }],
      ["DELETE", "", undefined],
    ] as const) {
      const unknown = await on.client.call(method, path(`/ex-00000000${rest}`), body);
      expect([method, rest, unknown.status, unknown.json?.code]).toEqual([method, rest, 404, "not_found"]);
      expect([method, rest, unknown.json.what]).toEqual([method, rest, "exec"]);
      expect(unknown.json.message).toMatch(/^exec ex-\w+ is unknown; the last 1000 ended ones are kept/);
      const malformed = await on.client.call(method, path(`/EX_%0d%0a${rest}`), body);
      expect([method, rest, malformed.status]).toEqual([method, rest, 400]);
    }
  });

  test("an offset beyond all numbers is 400", async () => {
    const path = `/api/v1/sandboxes/${on.sandbox}/execs`;
    const far = await on.client.call("GET", `${path}/ex-00000000/output?from=26652749901024641024`);
    expect([far.status, far.json.code]).toEqual([400, "bad_request"]);
  });

  test("a list tells the beginning of a long command line, the record all of it", async () => {
    const path = `/api/v1/sandboxes/${on.sandbox}/execs`;
    const command = `true ${"x".repeat(9_000)}`;
    const args = ["a".repeat(5_000), "b".repeat(9_000)];
    const ids: string[] = [];
    for (const body of [{ command }, { command: "true", args }]) {
      const started = await on.client.call("POST", path, body);
      expect(started.status).toBe(201);
      ids.push(started.json.exec_id);
    }
    const { json } = await on.client.call("GET", path);
    const listed = (json as { exec_id: string; command: string; args: string[] }[]).filter(({ exec_id }) =>
      ids.includes(exec_id),
    );
    expect(listed.map((record) => [record.command, record.args])).toEqual([
      [`${command.slice(0, 4_096)}…`, []],
      ["true", [`${"a".repeat(4_096 - "true".length - 24)}…`]],
    ]);
    const records = await Promise.all(ids.map((id) => on.client.call("GET", `${path}/${id}`)));
    expect(records.map((record) => [record.json.command, record.json.args])).toEqual([
      [command, []],
      ["true", args],
    ]);
  });
}
