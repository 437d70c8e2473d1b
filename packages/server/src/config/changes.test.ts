import { expect, it } from "vitest";
import { needingRestart } from "./changes.ts";
import { loadConfig } from "./load.ts";

const configOf = (env: Record<string, string>) => loadConfig({ env, cwd: "/" });

it("names what a reload passes over, and not what it takes over", () => {
  const before = configOf({ ALCOVE_AUTH_API_KEY: "0123456789abcdef" });
  expect(
    needingRestart(
      before,
      configOf({ ALCOVE_AUTH_API_KEY: "fedcba9876543210", ALCOVE_LOGGING_LEVEL: "debug" }),
    ),
  ).toEqual([]);
  const after = {
    ALCOVE_SERVER_PORT: "7999",
    ALCOVE_DEFAULTS_TTL: "1h",
    ALCOVE_SERVER_CORS_ALLOWED_ORIGINS: "http://a",
  };
  expect(needingRestart(before, configOf({ ALCOVE_AUTH_API_KEY: "0123456789abcdef", ...after }))).toEqual([
    "defaults.ttlMs",
    "server.corsAllowedOrigins",
    "server.port",
  ]);
});
