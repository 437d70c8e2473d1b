import { type Static, Type } from "typebox";
import { Duration } from "./texts.ts";

/** Capability values. docs/api/providers.md. */
export const capabilities = [
  "spawn",
  "exec",
  "exec_stream",
  "files",
  "console",
  "health",
  "runtime_inventory",
  "container",
  "snapshots",
  "microvm",
  "vsock_agent",
  "pty",
  "signals",
  "reattach",
  "watch",
  "ports",
  "stats",
  "users",
  "process_tree",
  "special_files",
  "adopt",
  "userspace_isolation",
  "exec_limits",
  "images",
  "pty_eof",
  "pty_interrupt",
  "file_modes",
  "exec_usage",
  "archives",
] as const;
export type Capability = (typeof capabilities)[number];

/** See docs/api/providers.md. */
export const ProviderHealth = Type.Object(
  {
    name: Type.String(),
    healthy: Type.Boolean(),
    default: Type.Boolean(),
    latency_ms: Type.Integer(),
    last_checked: Type.String({ format: "date-time" }),
    error: Type.Optional(Type.String()),
    notes: Type.Optional(
      Type.Array(Type.String(), {
        description:
          "What its sandboxes do without on this machine and what to know of it, with the way out; told by `GET /providers` and `GET /providers/{name}`, to keys that are bound to no owner, and only where there is something.",
      }),
    ),
    capabilities: Type.Array(Type.String()),
    runtime_count: Type.Optional(
      Type.Integer({ description: "When they were last listed, up to a minute ago; not by this look." }),
    ),
  },
  { $id: "ProviderHealth" },
);
export type ProviderHealth = Static<typeof ProviderHealth>;

/** See docs/api/providers.md. */
export const ProviderDetail = Type.Object(
  {
    name: Type.String(),
    healthy: Type.Boolean(),
    default: Type.Boolean(),
    sandbox_count: Type.Integer(),
    health: ProviderHealth,
    config: Type.Record(Type.String(), Type.String(), {
      description: "Settings fit to be shown, all as text; lists with commas.",
    }),
  },
  { $id: "ProviderDetail" },
);
export type ProviderDetail = Static<typeof ProviderDetail>;

/** `GET /snapshots`: an image that starts from memory. docs/api/providers.md. */
export const SnapshotSummary = Type.Object(
  {
    image: Type.String(),
    kernel: Type.String(),
    size_bytes: Type.Integer(),
    created_at: Type.String({ format: "date-time" }),
    provider: Type.String(),
  },
  { $id: "SnapshotSummary" },
);
export type SnapshotSummary = Static<typeof SnapshotSummary>;

/** `GET /pool/status`. docs/api/pool.md. */
export const PoolStatus = Type.Union(
  [
    Type.Object(
      {
        enabled: Type.Literal(true),
        vms: Type.Integer(),
        max_vms: Type.Integer(),
        total_users: Type.Integer(),
        max_users_per_vm: Type.Integer(),
      },
      { title: "Enabled" },
    ),
    Type.Object({ enabled: Type.Literal(false) }, { title: "Disabled" }),
  ],
  { $id: "PoolStatus" },
);
export type PoolStatus = Static<typeof PoolStatus>;

/** `POST /providers/test`: provider name to whether it is healthy. */
export const ProviderTestResult = Type.Record(Type.String(), Type.Boolean(), { $id: "ProviderTestResult" });
export type ProviderTestResult = Static<typeof ProviderTestResult>;

export const Health = Type.Object(
  { status: Type.Literal("ok"), version: Type.String(), uptime: Duration },
  { $id: "Health" },
);
export type Health = Static<typeof Health>;
export const Liveness = Type.Object(
  { status: Type.Literal("alive"), version: Type.String(), uptime: Duration },
  { $id: "Liveness" },
);
export type Liveness = Static<typeof Liveness>;
export const Readiness = Type.Object(
  {
    status: Type.Enum(["ready", "not_ready"]),
    version: Type.String(),
    uptime: Duration,
    ready_providers: Type.Integer(),
    total_providers: Type.Integer(),
    providers: Type.Array(ProviderHealth),
    code: Type.Optional(Type.String()),
    message: Type.Optional(Type.String()),
  },
  { $id: "Readiness" },
);
export type Readiness = Static<typeof Readiness>;
