import { type Static, Type } from "typebox";

/** Event types of the sandbox, exec, file and reconcile lifecycles. docs/api/events.md. */
export const eventTypes = [
  "sandbox.created",
  "sandbox.running",
  "sandbox.destroyed",
  "sandbox.error",
  "sandbox.network_lost",
  "sandbox.network_restored",
  "exec.started",
  "exec.completed",
  "exec.failed",
  "exec.timeout",
  "file.written",
  "file.read",
  "operation.failed",
  "resource.limit",
  "provider.failed",
  "reconcile.action",
  "spawn.queued",
  "spawn.dequeued",
  "spawn.queue_timeout",
  "spawn.left",
  "quota.saved",
  "quota.deleted",
  "key.created",
  "key.revoked",
  "events.dropped",
] as const;

export type EventType = (typeof eventTypes)[number];

const failure = ["operation", "provider", "error"] as const;
const command = ["exec_id", "provider", "operation"] as const;
const key = ["name", "owner_id", "scopes", "expires_at", "actor"] as const;
const ended = [...command, "duration_ms", "oom_kills"] as const;

/** What `data` of each type may have; what does not apply is left out. docs/api/events.md. */
export const eventData = {
  "sandbox.created": ["provider", "image", "owner_id"],
  "sandbox.running": ["provider", "image", "owner_id"],
  "sandbox.destroyed": ["provider", "reason", "owner_id"],
  "sandbox.error": ["provider", "error", "owner_id"],
  "sandbox.network_lost": ["provider", "reason", "owner_id"],
  "sandbox.network_restored": ["provider", "after_ms", "owner_id"],
  "exec.started": command,
  "exec.completed": [...ended, "exit_code", "reason", "signal"],
  "exec.failed": [...ended, "exit_code", "reason", "signal", "limit", "error"],
  "exec.timeout": [...ended, "error"],
  "file.written": ["operation", "provider", "path", "size", "archive", "entries"],
  "file.read": ["operation", "provider", "path", "size", "archive"],
  "operation.failed": failure,
  "resource.limit": [...failure, "owner_id", "reason", "queue", "waited_ms", "count", "request_id"],
  "provider.failed": failure,
  "reconcile.action": ["action", "provider", "image"],
  "spawn.queued": ["owner_id", "reason", "depth"],
  "spawn.dequeued": ["owner_id", "waited_ms"],
  "spawn.queue_timeout": ["owner_id", "waited_ms"],
  "spawn.left": ["owner_id", "outcome", "waited_ms"],
  "quota.saved": ["owner_id"],
  "quota.deleted": ["owner_id"],
  "key.created": key,
  "key.revoked": key,
  "events.dropped": ["dropped", "at_most"],
} as const satisfies Record<EventType, readonly string[]>;

/** One event of `GET /events`. Ids increase within a store. docs/api/events.md. */
export const Event = Type.Object(
  {
    id: Type.String(),
    type: Type.Enum([...eventTypes]),
    sandbox_id: Type.String({ description: "Empty when the event concerns no sandbox." }),
    timestamp: Type.String({ format: "date-time" }),
    data: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  },
  { $id: "Event" },
);
export type Event = Static<typeof Event>;
