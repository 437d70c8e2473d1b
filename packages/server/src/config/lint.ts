import { statSync } from "node:fs";
import { BlockList } from "node:net";
import path from "node:path";
import { formatDuration } from "@alcove/wire";
import { isLoopback } from "./exposure.ts";
import { guardRules } from "./lint-guards.ts";
import type { LintRule } from "./lint-rule.ts";
import type { LoadedConfig } from "./load.ts";
import { isEngineNetwork, isWeak, kernelSharingRuntimes, providerNames } from "./providers.ts";
import { equalKeys, shortKeys } from "./weak-keys.ts";

export interface LintFinding {
  id: string;
  level: "fail" | "warn";
  message: string;
  advice: string;
}

/** Above these a limit on requests protects nothing. */
const weakest = { requestsPerMinute: 6_000, burst: 1_000 };

/** See docs/configuration.md. */
export const lintRules: readonly LintRule[] = [
  {
    id: "ttl-above-maximum",
    level: "warn",
    production: false,
    check: ({ config: { defaults } }) =>
      defaults.maxTtlMs > 0 && defaults.ttlMs > defaults.maxTtlMs
        ? `defaults.ttl is ${formatDuration(defaults.ttlMs)}, above defaults.max_ttl ${formatDuration(defaults.maxTtlMs)}`
        : undefined,
    advice: "lower defaults.ttl; until then sandboxes get the maximum",
  },
  {
    id: "exec-timeout-above-maximum",
    level: "warn",
    production: false,
    check: ({ config: { defaults } }) =>
      defaults.defaultExecTimeoutMs > defaults.maxExecTimeoutMs
        ? `defaults.default_exec_timeout is ${formatDuration(defaults.defaultExecTimeoutMs)}, above defaults.max_exec_timeout ${formatDuration(defaults.maxExecTimeoutMs)}`
        : undefined,
    advice: "lower defaults.default_exec_timeout; until then commands get the maximum",
  },
  {
    id: "default-provider-disabled",
    level: "warn",
    production: false,
    check: ({ config: { providers } }) =>
      (providers.default === "native" || providers.default === "docker") &&
      providers[providers.default].enabled === false
        ? `providers.default is ${providers.default}, but providers.${providers.default}.enabled is false`
        : undefined,
    advice: "the default provider is always enabled: choose another default or drop the enabled key",
  },
  {
    id: "secret-readable",
    level: "warn",
    production: false,
    check: ({ secretFiles }) => {
      const open = secretFiles.filter(isReadableByAll);
      return open.length > 0 ? `everybody on this machine can read the key in ${open.join(", ")}` : undefined;
    },
    advice: "chmod 600 the file",
  },
  {
    id: "auth-missing",
    level: "fail",
    production: true,
    check: ({ config: { auth } }) => (auth.enabled ? undefined : "auth is off"),
    advice: "set auth.api_key_file",
  },
  {
    id: "api-key-missing",
    level: "warn",
    production: true,
    check: ({ config: { auth } }) =>
      auth.enabled && auth.apiKey === "" && auth.keys.length === 0
        ? "only auth.admin_api_key is set: every client needs the admin key"
        : undefined,
    advice: "set auth.api_key_file too",
  },
  {
    id: "key-short",
    level: "fail",
    production: true,
    check: ({ config }) => shortKeys(config),
    advice: "make keys with: openssl rand -hex 32",
  },
  {
    id: "clients-administer",
    level: "fail",
    production: true,
    check: ({ config: { auth } }) =>
      auth.enabled && auth.apiKey !== "" && auth.adminApiKey === "" && auth.adminFallbackEnabled
        ? "auth.api_key administers: every client can make keys that outlast it"
        : undefined,
    advice: "set auth.admin_api_key_file, or auth.admin_fallback_enabled: false",
  },
  {
    id: "keys-equal",
    level: "warn",
    production: true,
    check: ({ config }) => equalKeys(config),
    advice: "give administrators a key of their own",
  },
  {
    id: "allow-insecure",
    level: "fail",
    production: true,
    check: ({ config: { server } }) => (server.allowInsecure ? "server.allow_insecure is true" : undefined),
    advice: "remove it and set auth.api_key_file",
  },
  {
    id: "cors-open",
    level: "fail",
    production: true,
    check: ({ config: { server } }) => {
      if (server.corsAllowedOrigins.length === 0) return "server.cors_allowed_origins is empty";
      return server.corsAllowedOrigins.some((origin) => origin.includes("*"))
        ? "server.cors_allowed_origins allows every origin"
        : undefined;
    },
    advice: "list the origins of your pages exactly, such as https://app.example.com",
  },
  {
    id: "rate-limit-weak",
    level: "fail",
    production: true,
    check: ({ config: { rateLimit } }) => {
      if (!rateLimit.enabled) return "rate_limit.enabled is false";
      if (rateLimit.requestsPerMinute > weakest.requestsPerMinute)
        return `rate_limit.requests_per_minute is ${rateLimit.requestsPerMinute}, above ${weakest.requestsPerMinute}`;
      return rateLimit.burst > weakest.burst
        ? `rate_limit.burst is ${rateLimit.burst}, above ${weakest.burst}`
        : undefined;
    },
    advice: "set rate_limit.enabled: true, with limits that your clients need",
  },
  {
    id: "database-path-relative",
    level: "fail",
    production: true,
    check: ({ keys }) => {
      const databasePath = keys.text("database.path");
      if (databasePath !== "") {
        return path.isAbsolute(databasePath) ? undefined : `database.path is relative: ${databasePath}`;
      }
      const dataDir = keys.text("data_dir");
      return path.isAbsolute(dataDir)
        ? undefined
        : `data_dir, which holds the database, is relative: ${dataDir}`;
    },
    advice: "use an absolute path, such as data_dir: /var/lib/alcove",
  },
  {
    id: "sandbox-cap-missing",
    level: "fail",
    production: true,
    check: ({ config: { defaults } }) =>
      defaults.maxSandboxes === 0 ? "defaults.max_sandboxes is 0: no limit" : undefined,
    advice: "set defaults.max_sandboxes to what the machine can hold",
  },
  {
    id: "owner-cap-missing",
    level: "warn",
    production: true,
    check: ({ config: { defaults } }) =>
      defaults.maxSandboxesPerOwner === 0
        ? "defaults.max_sandboxes_per_owner is 0: one owner can take everything"
        : undefined,
    advice: "set defaults.max_sandboxes_per_owner",
  },
  {
    id: "ttl-cap-missing",
    level: "warn",
    production: true,
    check: ({ config: { defaults } }) =>
      defaults.maxTtlMs === 0 ? "defaults.max_ttl is 0s: no limit" : undefined,
    advice: "set defaults.max_ttl",
  },
  {
    id: "default-provider-unsafe",
    level: "fail",
    production: true,
    check: ({ config: { providers } }) =>
      providers.default !== "auto" && isWeak(providers.default)
        ? `providers.default is ${providers.default}, which does not isolate`
        : undefined,
    advice: "use native or docker",
  },
  {
    id: "default-provider-open",
    level: "warn",
    production: true,
    check: ({ config: { providers } }) =>
      providers.default === "auto"
        ? "providers.default is auto: a change of the machine can change the isolation"
        : undefined,
    advice: "name the provider: providers.default: native",
  },
  {
    id: "capabilities-added",
    level: "fail",
    production: true,
    check: ({ config: { providers } }) => {
      const added = [...providers.native.addedCaps, ...providers.docker.addedCaps];
      return added.length > 0 ? `commands get extra capabilities: ${added.join(", ")}` : undefined;
    },
    advice: "empty providers.native.added_caps and providers.docker.added_caps",
  },
  {
    id: "capabilities-kept",
    level: "fail",
    production: true,
    check: ({ config: { providers } }) =>
      providers.docker.droppedCaps.some((name) => name.toUpperCase() === "ALL")
        ? undefined
        : "providers.docker.dropped_caps does not contain ALL",
    advice: "leave providers.docker.dropped_caps at its default",
  },
  {
    id: "seccomp-unconfined",
    level: "fail",
    production: true,
    check: ({ config: { providers } }) =>
      providers.docker.seccompProfile === "unconfined"
        ? "providers.docker.seccomp_profile is unconfined"
        : undefined,
    advice: "leave providers.docker.seccomp_profile empty for the engine's default",
  },
  {
    id: "host-network",
    level: "fail",
    production: true,
    check: ({ config: { providers } }) => {
      const names = (["native", "docker"] as const).filter((name) => providers[name].networkMode === "host");
      return names.length > 0 ? `sandboxes share the host's network: ${names.join(", ")}` : undefined;
    },
    advice: "set network_mode: none",
  },
  {
    id: "microvms-unjailed",
    level: "warn",
    production: true,
    check: ({ config: { providers } }) => {
      const { enabled, jailerPath } = providers.firecracker;
      const isWanted = enabled || providers.default === "firecracker";
      return isWanted && jailerPath === ""
        ? "whoever breaks out of Firecracker has the rights of the service: providers.firecracker.jailer_path is empty"
        : undefined;
    },
    advice: "set providers.firecracker.jailer_path to the jailer of the same release",
  },
  {
    id: "engine-network-open",
    level: "warn",
    production: true,
    check: ({ config: { providers } }) =>
      isEngineNetwork(providers.docker.networkMode)
        ? `containers on the engine's network "${providers.docker.networkMode}" reach private, link-local and metadata addresses`
        : undefined,
    advice: "set providers.docker.network_mode: outbound, or close them on the host",
  },
  {
    id: "network-allow-metadata",
    level: "fail",
    production: true,
    check: ({ config: { providers } }) => {
      const { native, docker } = providers;
      const wide = [...native.networkAllow, ...docker.networkAllow].filter(holdsMetadata);
      return wide.length > 0
        ? `sandboxes reach the addresses that clouds serve credentials on: ${wide.join(", ")}`
        : undefined;
    },
    advice: "name only the networks that sandboxes need in network_allow",
  },
  {
    id: "registries-open",
    level: "fail",
    production: true,
    check: ({ config: { images } }) =>
      images.pullPolicy === "missing" && images.allowedRegistries.includes("*")
        ? "images.allowed_registries allows every registry: clients choose the hosts this machine talks to"
        : undefined,
    advice:
      "name your registries, such as images.allowed_registries: [docker.io], or set images.pull_policy: never",
  },
  {
    id: "weak-provider-enabled",
    level: "warn",
    production: true,
    check: ({ config: { providers } }) => {
      const names = providerNames.filter((name) => isWeak(name) && providers[name].enabled);
      return names.length > 0 ? `clients can choose weaker isolation: ${names.join(", ")}` : undefined;
    },
    advice: "disable the providers that do not isolate",
  },
  {
    id: "telemetry-plain",
    level: "warn",
    production: false,
    check: ({ config: { telemetry } }) => {
      const { otlpEndpoint, otlpHeaders } = telemetry;
      return otlpHeaders !== "" && isPlainElsewhere(otlpEndpoint)
        ? `telemetry.otlp_headers go to ${URL.parse(otlpEndpoint)?.host} unencrypted`
        : undefined;
    },
    advice: "use https, or a collector on this machine",
  },
  {
    id: "engine-remote-plain",
    level: "warn",
    production: true,
    check: ({ config: { providers } }) => {
      const url = URL.parse(providers.docker.socket);
      return url?.protocol === "tcp:" && providers.docker.tlsDir === "" && !isLoopback(url.hostname)
        ? `the engine is reached over the network without encryption: ${providers.docker.socket}`
        : undefined;
    },
    advice: "set providers.docker.tls_dir, or reach the engine over its unix socket or a tunnel",
  },
  {
    id: "backend-plain",
    level: "warn",
    production: true,
    check: ({ config: { providers } }) => {
      const { custom, e2b } = providers;
      const addresses = [
        ["providers.custom.url", custom.url],
        ["providers.e2b.api_url", e2b.apiUrl],
        ["providers.e2b.sandbox_url", e2b.sandboxUrl],
      ] as const;
      const plain = addresses.filter(([, url]) => isPlainElsewhere(url)).map(([key]) => key);
      return plain.length > 0
        ? `keys, and all that sandboxes do, go over the network without encryption: ${plain.join(", ")}`
        : undefined;
    },
    advice: "use https, or a tunnel that ends on this machine",
  },
  {
    id: "engine-disk-unbounded",
    level: "warn",
    production: true,
    check: ({ config: { providers } }) => {
      const { diskMb, minFreeMb } = providers.docker;
      if (!isDockerWanted(providers) || (diskMb > 0 && minFreeMb > 0)) return undefined;
      const off = [diskMb === 0 ? "disk_mb" : "", minFreeMb === 0 ? "min_free_mb" : ""].filter(Boolean);
      return `one sandbox of docker can fill the engine's disk: ${off.join(" and ")} of providers.docker is 0`;
    },
    advice:
      "leave providers.docker.disk_mb and min_free_mb at their defaults, or set them to what the disk holds",
  },
  {
    id: "engine-users-shared",
    level: "warn",
    production: true,
    check: ({ config: { providers } }) =>
      isDockerWanted(providers) && (providers.docker.runtime === "" || sharesKernel(providers.docker.runtime))
        ? "sandboxes of docker share the host's user ids, and with them what the kernel counts for each: inotify instances, pending signals, pages of pipes, watches of epoll"
        : undefined,
    advice:
      "name a runtime whose kernel is the sandbox's own in providers.docker.runtime (runsc, kata), or use native; userns-remap keeps the host's root apart, not sandboxes from each other",
  },
  ...guardRules,
];

/** Whether an address leads to another machine, unencrypted. */
function isPlainElsewhere(address: string): boolean {
  const url = URL.parse(address);
  return url?.protocol === "http:" && !isLoopback(url.hostname);
}

/** As far as the name of a runtime says; a name of the operator's own says nothing. */
function sharesKernel(runtime: string): boolean {
  return kernelSharingRuntimes.has(path.basename(runtime));
}

/** Whether the configuration asks for docker, and not only takes it where an engine happens to answer. */
function isDockerWanted(providers: LoadedConfig["config"]["providers"]): boolean {
  return providers.default === "docker" || providers.docker.enabled === true;
}

/** @returns what the rules find, in their order. */
export function lintConfig(loaded: LoadedConfig, options: { production: boolean }): LintFinding[] {
  const findings: LintFinding[] = [];
  for (const rule of lintRules) {
    if (rule.production && !options.production) continue;
    const message = rule.check(loaded);
    if (message !== undefined)
      findings.push({ id: rule.id, level: rule.level, message, advice: rule.advice });
  }
  return findings;
}

/** The address that most clouds serve their credentials on, and the other one. */
const metadataAddresses = ["169.254.169.254", "168.63.129.16"];

function holdsMetadata(network: string): boolean {
  const [address = "", length = "32"] = network.split("/");
  const held = new BlockList();
  held.addSubnet(address, Number(length), "ipv4");
  return metadataAddresses.some((metadata) => held.check(metadata));
}

function isReadableByAll(file: string): boolean {
  const found = statSync(file, { throwIfNoEntry: false });
  return found !== undefined && (found.mode & 0o004) !== 0;
}
