import { Writable } from "node:stream";
import { pino } from "pino";
import { expect, it } from "vitest";
import { loggerSettings, prettyStream } from "./logger.ts";

it("keys and tokens reach no log, at the top or one level down", () => {
  let written = "";
  const sink = new Writable({
    write: (chunk, _encoding, done) => {
      written += String(chunk);
      done();
    },
  });
  const logger = pino(loggerSettings("info"), sink);
  const secrets = {
    token: "hidden-1",
    apiKey: "hidden-2",
    adminApiKey: "hidden-3",
    headers: { authorization: "Bearer hidden-4", "x-api-key": "hidden-5", "x-admin-api-key": "hidden-6" },
  };
  logger.info({ ...secrets, plain: "shown" }, "top");
  logger.info({ request: secrets }, "below");
  logger.warn({ err: Object.assign(new Error("told"), secrets), error: secrets }, "error");
  logger.child(secrets).info("child");
  for (const told of ["shown", "below", "told", "child"]) expect(written).toContain(told);
  expect(written.match(/redacted/g)).toHaveLength(5 * 6);
  expect(written).not.toContain("hidden");
  expect(secrets.headers.authorization).toBe("Bearer hidden-4");
});

it("an error that is expected is told with its causes and without a stack, any other with it", () => {
  const lines: string[] = [];
  const logger = pino(loggerSettings("info"), { write: (line: string) => void lines.push(line) });
  const cause = new Error("database or disk is full");
  class Full extends Error {
    get expected(): boolean {
      return true;
    }
  }
  logger.warn({ err: new Full("no room", { cause }) }, "expected");
  logger.warn({ err: new Error("a fault", { cause }) }, "fault");
  const [expected, fault] = lines.map((line) => JSON.parse(line).err);
  expect(expected).toEqual({ type: "Full", message: "no room: database or disk is full" });
  expect(fault.stack).toContain("logger.test.ts");
});

it("lines for people show characters that turn text around, or that nobody sees, as what they are", async () => {
  let written = "";
  const stream = await prettyStream({
    write: (text) => {
      written += text;
    },
  });
  const hidden = "\u202e\u2066\u200b\ufeff\u2028\u{e0041}";
  pino(loggerSettings("info"), stream).info({ owner_id: `bob\u009b${hidden}é木` }, `of ${hidden}`);
  const shown = String.raw`\u{202e}\u{2066}\u{200b}\u{feff}\u{2028}\u{e0041}`;
  expect(written).toContain(`"bob\\u{9b}${shown}é木"`);
  expect(written).toContain(`of ${shown}`);
  expect(written).not.toMatch(/[\p{Cf}\u2028\u2029\u007f-\u009f]/u);
  expect(written.split("\n")).toHaveLength(3);
});

it("looking for secrets costs little beside writing the line", () => {
  const { serializers: _, formatters: _without, ...plain } = loggerSettings("info");
  const sink = { write: () => undefined };
  const loggers = [pino(plain, sink), pino(loggerSettings("info"), sink)];
  const cost = loggers.map(() => Number.POSITIVE_INFINITY);
  const line = {
    event: "request",
    outcome: "ok",
    request_id: "r",
    method: "GET",
    path: "/live",
    status: 200,
  };
  for (let round = 0; round < 8; round++)
    for (const [n, logger] of loggers.entries()) {
      const before = process.cpuUsage();
      for (let i = 0; i < 4_000; i++) logger.info({ ...line, duration_ms: i }, "request");
      const { user, system } = process.cpuUsage(before);
      cost[n] = Math.min(cost[n] ?? 0, user + system);
    }
  const [without = 0, withRedaction = 0] = cost;
  expect(withRedaction).toBeLessThan(without * 2);
});
