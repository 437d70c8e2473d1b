import { type Static, Type } from "typebox";

const Time = Type.String({ format: "date-time" });
const Count = Type.Integer({ minimum: 0 });
const Words = (description: string) =>
  Type.Array(Type.String({ minLength: 1, maxLength: 128 }), { description, maxItems: 256 });

const capacity = {
  max_sandboxes: Count,
  max_sandboxes_per_owner: Count,
  rpc_url: Type.Optional(Type.String()),
  preview_domain: Type.Optional(Type.String()),
};

/** See docs/api/workers.md. */
export const Worker = Type.Object(
  {
    id: Type.String(),
    hostname: Type.String(),
    status: Type.String(),
    providers: Type.Array(Type.String()),
    capabilities: Type.Array(Type.String()),
    capacity: Type.Object(capacity),
    last_heartbeat: Time,
    created_at: Time,
    updated_at: Time,
    stale: Type.Boolean(),
  },
  { $id: "Worker" },
);
export type Worker = Static<typeof Worker>;

/** What a heartbeat may report of how a worker is. */
export const reportedStatuses = ["online", "draining"] as const;
export type ReportedStatus = (typeof reportedStatuses)[number];

/** A heartbeat, as a worker sends it or an administrator in its place. docs/api/workers.md. */
export const WorkerReport = Type.Object(
  {
    hostname: Type.Optional(Type.String({ description: "Its machine.", maxLength: 253 })),
    status: Type.Optional(Type.Enum([...reportedStatuses], { description: "How it is." })),
    providers: Type.Optional(Words("Providers it has.")),
    capabilities: Type.Optional(Words("What it can do.")),
    capacity: Type.Optional(
      Type.Object(
        {
          max_sandboxes: Type.Optional(Count),
          max_sandboxes_per_owner: Type.Optional(Count),
          rpc_url: Type.Optional(Type.String({ maxLength: 2_048 })),
          preview_domain: Type.Optional(Type.String({ maxLength: 253 })),
        },
        { additionalProperties: false },
      ),
    ),
  },
  { $id: "WorkerReport", additionalProperties: false },
);
export type WorkerReport = Static<typeof WorkerReport>;
