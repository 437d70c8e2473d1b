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
  expect(written).toContain("shown");
  expect(written).toContain("below");
  expect(written).not.toContain("hidden");
});
