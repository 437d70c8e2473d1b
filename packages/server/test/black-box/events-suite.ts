import { expect, test } from "vitest";
import { readEvents, type SentEvent } from "../support/http.ts";
import type { Subject } from "./black-box.ts";

export function eventSuite(on: Subject): void {
  const types = (events: SentEvent[]) => events.map((event) => event.type);

  test("the life of a sandbox, its commands and files is told in order, once each", async () => {
    let id = "";
    const events = await readEvents(`${on.client.url}/api/v1/events`, {
      onOpen: async () => {
        id = await on.client.spawn();
        await on.client.exec(id, { command: "exit 3" });
        await on.client.exec(id, { command: "sleep 20", timeout: "200ms" });
        await on.client.exec(id, { command: "no-such-program", mode: "argv" });
        await on.client.call("POST", `/api/v1/sandboxes/${id}/files`, { path: "/tmp/e", content: "x" });
        await on.client.call("GET", `/api/v1/sandboxes/${id}/files?path=/tmp/e`);
        await on.client.call("DELETE", `/api/v1/sandboxes/${id}`);
      },
      enough: (seen) => seen.some((event) => event.type === "sandbox.destroyed" && event.sandbox_id === id),
    });
    const own = events.filter((event) => event.sandbox_id === id);
    expect(types(own)).toEqual([
      "sandbox.created",
      "sandbox.running",
      "exec.started",
      "exec.completed",
      "exec.started",
      "exec.timeout",
      "exec.started",
      "exec.failed",
      "file.written",
      "file.read",
      "sandbox.destroyed",
    ]);
    const provider = on.server.provider.name;
    expect(own[2]?.data).toMatchObject({
      provider,
      operation: "exec",
      exec_id: expect.stringMatching(/^ex-/),
    });
    expect(own[3]?.data).toMatchObject({ exit_code: 3, duration_ms: expect.any(Number) });
    expect(own[5]?.data).toMatchObject({ operation: "exec", provider, error: expect.any(String) });
    const ids = events.map((event) => Number(event.id));
    expect(ids).toEqual([...ids].sort((a, b) => a - b));
    expect(new Set(ids).size).toBe(ids.length);
    for (const event of events) expect(event.timestamp).toMatch(/^\d{4}-\d\d-\d\dT.*Z$/);
  });

  test("whatever happens to a sandbox is its owner's, and nobody else's", async () => {
    const { id } = (await on.client.call("POST", "/api/v1/sandboxes", { owner_id: "eve" })).json;
    await on.client.exec(id, { command: "exit 3" });
    await on.client.exec(id, { command: "sleep 20", timeout: "200ms" });
    await on.client.call("POST", `/api/v1/sandboxes/${id}/files`, { path: "/tmp/e", content: "x" });
    await on.client.call(
      "POST",
      `/api/v1/sandboxes/${id}/extend`,
      { ttl: "1000h" },
      { "x-request-id": "too-long" },
    );
    await on.client.call("DELETE", `/api/v1/sandboxes/${id}`);
    await on.server.events.flush();
    const of = async (filter: { ownerId?: string; sandboxId?: string }) => {
      const reader = new AbortController();
      const seen: string[] = [];
      for await (const event of on.server.events.subscribe({
        ...filter,
        afterId: 0,
        signal: reader.signal,
      })) {
        seen.push(event.type);
        if (event.type === "sandbox.destroyed") break;
      }
      return seen;
    };
    const all = await of({ sandboxId: id });
    expect(all).toEqual(
      expect.arrayContaining(["exec.completed", "exec.timeout", "file.written", "resource.limit"]),
    );
    expect(await of({ ownerId: "eve" })).toEqual(all);
    const told = await readEvents(`${on.client.url}/api/v1/events?sandbox_id=${id}`, {
      headers: { "last-event-id": "0" },
      enough: (events) => types(events).includes("sandbox.destroyed"),
    });
    const life = told.filter(({ type }) => type.startsWith("sandbox."));
    expect(life.map(({ data }) => data?.owner_id)).toEqual(["eve", "eve", "eve"]);
    const limit = told.find(({ type }) => type === "resource.limit");
    expect(limit?.data).toMatchObject({ operation: "extend", owner_id: "eve", request_id: "too-long" });
    expect(await of({ ownerId: "eve", sandboxId: id })).toEqual(all);
  });

  test("Last-Event-ID replays what came after it, filters choose", async () => {
    const id = await on.client.spawn();
    await on.client.exec(id, { command: "true" });
    const url = `${on.client.url}/api/v1/events?sandbox_id=${id}`;
    const all = await readEvents(url, {
      headers: { "last-event-id": "0" },
      enough: (events) => types(events).includes("exec.completed"),
    });
    expect(types(all)).toEqual(["sandbox.created", "sandbox.running", "exec.started", "exec.completed"]);
    const rest = await readEvents(url, {
      headers: { "last-event-id": String(all[1]?.id) },
      enough: (events) => events.length === 2,
    });
    expect(types(rest)).toEqual(["exec.started", "exec.completed"]);
    const chosen = await readEvents(`${url}&type=sandbox.running,exec.completed`, {
      headers: { "last-event-id": "0" },
      enough: (events) => events.length === 2,
    });
    expect(types(chosen)).toEqual(["sandbox.running", "exec.completed"]);
    const repeated = await readEvents(`${url}&type=sandbox.running&type=exec.started`, {
      headers: { "last-event-id": "0" },
      enough: (events) => events.length === 2,
    });
    expect(types(repeated)).toEqual(["sandbox.running", "exec.started"]);
    await on.client.call("DELETE", `/api/v1/sandboxes/${id}`);
  });

  test("a reader that lost its connection before its first event misses nothing", async () => {
    const opening = await fetch(`${on.client.url}/api/v1/events?type=file.written`);
    const reader = opening.body?.pipeThrough(new TextDecoderStream()).getReader();
    let head = "";
    while (!head.includes("\n\n")) head += (await reader?.read())?.value ?? "";
    await reader?.cancel();
    const id = /^id: (\d+)$/m.exec(head)?.[1];
    expect(head).toMatch(/^retry: \d+\nid: \d+\n\n/);
    const sandbox = await on.client.spawn();
    await on.client.call("POST", `/api/v1/sandboxes/${sandbox}/files`, { path: "/tmp/e", content: "x" });
    const seen = await readEvents(`${on.client.url}/api/v1/events?sandbox_id=${sandbox}`, {
      headers: { "last-event-id": id ?? "" },
      enough: (events) => types(events).includes("file.written"),
    });
    expect(types(seen)).toEqual(["sandbox.created", "sandbox.running", "file.written"]);
    await on.client.call("DELETE", `/api/v1/sandboxes/${sandbox}`);
  });

  test("an unknown type is 400, an unknown Last-Event-ID is ignored", async () => {
    const refused = await on.client.call("GET", "/api/v1/events?type=nope");
    expect([refused.status, refused.json.code]).toEqual([400, "bad_request"]);
    const response = await fetch(`${on.client.url}/api/v1/events`, { headers: { "last-event-id": "what" } });
    expect(response.status).toBe(200);
    expect(response.headers.get("content-type")).toContain("text/event-stream");
    await response.body?.cancel();
  });
}
