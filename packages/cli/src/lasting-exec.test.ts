import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";
import type { FakeExec } from "./testing/fake-service.ts";
import { finish, startCli } from "./testing/run-cli.ts";

const at = commandsOfTests();

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

describe("exec, when a connection breaks", () => {
  test("output passes byte by byte, also across a broken connection", async () => {
    const bytes = Buffer.from([0, 0xff, 0xc3, 0x28, 10, 0xe2, 0x82]);
    const data = (from: number, to: number) => bytes.subarray(from, to).toString("base64");
    at.service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      exec.send({ type: "stdout", data: data(0, 4), offset: 0, encoding: "base64" });
      exec.send({ type: "stderr", data: "bm90ZQ==", offset: 4, encoding: "base64", notice: true });
      setImmediate(() => exec.cut());
    };
    at.service.answer = ({ query }) =>
      query.get("from") === "4" && query.get("encoding") === "base64"
        ? {
            chunks: [
              `{"stream":"stdout","data":"${data(4, 7)}","offset":4,"encoding":"base64"}\n`,
              '{"stream":"exit","data":"","exit_code":0,"reason":"exited","duration":"1s"}\n',
            ],
          }
        : { status: 404, json: { code: "not_found", message: "?" } };
    const child = startCli(["exec", "sb-a", "cat f"], { url: at.service.url });
    const out: Buffer[] = [];
    child.stdout.on("data", (chunk: Buffer) => out.push(chunk));
    expect((await finish(child)).code).toBe(0);
    expect(Buffer.concat(out)).toEqual(bytes);
  });

  test("-i goes on after a break, an attach that came too early tried again", async () => {
    const messages: unknown[] = [];
    let attaches = 0;
    at.service.onExec = (message, exec) => {
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
    const child = startCli(["exec", "-i", "sb-a", "cat"], { url: at.service.url });
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

  test("-i says what was refused of the command, which goes on", async () => {
    at.service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      exec.send({ type: "error", code: "unavailable", message: "it does not answer", goes_on: true });
      exec.send(exit(3));
    };
    const child = startCli(["exec", "-i", "sb-a", "cat"], { url: at.service.url });
    child.stdin.end("x");
    expect(await finish(child)).toMatchObject({
      code: 3,
      stderr: expect.stringMatching(/^alcove: it does not answer; the command goes on\n/),
    });
  });

  test("-i sends what had not arrived when a connection broke, and nothing twice", async () => {
    const received: Buffer[] = [];
    let pieces = 0;
    at.service.losesInput = () => {
      pieces += 1;
      return pieces === 3 || pieces === 7;
    };
    at.service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      received.push(Buffer.from(message.data, "base64"));
      if (message.close) exec.send(exit(0));
    };
    const child = startCli(["exec", "-i", "sb-a", "cat > f"], { url: at.service.url });
    const input = Buffer.alloc(2 ** 20, Buffer.from(Array.from({ length: 251 }, (_, index) => index)));
    child.stdin.end(input);
    expect((await finish(child)).code).toBe(0);
    expect(Buffer.concat(received).equals(input)).toBe(true);
    expect(pieces).toBeGreaterThan(7);
  });

  test("-i ends with 125 when a break may have left a gap in a stream of input", async () => {
    const types: string[] = [];
    at.service.countsInput = false;
    const held = Promise.withResolvers<FakeExec>();
    at.service.onExec = (message, exec) => {
      types.push(message.type);
      exec.hold();
      held.resolve(exec);
    };
    const child = startCli(["exec", "-i", "sb-a", "cat > f"], { url: at.service.url });
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

  test("picks a command up again when the connection breaks", async () => {
    at.service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      exec.send({ type: "stdout", data: "ab☃" });
      setImmediate(() => exec.cut());
    };
    at.service.answer = ({ path: route, query }) =>
      route === "/sandboxes/sb-a/execs/ex-aaaaaaaa/output" && query.get("from") === "5"
        ? {
            chunks: [
              '{"stream":"stdout","data":"cd","offset":5}\n',
              '{"stream":"exit","data":"","exit_code":3,"reason":"exited","duration":"1s"}\n',
            ],
          }
        : { status: 404, json: { code: "not_found", message: "?" } };
    expect(await at.run("exec", "sb-a", "x")).toMatchObject({ code: 3, stdout: "ab☃cd" });
  });

  test("lives through a planned restart of the service", async () => {
    at.service.onExec = (message, exec) => {
      if (message.type !== "stdin") return;
      exec.send({ type: "stdout", data: "before " });
      setImmediate(() => exec.close(1001));
    };
    const answers = [
      { status: 503, json: { code: "unavailable", message: "the service is shutting down" } },
      { chunks: ['{"stream":"stdout","data":"after","offset":7}\n', null] },
      { chunks: ['{"stream":"exit","data":"","exit_code":4,"reason":"exited","duration":"1s"}\n'] },
    ];
    at.service.answer = () => answers.shift() ?? { status: 404, json: { code: "not_found", message: "?" } };
    expect(await at.run("exec", "sb-a", "x")).toMatchObject({ code: 4, stdout: "before after" });
  });

  test("--json picks up no command that ended with its sandbox", async () => {
    const body = {
      code: "unavailable",
      message: "the sandbox ended",
      exec_id: "ex-aaaaaaaa",
      stdout: "some",
    };
    at.service.answer = ({ path: route }) =>
      route === "/sandboxes/sb-a/exec" ? { status: 503, json: body } : { status: 500, json: {} };
    const result = await at.run("exec", "--json", "sb-a", "x");
    expect(result).toMatchObject({ code: 125, stderr: "alcove: the sandbox ended\n" });
  });
});
