import { type Static, Type } from "typebox";
import { Duration } from "./texts.ts";

const wholeSeconds = String.raw`(?:\d+(?:h|m|s))*`;

/** Whole seconds; nothing or `0s` stands for the default. */
const QuotaDuration = Type.String({
  "x-rule": "core",
  description: "Whole seconds, as groups of number and unit: h, m, s. Empty or 0s: the default.",
  pattern: `^${wholeSeconds}$`,
  maxLength: 64,
  examples: ["2h", "90s"],
});

const limit = (description: string, maximum = 1_000_000_000) =>
  Type.Integer({
    "x-rule": "core",
    minimum: 0,
    maximum,
    description: `${description} 0: the default.`,
  });

/** `PUT /quotas/{ownerID}`. docs/api/quotas.md. What is left out inherits. */
export const QuotaRequest = Type.Object(
  {
    owner_id: Type.Optional(
      Type.String({ description: "Ignored, as are the times: the path names the owner." }),
    ),
    max_sandboxes: Type.Optional(limit("Sandboxes at once.")),
    max_ttl: Type.Optional(QuotaDuration),
    max_exec_timeout: Type.Optional(QuotaDuration),
    max_memory_mb: Type.Optional(limit("Memory of all its sandboxes, MB.")),
    max_vcpus: Type.Optional(limit("Virtual processors of all its sandboxes.")),
    created_at: Type.Optional(Type.String({ description: "Ignored." })),
    updated_at: Type.Optional(Type.String({ description: "Ignored." })),
  },
  { $id: "QuotaRequest", additionalProperties: false },
);
export type QuotaRequest = Static<typeof QuotaRequest>;

/** docs/api/quotas.md. 0 and `0s` inherit. */
export const OwnerQuota = Type.Object(
  {
    owner_id: Type.String(),
    max_sandboxes: Type.Integer(),
    max_ttl: Duration,
    max_exec_timeout: Duration,
    max_memory_mb: Type.Integer(),
    max_vcpus: Type.Integer(),
    created_at: Type.String({ format: "date-time" }),
    updated_at: Type.String({ format: "date-time" }),
  },
  { $id: "OwnerQuota" },
);
export type OwnerQuota = Static<typeof OwnerQuota>;

/** What an owner has and may have, defaults filled in; 0: no limit. docs/api/quotas.md. */
export const OwnerUsage = Type.Object(
  {
    owner_id: Type.String(),
    active_sandboxes: Type.Integer(),
    active_memory_mb: Type.Integer(),
    active_vcpus: Type.Integer(),
    max_sandboxes: Type.Integer(),
    max_memory_mb: Type.Integer(),
    max_vcpus: Type.Integer(),
    max_ttl: Duration,
    max_exec_timeout: Duration,
    quota_configured: Type.Boolean(),
  },
  { $id: "OwnerUsage" },
);
export type OwnerUsage = Static<typeof OwnerUsage>;

/** Names no owner. docs/api/quotas.md. */
export const QuotaSummary = Type.Object(
  {
    total: Type.Integer(),
    with_max_sandboxes: Type.Integer(),
    with_max_ttl: Type.Integer(),
    with_max_exec_timeout: Type.Integer(),
  },
  { $id: "QuotaSummary" },
);
export type QuotaSummary = Static<typeof QuotaSummary>;
