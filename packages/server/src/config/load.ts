import path from "node:path";
import type { Config } from "./config.ts";
import { ConfigError, type ConfigProblem } from "./errors.ts";
import { configKeys } from "./keys.ts";
import { ResolvedKeys } from "./resolved-keys.ts";
import { resolveSecrets } from "./secrets.ts";
import { findConfigFile, type Gathered, gatherEnvironment, gatherFile, gatherOverrides } from "./sources.ts";

export interface LoadOptions {
  /** `--config`; without it $ALCOVE_CONFIG, ./alcove.yaml, ~/.config/alcove/config.yaml. */
  file?: string | undefined;
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
}

/** @throws ConfigError naming every key that is unknown, given twice, of the wrong kind or unsafe. DESIGN §6. */
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
  const config = build(keys, {
    secrets,
    cwd: options.cwd,
    env: options.env,
    terminal: options.terminal ?? false,
  });
  const problems = inconsistencies(config, keys);
  if (problems.length > 0) throw new ConfigError(problems);
  return { config, file, keys };
}

function build(
  keys: ResolvedKeys,
  context: {
    secrets: ReadonlyMap<string, string>;
    cwd: string;
    env: NodeJS.ProcessEnv;
    terminal: boolean;
  },
): Config {
  const { secrets, cwd } = context;
  const dataDir = path.resolve(cwd, keys.text("data_dir") || "./.alcove");
  const apiKey = secrets.get("auth.api_key") ?? "";
  const adminApiKey = secrets.get("auth.admin_api_key") ?? "";
  return {
    dataDir,
    server: {
      host: keys.text("server.host").replace(/^\[(.*)\]$/, "$1"),
      port: keys.number("server.port"),
      publicUrl: keys.text("server.public_url"),
      previewDomain: keys.text("server.preview_domain"),
      trustedProxies: keys.list("server.trusted_proxies"),
      corsAllowedOrigins: keys.list("server.cors_allowed_origins"),
      shutdownGraceMs: keys.number("server.shutdown_grace"),
      deadmanGraceMs: keys.number("server.deadman_grace"),
      destroyOnExit: keys.flag("server.destroy_on_exit"),
      allowInsecure: keys.flag("server.allow_insecure"),
    },
    database: {
      driver: keys.choice("database.driver", ["sqlite"]),
      path: path.resolve(cwd, keys.text("database.path") || path.join(dataDir, "alcove.db")),
    },
    store: {
      retentionMs: keys.number("store.retention"),
      maxDestroyed: keys.number("store.max_destroyed"),
      eventsRetention: keys.number("store.events_retention"),
    },
    defaults: {
      ttlMs: keys.number("defaults.ttl"),
      memoryMb: keys.number("defaults.memory_mb"),
      vcpus: keys.number("defaults.vcpus"),
      maxTtlMs: keys.number("defaults.max_ttl"),
      defaultExecTimeoutMs: keys.number("defaults.default_exec_timeout"),
      maxExecTimeoutMs: keys.number("defaults.max_exec_timeout"),
      maxSandboxes: keys.number("defaults.max_sandboxes"),
      maxSandboxesPerOwner: keys.number("defaults.max_sandboxes_per_owner"),
      spawnOverflow: keys.choice("defaults.spawn_overflow", ["reject", "queue"]),
      spawnQueueTimeoutMs: keys.number("defaults.spawn_queue_timeout"),
      maxSpawnQueue: keys.number("defaults.max_spawn_queue"),
    },
    exec: {
      maxOutputBytes: keys.number("exec.max_output"),
      ringBytes: keys.number("exec.ring_bytes"),
      disconnectGraceMs: keys.number("exec.disconnect_grace"),
    },
    files: { maxUploadBytes: keys.number("files.max_upload") },
    auth: {
      enabled: keys.optionalFlag("auth.enabled") ?? (apiKey !== "" || adminApiKey !== ""),
      apiKey,
      adminApiKey,
    },
    providers: {
      default: keys.choice("providers.default", ["auto", "native", "docker", "proot", "mock"]),
      native: {
        enabled: keys.optionalFlag("providers.native.enabled"),
        defaultImage: keys.text("providers.native.default_image"),
        networkMode: keys.choice("providers.native.network_mode", ["none", "host"]),
        uidBase: keys.number("providers.native.uid_base"),
        pidsLimit: keys.number("providers.native.pids_limit"),
        diskMb: keys.number("providers.native.disk_mb"),
        minFreeMb: keys.number("providers.native.min_free_mb"),
        addedCaps: keys.list("providers.native.added_caps"),
      },
      docker: {
        enabled: keys.optionalFlag("providers.docker.enabled"),
        defaultImage: keys.text("providers.docker.default_image"),
        socket: dockerSocket(keys.text("providers.docker.socket"), context.env),
        runtime: keys.text("providers.docker.runtime"),
        networkMode: keys.text("providers.docker.network_mode"),
        seccompProfile: keys.text("providers.docker.seccomp_profile"),
        readOnlyRootfs: keys.flag("providers.docker.read_only_rootfs"),
        pidsLimit: keys.number("providers.docker.pids_limit"),
        user: keys.text("providers.docker.user"),
        droppedCaps: keys.list("providers.docker.dropped_caps"),
        addedCaps: keys.list("providers.docker.added_caps"),
        tmpfs: keys.list("providers.docker.tmpfs"),
        agentTransport: keys.choice("providers.docker.agent_transport", ["auto", "socket", "stdio"]),
      },
      proot: {
        enabled: keys.flag("providers.proot.enabled"),
        defaultImage: keys.text("providers.proot.default_image"),
        prootBinary: keys.text("providers.proot.proot_binary"),
      },
      mock: {
        enabled: keys.flag("providers.mock.enabled"),
        defaultImage: keys.text("providers.mock.default_image"),
        maxWorkers: keys.number("providers.mock.max_workers"),
      },
    },
    images: {
      pullPolicy: keys.choice("images.pull_policy", ["missing", "never"]),
      aliases: keys.map("images.aliases"),
    },
    logging: {
      level: keys.text("logging.level"),
      format:
        keys.optionalChoice("logging.format", ["json", "pretty"]) ?? (context.terminal ? "pretty" : "json"),
    },
  };
}

/** The key wins over $DOCKER_HOST, which wins over the usual place. A bare path is a unix socket. */
function dockerSocket(given: string, env: NodeJS.ProcessEnv): string {
  const socket = given || env.DOCKER_HOST || "unix:///var/run/docker.sock";
  return socket.startsWith("/") ? `unix://${socket}` : socket;
}

/** Whether an address reaches this machine only. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(host);
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
  if (auth.enabled && auth.apiKey === "" && auth.adminApiKey === "") {
    problems.push({
      key: "auth.enabled",
      message:
        "auth.enabled is true, but there is no key: give auth.api_key or auth.api_key_file, or leave auth.enabled out",
    });
  }
  if (!auth.enabled && server.host !== "" && !isLoopback(server.host) && !server.allowInsecure) {
    problems.push({
      key: "server.host",
      message:
        `server.host is ${JSON.stringify(server.host)} (${keys.source("server.host")}), which others can reach, and auth is off: ` +
        "set auth.api_key or auth.api_key_file, or server.allow_insecure: true if everybody there may run commands",
    });
  }
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
  const socket = keys.text("providers.docker.socket");
  if (socket !== "" && !/^(unix:\/\/\/|tcp:\/\/|\/)/.test(socket)) {
    problems.push({
      key: "providers.docker.socket",
      message: `providers.docker.socket is ${JSON.stringify(socket)}: expected unix:///path or tcp://host:port`,
    });
  }
  return problems;
}
