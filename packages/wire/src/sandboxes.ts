import { type Static, Type } from "typebox";
import {
  countOrDefault,
  Duration,
  Env,
  GivenDuration,
  GivenSandboxName,
  ImageName,
  OptionalDuration,
  OwnerId,
  SandboxName,
  UserName,
  Workdir,
} from "./texts.ts";

export const sandboxStates = ["creating", "running", "unhealthy", "expired", "error", "destroyed"] as const;
export type SandboxState = (typeof sandboxStates)[number];

/** How large `env` and `metadata` of a spawn may be together, bytes as JSON in UTF-8. */
export const mostLabelAndEnvBytes = 524_288;

/** How large the labels of one sandbox may be, bytes as JSON in UTF-8. */
export const mostMetadataBytes = 65_536;

/** Memory of a sandbox, MB: the smallest that a runtime starts in, and the largest that is taken. */
export const leastMemoryMb = 16;
export const mostMemoryMb = 1_048_576;
export const mostVcpus = 1_024;

/** How far a sandbox may reach, from the nearest to the farthest. */
export const networkModes = ["none", "outbound", "host"] as const;
export type NetworkMode = (typeof networkModes)[number];

const Metadata = Type.Record(Type.String({ maxLength: 256 }), Type.String({ maxLength: 16_384 }), {
  description: `Labels: at most ${mostMetadataBytes} bytes as JSON, and together with env at most ${mostLabelAndEnvBytes}.`,
  // No name of a body poses as a prototype.
  propertyNames: { "x-rule": "core", pattern: "^(?!__proto__$)", maxLength: 256 },
  maxProperties: 256,
});

/** See docs/api/sandboxes.md. */
export const Sandbox = Type.Object(
  {
    id: Type.String(),
    name: Type.Optional(Type.String()),
    state: Type.Enum([...sandboxStates]),
    provider: Type.String(),
    image: Type.String({ description: "As it was asked for; the provider's default when none was." }),
    image_resolved: Type.Optional(
      Type.String({
        description:
          "What runs, where that has another name: the one behind an alias, with its tag. Absent until it is known.",
      }),
    ),
    memory_mb: Type.Integer(),
    vcpus: Type.Integer(),
    created_at: Type.String({ format: "date-time" }),
    expires_at: Type.String({ format: "date-time" }),
    metadata: Type.Record(Type.String(), Type.String()),
    preview_domain: Type.String(),
    owner_id: Type.Optional(Type.String()),
    worker_id: Type.String(),
    error: Type.Optional(Type.String({ description: "Why the sandbox is in state error or unhealthy." })),
  },
  { $id: "Sandbox" },
);
export type Sandbox = Static<typeof Sandbox>;

/** See docs/api/sandboxes.md. Empty strings mean "not given". */
export const SpawnRequest = Type.Object(
  {
    template: Type.Optional(
      Type.String({
        maxLength: 128,
        description:
          "Spawn from this template; other fields override its own, labels and environment key by key.",
      }),
    ),
    name: Type.Optional(SandboxName),
    image: Type.Optional(ImageName),
    provider: Type.Optional(Type.String({ maxLength: 64 })),
    memory_mb: Type.Optional(countOrDefault(leastMemoryMb, mostMemoryMb, "Memory, MB.")),
    vcpus: Type.Optional(countOrDefault(1, mostVcpus, "Virtual processors.")),
    ttl: Type.Optional(OptionalDuration),
    metadata: Type.Optional(Metadata),
    owner_id: Type.Optional(OwnerId),
    env: Type.Optional(
      Type.Unsafe<Static<typeof Env>>({
        ...Env,
        description: `Environment of every command. A name holds no \`=\` and no NUL, a value no NUL. Together with metadata at most ${mostLabelAndEnvBytes} bytes as JSON.`,
      }),
    ),
    user: Type.Optional(UserName),
    workdir: Type.Optional(Workdir),
    network: Type.Optional(
      Type.Enum([...networkModes], { description: "Only tightens what the config allows." }),
    ),
  },
  { $id: "SpawnRequest", additionalProperties: false },
);
export type SpawnRequest = Static<typeof SpawnRequest>;

/** `POST /sandboxes/acquire`: a spawn's fields, of which the name is needed. docs/api/sandboxes.md. */
export const AcquireRequest = Type.Object(
  { ...SpawnRequest.properties, name: GivenSandboxName },
  { $id: "AcquireRequest", additionalProperties: false },
);
export type AcquireRequest = Static<typeof AcquireRequest>;

export const admissionReasons = [
  "",
  "max_ttl",
  "max_sandboxes",
  "max_sandboxes_per_owner",
  "max_memory_mb",
  "max_memory_mb_per_owner",
  "max_vcpus",
  "max_vcpus_per_owner",
  "worker_unavailable",
  "remote_worker_rpc_unavailable",
  "pool_full",
] as const;
export type AdmissionReason = (typeof admissionReasons)[number];

/** See docs/api/sandboxes.md: exactly these eight keys. */
export const AdmissionDecision = Type.Object(
  {
    allowed: Type.Boolean(),
    queueable: Type.Boolean(),
    reason: Type.Enum([...admissionReasons]),
    active_sandboxes: Type.Integer(),
    max_sandboxes: Type.Integer(),
    active_owner_sandboxes: Type.Integer(),
    max_owner_sandboxes: Type.Integer(),
    max_ttl: Duration,
  },
  { $id: "AdmissionDecision" },
);
export type AdmissionDecision = Static<typeof AdmissionDecision>;

export const ExtendRequest = Type.Object(
  { ttl: GivenDuration },
  { $id: "ExtendRequest", additionalProperties: false },
);
export type ExtendRequest = Static<typeof ExtendRequest>;

/** `GET /sandboxes/{id}/stats`. docs/api/sandboxes.md. Absent numbers could not be read on this provider. */
export const SandboxStats = Type.Object(
  {
    cpu_usage_ms: Type.Optional(Type.Integer()),
    memory_bytes: Type.Optional(Type.Integer()),
    memory_limit_bytes: Type.Optional(Type.Integer()),
    pids: Type.Optional(Type.Integer()),
    pids_limit: Type.Optional(Type.Integer()),
    disk_bytes: Type.Optional(Type.Integer()),
    disk_limit_bytes: Type.Optional(Type.Integer()),
    commands: Type.Integer({ minimum: 0 }),
  },
  { $id: "SandboxStats" },
);
export type SandboxStats = Static<typeof SandboxStats>;

/** An item of `GET /sandboxes/stats`. Without `stats`: it does not run, or did not tell in time. */
export const SandboxUsage = Type.Object(
  { sandbox: Sandbox, stats: Type.Optional(SandboxStats) },
  { $id: "SandboxUsage" },
);
export type SandboxUsage = Static<typeof SandboxUsage>;

export function statusBody<const S extends string>(status: S) {
  return Type.Object({ status: Type.Literal(status) });
}
export const PruneResult = Type.Object({ pruned: Type.Integer() }, { $id: "PruneResult" });
export type PruneResult = Static<typeof PruneResult>;
