import { spawn } from "node:child_process";
import { once } from "node:events";
import type { WsClientMessage } from "@alcove/wire";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { type FakeExec, FakeService } from "./testing/fake-service.ts";
import { cliEntry, runCli } from "./testing/run-cli.ts";

// Each command is a process of its own, on a machine that may be busy.
vi.setConfig({ testTimeout: 60_000 });

let service: FakeService;
beforeEach(async () => {
  service = await FakeService.start();
});
afterEach(async () => {
  await service[Symbol.asyncDispose]();
});

/** A terminal session: `script` of util-linux, which every Linux distribution has, gives the command a PTY. */
class Terminal implements AsyncDisposable {
  readonly #child;
  readonly #closed: Promise<unknown>;
  #output = "";
  #changed = Promise.withResolvers<void>();

  constructor(commandLine: string) {
    const env: NodeJS.ProcessEnv = {
      ...process.env,
      SHELL: "/bin/sh",
      TERM: "dumb",
      ALCOVE_URL: service.url,
    };
    this.#child = spawn("script", ["-qfec", commandLine, "/dev/null"], { env });
    this.#closed = once(this.#child, "close");
    this.#child.stdout.on("data", (chunk: Buffer) => {
      this.#output += chunk.toString("utf8");
      this.#changed.resolve();
      this.#changed = Promise.withResolvers();
    });
  }

  type(keys: string): void {
    this.#child.stdin.write(keys);
  }

  /** @returns everything shown so far, once it holds the text. */
  async shows(text: string): Promise<string> {
    while (!this.#output.includes(text)) await this.#changed.promise;
    return this.#output;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.stdin.end();
    this.#child.kill();
    await this.#closed;
  }
}

/** The terminal's settings after the command, as `stty` tells them: `icanon` cooked, `-icanon` raw. */
const thenTellState = "; echo code=$? $(stty -a | grep -o -- '[-]*icanon') end";
const shellCommand = `'${process.execPath}' '${cliEntry}' shell sb-a${thenTellState}`;

interface Started {
  start: Extract<WsClientMessage, { type: "start" }>;
  exec: FakeExec;
}

function onceStarted(onInput: (text: string, exec: FakeExec) => void): Promise<Started> {
  const started = Promise.withResolvers<Started>();
  service.onExec = (message, exec) => {
    if (message.type === "start") {
      exec.send({ type: "stdout", data: "welcome$ " });
      started.resolve({ start: message, exec });
    } else if (message.type === "stdin") {
      onInput(Buffer.from(message.data, "base64").toString("utf8"), exec);
    }
  };
  return started.promise;
}

describe("shell on a terminal", () => {
  test("asks for a PTY of the same size, sends keys raw and ends with the shell's code, the terminal restored", async () => {
    const keys: string[] = [];
    const started = onceStarted((text, exec) => {
      keys.push(text);
      if (text.includes("\x04")) exec.send({ type: "exit", exit_code: 9, reason: "exited", duration: "1s" });
    });
    await using terminal = new Terminal(`stty rows 33 cols 101; ${shellCommand}`);
    const { start } = await started;
    expect(start).toMatchObject({ tty: true, cols: 101, rows: 33, mode: "shell", env: { TERM: "dumb" } });
    await terminal.shows("welcome$ ");
    terminal.type("a\x03b\x1a\x04");
    const output = await terminal.shows("end\r\n");
    expect(keys.join("")).toBe("a\x03b\x1a\x04");
    expect(output).toContain("code=9 icanon end");
  });

  test("Enter ~ . leaves with 130, the terminal restored", async () => {
    const started = onceStarted(() => undefined);
    await using terminal = new Terminal(shellCommand);
    await started;
    await terminal.shows("welcome$ ");
    terminal.type("x\r~.");
    expect(await terminal.shows("end\r\n")).toContain("code=130 icanon end");
  });

  test.each([
    ["a planned stop", (exec: FakeExec) => exec.close(1001)],
    ["a broken connection", (exec: FakeExec) => exec.cut()],
  ])("goes on after %s where it was: the window told, what is typed meanwhile sent", async (_name, end) => {
    const messages: WsClientMessage[] = [];
    service.onExec = (message, exec) => {
      messages.push(message);
      if (message.type === "start") exec.send({ type: "stdout", data: "one ", offset: 0 });
      if (message.type === "attach") exec.send({ type: "stdout", data: "two ", offset: 4 });
      if (message.type !== "stdin") return;
      const keys = Buffer.from(message.data, "base64").toString();
      if (keys.includes("b")) end(exec);
      if (keys.includes("y")) exec.send({ type: "exit", exit_code: 9, reason: "exited", duration: "1s" });
    };
    const refusals = [undefined, 503, 502];
    service.refuseSocket = () => refusals.shift();
    await using terminal = new Terminal(`stty rows 33 cols 101; ${shellCommand}`);
    await terminal.shows("one ");
    terminal.type("b");
    await terminal.shows("alcove: the connection broke; picking ex-aaaaaaaa up again");
    terminal.type("y");
    const output = await terminal.shows("end\r\n");
    expect(output).toContain("code=9 icanon end");
    expect(output.split("picking")).toHaveLength(2);
    expect(messages.slice(1)).toEqual([
      { type: "stdin", data: btoa("b"), encoding: "base64" },
      { type: "attach", exec_id: "ex-aaaaaaaa", from: 4, encoding: "base64", input: expect.any(String) },
      { type: "resize", cols: 101, rows: 33 },
      { type: "stdin", data: btoa("y"), encoding: "base64" },
    ]);
  });

  test("a command that is gone after a break ends with 125, the terminal restored", async () => {
    service.onExec = (message, exec) => {
      if (message.type === "start") exec.send({ type: "stdout", data: "welcome$ " });
      if (message.type === "stdin") exec.cut();
      if (message.type === "attach")
        exec.send({ type: "error", code: "not_found", message: "there is no such command" });
    };
    await using terminal = new Terminal(shellCommand);
    await terminal.shows("welcome$ ");
    terminal.type("x");
    const output = await terminal.shows("end\r\n");
    expect(output).toContain("alcove: there is no such command");
    expect(output).toContain("code=125 icanon end");
  });

  test("Enter ~ . leaves also while there is no connection", async () => {
    onceStarted((_text, exec) => exec.cut());
    await using terminal = new Terminal(shellCommand);
    await terminal.shows("welcome$ ");
    service.refuseSocket = () => 503;
    terminal.type("x");
    await terminal.shows("up again");
    terminal.type("\r~.");
    expect(await terminal.shows("end\r\n")).toContain("code=130 icanon end");
  });
});

test("shell without a terminal reads standard input and asks for no PTY", async () => {
  const starts: WsClientMessage[] = [];
  let input = "";
  service.onExec = (message, exec) => {
    if (message.type === "start") starts.push(message);
    if (message.type !== "stdin") return;
    input += Buffer.from(message.data, "base64").toString("utf8");
    if (message.close) exec.send({ type: "exit", exit_code: 3, reason: "exited", duration: "1s" });
  };
  const result = await runCli(["shell", "sb-a"], { url: service.url, stdin: "exit 3\n" });
  expect(result.code).toBe(3);
  expect(input).toBe("exit 3\n");
  expect(starts[0]).not.toHaveProperty("tty");
});
