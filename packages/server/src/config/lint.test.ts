import { describe, expect, test } from "vitest";
import { lintConfig, lintRules } from "./lint.ts";
import { loadConfigWithSources } from "./load.ts";

function lint(settings: Record<string, string>, options: { production: boolean }): string[] {
  const overrides = new Map(Object.entries(settings).map(([key, text]) => [key, { text, source: "--set" }]));
  const loaded = loadConfigWithSources({ env: {}, cwd: "/nowhere", overrides });
  return lintConfig(loaded, options).map(({ id }) => id);
}

/** Passes every production rule. */
const sound = {
  data_dir: "/var/lib/alcove",
  "auth.api_key": "0123456789abcdef0123",
  "server.cors_allowed_origins": "https://app.example.com",
  "defaults.max_sandboxes_per_owner": "5",
  "rate_limit.enabled": "true",
  "providers.default": "native",
};

describe("lintConfig()", () => {
  test("finds nothing in the defaults without --production", () => {
    expect(lint({}, { production: false })).toEqual([]);
  });

  test("finds nothing in a sound production configuration", () => {
    expect(lint(sound, { production: true })).toEqual([]);
  });

  test.each([
    [{ "auth.enabled": "false" }, "auth-missing"],
    [{ "auth.api_key": "short" }, "key-short"],
    [{ "auth.api_key": "", "auth.admin_api_key": "0123456789abcdef" }, "api-key-missing"],
    [{ "auth.admin_api_key": "0123456789abcdef0123" }, "keys-equal"],
    [{ "server.allow_insecure": "true" }, "allow-insecure"],
    [{ "server.cors_allowed_origins": "*" }, "cors-open"],
    [{ "server.cors_allowed_origins": "[]" }, "cors-open"],
    [{ data_dir: ".alcove" }, "database-path-relative"],
    [{ "database.path": "alcove.db" }, "database-path-relative"],
    [{ "rate_limit.enabled": "false" }, "rate-limit-weak"],
    [{ "rate_limit.requests_per_minute": "6001" }, "rate-limit-weak"],
    [{ "rate_limit.burst": "1001" }, "rate-limit-weak"],
    [{ "defaults.max_sandboxes": "0" }, "sandbox-cap-missing"],
    [{ "defaults.max_sandboxes_per_owner": "0" }, "owner-cap-missing"],
    [{ "defaults.max_ttl": "0s" }, "ttl-cap-missing"],
    [{ "providers.default": "mock" }, "default-provider-unsafe"],
    [{ "providers.default": "proot" }, "default-provider-unsafe"],
    [{ "providers.default": "auto" }, "default-provider-open"],
    [{ "providers.native.added_caps": "CAP_NET_RAW" }, "capabilities-added"],
    [{ "providers.docker.dropped_caps": "[]" }, "capabilities-kept"],
    [{ "providers.docker.seccomp_profile": "unconfined" }, "seccomp-unconfined"],
    [{ "providers.native.network_mode": "host" }, "host-network"],
    [{ "providers.docker.network_mode": "host" }, "host-network"],
    [{ "providers.mock.enabled": "true" }, "weak-provider-enabled"],
    [{ "providers.docker.socket": "tcp://192.0.2.1:2375" }, "engine-remote-plain"],
  ])("--production: %j is %s", (change, id) => {
    expect(lint({ ...sound, ...change }, { production: true })).toEqual([id]);
  });

  test.each([
    [{ "defaults.ttl": "48h" }, "ttl-above-maximum"],
    [{ "defaults.default_exec_timeout": "2h" }, "exec-timeout-above-maximum"],
    [{ "providers.default": "docker", "providers.docker.enabled": "false" }, "default-provider-disabled"],
  ])("%j is %s", (change, id) => {
    expect(lint(change, { production: false })).toEqual([id]);
  });

  test("each rule has an id of its own and says what to do", () => {
    expect(new Set(lintRules.map(({ id }) => id)).size).toBe(lintRules.length);
    for (const { advice } of lintRules) expect(advice).not.toBe("");
  });
});
