import { hash } from "node:crypto";
import path from "node:path";
import { leastMemoryMb } from "@alcove/wire";
import { configuredKeys } from "./auth-keys.ts";
import type { Config, SchemaConfig } from "./config.ts";
import { ConfigError, type ConfigProblem } from "./errors.ts";
import { waysIn } from "./exposure.ts";
import { configKeys, type KeyKind } from "./keys.ts";
import { parseOtlpHeaders } from "./otlp-headers.ts";
import { ResolvedKeys } from "./resolved-keys.ts";
import { resolveSecrets } from "./secrets.ts";
import { findConfigFile, type Gathered, gatherEnvironment, gatherFile, gatherOverrides } from "./sources.ts";

export interface LoadOptions {
  /** `--config`; without it $ALCOVE_CONFIG, ./alcove.yaml, ~/.config/alcove/config.yaml, then `systemFile`. */
  file?: string | undefined;
  /** Where the machine keeps it: of an installed service, not of a clone. */
  systemFile?: string;
  env: NodeJS.ProcessEnv;
  cwd: string;
  /** From the command line: key to text. They beat the environment. */
  overrides?: ReadonlyMap<string, { text: string; source: string }>;
  /** Whether logs go to a terminal. */
  terminal?: boolean;
}

/** A configuration with where it came from, for lint and the start report. */
export interface LoadedConfig {
  config: Config;
  /** The file that was read. */
  file: string | undefined;
  keys: ResolvedKeys;
  /** The files that hold keys, absolute: each `_file`, and the configuration when it holds one itself. */
  secretFiles: string[];
}

/** @throws ConfigError naming every key that is unknown, given twice, of the wrong kind or unsafe. docs/configuration.md. */
export function loadConfig(options: LoadOptions): Config {
  return loadConfigWithSources(options).config;
}

/** @throws ConfigError */
export function loadConfigWithSources(options: LoadOptions): LoadedConfig {
  const gathered: Gathered = { given: new Map(), problems: [] };
  const file = findConfigFile(options);
  if (file !== undefined) gatherFile(file, gathered);
  gatherEnvironment(options.env, gathered);
  gatherOverrides(options.overrides ?? new Map(), gathered);
  const secrets = resolveSecrets(gathered, options.cwd);
  if (gathered.problems.length > 0) throw new ConfigError(gathered.problems);

  const keys = new ResolvedKeys(configKeys, gathered.given);
  const problems: ConfigProblem[] = [];
  const config = build(keys, {
    secrets,
    problems,
    cwd: options.cwd,
    env: options.env,
    terminal: options.terminal ?? false,
  });
  problems.push(...inconsistencies(config, keys));
  if (problems.length > 0) throw new ConfigError(problems);
  return { config, file, keys, secretFiles: secretFilesOf(keys, { file, cwd: options.cwd }) };
}

function secretFilesOf(keys: ResolvedKeys, where: { file: string | undefined; cwd: string }): string[] {
  const secrets = configKeys.filter(({ kind }) => kind === "secret").map(({ key }) => key);
  const named = secrets.map((key) => keys.text(`${key}_file`)).filter((file) => file !== "");
  const { file, cwd } = where;
  const ofList = keys.value("auth.keys") as { key_file?: string }[];
  named.push(...ofList.flatMap(({ key_file }) => key_file ?? []));
  const inline = file !== undefined && secrets.some((key) => keys.source(key) === path.basename(file));
  return [...named.map((name) => path.resolve(cwd, name)), ...(inline ? [file] : [])];
}

function build(
  keys: ResolvedKeys,
  context: {
    secrets: ReadonlyMap<string, string>;
    cwd: string;
    env: NodeJS.ProcessEnv;
    terminal: boolean;
    problems: ConfigProblem[];
  },
): Config {
  const { secrets, cwd } = context;
  const given = bySchema(keys, secrets);
  const { server, database, auth, providers, logging } = given;
  const authKeys = configuredKeys(auth.keys, context);
  const hasKey = auth.apiKey !== "" || auth.adminApiKey !== "" || auth.keys.length > 0;
  const dataDir = path.resolve(cwd, given.dataDir || "./.alcove");
  return {
    ...given,
    dataDir,
    server: { ...server, host: server.host.replace(/^\[(.*)\]$/, "$1") },
    database: { ...database, path: path.resolve(cwd, database.path || path.join(dataDir, "alcove.db")) },
    auth: { ...auth, keys: authKeys, enabled: auth.enabled ?? hasKey },
    providers: {
      ...providers,
      firecracker: { ...providers.firecracker, ...firecrackerPaths(providers.firecracker, cwd) },
      docker: { ...providers.docker, socket: dockerSocket(providers.docker.socket, context.env) },
    },
    logging: { ...logging, format: logging.format ?? (context.terminal ? "pretty" : "json") },
  };
}

/** Machines are started elsewhere: what is empty stays so, and a name alone is looked for in PATH. */
function firecrackerPaths(config: SchemaConfig["providers"]["firecracker"], cwd: string) {
  const absolute = (name: string) => (name === "" ? "" : path.resolve(cwd, name));
  const program = (name: string) => (name.includes("/") ? absolute(name) : name);
  const { firecrackerPath, jailerPath, kernelPath, initrdPath, dataDir } = config;
  return {
    firecrackerPath: program(firecrackerPath),
    jailerPath: program(jailerPath),
    kernelPath: absolute(kernelPath),
    initrdPath: absolute(initrdPath),
    dataDir: absolute(dataDir),
  };
}

/** Every key under its name in the code, as `SchemaConfig` derives it from the same schema. */
function bySchema(keys: ResolvedKeys, secrets: ReadonlyMap<string, string>): SchemaConfig {
  const root: Record<string, unknown> = {};
  const secretFiles = new Set(
    configKeys.filter(({ kind }) => kind === "secret").map(({ key }) => `${key}_file`),
  );
  for (const { key, kind } of configKeys) {
    if (secretFiles.has(key)) continue;
    const groups = key.split(".");
    const name = groups.pop() ?? "";
    let group = root;
    for (const part of groups) {
      group[camel(part)] ??= {};
      group = group[camel(part)] as Record<string, unknown>;
    }
    const unit = name.endsWith("_bytes") ? "" : (unitSuffix[kind] ?? "");
    group[camel(name) + unit] = kind === "secret" ? (secrets.get(key) ?? "") : keys.value(key);
  }
  return root as SchemaConfig;
}

const unitSuffix: Partial<Record<KeyKind, string>> = { duration: "Ms", bytes: "Bytes" };

function camel(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

/** The key wins over $DOCKER_HOST, which wins over the usual place. A bare path is a unix socket. */
function dockerSocket(given: string, env: NodeJS.ProcessEnv): string {
  const socket = given || env.DOCKER_HOST || "unix:///var/run/docker.sock";
  return socket.startsWith("/") ? `unix://${socket}` : socket;
}

/** Without keys whoever reaches the service may run commands. */
function openToOthers({ server, auth }: Config, keys: ResolvedKeys): ConfigProblem[] {
  const [first, ...others] = waysIn(server);
  if (auth.enabled || server.allowInsecure || first === undefined) return [];
  const said = [first, ...others].map(
    ({ key, value }) => `${key} is ${JSON.stringify(value)} (${keys.source(key)})`,
  );
  return [
    {
      key: first.key,
      message:
        `${said.join(", ")}: others can reach the service, and auth is off: set auth.api_key_file and auth.admin_api_key_file ` +
        "(or auth.api_key), or server.allow_insecure: true if everybody there may run commands",
    },
  ];
}

function poolProblems({ enabled, memoryMb, maxUsersPerVm }: Config["pool"]): ConfigProblem[] {
  const part = Math.floor(memoryMb / maxUsersPerVm);
  if (!enabled || part >= leastMemoryMb) return [];
  return [
    {
      key: "pool.memory_mb",
      message: `pool.memory_mb ${memoryMb} gives each of ${maxUsersPerVm} users (pool.max_users_per_vm) ${part} MB: a sandbox takes ${leastMemoryMb} at least`,
    },
  ];
}

function telemetryProblems({ otlpEndpoint, otlpHeaders }: Config["telemetry"]): ConfigProblem[] {
  const problems: ConfigProblem[] = [];
  const url = URL.parse(otlpEndpoint);
  if (otlpEndpoint !== "" && !/^https?:$/.test(url?.protocol ?? "")) {
    problems.push({
      key: "telemetry.otlp_endpoint",
      message: `telemetry.otlp_endpoint is ${JSON.stringify(otlpEndpoint)}: expected a URL such as http://127.0.0.1:4318`,
    });
  } else if (url !== null && (url.username !== "" || url.password !== "")) {
    problems.push({
      key: "telemetry.otlp_endpoint",
      message:
        "telemetry.otlp_endpoint holds a user or a password: give it as telemetry.otlp_headers_file instead",
    });
  }
  try {
    parseOtlpHeaders(otlpHeaders);
  } catch (error) {
    problems.push({
      key: "telemetry.otlp_headers",
      message: `telemetry.otlp_headers: ${error instanceof Error ? error.message : String(error)}`,
    });
  }
  return problems;
}

/** What each value allows but not together, or only a closer look shows. */
function inconsistencies(config: Config, keys: ResolvedKeys): ConfigProblem[] {
  const problems: ConfigProblem[] = [];
  const { server, auth, defaults } = config;
  if (server.host === "") {
    problems.push({
      key: "server.host",
      message: "server.host is empty: expected an address such as 127.0.0.1",
    });
  }
  if (auth.enabled && auth.apiKey === "" && auth.adminApiKey === "" && auth.keys.length === 0) {
    problems.push({
      key: "auth.enabled",
      message:
        "auth.enabled is true, but there is no key: give auth.api_key or auth.api_key_file, or leave auth.enabled out",
    });
  }
  for (const [key, secret] of [
    ["auth.api_key", auth.apiKey],
    ["auth.admin_api_key", auth.adminApiKey],
  ] as const) {
    const same = auth.keys.find((one) => secret !== "" && one.hash === hash("sha256", secret, "hex"));
    if (same !== undefined)
      problems.push({
        key: "auth.keys",
        message: `auth.keys "${same.name}" is the same key as ${key}: give each its own`,
      });
  }
  problems.push(...openToOthers(config, keys));
  if (server.publicUrl !== "" && !/^https?:$/.test(URL.parse(server.publicUrl)?.protocol ?? "")) {
    problems.push({
      key: "server.public_url",
      message: `server.public_url is ${JSON.stringify(server.publicUrl)}: expected a URL such as https://alcove.example.com`,
    });
  }
  if (defaults.ttlMs === 0) {
    problems.push({ key: "defaults.ttl", message: 'defaults.ttl is "0s": expected a duration above zero' });
  }
  if (defaults.maxExecTimeoutMs === 0) {
    problems.push({
      key: "defaults.max_exec_timeout",
      message: 'defaults.max_exec_timeout is "0s": expected a duration above zero',
    });
  }
  problems.push(...poolProblems(config.pool), ...telemetryProblems(config.telemetry));
  const socket = keys.text("providers.docker.socket");
  if (socket !== "" && !/^(unix:\/\/\/|tcp:\/\/|\/)/.test(socket)) {
    problems.push({
      key: "providers.docker.socket",
      message: `providers.docker.socket is ${JSON.stringify(socket)}: expected unix:///path or tcp://host:port`,
    });
  }
  return problems;
}
