import { Writable } from "node:stream";
import { pino } from "pino";
import { expect, it } from "vitest";
import { loggerSettings } from "./logger.ts";

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
