import { expect, test } from "vitest";
import { WebSocket } from "ws";
import { eventually } from "../support/http.ts";
import type { Subject } from "./black-box.ts";

interface Heard {
  type: string;
  offset?: number;
  encoding?: string;
  lost_bytes?: number;
  data?: string;
  code?: string;
  exit_code?: number;
  reason?: string;
  signal?: string;
}

/** A client of the WebSocket exec that writes down what it hears. */
class Socket {
  readonly heard: Heard[] = [];
  readonly closed: Promise<number>;
  readonly #socket: WebSocket;

  private constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.on("message", (data) => this.heard.push(JSON.parse(String(data))));
    this.closed = new Promise((resolve) => socket.on("close", resolve));
  }

  static open(
    url: string,
    headers: Record<string, string> = {},
  ): Promise<{ socket: Socket; execId: string }> {
    return new Promise((resolve, reject) => {
      const raw = new WebSocket(url.replace("http", "ws"), { headers });
      const socket = new Socket(raw);
      let execId = "";
      raw.on("upgrade", (response) => {
        execId = String(response.headers["x-exec-id"]);
      });
      raw.on("unexpected-response", (_request, response) => {
        reject(new Error(`status ${response.statusCode}`));
        raw.terminate();
      });
      raw.on("error", reject);
      raw.on("open", () => resolve({ socket, execId }));
    });
  }

  send(message: unknown): void {
    this.#socket.send(typeof message === "string" ? message : JSON.stringify(message));
  }

  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  terminate(): void {
    this.#socket.terminate();
  }

  text(stream: string): string {
    return this.heard
      .filter((message) => message.type === stream)
      .map((message) => message.data)
      .join("");
  }

  until(stream: string, text: string): Promise<true> {
    return eventually(() => (this.text(stream).includes(text) ? (true as const) : undefined));
  }
}

export function socketSuite(on: Subject): void {
  const url = (id = on.sandbox) => `${on.client.url}/api/v1/sandboxes/${id}/exec/ws`;

  test("output carries offsets, in text and base64", async () => {
    const { socket } = await Socket.open(url());
    socket.send({ type: "start", command: "echo one; sleep 0.05; echo two", encoding: "base64" });
    expect(await socket.closed).toBe(1000);
    let next = 0;
    for (const message of socket.heard.slice(0, -1)) {
      expect(message).toMatchObject({ type: "stdout", encoding: "base64", offset: next });
      next += Buffer.from(message.data ?? "", "base64").length;
    }
    expect(next).toBe(8);
  });

  test("attach goes on with a command from an offset: output, input and its exit", async (context) => {
    // The simulated shell reads all of its input before it runs.
    if (!on.server.provider.capabilities.has("pty")) context.skip();
    const { json } = await on.client.call("POST", `/api/v1/sandboxes/${on.sandbox}/execs`, {
      command: 'echo 0123456789; while read line; do echo "got $line"; done; echo over',
    });
    const first = await Socket.open(url());
    first.socket.send({ type: "attach", exec_id: json.exec_id, from: 4 });
    await first.socket.until("stdout", "456789\n");
    first.socket.send({ type: "stdin", data: "a\n" });
    await first.socket.until("stdout", "got a\n");
    first.socket.terminate();
    // Another connection takes over where the first one ended, and closes the input.
    const second = await Socket.open(url());
    second.socket.send({ type: "attach", exec_id: json.exec_id, from: 11 });
    second.socket.send({ type: "stdin", data: "b\n", close: true });
    expect(await second.socket.closed).toBe(1000);
    expect(second.socket.text("stdout")).toBe("got a\ngot b\nover\n");
    expect(second.socket.heard[0]).toMatchObject({ type: "stdout", offset: 11 });
    expect(second.socket.heard.at(-1)).toMatchObject({ type: "exit", exit_code: 0 });
    const unknown = await Socket.open(url());
    unknown.socket.send({ type: "attach", exec_id: "ex-nosuchone0" });
    expect(await unknown.socket.closed).toBe(1008);
    expect(unknown.socket.heard).toEqual([expect.objectContaining({ type: "error", code: "not_found" })]);
  });

  test("a detached command waits for a lossless reader that attaches: 8 MB come whole, however late it reads", async (context) => {
    if (!on.server.provider.capabilities.has("pty")) context.skip();
    const { json } = await on.client.call("POST", `/api/v1/sandboxes/${on.sandbox}/execs`, {
      command: "read go; head -c 8000000 /dev/zero",
    });
    const { socket } = await Socket.open(url());
    socket.send({ type: "attach", exec_id: json.exec_id, lossless: true, input: "mine", encoding: "base64" });
    await expect.poll(() => socket.heard.length, { timeout: 10_000 }).toBeGreaterThan(0);
    socket.pause();
    socket.send({ type: "stdin", data: "go\n" });
    const written = async () =>
      (await on.client.call("GET", `/api/v1/sandboxes/${on.sandbox}/execs/${json.exec_id}`)).json
        .output_bytes;
    // More than is kept for readers that come late is written before anything is read.
    await eventually(async () => ((await written()) > 1_048_576 ? true : undefined));
    socket.resume();
    expect(await socket.closed).toBe(1000);
    expect(socket.heard.filter((message) => message.lost_bytes !== undefined)).toEqual([]);
    const data = socket.heard.map((message) => Buffer.from(message.data ?? "", "base64"));
    expect(Buffer.concat(data).length).toBe(8_000_000);
  });

  test("an input with a name is counted, and goes on over another connection, each byte once", async () => {
    const first = await Socket.open(url());
    first.socket.send({ type: "start", command: "cat", input: "mine" });
    first.socket.send({ type: "stdin", data: "abc" });
    const counted = (socket: Socket, taken: number) =>
      expect
        .poll(() => socket.heard.filter(({ type }) => type === "input").at(-1))
        .toEqual({ type: "input", taken });
    await counted(first.socket, 3);
    expect(first.socket.heard[0]).toEqual({ type: "input", taken: expect.any(Number) });
    const second = await Socket.open(url());
    second.socket.send({ type: "attach", exec_id: first.execId, input: "mine" });
    await counted(second.socket, 3);
    // It is still there, and has no input any more.
    first.socket.send({ type: "stdin", data: "xyz" });
    second.socket.send({ type: "stdin", data: "def" });
    await counted(second.socket, 6);
    first.socket.terminate();
    second.socket.send({ type: "stdin", data: "", close: true });
    expect(await second.socket.closed).toBe(1000);
    expect(second.socket.text("stdout")).toBe("abcdef");
    const unnamed = await Socket.open(url());
    unnamed.socket.send({ type: "start", command: "cat" });
    unnamed.socket.send({ type: "stdin", data: "abc", close: true });
    expect(await unnamed.socket.closed).toBe(1000);
    expect(unnamed.socket.heard.map(({ type }) => type)).not.toContain("input");
  });

  test("start runs a command; its output and exit come back; close is 1000", async () => {
    const { socket, execId } = await Socket.open(url());
    expect(execId).toMatch(/^ex-[a-z0-9]{8,32}$/);
    socket.send({ type: "start", command: 'echo "$X"; echo err >&2; exit 5', env: { X: "from env" } });
    expect(await socket.closed).toBe(1000);
    expect(socket.text("stdout")).toBe("from env\n");
    expect(socket.text("stderr")).toBe("err\n");
    expect(socket.heard.at(-1)).toMatchObject({ type: "exit", exit_code: 5, reason: "exited" });
    const record = await on.client.call("GET", `/api/v1/sandboxes/${on.sandbox}/execs/${execId}`);
    expect(record.json.exit_code).toBe(5);
  });

  test("stdin reaches the command and can be closed", async () => {
    const { socket } = await Socket.open(url());
    socket.send({ type: "start", command: "cat" });
    socket.send({ type: "stdin", data: "grüße " });
    socket.send({
      type: "stdin",
      data: Buffer.from("bytes").toString("base64"),
      encoding: "base64",
      close: true,
    });
    expect(await socket.closed).toBe(1000);
    expect(socket.text("stdout")).toBe("grüße bytes");
  });

  test("signal ends the command, resize without a PTY is ignored", async () => {
    const { socket } = await Socket.open(url());
    socket.send({ type: "start", command: "echo up; sleep 60" });
    await socket.until("stdout", "up");
    socket.send({ type: "resize", cols: 100, rows: 40 });
    socket.send({ type: "signal", signal: "SIGTERM" });
    expect(await socket.closed).toBe(1000);
    expect(socket.heard.at(-1)).toMatchObject({ type: "exit", exit_code: 143, signal: "SIGTERM" });
  });

  test("cols and rows give a PTY that resizes", async (context) => {
    if (!on.server.provider.capabilities.has("pty")) context.skip();
    const { socket } = await Socket.open(url());
    socket.send({ type: "start", command: "stty size; read line; stty size", cols: 91, rows: 33 });
    await socket.until("stdout", "33 91");
    socket.send({ type: "resize", cols: 120, rows: 50 });
    socket.send({ type: "stdin", data: "go\n" });
    expect(await socket.closed).toBe(1000);
    expect(socket.text("stdout")).toContain("50 120");
  });

  test("a deadline ends it with reason timeout", async () => {
    const { socket } = await Socket.open(url());
    socket.send({ type: "start", command: "sleep 60", timeout: "200ms" });
    expect(await socket.closed).toBe(1000);
    expect(socket.heard.at(-1)).toMatchObject({ type: "exit", exit_code: 137, reason: "timeout" });
  });

  test.each([
    ["no JSON", "{"],
    ["an array", "[]"],
    ["null", "null"],
    ["an unknown type", { type: "begin" }],
    ["stdin first", { type: "stdin", data: "x" }],
    ["no command", { type: "start" }],
    ["a wrong type", { type: "start", command: 5 }],
    ["an unknown field", { type: "start", command: "true", shell: "zsh" }],
    ["a bad timeout", { type: "start", command: "true", timeout: "soon" }],
    ["a missing workdir", { type: "start", command: "true", workdir: "/no/such/dir" }],
    ["bad env", { type: "start", command: "true", env: { "A=B": "x" } }],
  ])("a bad start, %s, is an error message and close 1008", async (_name, message) => {
    const { socket } = await Socket.open(url());
    socket.send(message);
    expect(await socket.closed).toBe(1008);
    expect(socket.heard).toEqual([{ type: "error", code: "bad_request", message: expect.any(String) }]);
  });

  test("a timeout above the maximum is a resource limit", async () => {
    const { socket } = await Socket.open(url());
    socket.send({ type: "start", command: "true", timeout: "3h" });
    expect(await socket.closed).toBe(1008);
    expect(socket.heard[0]).toMatchObject({
      type: "error",
      code: "resource_limit",
      reason: "max_exec_timeout",
    });
  });

  test("a bad message later is told and changes nothing", async () => {
    const { socket } = await Socket.open(url());
    socket.send({ type: "start", command: "cat" });
    socket.send({ type: "resize", cols: 0, rows: 1 });
    socket.send({ type: "signal", signal: "SIGNOTHING" });
    socket.send("garbage");
    socket.send({ type: "start", command: "true" });
    socket.send({ type: "stdin", data: "\ud83d" });
    await eventually(() =>
      socket.heard.filter((message) => message.type === "error").length === 5 ? true : undefined,
    );
    const remark = { type: "error", code: "bad_request", message: expect.any(String), goes_on: true };
    expect(socket.heard).toEqual([remark, remark, remark, remark, remark]);
    socket.send({ type: "stdin", data: "still here", close: true });
    expect(await socket.closed).toBe(1000);
    expect(socket.text("stdout")).toBe("still here");
  });

  test("a message that is more than any needs ends the connection", async () => {
    const { socket } = await Socket.open(url());
    socket.send({ type: "start", command: "sleep 5" });
    socket.send(`{"type":"stdin","data":${"[".repeat(1_000_000)}`);
    expect(await socket.closed).toBe(1008);
    expect(socket.heard.at(-1)).toMatchObject({ type: "error", code: "bad_request" });
  });

  test("an unknown sandbox is 404 at the handshake, a plain GET 426", async () => {
    await expect(Socket.open(url("sb-000000000000"))).rejects.toThrow("status 404");
    const plain = await on.client.call("GET", `/api/v1/sandboxes/${on.sandbox}/exec/ws`);
    expect([plain.status, plain.json.code]).toEqual([426, "upgrade_required"]);
  });

  test("with auth off a foreign page cannot open one", async () => {
    for (const origin of ["https://evil.example", "http://localhost:8080"])
      await expect(Socket.open(url(), { origin })).rejects.toThrow("status 403");
    const { socket } = await Socket.open(url(), { origin: on.server.url });
    socket.terminate();
  });

  test("a client that goes away leaves its command the grace, then it is cancelled", async () => {
    const { socket, execId } = await Socket.open(url());
    socket.send({ type: "start", command: "echo up; sleep 60" });
    await socket.until("stdout", "up");
    socket.terminate();
    const ended = await eventually(async () => {
      const { json } = await on.client.call("GET", `/api/v1/sandboxes/${on.sandbox}/execs/${execId}`);
      return json.state === "exited" ? json : undefined;
    });
    expect(ended.reason).toBe("cancelled");
  });

  test("a sandbox that ends under it ends the command, once", async () => {
    const id = await on.client.spawn();
    const { socket } = await Socket.open(url(id));
    socket.send({ type: "start", command: "echo up; sleep 60" });
    await socket.until("stdout", "up");
    await on.client.call("DELETE", `/api/v1/sandboxes/${id}`);
    expect(await socket.closed).toBe(1000);
    const ends = socket.heard.filter(({ type }) => type === "exit" || type === "error");
    expect(ends).toEqual([
      expect.objectContaining({
        type: "exit",
        reason: expect.stringMatching(/^(lost|cancelled|signaled)$/),
      }),
    ]);
  });
}
