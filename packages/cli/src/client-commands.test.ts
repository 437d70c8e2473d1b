import { once } from "node:events";
import { mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import type { Sandbox, WsClientMessage } from "@alcove/wire";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { type FakeExec, FakeService } from "./testing/fake-service.ts";
import { finish, runCli, startCli } from "./testing/run-cli.ts";

// Each command is a process of its own, on a machine that may be busy.
vi.setConfig({ testTimeout: 60_000 });

let service: FakeService;
let dir: string;
beforeEach(async () => {
  service = await FakeService.start();
  dir = await mkdtemp(path.join(tmpdir(), "alcove-cli-"));
});
afterEach(async () => {
  await service[Symbol.asyncDispose]();
  await rm(dir, { recursive: true, force: true });
});

const sandbox: Sandbox = {
  id: "sb-aaaaaaaaaaaa",
  state: "running",
  provider: "native",
  image: "host",
  memory_mb: 512,
  vcpus: 1,
  created_at: new Date(Date.now() - 90_000).toISOString(),
  expires_at: new Date(Date.now() + 1_710_500).toISOString(),
  metadata: { job: "a\u001b[31m" },
  preview_domain: "localhost",
  owner_id: "",
  worker_id: "local",
};

const run = (...args: string[]) => runCli(args, { url: service.url, cwd: dir });
const exit = (exit_code: number, reason: "exited" | "timeout" | "lost" | "oom" = "exited") =>
  ({ type: "exit", exit_code, reason, duration: "1ms" }) as const;

/** Waits until a count has begun and does not grow any more. */
async function standsStill(count: () => number): Promise<void> {
  let before = 0;
  for (let unchanged = 0; unchanged < 10; ) {
    await pause(50);
    const now = count();
    unchanged = now > 0 && now === before ? unchanged + 1 : 0;
    before = now;
  }
}

describe("exit codes", () => {
  test.each([
    [["nope"], 2],
    [["spawn", "--memory", "much"], 2],
    [["spawn", "--metadata", "novalue"], 2],
    [["exec", "sb-a"], 2],
    [["exec", "-d", "-i", "sb-a", "true"], 2],
    [["exec", "sb-a", "--"], 2],
    [["kill"], 2],
    [["ls", "--state", "asleep"], 2],
    [["cp", "a", "b"], 2],
    [["cp", "sb-a:relative", "b"], 2],
    [["--help"], 0],
    [["exec", "--help"], 0],
    [["--version"], 0],
  ])("%j ends with %i", async (args, code) => {
    expect((await run(...args)).code).toBe(code);
  });

  test.each([
    [404, "not_found", 3],
    [401, "unauthorized", 4],
    [403, "forbidden", 4],
    [429, "resource_limit", 5],
    [503, "unavailable", 6],
    [409, "conflict", 1],
    [500, "internal", 1],
  ])("a refusal with %i %s ends with %i and the service's message", async (status, code, exitCode) => {
    service.answer = () => ({
      status,
      json: { code, message: "the reason" },
      headers: { "x-request-id": "req-1" },
    });
    const result = await run("spawn");
    expect(result).toMatchObject({ code: exitCode, stdout: "" });
    expect(result.stderr).toContain("the reason");
    expect(result.stderr.includes("req-1")).toBe(status >= 500);
  });

  test("nobody at the address ends with 6 and says how to start a service", async () => {
    const result = await runCli(["ls"], { url: "http://127.0.0.1:1" });
    expect(result.code).toBe(6);
    expect(result.stderr).toContain("bin/alcove serve");
  });

  test("exec tells failures of its own apart from the command's", async () => {
    service.answer = () => ({ status: 404, json: { code: "not_found", message: "no such sandbox" } });
    expect((await runCli(["exec", "sb-a", "true"], { url: "http://127.0.0.1:1" })).code).toBe(125);
    expect((await run("exec", "--json", "sb-a", "true")).code).toBe(125);
  });
});

describe("spawn", () => {
  test("prints the id alone on standard output", async () => {
    service.answer = () => ({ status: 201, json: sandbox });
    const result = await run(
      "spawn",
      "--image",
      "host",
      "-m",
      "64",
      "--metadata",
      "a=b=c",
      "-e",
      "X=",
      "--ttl",
      "5m",
    );
    expect(result).toMatchObject({ code: 0, stdout: "sb-aaaaaaaaaaaa\n" });
    expect(result.stderr).toMatch(/^running on native, image host, after \d+ m?s; lives for 30m\n$/);
    expect(JSON.parse(service.requests[0]?.body ?? "")).toEqual({
      image: "host",
      memory_mb: 64,
      metadata: { a: "b=c" },
      env: { X: "" },
      ttl: "5m",
    });
  });

  test("--json prints the sandbox and nothing on standard error", async () => {
    service.answer = () => ({ status: 201, json: sandbox });
    const result = await run("spawn", "--json", "--api-key", "k3y", "--user-id", "acme");
    expect(JSON.parse(result.stdout)).toEqual(sandbox);
    expect(result.stderr).toBe("");
    expect(service.requests[0]?.headers).toMatchObject({ "x-api-key": "k3y", "x-user-id": "acme" });
  });
});

describe("ls", () => {
  test("aligns columns and shows no control character of a label", async () => {
    service.answer = () => ({ json: [sandbox, { ...sandbox, id: "sb-b", metadata: {} }] });
    const { stdout } = await run("ls");
    const lines = stdout.split("\n");
    expect(lines[0]).toBe(
      "ID               STATE    PROVIDER  IMAGE  MEMORY  VCPUS  AGE    ENDS IN  METADATA",
    );
    expect(lines[1]).toContain("job=a\\u001b[31m");
    expect(stdout).not.toContain("\u001b");
    expect(lines[2]).toMatch(/^sb-b +running/);
  });

  test("follows the cursor to the end and stops at --limit", async () => {
    service.answer = ({ query }) =>
      query.get("cursor") === null
        ? { json: [sandbox, { ...sandbox, id: "sb-2" }], headers: { "x-next-cursor": "c1" } }
        : { json: [{ ...sandbox, id: "sb-3" }] };
    expect((await run("ls", "-q")).stdout).toBe("sb-aaaaaaaaaaaa\nsb-2\nsb-3\n");
    expect((await run("ls", "-q", "-n", "1")).stdout).toBe("sb-aaaaaaaaaaaa\n");
  });

  test("without sandboxes prints nothing on standard output", async () => {
    service.answer = () => ({ json: [] });
    expect(await run("ls")).toEqual({ code: 0, stdout: "", stderr: "no sandboxes\n" });
  });
});

describe("exec", () => {
  test("a line that was run as a program because options came behind it is told so", async () => {
    service.onExec = (message, exec) => {
      if (message.type === "start") exec.send(exit(127));
    };
    const told = await run("exec", "sb-a", "echo hi", "--timeout", "1s");
    expect(told).toMatchObject({ code: 127, stderr: expect.stringContaining("before the sandbox's id") });
    expect((await run("exec", "sb-a", "nothing", "--all")).stderr).not.toContain("before the sandbox");
    expect((await run("exec", "sb-a", "no such")).stderr).not.toContain("before the sandbox");
  });

  test("keeps the streams apart and ends with the command's code", async () => {
    service.onExec = (message, exec) => {
      if (message.type !== "start") return;
      exec.send({ type: "stdout", data: "out ☃\n" });
      exec.send({ type: "stderr", data: "err\n" });
      exec.send(exit(7));
    };
    expect(await run("exec", "sb-a", "ls", "-la", "--", "x")).toEqual({
      code: 7,
      stdout: "out ☃\n",
      stderr: "err\n",
    });
  });

  test("sends one argument as a shell command line, several as a program", async () => {
    const starts: WsClientMessage[] = [];
    service.onExec = (message, exec) => {
      if (message.type !== "start") return;
      starts.push(message);
      exec.send(exit(0));
    };
    await run("exec", "-w", "/tmp", "-u", "root", "--timeout", "3s", "-e", "A=1", "sb-a", "echo $A | wc");
    await run("exec", "sb-a", "--", "echo", "-n", "$A");
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
    service.onExec = (message, exec) => {
      if (message.type === "start") exec.send(exit(code, reason));
    };
    const result = await run("exec", "sb-a", "x");
    expect(result.code).toBe(expected);
    expect(result.stderr === "").toBe(reason === "timeout");
  });

  test("-i passes standard input on to its end, any bytes", async () => {
    const received: Buffer[] = [];
    service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      received.push(Buffer.from(message.data, message.encoding === "base64" ? "base64" : "utf8"));
      if (message.close) exec.send(exit(0));
    };
    const child = startCli(["exec", "-i", "sb-a", "cat"], { url: service.url });
    const input = Buffer.from([0, 255, 10, 0xc3, 0x28]);
    child.stdin.end(input);
    expect((await finish(child)).code).toBe(0);
    expect(Buffer.concat(received)).toEqual(input);
  });

  test("output passes byte by byte, also across a broken connection", async () => {
    const bytes = Buffer.from([0, 0xff, 0xc3, 0x28, 10, 0xe2, 0x82]);
    const data = (from: number, to: number) => bytes.subarray(from, to).toString("base64");
    service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      exec.send({ type: "stdout", data: data(0, 4), offset: 0, encoding: "base64" });
      exec.send({ type: "stderr", data: "bm90ZQ==", offset: 4, encoding: "base64", notice: true });
      setImmediate(() => exec.cut());
    };
    service.answer = ({ query }) =>
      query.get("from") === "4" && query.get("encoding") === "base64"
        ? {
            chunks: [
              `{"stream":"stdout","data":"${data(4, 7)}","offset":4,"encoding":"base64"}\n`,
              '{"stream":"exit","data":"","exit_code":0,"reason":"exited","duration":"1s"}\n',
            ],
          }
        : { status: 404, json: { code: "not_found", message: "?" } };
    const child = startCli(["exec", "sb-a", "cat f"], { url: service.url });
    const out: Buffer[] = [];
    child.stdout.on("data", (chunk: Buffer) => out.push(chunk));
    expect((await finish(child)).code).toBe(0);
    expect(Buffer.concat(out)).toEqual(bytes);
  });

  test.each([["exec"], ["exec", "-i"]])(
    "%s %s tells that the key was taken back meanwhile",
    async (...args) => {
      service.onExec = (message, exec) => {
        if (message.type !== "start") return;
        exec.send({ type: "stdout", data: btoa("ab"), offset: 0, encoding: "base64" });
        service.refuseSocket = () => 401;
        setImmediate(() => exec.cut());
      };
      service.answer = () => ({
        status: 401,
        json: { code: "unauthorized", message: "the key is not known" },
      });
      const { code, stdout, stderr } = await run(...args, "sb-a", "cat f");
      expect([code, stdout]).toEqual([125, "ab"]);
      expect(stderr).toContain("it cannot be picked up: ");
      if (!args.includes("-i")) expect(stderr).toMatch(/the key is not known; give the key with --api-key/);
    },
  );

  test("-i goes on after a break, an attach that came too early tried again", async () => {
    const messages: unknown[] = [];
    let attaches = 0;
    service.onExec = (message, exec) => {
      if (message.type !== "start") messages.push(message);
      if (message.type === "start") {
        exec.send({ type: "stdout", data: btoa("ab"), offset: 0, encoding: "base64" });
        exec.send({ type: "stderr", data: btoa("note"), encoding: "base64", notice: true });
        setImmediate(() => exec.close(1001));
      } else if (message.type === "attach") {
        attaches += 1;
        if (attaches === 1) exec.send({ type: "error", code: "unavailable", message: "not yet" });
        else exec.send({ type: "stdout", data: btoa("cd"), offset: 2, encoding: "base64" });
      } else if (message.type === "stdin" && message.close) {
        exec.send(exit(7));
      }
    };
    const child = startCli(["exec", "-i", "sb-a", "cat"], { url: service.url });
    const result = finish(child);
    let shown = "";
    child.stdout.on("data", (chunk: Buffer) => {
      shown += chunk;
      if (shown === "abcd") child.stdin.end("x");
    });
    expect(await result).toMatchObject({
      code: 7,
      stdout: "abcd",
      stderr: "notealcove: the connection broke; picking ex-aaaaaaaa up again\n",
    });
    const input = expect.any(String);
    const attach = { type: "attach", exec_id: "ex-aaaaaaaa", from: 2, encoding: "base64", input };
    expect(messages).toEqual([
      attach,
      attach,
      { type: "stdin", data: btoa("x"), encoding: "base64" },
      { type: "stdin", data: "", close: true },
    ]);
  });

  test("-i sends what had not arrived when a connection broke, and nothing twice", async () => {
    const received: Buffer[] = [];
    let pieces = 0;
    service.losesInput = () => {
      pieces += 1;
      return pieces === 3 || pieces === 7;
    };
    service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      received.push(Buffer.from(message.data, "base64"));
      if (message.close) exec.send(exit(0));
    };
    const child = startCli(["exec", "-i", "sb-a", "cat > f"], { url: service.url });
    const input = Buffer.alloc(2 ** 20, Buffer.from(Array.from({ length: 251 }, (_, index) => index)));
    child.stdin.end(input);
    expect((await finish(child)).code).toBe(0);
    expect(Buffer.concat(received).equals(input)).toBe(true);
    expect(pieces).toBeGreaterThan(7);
  });

  test("-i ends with 125 when a break may have left a gap in a stream of input", async () => {
    const types: string[] = [];
    service.countsInput = false;
    const held = Promise.withResolvers<FakeExec>();
    service.onExec = (message, exec) => {
      types.push(message.type);
      exec.hold();
      held.resolve(exec);
    };
    const child = startCli(["exec", "-i", "sb-a", "cat > f"], { url: service.url });
    const result = finish(child);
    child.stdin.on("error", () => undefined);
    let taken = 0;
    const feed = () => {
      child.stdin.write(Buffer.alloc(65_536), (error) => {
        taken += 1;
        if (!error) feed();
      });
    };
    feed();
    // Some is on its way for certain, however long ago it was sent, once no more is taken.
    const exec = await held.promise;
    await standsStill(() => taken);
    exec.cut();
    const { code, stderr } = await result;
    expect(code).toBe(125);
    expect(stderr).toContain("how much of it arrived is not known");
    expect(types).not.toContain("attach");
  });

  test("a refused start ends with 125 and the service's message", async () => {
    service.onExec = (message, exec) => {
      if (message.type === "start")
        exec.send({ type: "error", code: "bad_request", message: "no such workdir" });
    };
    const result = await run("exec", "sb-a", "x");
    expect(result).toMatchObject({ code: 125, stderr: "alcove: no such workdir\n" });
  });

  test("the first Ctrl-C goes to the command, the second leaves with 130", async () => {
    const signals: unknown[] = [];
    const child = startCli(["exec", "sb-a", "sleep 100"], { url: service.url });
    service.onExec = (message, exec) => {
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

  test("picks a command up again when the connection breaks", async () => {
    service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      exec.send({ type: "stdout", data: "ab☃" });
      setImmediate(() => exec.cut());
    };
    service.answer = ({ path: route, query }) =>
      route === "/sandboxes/sb-a/execs/ex-aaaaaaaa/output" && query.get("from") === "5"
        ? {
            chunks: [
              '{"stream":"stdout","data":"cd","offset":5}\n',
              '{"stream":"exit","data":"","exit_code":3,"reason":"exited","duration":"1s"}\n',
            ],
          }
        : { status: 404, json: { code: "not_found", message: "?" } };
    expect(await run("exec", "sb-a", "x")).toMatchObject({ code: 3, stdout: "ab☃cd" });
  });

  test("lives through a planned restart of the service", async () => {
    service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      exec.send({ type: "stdout", data: "before " });
      setImmediate(() => exec.close(1001));
    };
    const answers = [
      { status: 503, json: { code: "unavailable", message: "the service is shutting down" } },
      { chunks: ['{"stream":"stdout","data":"after","offset":7}\n', null] },
      { chunks: ['{"stream":"exit","data":"","exit_code":4,"reason":"exited","duration":"1s"}\n'] },
    ];
    service.answer = () => answers.shift() ?? { status: 404, json: { code: "not_found", message: "?" } };
    expect(await run("exec", "sb-a", "x")).toMatchObject({ code: 4, stdout: "before after" });
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
    service.answer = () => ({
      status: 408,
      json: { code: "timeout", message: "its deadline passed", ...done },
    });
    const result = await run("exec", "--json", "--timeout", "1s", "sb-a", "sleep 9");
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
    service.answer = () => answers.shift() ?? { status: 404, json: { code: "not_found", message: "?" } };
    const result = await run("exec", "--json", "sb-a", "x");
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
    service.answer = () => answers.shift() ?? { status: 404, json: { code: "not_found", message: "?" } };
    const result = await run("exec", "--json", "sb-a", "x");
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

  test("--json picks up no command that ended with its sandbox", async () => {
    const body = {
      code: "unavailable",
      message: "the sandbox ended",
      exec_id: "ex-aaaaaaaa",
      stdout: "some",
    };
    service.answer = ({ path: route }) =>
      route === "/sandboxes/sb-a/exec" ? { status: 503, json: body } : { status: 500, json: {} };
    const result = await run("exec", "--json", "sb-a", "x");
    expect(result).toMatchObject({ code: 125, stderr: "alcove: the sandbox ended\n" });
  });

  test.each([
    ["told", ',"lost_bytes":3'],
    ["by its offset alone", ""],
  ])("a gap in the output, %s, ends with 125", async (_how, field) => {
    service.answer = ({ path: route }) =>
      route.endsWith("/output")
        ? {
            chunks: [
              `{"stream":"stdout","data":"${btoa("cd")}","offset":5,"encoding":"base64"${field}}\n`,
              '{"stream":"exit","data":"","exit_code":0,"reason":"exited","duration":"1s"}\n',
            ],
          }
        : { status: 404, json: { code: "not_found", message: "?" } };
    service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      exec.send({ type: "stdout", data: btoa("ab"), offset: 0, encoding: "base64" });
      setImmediate(() => exec.cut());
    };
    const result = await run("exec", "sb-a", "x");
    expect(result).toMatchObject({ code: 125, stdout: "abcd" });
    expect(result.stderr).toContain("alcove: 3 bytes of the command's output are missing here");
  });

  test("-d prints the exec id", async () => {
    service.answer = () => ({ status: 201, json: { exec_id: "ex-bbbbbbbb", pid: 3 } });
    expect(await run("exec", "-d", "sb-a", "sleep 9")).toMatchObject({ code: 0, stdout: "ex-bbbbbbbb\n" });
  });
});

describe("kill", () => {
  test("goes on after a refusal and ends with its code", async () => {
    service.answer = ({ path: route }) =>
      route === "/sandboxes/sb-2"
        ? { status: 404, json: { code: "not_found", message: "no sandbox sb-2" } }
        : { json: { status: "destroyed" } };
    const result = await run("kill", "sb-1", "sb-2", "sb-3");
    expect(result.code).toBe(3);
    expect(result.stdout.split("\n").sort()).toEqual(["", "sb-1", "sb-3"]);
    expect(result.stderr).toContain("no sandbox sb-2");
  });
});

describe("whose sandboxes", () => {
  beforeEach(() => {
    const all = ["ada", "bob", ""].map((owner_id) => ({
      ...sandbox,
      id: `sb-${owner_id || "nobody"}`,
      owner_id,
    }));
    service.answer = ({ method, query }) =>
      method === "DELETE"
        ? { json: { status: "destroyed" } }
        : { json: all.filter(({ owner_id }) => [null, owner_id].includes(query.get("owner_id"))) };
  });

  test.each([
    [[], ["sb-ada", "sb-bob", "sb-nobody"]],
    [["--user-id", "ada"], ["sb-ada"]],
    [["--owner", "ada"], ["sb-ada"]],
    [["--owner", "bob", "--user-id", "ada"], ["sb-bob"]],
  ])("ls and kill --all with %j take %j", async (flags, expected) => {
    expect((await run("ls", "-q", ...flags)).stdout.trim().split("\n")).toEqual(expected);
    const { destroyed } = JSON.parse((await run("kill", "--all", "--json", ...flags)).stdout);
    expect(destroyed.sort()).toEqual(expected);
    const deleted = service.requests.filter(({ method }) => method === "DELETE");
    expect(deleted.map(({ path }) => path).sort()).toEqual(expected.map((id) => `/sandboxes/${id}`));
  });

  test.each([
    ["ls", "--owner", ""],
    ["kill", "--all", "--owner", ""],
    ["kill", "--all", "--user-id", ""],
    ["kill", "sb-bob", "--owner", "ada"],
  ])("%j is refused", async (...args) => {
    expect((await run(...args)).code).toBe(2);
    expect(service.requests).toEqual([]);
  });
});

describe("cp", () => {
  test("sends a file with its mode and reads it back", async () => {
    await writeFile(path.join(dir, "a"), "content", { mode: 0o750 });
    service.answer = ({ method, path: route }) => {
      if (method === "PUT") return { json: { status: "written" } };
      if (route.endsWith("/stat")) return { status: 404, json: { code: "not_found", message: "?" } };
      return { headers: { "content-length": "3" }, chunks: ["abc"] };
    };
    expect((await run("cp", "a", "sb-a:/w/b")).code).toBe(0);
    const put = service.requests.find(({ method }) => method === "PUT");
    expect(put).toMatchObject({ path: "/sandboxes/sb-a/files", body: "content" });
    expect(put?.query.get("path")).toBe("/w/b");
    expect(put?.query.get("mode")).toBe("0750");
    expect((await run("cp", "-q", "sb-a:/x", "copy")).code).toBe(0);
    expect(await readFile(path.join(dir, "copy"), "utf8")).toBe("abc");
    expect(await run("cp", "sb-a:/x", "-")).toMatchObject({ code: 0, stdout: "abc" });
  });

  test("leaves no partial file when the connection breaks", async () => {
    service.answer = ({ path: route }) =>
      route.endsWith("/stat")
        ? { status: 404, json: { code: "not_found", message: "?" } }
        : { headers: { "content-length": "100" }, chunks: ["abc", null] };
    expect((await run("cp", "sb-a:/x", "copy")).code).toBe(6);
    await expect(readFile(path.join(dir, "copy"))).rejects.toThrow("ENOENT");
  });

  test("a tar that leads out of the target writes nothing there", async () => {
    const { create } = await import("tar");
    await writeFile(path.join(dir, "evil"), "evil");
    await symlink("/tmp", path.join(dir, "link"));
    const tar = create(
      {
        cwd: dir,
        sync: true,
        portable: true,
        onWriteEntry: (entry) => {
          if (entry.path === "evil" && entry.header) entry.path = "../escaped";
        },
      },
      ["evil", "link"],
    );
    const bytes: Buffer[] = [];
    for (let chunk = tar.read(); chunk !== null; chunk = tar.read()) bytes.push(chunk);
    service.answer = ({ path: route }) =>
      route.endsWith("/stat")
        ? {
            json: {
              name: "d",
              path: "/d",
              is_dir: true,
              size: 0,
              mode: "0755",
              mod_time: "",
              type: "dir",
              uid: 0,
              gid: 0,
            },
          }
        : { chunks: [Buffer.concat(bytes)] };
    await run("cp", "-r", "sb-a:/d", "out/");
    await expect(readFile(path.join(dir, "escaped"))).rejects.toThrow("ENOENT");
    await expect(readFile(path.join(dir, "out", "escaped"))).rejects.toThrow("ENOENT");
  });
});

describe("events", () => {
  test("comes back after a broken stream from the last event it saw", async () => {
    const event = (id: string) =>
      `id: ${id}\ndata: ${JSON.stringify({ id, type: "sandbox.created", sandbox_id: "sb-a", timestamp: "t" })}\n\n`;
    service.answer = ({ path: route, headers }) => {
      if (route === "/ready") return { json: { status: "ready" } };
      if (headers["last-event-id"] === "2")
        return { status: 400, json: { code: "bad_request", message: "stop" } };
      return {
        headers: { "content-type": "text/event-stream" },
        chunks: [": hello\n\n", event("1"), event("2"), null],
      };
    };
    const result = await run(
      "events",
      "--json",
      "--type",
      "sandbox.created,exec.started",
      "--sandbox",
      "sb-a",
    );
    expect(
      result.stdout
        .split("\n")
        .filter(Boolean)
        .map((line) => JSON.parse(line).id),
    ).toEqual(["1", "2"]);
    expect(result.stderr).toContain("coming back");
    const first = service.requests.find(({ path: route }) => route === "/events");
    expect(first?.query.has("owner_id")).toBe(false);
    expect(first?.query.getAll("type")).toEqual(["sandbox.created", "exec.started"]);
    expect(first?.query.get("sandbox_id")).toBe("sb-a");
  });

  test("--owner asks for that owner's alone, also when it comes back, and --user-id does not stand in for it", async () => {
    const event = { id: "1", type: "sandbox.created", sandbox_id: "sb-a", timestamp: "t" };
    let streams = 0;
    service.answer = ({ path: route }) => {
      if (route === "/ready") return { json: { status: "ready" } };
      if (++streams > 1) return { status: 403, json: { code: "forbidden", message: "not yours" } };
      const chunks = [`id: 1\ndata: ${JSON.stringify(event)}\n\n`, null];
      return { headers: { "content-type": "text/event-stream" }, chunks };
    };
    const result = await run("events", "--json", "--owner", "acme", "--user-id", "gateway");
    expect(JSON.parse(result.stdout)).toEqual(event);
    expect([result.code, result.stderr]).toEqual([4, expect.stringContaining("not yours")]);
    const asked = service.requests.filter(({ path: route }) => route === "/events");
    expect(asked.map(({ query }) => query.get("owner_id"))).toEqual(["acme", "acme"]);
  });
});

test("a reader that goes away ends the command quietly", async () => {
  service.onExec = (message, exec) => {
    if (message.type === "start")
      for (let index = 0; index < 200; index++) exec.send({ type: "stdout", data: "x".repeat(10_000) });
  };
  const child = startCli(["exec", "sb-a", "yes"], { url: service.url });
  await once(child.stdout, "data");
  child.stdout.destroy();
  const [code] = await once(child, "exit");
  expect(code).toBe(0);
});
