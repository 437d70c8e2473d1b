import { ExecRequest, SignalRequest, SpawnRequest, StartExecRequest, WsClientMessage } from "@alcove/wire";
import { Type } from "typebox";
import { expect, test } from "vitest";
import { requiredDuration } from "./parse.ts";
import { ExecParams } from "./routes/route-app.ts";
import { compileCheck } from "./validation.ts";

test.each([
  ["cwd", "; did you mean workdir?"],
  ["timeout_ms", "; did you mean timeout?"],
  ["envs", "; did you mean env?"],
  ["cmd", "; did you mean command?"],
  ["comand", "; did you mean command?"],
  ["stdinn", "; did you mean stdin?"],
  ["foo", ""],
  ["constructor", ""],
  ["x", ""],
])("an unknown field %s is refused with a hint where one is likely", (name, hint) => {
  const check = compileCheck(ExecRequest);
  const message = `${name} is not a field of the message${hint}`;
  expect(() => check({ command: "true", [name]: "1" })).toThrow(message);
  if (hint === "") expect(() => check({ command: "true", [name]: "1" })).not.toThrow("did you mean");
});

test.each([
  [
    StartExecRequest,
    { command: "cat", stdin: "x".repeat(2 ** 20 + 1) },
    "stdin in the message may have 1048576 characters and has 1048577; leave stdin out and send it in parts",
  ],
  [
    StartExecRequest,
    { command: "cat", stdin: 5 },
    "stdin in the message must be true or false or a text, not 5",
  ],
  [SignalRequest, { signal: 0 }, "signal in the message must be from 1 to 64, not 0"],
  [SignalRequest, { signal: {} }, "signal in the message must be a text or a whole number, not {}"],
  [
    ExecRequest,
    { command: ["ls", "-l"] },
    'for a program and its arguments send {"mode":"argv","command":"ls","args":["-l"]}',
  ],
  [
    ExecRequest,
    { command: "true", timeout: 5 },
    'timeout in the message must be a text with units such as "5s", not 5',
  ],
  [SpawnRequest, { ttl: 600 }, 'ttl in the message must be a text with units such as "600s", not 600'],
  [SpawnRequest, { timeout: "5m" }, "timeout is not a field of the message; did you mean ttl?"],
  [ExecRequest, { cmd: "true" }, "cmd is not a field of the message; did you mean command?"],
  [
    WsClientMessage.anyOf[0],
    { type: "start", comand: "cat" },
    "comand is not a field of the message; did you mean command?",
  ],
  [ExecRequest, { workdir: "/" }, "command is missing in the message"],
  [ExecRequest, { command: "" }, "command in the message must not be empty"],
  [
    ExecRequest,
    { command: "top", tty: true },
    "tty is not a field of the message; a terminal is for POST …/execs and the WebSocket",
  ],
  [
    ExecRequest,
    { command: "serve", background: true },
    "background is not a field of the message; POST …/execs starts a command that nobody waits for",
  ],
  [SpawnRequest, { user_id: "ann" }, "user_id is not a field of the message; did you mean owner_id?"],
  [
    SpawnRequest,
    { idempotency_key: "a" },
    "idempotency_key is not a field of the message; it is the header Idempotency-Key",
  ],
  [
    Type.Object({ state: Type.Enum(["a", "b", ""]) }),
    { state: "c" },
    /^state in the message must be one of "a", "b", not "c"$/,
  ],
  [
    Type.Object({ since: Type.String({ format: "date-time" }) }),
    { since: "yesterday" },
    'since in the message must be a time such as 2026-11-21T17:44:03Z, not "yesterday"',
  ],
  [
    SpawnRequest,
    { metadata: { ["k".repeat(257)]: "v" } },
    /^the name "k{63} of metadata in the message may have 256 characters and has 257$/,
  ],
  [
    Type.Object({ execId: ExecParams.properties.execId }),
    { execId: "1" },
    /must be `ex-` and 8 to 32 of \[a-z0-9\], not/,
  ],
  [SpawnRequest, { cpu: 2 }, "cpu is not a field of the message; did you mean vcpus?"],
  [SpawnRequest, { memory_mb: "512" }, 'memory_mb in the message must be a whole number, not "512"'],
  [
    ExecRequest,
    { command: "true", limits: { cpu: "1s" } },
    "limits.cpu is not a field of the message; did you mean cpu_time?",
  ],
  [
    ExecRequest,
    { command: "true", exec_id: "job-1" },
    'exec_id in the message must be `ex-` and 8 to 32 of [a-z0-9], not "job-1"',
  ],
  [
    WsClientMessage.anyOf[0],
    { type: "start", command: "cat", input: "a name" },
    'input in the message must be 1 to 64 letters, digits, `_` and `-`, not "a name"',
  ],
])("a refusal says what to write instead: %#", (schema, body, message) => {
  expect(() => compileCheck<unknown>(schema)(body)).toThrow(message);
});

test.each([
  ["1d", "days are no unit, write 24h"],
  ["2 days", "write 48h"],
  ["5", "5s are seconds"],
  ["10min", "write 10m"],
  ["3 hours", "write 3h"],
  ["1y", "units are h, m, s and ms"],
  ["soon", "such as 30s, 5m or 1h30m"],
])("a duration of %s is refused with a way to write it", (text, hint) => {
  expect(() => requiredDuration("ttl", text)).toThrow(hint);
});

test("a hint names only what the object itself knows", () => {
  const stdin = WsClientMessage.anyOf.find((schema) => schema.properties.type.const === "stdin");
  const check = compileCheck(stdin ?? {});
  expect(() => check({ type: "stdin", data: "", cwd: "/" })).not.toThrow("did you mean");
  expect(() => check({ type: "stdin", data: "", clos: true })).toThrow("did you mean close?");
});

test("characters are counted, not what they take", () => {
  const check = compileCheck(StartExecRequest);
  const of = (tag: string) => () => check({ command: "true", tag });
  expect(of("\u{1f40e}".repeat(256))).not.toThrow();
  expect(of("\u{1f40e}".repeat(257))).toThrow("tag in the message may have 256 characters and has 257");
  expect(of("x".repeat(257))).toThrow("tag in the message may have 256 characters and has 257");
  expect(of("x".repeat(600))).toThrow("tag in the message may have 256 characters and has 600");
  expect(() => check({ command: "" })).toThrow("command in the message must not be empty");
});

test("the length of texts is told without a look at each character", () => {
  const check = compileCheck(ExecRequest);
  const long = "x".repeat(31 * 2 ** 20);
  const args = Array.from({ length: 31 }, () => "x".repeat(2 ** 20));
  const usedMs = () => process.threadCpuUsage().user / 1_000;
  const took = [1, 2, 3].map(() => {
    const beganMs = usedMs();
    expect(() => check({ command: long })).toThrow("command in the message may have 1048576 characters");
    check({ command: "true", args });
    return usedMs() - beganMs;
  });
  // Counting them takes some hundred milliseconds.
  expect(Math.min(...took)).toBeLessThan(25);
});

test("what a refusal repeats of a request is cut between characters", () => {
  const check = compileCheck(ExecRequest);
  const refusal = (name: string): string => {
    try {
      check({ command: "true", env: { [name]: 5 } });
      return "none";
    } catch (error) {
      return (error as Error).message;
    }
  };
  for (const before of ["", "a"]) {
    const message = refusal(before + "\u{1f40e}".repeat(120));
    expect(message).toContain("\u{1f40e}");
    expect(message.isWellFormed()).toBe(true);
  }
});
