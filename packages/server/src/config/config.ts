/** The configuration as the server uses it: durations in milliseconds, sizes in bytes, secrets read, paths absolute. */
export interface Config {
  dataDir: string;
  server: {
    host: string;
    port: number;
    publicUrl: string;
    previewDomain: string;
    trustedProxies: string[];
    corsAllowedOrigins: string[];
    shutdownGraceMs: number;
    deadmanGraceMs: number;
    destroyOnExit: boolean;
    allowInsecure: boolean;
  };
  database: { driver: "sqlite"; path: string };
  store: { retentionMs: number; maxDestroyed: number; eventsRetention: number };
  defaults: {
    ttlMs: number;
    memoryMb: number;
    vcpus: number;
    /** 0: no limit. */
    maxTtlMs: number;
    /** 0: the maximum. */
    defaultExecTimeoutMs: number;
    maxExecTimeoutMs: number;
    maxSandboxes: number;
    maxSandboxesPerOwner: number;
    spawnOverflow: "reject" | "queue";
    spawnQueueTimeoutMs: number;
    maxSpawnQueue: number;
  };
  exec: { maxOutputBytes: number; ringBytes: number; disconnectGraceMs: number };
  files: { maxUploadBytes: number };
  auth: { enabled: boolean; apiKey: string; adminApiKey: string };
  providers: {
    default: "auto" | "native" | "docker" | "proot" | "mock";
    native: NativeConfig;
    docker: DockerConfig;
    proot: { enabled: boolean; defaultImage: string; prootBinary: string };
    mock: { enabled: boolean; defaultImage: string; maxWorkers: number };
  };
  images: { pullPolicy: "missing" | "never"; aliases: Record<string, string> };
  logging: { level: string; format: "json" | "pretty" };
}

export interface NativeConfig {
  /** undefined: when it works. */
  enabled: boolean | undefined;
  defaultImage: string;
  networkMode: "none" | "host";
  uidBase: number;
  pidsLimit: number;
  diskMb: number;
  minFreeMb: number;
  addedCaps: string[];
}

export interface DockerConfig {
  /** undefined: when it works. */
  enabled: boolean | undefined;
  defaultImage: string;
  /** unix:///path or tcp://host:port. */
  socket: string;
  runtime: string;
  networkMode: string;
  seccompProfile: string;
  readOnlyRootfs: boolean;
  pidsLimit: number;
  user: string;
  droppedCaps: string[];
  addedCaps: string[];
  tmpfs: string[];
  agentTransport: "auto" | "socket" | "stdio";
}
