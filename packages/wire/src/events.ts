import { type Static, Type } from "typebox";

/** Event types of the sandbox, exec, file and reconcile lifecycles. docs/api/events.md. */
export const eventTypes = [
  "sandbox.created",
  "sandbox.running",
  "sandbox.destroyed",
  "sandbox.error",
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
] as const;

export type EventType = (typeof eventTypes)[number];

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
