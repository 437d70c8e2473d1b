import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { changes, takenOverAlways } from "./changes.ts";
import { loadConfig } from "./load.ts";

const configOf = (env: Record<string, string>) => loadConfig({ env, cwd: "/" });
const started = configOf({ ALCOVE_AUTH_API_KEY: "0123456789abcdef" });

it("names what a reload takes over, and what needs a restart, as a file spells it", () => {
  const after = configOf({
    ALCOVE_AUTH_API_KEY: "fedcba9876543210",
    ALCOVE_LOGGING_LEVEL: "debug",
    ALCOVE_SERVER_PORT: "7999",
    ALCOVE_DEFAULTS_TTL: "1h",
    ALCOVE_RATE_LIMIT_BUCKET_TTL: "1h",
    ALCOVE_SERVER_CORS_ALLOWED_ORIGINS: "http://a",
    ALCOVE_EXEC_RING_BYTES: "2MiB",
    ALCOVE_EXEC_MAX_OUTPUT: "2MiB",
  });
  const needRestart = ["exec.max_output", "exec.ring_bytes", "server.cors_allowed_origins", "server.port"];
  expect(changes(after, { started, applied: started })).toEqual({
    takenOver: ["auth.api_key", "defaults.ttl", "logging.level", "rate_limit.bucket_ttl"],
    needRestart,
  });
  expect(changes(after, { started, applied: after })).toEqual({ takenOver: [], needRestart });
});

it("a service that asks for keys takes over that there are none; that it asks for none needs a restart", () => {
  const after = configOf({});
  expect(changes(after, { started, applied: started })).toEqual({
    takenOver: ["auth.api_key"],
    needRestart: ["auth.enabled"],
  });
});

it("a service that asks for no keys needs a restart to ask for them", () => {
  const open = configOf({});
  const after = configOf({ ALCOVE_AUTH_API_KEY: "0123456789abcdef" });
  expect(changes(after, { started: open, applied: open })).toEqual({
    takenOver: [],
    needRestart: ["auth.api_key", "auth.enabled"],
  });
});

it("who administers without a key of its own is taken over with the keys", () => {
  const after = configOf({
    ALCOVE_AUTH_API_KEY: "0123456789abcdef",
    ALCOVE_AUTH_ADMIN_FALLBACK_ENABLED: "false",
  });
  expect(changes(after, { started, applied: started })).toEqual({
    takenOver: ["auth.admin_fallback_enabled"],
    needRestart: [],
  });
});

it("the documentation of SIGHUP names what it takes over", () => {
  const page = readFileSync(new URL("../../../../docs/cli.md", import.meta.url), "utf8");
  const told = /SIGHUP reads the configuration again: keys, (.*?) apply/.exec(page)?.[1] ?? "";
  expect([...told.matchAll(/`([^`]+)`/g)].map(([, key]) => key)).toEqual([...takenOverAlways]);
});
