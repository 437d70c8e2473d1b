import { chmod, glob, mkdtempDisposable, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { isMap, parseAllDocuments } from "yaml";
import { lintConfig, lintRules } from "./lint.ts";
import { loadConfigWithSources } from "./load.ts";

function lint(settings: Record<string, string>, options: { production: boolean }): string[] {
  const overrides = new Map(Object.entries(settings).map(([key, text]) => [key, { text, source: "--set" }]));
  const loaded = loadConfigWithSources({ env: {}, cwd: "/nowhere", overrides });
  return lintConfig(loaded, options).map(({ id }) => id);
}

/** Each file of a secret that it names is made in the folder. */
async function loadedWithSecrets(folder: string, text: string) {
  const file = path.join(folder, "alcove.yaml");
  const named = new Set<string>();
  const here = text.replaceAll(/(_file: )([^ ,}\n]+)/g, (_all, key: string, secret: string) => {
    named.add(path.basename(secret));
    return key + path.join(folder, path.basename(secret));
  });
  await writeFile(file, here);
  for (const name of named)
    await writeFile(path.join(folder, name), `x-${name}: of 48 characters, more or less`, { mode: 0o600 });
  return loadConfigWithSources({ env: {}, cwd: "/nowhere", file });
}

/** Passes every production rule. */
const sound = {
  data_dir: "/var/lib/alcove",
  "auth.api_key": "0123456789abcdef0123",
  "auth.admin_api_key": "3210fedcba98765432100",
  "server.cors_allowed_origins": "https://app.example.com",
  "defaults.max_sandboxes_per_owner": "5",
  "rate_limit.enabled": "true",
  "providers.default": "native",
  "images.allowed_registries": "docker.io",
};

describe("lintConfig()", () => {
  test("finds nothing in the defaults without --production", () => {
    expect(lint({}, { production: false })).toEqual([]);
  });

  test("finds nothing in a sound production configuration", () => {
    expect(lint(sound, { production: true })).toEqual([]);
  });

  describe("finds nothing in what is shipped, and has it need keys:", async () => {
    const root = path.join(import.meta.dirname, "../../../..");
    const shipped: string[] = [];
    for await (const file of glob("deploy/**/*.y{a,}ml", { cwd: root })) {
      const [settings] = parseAllDocuments(await readFile(path.join(root, file), "utf8"));
      // Manifests and rules of other programs stand there too.
      if (isMap(settings?.contents) && settings.has("data_dir")) shipped.push(file);
    }
    test("two configurations", () => {
      expect(shipped.sort()).toEqual(["deploy/alcove.yaml", "deploy/container/alcove.yaml"]);
    });
    test.each(shipped)("%s", async (name) => {
      await using folder = await mkdtempDisposable(path.join(tmpdir(), "alcove-lint-"));
      const loaded = await loadedWithSecrets(folder.path, await readFile(path.join(root, name), "utf8"));
      expect(lintConfig(loaded, { production: true })).toEqual([]);
      expect(loaded.config).toMatchObject({ dataDir: "/var/lib/alcove", auth: { enabled: true } });
    });
  });

  test("reads every part of a configuration that the pages show", async () => {
    const docs = path.join(import.meta.dirname, "../../../../docs");
    let read = 0;
    for await (const page of glob("**/*.md", { cwd: docs }))
      for (const [, indent = "", block = ""] of (await readFile(path.join(docs, page), "utf8")).matchAll(
        /^( *)```yaml\n(.*?)^ *```$/gms,
      )) {
        if (/^securityContext:/m.test(block)) continue;
        await using folder = await mkdtempDisposable(path.join(tmpdir(), "alcove-lint-"));
        const text = block.replaceAll(new RegExp(`^${indent}`, "gm"), "");
        await expect(loadedWithSecrets(folder.path, text), page).resolves.toBeDefined();
        read++;
      }
    expect(read).toBeGreaterThan(5);
  });

  test.each([
    [{ "auth.enabled": "false" }, "auth-missing"],
    [{ "auth.api_key": "short" }, "key-short"],
    [{ "auth.admin_api_key": "short" }, "key-short"],
    [{ "auth.admin_api_key": "" }, "clients-administer"],
    [{ "auth.api_key": "" }, "api-key-missing"],
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
    [{ "providers.docker.network_mode": "bridge" }, "engine-network-open"],
    [{ "providers.native.network_allow": "10.1.2.0/24,169.254.0.0/16" }, "network-allow-metadata"],
    [{ "providers.native.network_allow": "169.254.0.0/16" }, "network-allow-metadata"],
    [{ "providers.docker.network_allow": "169.254.169.254" }, "network-allow-metadata"],
    [{ "providers.native.network_allow": "10.1.2.0/24,10.0.0.0/8" }, "network-allow-wide"],
    [{ "server.trusted_proxies": "10.0.0.0/24,0.0.0.0/0" }, "proxies-anybody"],
    [{ "server.trusted_proxies": "::/0" }, "proxies-anybody"],
    [{ "providers.native.disk_mb": "0", "providers.native.min_free_mb": "0" }, "disk-unbounded"],
    [{ "server.max_connections": "0" }, "guards-off"],
    [{ "defaults.memory_overcommit": "0" }, "guards-off"],
    [{ "defaults.vcpu_overcommit": "0" }, "guards-off"],
    [{ "providers.native.max_uncounted_percent": "0" }, "guards-off"],
    [{ "providers.native.network_mode": "outbound", "providers.native.network_mbit": "0" }, "guards-off"],
    [{ "providers.docker.network_mode": "outbound", "providers.docker.network_mbit": "0" }, "guards-off"],
    [
      {
        "providers.firecracker.network": "tap0 172.16.0.2/30 172.16.0.1",
        "providers.firecracker.network_mbit": "0",
      },
      "guards-off",
    ],
    [{ "providers.firecracker.enabled": "true" }, "microvms-unjailed"],
    [{ "providers.default": "firecracker" }, "microvms-unjailed"],
    [{ "preview.access": "public" }, "previews-public"],
    [{ "server.destroy_on_exit": "true" }, "sandboxes-end-with-service"],
    [{ "images.allowed_registries": "docker.io,*" }, "registries-open"],
    [{ "providers.mock.enabled": "true" }, "weak-provider-enabled"],
    [{ "providers.docker.socket": "tcp://192.0.2.1:2375" }, "engine-remote-plain"],
    [{ "providers.custom.url": "http://192.0.2.1:8090" }, "backend-plain"],
    [{ "providers.e2b.api_url": "http://e2b.example" }, "backend-plain"],
    [{ "providers.e2b.sandbox_url": "http://e2b.example" }, "backend-plain"],
  ])("--production: %j is %s", (change, id) => {
    expect(lint({ ...sound, ...change }, { production: true })).toEqual([id]);
  });

  test("--production: an engine over the network with TLS is fine", () => {
    const engine = {
      "providers.docker.socket": "tcp://192.0.2.1",
      "providers.docker.tls_dir": "/etc/alcove/engine",
    };
    expect(lint({ ...sound, ...engine }, { production: true })).toEqual([]);
  });

  test("--production: a backend on this machine, or over TLS, is nothing to warn of", () => {
    for (const url of ["http://127.0.0.1:8090", "https://backend.example"])
      expect(lint({ ...sound, "providers.custom.url": url }, { production: true })).toEqual([]);
  });

  test("--production: networks that are everybody's are named for each thing that is wrong with them", () => {
    const found = lint({ ...sound, "providers.native.network_allow": "0.0.0.0/0" }, { production: true });
    expect(found).toEqual(["network-allow-metadata", "network-allow-wide"]);
  });

  test("--production: what docker shares where it is asked for is named, less with a kernel of each sandbox's own", () => {
    const docker = { ...sound, "providers.default": "docker" };
    const beside = { ...sound, "providers.docker.enabled": "true" };
    const named = { ...beside, "providers.docker.runtime": "runc" };
    for (const shared of [docker, beside, named])
      expect(lint(shared, { production: true })).toEqual(["engine-users-shared"]);
    const own = { ...docker, "providers.docker.runtime": "runsc" };
    expect(lint(own, { production: true })).toEqual([]);
    for (const key of ["providers.docker.disk_mb", "providers.docker.min_free_mb"])
      expect(lint({ ...own, [key]: "0" }, { production: true })).toEqual(["engine-disk-unbounded"]);
  });

  test.each([
    [{ "defaults.ttl": "48h" }, "ttl-above-maximum"],
    [{ "defaults.default_exec_timeout": "2h" }, "exec-timeout-above-maximum"],
    [{ "providers.default": "docker", "providers.docker.enabled": "false" }, "default-provider-disabled"],
    [
      { "telemetry.otlp_endpoint": "http://collector.example:4318", "telemetry.otlp_headers": "x-key: a" },
      "telemetry-plain",
    ],
  ])("%j is %s", (change, id) => {
    expect(lint(change, { production: false })).toEqual([id]);
  });

  test("a short key is found in a file of auth.keys too, and of a hash nothing is known", async () => {
    await using dir = await mkdtempDisposable(path.join(tmpdir(), "alcove-lint-"));
    const file = path.join(dir.path, "key");
    const found = async (key: string) => {
      await writeFile(file, key, { mode: 0o600 });
      const keys = [
        { name: "ci", key_file: file },
        { name: "hashed", hash: "ab".repeat(32) },
      ];
      return lint({ ...sound, "auth.keys": JSON.stringify(keys) }, { production: true });
    };
    expect(await found("x")).toEqual(["key-short"]);
    expect(await found("0123456789abcdef")).toEqual([]);
  });

  test("the file of a secret that everybody can read is named, and one of its group's only is not", async () => {
    await using dir = await mkdtempDisposable(path.join(tmpdir(), "alcove-lint-"));
    const loaded = await loadedWithSecrets(
      dir.path,
      "auth:\n  api_key_file: client\n  admin_api_key_file: admin\n",
    );
    expect(lintConfig(loaded, { production: false })).toEqual([]);
    await chmod(path.join(dir.path, "client"), 0o640);
    expect(lintConfig(loaded, { production: false })).toEqual([]);
    await chmod(path.join(dir.path, "admin"), 0o604);
    expect(lintConfig(loaded, { production: false })).toEqual([
      {
        id: "secret-readable",
        level: "warn",
        message: `everybody on this machine can read the key in ${path.join(dir.path, "admin")}`,
        advice: "chmod 600 the file",
      },
    ]);
  });

  test("each rule has an id of its own and says what to do", () => {
    expect(new Set(lintRules.map(({ id }) => id)).size).toBe(lintRules.length);
    for (const { advice } of lintRules) expect(advice).not.toBe("");
  });
});
