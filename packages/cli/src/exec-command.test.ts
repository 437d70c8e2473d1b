import { once } from "node:events";
import type { WsClientMessage } from "@alcove/wire";
import { describe, expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";
import { finish, runCliInto, startCli } from "./testing/run-cli.ts";

const at = commandsOfTests();

const exit = (exit_code: number, reason: "exited" | "timeout" | "lost" | "oom" = "exited") =>
  ({ type: "exit", exit_code, reason, duration: "1ms" }) as const;

describe("exec", () => {
  test("a line that was run as a program because options came behind it is told so", async () => {
    at.service.onExec = (message, exec) => {
      if (message.type === "start") exec.send(exit(127));
    };
    const told = await at.run("exec", "sb-a", "echo hi", "--timeout", "1s");
    expect(told).toMatchObject({ code: 127, stderr: expect.stringContaining("before the sandbox's id") });
    expect((await at.run("exec", "sb-a", "nothing", "--all")).stderr).not.toContain("before the sandbox");
    expect((await at.run("exec", "sb-a", "no such")).stderr).not.toContain("before the sandbox");
  });

  test("keeps the streams apart and ends with the command's code", async () => {
    at.service.onExec = (message, exec) => {
      if (message.type !== "start") return;
      exec.send({ type: "stdout", data: "out ☃\n" });
      exec.send({ type: "stderr", data: "err\n" });
      exec.send(exit(7));
    };
    expect(await at.run("exec", "sb-a", "ls", "-la", "--", "x")).toEqual({
      code: 7,
      stdout: "out ☃\n",
      stderr: "err\n",
    });
  });

  test("sends one argument as a shell command line, several as a program", async () => {
    const starts: WsClientMessage[] = [];
    at.service.onExec = (message, exec) => {
      if (message.type !== "start") return;
      starts.push(message);
      exec.send(exit(0));
    };
    await at.run("exec", "-w", "/tmp", "-u", "root", "--timeout", "3s", "-e", "A=1", "sb-a", "echo $A | wc");
    await at.run("exec", "sb-a", "--", "echo", "-n", "$A");
    expect(starts).toEqual([
      {
        type: "start",
        command: "echo $A | wc",
        mode: "shell",
        workdir: "/tmp",
        user: "root",
        timeout: "3s",
        env: { A: "1" },
        encoding: "base64",
      },
      { type: "start", command: "echo", args: ["-n", "$A"], mode: "argv", encoding: "base64" },
    ]);
  });

  test.each([
    ["timeout", 143, 124],
    ["lost", 0, 125],
    ["oom", 137, 137],
  ] as const)("reason %s with code %i ends with %i", async (reason, code, expected) => {
    at.service.onExec = (message, exec) => {
      if (message.type === "start") exec.send(exit(code, reason));
    };
    const result = await at.run("exec", "sb-a", "x");
    expect(result.code).toBe(expected);
    expect(result.stderr === "").toBe(reason === "timeout");
  });

  test.each([
    [1, "a process of the sandbox was killed for memory meanwhile"],
    [3, "3 processes of the sandbox were killed for memory meanwhile"],
  ])("tells of %i killed for memory where the command went on", async (oom_kills, told) => {
    at.service.onExec = (message, exec) => {
      if (message.type === "start") exec.send({ ...exit(0), oom_kills });
    };
    const result = await at.run("exec", "sb-a", "x");
    expect(result).toMatchObject({ code: 0, stdout: "", stderr: `alcove: ${told}\n` });
  });

  test("tells once that a command was ended for memory, whoever's", async () => {
    at.service.onExec = (message, exec) => {
      if (message.type === "start") exec.send({ ...exit(137, "oom"), oom_kills: 1 });
    };
    const { stderr } = await at.run("exec", "sb-a", "x");
    expect(stderr).toBe("alcove: the command was killed: the sandbox ran out of memory\n");
    at.service.onExec = (message, exec) => {
      if (message.type === "start")
        exec.send({ ...exit(137), reason: "limit", limit: "memory_mb", oom_kills: 1 });
    };
    const result = await at.run("exec", "sb-a", "x");
    expect(result).toMatchObject({ code: 137, stdout: "" });
    expect(result.stderr).toBe("alcove: the command was ended: it used more than its limit memory_mb\n");
  });

  test("-i passes standard input on to its end, any bytes", async () => {
    const received: Buffer[] = [];
    at.service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      received.push(Buffer.from(message.data, message.encoding === "base64" ? "base64" : "utf8"));
      if (message.close) exec.send(exit(0));
    };
    const child = startCli(["exec", "-i", "sb-a", "cat"], { url: at.service.url });
    const input = Buffer.from([0, 255, 10, 0xc3, 0x28]);
    child.stdin.end(input);
    expect((await finish(child)).code).toBe(0);
    expect(Buffer.concat(received)).toEqual(input);
  });

  test.each([["exec"], ["exec", "-i"]])(
    "%s %s tells that the key was taken back meanwhile",
    async (...args) => {
      at.service.onExec = (message, exec) => {
        if (message.type !== "start") return;
        exec.send({ type: "stdout", data: btoa("ab"), offset: 0, encoding: "base64" });
        at.service.refuseSocket = () => 401;
        setImmediate(() => exec.cut());
      };
      at.service.answer = () => ({
        status: 401,
        json: { code: "unauthorized", message: "the key is not known" },
      });
      const { code, stdout, stderr } = await at.run(...args, "sb-a", "cat f");
      expect([code, stdout]).toEqual([125, "ab"]);
      expect(stderr).toContain("it cannot be picked up: ");
      if (!args.includes("-i")) expect(stderr).toMatch(/the key is not known; give the key with --api-key/);
    },
  );

  test("a refused start ends with 125 and the service's message", async () => {
    at.service.onExec = (message, exec) => {
      if (message.type === "start")
        exec.send({ type: "error", code: "bad_request", message: "no such workdir" });
    };
    const result = await at.run("exec", "sb-a", "x");
    expect(result).toMatchObject({ code: 125, stderr: "alcove: no such workdir\n" });
  });

  test("the first Ctrl-C goes to the command, the second leaves with 130", async () => {
    const signals: unknown[] = [];
    const child = startCli(["exec", "sb-a", "sleep 100"], { url: at.service.url });
    at.service.onExec = (message, exec) => {
      if (message.type === "start") exec.send({ type: "stdout", data: "ready" });
      if (message.type === "signal") {
        signals.push(message.signal);
        exec.send({ type: "stdout", data: "got it" });
      }
    };
    const result = finish(child);
    await once(child.stdout, "data");
    child.kill("SIGINT");
    await once(child.stdout, "data");
    child.kill("SIGINT");
    expect(await result).toMatchObject({ code: 130, stdout: "readygot it" });
    expect(signals).toEqual(["SIGINT"]);
  });

  test("--json prints what a command had done at its deadline, and ends with 124", async () => {
    const done = {
      exit_code: 143,
      stdout: "part",
      stderr: "",
      duration: "1s",
      exec_id: "ex-a",
      reason: "timeout",
    };
    at.service.answer = () => ({
      status: 408,
      json: { code: "timeout", message: "its deadline passed", ...done },
    });
    const result = await at.run("exec", "--json", "--timeout", "1s", "sb-a", "sleep 9");
    expect([result.code, result.stderr]).toEqual([124, "alcove: its deadline passed\n"]);
    expect(JSON.parse(result.stdout)).toEqual(done);
  });

  test.each([
    ["a stop of an earlier service", {}],
    ["a stop", { goes_on: "shutting_down" }],
    ["a connection that was lost", { goes_on: "connection_lost", stdout: "who", stderr: "" }],
  ])("--json lives through %s as well", async (_what, told) => {
    const answers = [
      { status: 503, json: { code: "unavailable", message: "503", exec_id: "ex-aaaaaaaa", ...told } },
      {
        chunks: [
          '{"stream":"stdout","data":"whole","offset":0}\n',
          '{"stream":"exit","data":"","exit_code":4,"reason":"exited","duration":"1s"}\n',
        ],
      },
    ];
    at.service.answer = () => answers.shift() ?? { status: 404, json: { code: "not_found", message: "?" } };
    const result = await at.run("exec", "--json", "sb-a", "x");
    expect(result.code).toBe(4);
    expect(JSON.parse(result.stdout)).toMatchObject({ stdout: "whole", stderr: "", exec_id: "ex-aaaaaaaa" });
    expect(result.stderr).toContain("picking ex-aaaaaaaa up again");
  });

  test("--json keeps all that the end tells, and what is missing", async () => {
    const exit = { reason: "limit", limit: "output_bytes", duration: "1s", oom_kills: 1 };
    const usage = { cpu_ms: 1, max_memory_bytes: 2, wall_ms: 3 };
    const answers = [
      {
        status: 503,
        json: { code: "unavailable", message: "full", exec_id: "ex-aaaaaaaa", goes_on: "no_room" },
      },
      {
        chunks: [
          '{"stream":"stdout","data":"end","offset":9,"lost_bytes":9}\n',
          `${JSON.stringify({ stream: "exit", data: "", exit_code: 137, ...exit, usage, lost_bytes: 3 })}\n`,
        ],
      },
    ];
    at.service.answer = () => answers.shift() ?? { status: 404, json: { code: "not_found", message: "?" } };
    const result = await at.run("exec", "--json", "sb-a", "x");
    expect(result.code).toBe(125);
    expect(result.stderr).toContain("alcove: full; reading the output of ex-aaaaaaaa as it comes\n");
    expect(result.stderr).toContain("9 bytes of the command's output are missing here");
    expect(JSON.parse(result.stdout)).toEqual({
      ...exit,
      usage,
      exit_code: 137,
      stdout: "end",
      stderr: "",
      exec_id: "ex-aaaaaaaa",
      truncated: true,
      lost_bytes: 12,
    });
  });

  test.each([
    ["told", ',"lost_bytes":3'],
    ["by its offset alone", ""],
  ])("a gap in the output, %s, ends with 125", async (_how, field) => {
    at.service.answer = ({ path: route }) =>
      route.endsWith("/output")
        ? {
            chunks: [
              `{"stream":"stdout","data":"${btoa("cd")}","offset":5,"encoding":"base64"${field}}\n`,
              '{"stream":"exit","data":"","exit_code":0,"reason":"exited","duration":"1s"}\n',
            ],
          }
        : { status: 404, json: { code: "not_found", message: "?" } };
    at.service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      exec.send({ type: "stdout", data: btoa("ab"), offset: 0, encoding: "base64" });
      setImmediate(() => exec.cut());
    };
    const result = await at.run("exec", "sb-a", "x");
    expect(result).toMatchObject({ code: 125, stdout: "abcd" });
    expect(result.stderr).toContain("alcove: 3 bytes of the command's output are missing here");
  });

  test("-d prints the exec id", async () => {
    at.service.answer = () => ({ status: 201, json: { exec_id: "ex-bbbbbbbb", pid: 3 } });
    expect(await at.run("exec", "-d", "sb-a", "sleep 9")).toMatchObject({ code: 0, stdout: "ex-bbbbbbbb\n" });
  });
});

test.each([
  [125, ["exec", "sb-a", "x"]],
  [125, ["exec", "-d", "sb-a", "x"]],
  [1, ["ls"]],
])("output that cannot be written ends with %i and is told: %j", async (code, args) => {
  at.service.answer = ({ method, path: route }) =>
    route === "/sandboxes"
      ? { json: [] }
      : method === "POST" && route.endsWith("/execs")
        ? { status: 201, json: { exec_id: "ex-bbbbbbbb", pid: 3 } }
        : { status: 404, json: { code: "not_found", message: "?" } };
  at.service.onExec = (message, exec) => {
    if (message.type !== "start") return;
    exec.send({ type: "stdout", data: "out\n" });
    exec.send(exit(7));
  };
  const told = await runCliInto("/dev/full", args, { url: at.service.url });
  expect(told).toEqual({ code, stdout: "", stderr: expect.stringContaining("no space left on device") });
});

test("a reader that goes away ends the command quietly, and not as if what it ran had done well", async () => {
  at.service.onExec = (message, exec) => {
    if (message.type === "start")
      for (let index = 0; index < 200; index++) exec.send({ type: "stdout", data: "x".repeat(10_000) });
  };
  const child = startCli(["exec", "sb-a", "yes"], { url: at.service.url });
  await once(child.stdout, "data");
  child.stdout.destroy();
  const [code] = await once(child, "exit");
  expect(code).toBe(141);
});
