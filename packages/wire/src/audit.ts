import { type Static, Type } from "typebox";

/** Who asked for what below `/admin`, or for which change, and what became of it. docs/api/admin.md. */
export const AuditRecord = Type.Object(
  {
    id: Type.Integer(),
    created_at: Type.String({ format: "date-time" }),
    actor: Type.String(),
    method: Type.String(),
    path: Type.String(),
    status: Type.Integer(),
    duration_ms: Type.Number(),
    request_id: Type.String(),
    remote_addr: Type.String(),
    user_agent: Type.String(),
  },
  { $id: "AuditRecord" },
);
export type AuditRecord = Static<typeof AuditRecord>;
