import { createHash } from "node:crypto";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { ConfigError } from "./errors.ts";
import { configKeys } from "./keys.ts";
import { type LoadOptions, loadConfig, loadConfigWithSources } from "./load.ts";
import { configurationReference } from "./reference.ts";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(path.join(tmpdir(), "alcove-config-"));
});
afterEach(async () => {
  await rm(dir, { recursive: true, force: true });
});

function load(env: Record<string, string> = {}, options: Partial<LoadOptions> = {}) {
  return loadConfig({ env, cwd: dir, ...options });
}

async function loadFile(text: string, env: Record<string, string> = {}) {
  await writeFile(path.join(dir, "alcove.yaml"), text);
  return load(env);
}

function problems(run: () => unknown): { key: string; message: string }[] {
  try {
    run();
  } catch (error) {
    if (error instanceof ConfigError) return [...error.problems];
    throw error;
  }
  return [];
}

async function fileProblems(text: string, env: Record<string, string> = {}) {
  await writeFile(path.join(dir, "alcove.yaml"), text);
  return problems(() => load(env));
}

describe("loadConfig()", () => {
  test("without file and environment gives the documented defaults", () => {
    const config = load();
    expect(config.dataDir).toBe(path.join(dir, ".alcove"));
    expect(config.database.path).toBe(path.join(dir, ".alcove", "alcove.db"));
    expect(config.server).toMatchObject({
      host: "127.0.0.1",
      port: 7423,
      shutdownGraceMs: 30_000,
      deadmanGraceMs: 300_000,
    });
    expect(config.exec).toEqual({
      maxOutputBytes: 10 * 2 ** 20,
      ringBytes: 2 ** 20,
      disconnectGraceMs: 30_000,
    });
    expect(config.defaults).toMatchObject({
      ttlMs: 1_800_000,
      memoryMb: 512,
      maxTtlMs: 86_400_000,
      maxSandboxes: 100,
    });
    expect(config.auth).toEqual({
      enabled: false,
      apiKey: "",
      keys: [],
      adminApiKey: "",
      adminFallbackEnabled: true,
      adminAuditRetentionMs: 7_776_000_000,
    });
    expect(config.providers.native.enabled).toBeUndefined();
    expect(config.providers.docker.socket).toBe("unix:///var/run/docker.sock");
    expect(config.logging.format).toBe("json");
  });

  test("logs are pretty on a terminal", () => {
    expect(load({}, { terminal: true }).logging.format).toBe("pretty");
  });

  test("takes --config before $ALCOVE_CONFIG before ./alcove.yaml before the home directory", async () => {
    const home = path.join(dir, "home");
    await mkdir(path.join(home, ".config", "alcove"), { recursive: true });
    await writeFile(path.join(home, ".config", "alcove", "config.yaml"), "server: {port: 1001}");
    const env = { HOME: home };
    expect(load(env).server.port).toBe(1001);
    await writeFile(path.join(dir, "alcove.yaml"), "server: {port: 1002}");
    expect(load(env).server.port).toBe(1002);
    await writeFile(path.join(dir, "b.yaml"), "server: {port: 1003}");
    expect(load({ ...env, ALCOVE_CONFIG: "b.yaml" }).server.port).toBe(1003);
    await writeFile(path.join(dir, "c.yaml"), "server: {port: 1004}");
    expect(load({ ...env, ALCOVE_CONFIG: "b.yaml" }, { file: "c.yaml" }).server.port).toBe(1004);
    await writeFile(path.join(dir, "system.yaml"), "server: {port: 1000}");
    const systemFile = path.join(dir, "system.yaml");
    expect(load(env, { systemFile }).server.port).toBe(1002);
    await rm(path.join(dir, "alcove.yaml"));
    expect(load(env, { systemFile }).server.port).toBe(1001);
    expect(load({}, { systemFile }).server.port).toBe(1000);
  });

  test("a named file that is not there stops the start", () => {
    expect(problems(() => load({}, { file: "missing.yaml" }))[0]?.message).toContain(
      path.join(dir, "missing.yaml"),
    );
    expect(problems(() => load({ ALCOVE_CONFIG: "gone.yaml" }))[0]?.message).toContain("gone.yaml");
  });

  test("environment beats file, the command line beats both", async () => {
    await writeFile(path.join(dir, "alcove.yaml"), "server:\n  port: 1\ndefaults:\n  ttl: 1h\n");
    expect(load({ ALCOVE_SERVER_PORT: "2" })).toMatchObject({
      server: { port: 2 },
      defaults: { ttlMs: 3_600_000 },
    });
    const overrides = new Map([["server.port", { text: "3", source: "--port" }]]);
    const loaded = loadConfigWithSources({ env: { ALCOVE_SERVER_PORT: "2" }, cwd: dir, overrides });
    expect(loaded.config.server.port).toBe(3);
    expect(loaded.keys.source("server.port")).toBe("--port");
    expect(loaded.keys.source("defaults.ttl")).toBe("alcove.yaml");
  });

  test("every key can be given in the environment, and no two share a variable", () => {
    expect(new Set(configKeys.map(({ env }) => env)).size).toBe(configKeys.length);
    const config = load({
      ALCOVE_PROVIDERS_NATIVE_DISK_MB: "7",
      ALCOVE_PROVIDERS_NATIVE_ENABLED: "false",
      ALCOVE_SERVER_TRUSTED_PROXIES: "10.0.0.0/8, 192.0.2.1",
      ALCOVE_SERVER_ALLOW_INSECURE: "true",
      ALCOVE_SERVER_CORS_ALLOWED_ORIGINS: '["https://a.example", "https://b.example"]',
      ALCOVE_EXEC_MAX_OUTPUT: "512KiB",
      ALCOVE_IMAGES_ALIASES: '{"*": host}',
      ALCOVE_IMAGES_ALIASES_Debian: "debian:12",
      ALCOVE_LOGGING_FORMAT: "pretty",
    });
    expect(config.providers.native).toMatchObject({ diskMb: 7, enabled: false });
    expect(config.server.trustedProxies).toEqual(["10.0.0.0/8", "192.0.2.1"]);
    expect(config.server.corsAllowedOrigins).toEqual(["https://a.example", "https://b.example"]);
    expect(config.exec.maxOutputBytes).toBe(524_288);
    expect(config.images.aliases).toEqual({ "*": "host", Debian: "debian:12" });
    expect(config.logging.format).toBe("pretty");
  });

  test("an unknown key stops with its name and the nearest one", async () => {
    expect(await fileProblems("server:\n  prot: 80\n")).toEqual([
      { key: "server.prot", message: "unknown key server.prot (alcove.yaml); did you mean server.port?" },
    ]);
    expect((await fileProblems("sever:\n  port: 80\n"))[0]?.message).toContain("did you mean server?");
    expect((await fileProblems("providers:\n  native:\n    disk: 1\n"))[0]?.message).toContain(
      "did you mean providers.native.disk_mb?",
    );
  });

  test("an unknown ALCOVE_ variable stops with its name and the nearest one", () => {
    expect(problems(() => load({ ALCOVE_SERVER_PROT: "80" }))).toEqual([
      {
        key: "ALCOVE_SERVER_PROT",
        message: "unknown variable ALCOVE_SERVER_PROT in the environment; did you mean ALCOVE_SERVER_PORT?",
      },
    ]);
  });

  test("the client's variables, empty ones and those Kubernetes sets are no keys", () => {
    const env = {
      ALCOVE_URL: "http://127.0.0.1:1",
      ALCOVE_API_KEY: "k",
      ALCOVE_PORT: "tcp://10.0.0.1:7423",
      ALCOVE_PORT_7423_TCP_ADDR: "10.0.0.1",
      ALCOVE_SERVICE_HOST: "10.0.0.1",
      ALCOVE_SERVER_PORT: "",
    };
    expect(load(env).server.port).toBe(7423);
    expect(load(env).auth.enabled).toBe(false);
  });

  test("ALCOVE_PORT with a number was meant for this service, and is not passed over", () => {
    expect(() => load({ ALCOVE_PORT: "8080" })).toThrow(/unknown variable ALCOVE_PORT.*ALCOVE_SERVER_PORT/s);
  });

  test.each([
    ["defaults:\n  ttl: 10 minutes\n", "defaults.ttl", '"10 minutes"', "a duration such as 30s"],
    ["defaults:\n  ttl: 30\n", "defaults.ttl", "30", "a duration such as 30s"],
    ["defaults:\n  ttl: -5s\n", "defaults.ttl", '"-5s"', "a duration such as 30s"],
    ["defaults:\n  ttl: 0s\n", "defaults.ttl", '"0s"', "above zero"],
    [
      "pool:\n  enabled: true\n  memory_mb: 64\n  max_users_per_vm: 5\n",
      "pool.memory_mb",
      "64 gives each of 5 users",
      "16 at least",
    ],
    ["exec:\n  max_output: 10 parrots\n", "exec.max_output", '"10 parrots"', "10MiB"],
    ["exec:\n  ring_bytes: -1\n", "exec.ring_bytes", "-1", "a whole number of bytes"],
    ["server:\n  port: 70000\n", "server.port", "70000", "from 0 to 65535"],
    ["server:\n  port: http\n", "server.port", '"http"', "a whole number"],
    ["server:\n  port: 1.5\n", "server.port", "1.5", "a whole number"],
    ["server:\n  destroy_on_exit: maybe\n", "server.destroy_on_exit", '"maybe"', "true or false"],
    ["server:\n  trusted_proxies: 10.0.0.0/8\n", "server.trusted_proxies", '"10.0.0.0/8"', "a list"],
    ["server: 5\n", "server", "5", "keys below it"],
    ["providers:\n  default: podman\n", "providers.default", '"podman"', "native, docker"],
    ["images:\n  aliases: [a]\n", "images.aliases", '["a"]', "a map"],
    ["server:\n  public_url: alcove\n", "server.public_url", '"alcove"', "a URL"],
    ["providers:\n  docker:\n    socket: ssh://x\n", "providers.docker.socket", '"ssh://x"', "unix:///path"],
  ])("%j stops naming the key, the value and what is expected", async (text, key, value, expected) => {
    const found = await fileProblems(text);
    expect(found).toHaveLength(1);
    expect(found[0]?.key).toBe(key);
    expect(found[0]?.message).toContain(value);
    expect(found[0]?.message).toContain(expected);
  });

  test("all problems are told at once", async () => {
    const found = await fileProblems("server:\n  port: x\n  hots: a\n", { ALCOVE_DEFAULTS_TTL: "soon" });
    expect(found.map(({ key }) => key)).toEqual(["server.port", "server.hots", "defaults.ttl"]);
  });

  test.each(["server: [", "a: 1\na: 2\n", "- a\n", "just text"])(
    "the file %j stops the start",
    async (text) => {
      expect((await fileProblems(text))[0]?.message).toContain("alcove.yaml");
    },
  );

  test("an empty file and empty sections are fine", async () => {
    expect((await loadFile("# nothing\n")).server.port).toBe(7423);
    expect((await loadFile("server:\nauth:\n  enabled:\n")).auth.enabled).toBe(false);
  });
});

describe("auth.keys", () => {
  const hash = "a".repeat(64);
  const keysOf = async (yaml: string) => (await loadFile(`auth:\n  keys:\n${yaml}`)).auth;

  test("are read with what they leave out, and turn auth on", async () => {
    await writeFile(path.join(dir, "key"), "s3cret\n");
    const auth = await keysOf(
      `    - {name: ci, hash: ${hash.toUpperCase()}, owner: acme, scopes: [write, read], expires: "2030-01-31T00:00:00Z"}\n    - {name: b, key_file: key}\n`,
    );
    expect(auth.enabled).toBe(true);
    expect(auth.keys).toEqual([
      {
        name: "ci",
        hash,
        ownerId: "acme",
        scopes: ["read", "write"],
        expiresAt: new Date("2030-01-31T00:00:00Z"),
      },
      {
        name: "b",
        hash: createHash("sha256").update("s3cret").digest("hex"),
        ownerId: "",
        scopes: ["read", "write"],
        expiresAt: null,
        length: 6,
      },
    ]);
    expect(load({ ALCOVE_AUTH_KEYS: `[{name: c, hash: ${hash}}]` }).auth.keys[0]?.name).toBe("c");
  });

  test("one that is the client's or the administrator's key as well stops the start", async () => {
    const same = createHash("sha256").update("k").digest("hex");
    const env = { ALCOVE_AUTH_KEYS: `[{name: c, hash: ${same}}]` };
    for (const name of ["ALCOVE_AUTH_API_KEY", "ALCOVE_AUTH_ADMIN_API_KEY"])
      expect(() => load({ ...env, [name]: "k" })).toThrow(/"c" is the same key as auth/);
  });

  test.each([
    ["    - {hash: x}", /entry 1 .*name/],
    ["    - {name: ci, hash: short}", /entry "ci" hash/],
    [`    - {name: ci, hash: ${hash}, scopes: [all]}`, /entry "ci" scopes/],
    [
      `    - {name: ci, hash: ${hash}, other: 1}`,
      /entries of name, hash, key_file, .*entry "ci" other is none of them/,
    ],
    ["    - {name: ci}", /"ci": give hash or key_file/],
    [`    - {name: ci, hash: ${hash}, key_file: key}`, /"ci": give hash or key_file/],
    ["    - {name: ci, key_file: missing}", /"ci": key_file is "missing"/],
    [`    - {name: ci, hash: ${hash}, owner: a b}`, /"ci": owner must not contain whitespace/],
    [`    - {name: ci, hash: ${hash}, owner: acme, scopes: [admin]}`, /"ci": a key bound to an owner cannot/],
    [`    - {name: ci, hash: ${hash}, expires: soon}`, /"ci": expires is "soon"/],
    [`    - {name: ci, hash: ${hash}, expires: "2030-02-31T00:00:00Z"}`, /"ci": expires is/],
    [`    - {name: ci, hash: ${hash}, expires: "2030-02-01T00:00:00"}`, /"ci": expires is/],
    [`    - {name: ci, hash: ${hash}, owner: ""}`, /"ci": owner is empty/],
    [`    - {name: a, hash: ${hash}}\n    - {name: b, hash: ${hash}}`, /"b": it is the key of "a"/],
    [`    - {name: local, hash: ${hash}}`, /"local": this name stands for/],
    [`    - {name: a, hash: ${hash}}\n    - {name: a, hash: ${hash}}`, /"a": there are two/],
    ["    key", /auth.keys/],
  ])("%s stops the start", async (yaml, message) => {
    await expect(keysOf(yaml)).rejects.toThrow(message);
  });
});

describe("secrets", () => {
  test("come from their key or from a file, without the line's end", async () => {
    await writeFile(path.join(dir, "key"), "s3cret\n");
    expect((await loadFile("auth:\n  api_key_file: key\n")).auth).toEqual({
      enabled: true,
      apiKey: "s3cret",
      keys: [],
      adminApiKey: "",
      adminFallbackEnabled: true,
      adminAuditRetentionMs: 7_776_000_000,
    });
    expect(load({ ALCOVE_AUTH_ADMIN_API_KEY: "adm" }).auth.adminApiKey).toBe("adm");
  });

  test("given inline and as a file stop the start, whatever the sources", async () => {
    await writeFile(path.join(dir, "key"), "s3cret\n");
    const found = await fileProblems("auth:\n  api_key: abc\n", { ALCOVE_AUTH_API_KEY_FILE: "key" });
    expect(found[0]?.message).toBe(
      "auth.api_key (alcove.yaml) and auth.api_key_file ($ALCOVE_AUTH_API_KEY_FILE) are both given: keep one of them",
    );
    expect((await fileProblems("auth:\n  api_key: abc\n  api_key_file: key\n"))[0]?.key).toBe("auth.api_key");
  });

  test("a file that is missing or empty stops the start with its key", async () => {
    expect((await fileProblems("auth:\n  api_key_file: none\n"))[0]?.key).toBe("auth.api_key_file");
    await writeFile(path.join(dir, "empty"), "\n");
    expect((await fileProblems("auth:\n  api_key_file: empty\n"))[0]?.message).toContain("the file is empty");
  });

  test("of the wrong kind are not shown", async () => {
    expect((await fileProblems("auth:\n  api_key: 123456\n"))[0]?.message).not.toContain("123456");
    for (const field of ["key", "hash"])
      expect(
        (await fileProblems(`auth:\n  keys: [{name: ci, ${field}: s3cret}]\n`))[0]?.message,
      ).not.toContain("s3cret");
  });
});

describe("auth", () => {
  test("is on when a key is set and can be switched off", async () => {
    expect((await loadFile("auth:\n  api_key: abc\n")).auth.enabled).toBe(true);
    expect((await loadFile("auth:\n  api_key: abc\n  enabled: false\n")).auth.enabled).toBe(false);
  });

  test("on without a key stops the start", async () => {
    expect((await fileProblems("auth:\n  enabled: true\n"))[0]?.key).toBe("auth.enabled");
  });

  test("off on an address others reach stops the start unless allow_insecure is set", async () => {
    for (const host of ["0.0.0.0", "::", "192.0.2.7", "alcove.example.com", "127.0.0.1.example.com"]) {
      expect((await fileProblems(`server:\n  host: "${host}"\n`))[0]?.key).toBe("server.host");
    }
    for (const host of ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"]) {
      expect(await fileProblems(`server:\n  host: "${host}"\n`)).toEqual([]);
    }
    expect((await loadFile("server:\n  host: 0.0.0.0\n  allow_insecure: true\n")).server.host).toBe(
      "0.0.0.0",
    );
    const proxied = {
      "public_url: https://alcove.example.com": "server.public_url",
      "public_url: http://192.0.2.7": "server.public_url",
      "trusted_proxies: [127.0.0.1]": "server.trusted_proxies",
    };
    for (const [line, key] of Object.entries(proxied)) {
      const [problem, ...more] = await fileProblems(`server:\n  ${line}\n`);
      expect([line, problem?.key, more]).toEqual([line, key, []]);
      for (const way of [key, "auth.api_key_file", "server.allow_insecure"])
        expect(problem?.message).toContain(way);
      expect(await fileProblems(`server:\n  ${line}\n  allow_insecure: true\n`)).toEqual([]);
      expect(await fileProblems(`server:\n  ${line}\nauth:\n  api_key: k\n`)).toEqual([]);
    }
    for (const url of ["http://localhost:7423", "https://alcove.localhost", "http://[::1]:7423"])
      expect(await fileProblems(`server:\n  public_url: "${url}"\n`)).toEqual([]);
    for (const domain of ["localhost", "preview.example.com", '""'])
      expect(await fileProblems(`server:\n  preview_domain: ${domain}\n`)).toEqual([]);
    expect((await loadFile("server:\n  host: 0.0.0.0\nauth:\n  api_key: k\n")).auth.enabled).toBe(true);
  });
});

test("the configuration of docs/operations/proxy.md has keys, without which it stops the start", async () => {
  const page = await readFile(new URL("../../../../docs/operations/proxy.md", import.meta.url), "utf8");
  const [, sample = ""] = /```yaml\n(.*?)```/s.exec(page) ?? [];
  for (const name of ["key", "admin-key"]) await writeFile(path.join(dir, name), `secret-of-${name}`);
  const printed = sample.replaceAll("/etc/alcove", dir);
  expect((await loadFile(printed)).auth.enabled).toBe(true);
  const [problem] = await fileProblems(printed.replace(/^auth:\n( .*\n)*/m, ""));
  for (const key of ["server.public_url", "server.trusted_proxies"]) expect(problem?.message).toContain(key);
});

describe("docker.socket", () => {
  test("is the key, else $DOCKER_HOST, else the usual socket", async () => {
    expect(load({ DOCKER_HOST: "tcp://127.0.0.1:2375" }).providers.docker.socket).toBe(
      "tcp://127.0.0.1:2375",
    );
    const config = await loadFile("providers:\n  docker:\n    socket: /run/my.sock\n", {
      DOCKER_HOST: "tcp://x:1",
    });
    expect(config.providers.docker.socket).toBe("unix:///run/my.sock");
  });
});

test("docs/configuration.md is what the schema says; run scripts/config-reference.ts when it is stale", async () => {
  const file = new URL("../../../../docs/configuration.md", import.meta.url);
  expect(await readFile(file, "utf8")).toBe(configurationReference());
});

test("every key of the schema stands in the configuration under its name in the code, a secret's file but for its contents", () => {
  const config: Record<string, unknown> = { ...load() };
  const secretFiles = configKeys.filter(({ kind }) => kind === "secret").map(({ key }) => `${key}_file`);
  const missing = configKeys.filter(({ key }) => {
    if (secretFiles.includes(key)) return false;
    const names = key
      .split(".")
      .map((name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase()));
    let value: unknown = config;
    for (const name of names.slice(0, -1)) value = (value as Record<string, unknown>)[name];
    const last = names.at(-1) ?? "";
    return ![last, `${last}Ms`, `${last}Bytes`].some((name) => name in (value as object));
  });
  expect(missing.map(({ key }) => key)).toEqual([]);
});
