import { AuditRecord } from "@alcove/wire";
import type { FastifyReply } from "fastify";
import { Type } from "typebox";
import type { AuditLog } from "../../core/audit/audit-log.ts";
import type { AuditFilter, AuditRow } from "../../ports/audit-store.ts";
import { BadRequest } from "../../ports/errors.ts";
import { csv } from "../csv.ts";
import { defined, given } from "../parse.ts";
import { turnFor } from "../turn-for.ts";
import type { RouteApp } from "./route-app.ts";

/** A value left empty is not given. */
const givenTime = (description: string) =>
  Type.Unsafe<string>({
    anyOf: [{ type: "string", format: "date-time" }, { const: "" }],
    description,
    examples: ["2026-05-04T10:00:00Z"],
  });

const AuditQuery = Type.Object({
  actor: Type.Optional(
    Type.String({ description: "This actor's alone.", maxLength: 256, examples: ["api_key"] }),
  ),
  method: Type.Optional(
    Type.String({ description: "In capitals or not.", maxLength: 32, examples: ["PUT"] }),
  ),
  status: Type.Optional(Type.Integer({ minimum: 100, maximum: 599 })),
  path: Type.Optional(
    Type.String({
      description: "Part of the path, taken literally.",
      maxLength: 2_048,
      examples: ["/quotas/"],
    }),
  ),
  since: Type.Optional(givenTime("At this time or later.")),
  until: Type.Optional(givenTime("At this time or before.")),
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 500, default: 100 })),
  cursor: Type.Optional(
    Type.String({
      description: "X-Next-Cursor of the page before.",
      pattern: "^(?:[0-9]{1,15})?$",
      examples: ["120"],
    }),
  ),
  format: Type.Optional(Type.Enum(["json", "csv"], { default: "json" })),
});

/** Every field of a record, in the order of a line of CSV. */
const columns = Object.keys(AuditRecord.properties) as (keyof AuditRecord)[];

/** What was done below `/admin` and to quotas and templates. docs/api/admin.md. */
export function auditRoutes(app: RouteApp, options: { audit: AuditLog }): void {
  app.route({
    method: "GET",
    url: "/admin/audit",
    schema: {
      tags: ["admin"],
      operationId: "listAudit",
      summary: "The audit history, newest first",
      querystring: AuditQuery,
      response: { 200: Type.Array(AuditRecord) },
      openapi: {
        headers: { 200: ["X-Next-Cursor"] },
        responses: {
          200: {
            description: "The records; with format=csv as CSV, with a line of names.",
            content: { "text/csv": { schema: { type: "string" } } },
          },
        },
      },
    },
    handler: async (request, reply) => {
      const { since, until, method, format, limit = 100, cursor, ...rest } = request.query;
      const { actor, status, path } = rest;
      const filter: AuditFilter = {
        ...defined({
          actor,
          status,
          path,
          method: method?.toUpperCase(),
          since: time("since", since),
          until: time("until", until),
          beforeId: given(cursor) === undefined ? undefined : Number(cursor),
        }),
        limit: limit + 1,
      };
      const turn = () => turnFor(request);
      const rows = await options.audit.list(filter, { signal: reply.callerSignal, turn });
      const records = rows.slice(0, limit).map(present);
      const last = records.at(-1);
      if (rows.length > limit && last !== undefined) reply.header("x-next-cursor", String(last.id));
      if (format !== "csv") return records;
      return sendCsv(reply, records);
    },
  });
}

function sendCsv(reply: FastifyReply, records: readonly AuditRecord[]): FastifyReply {
  const rows = records.map((record) => columns.map((name) => record[name]));
  return reply
    .type("text/csv; charset=utf-8")
    .serializer((text: unknown) => text as string)
    .send(csv(columns, rows));
}

/** The schema takes leap seconds, which are no time here. */
function time(field: string, text: string | undefined): Date | undefined {
  if (text === undefined) return undefined;
  const date = new Date(text);
  if (Number.isNaN(date.getTime()))
    throw new BadRequest(
      `${field} ${JSON.stringify(text.slice(0, 64))} is not a time such as 2026-11-21T17:44:03Z`,
    );
  return date;
}

function present(row: AuditRow): AuditRecord {
  return {
    id: row.id,
    created_at: row.createdAt.toISOString(),
    actor: row.actor,
    method: row.method,
    path: row.path,
    status: row.status,
    duration_ms: row.durationMs,
    request_id: row.requestId,
    remote_addr: row.remoteAddr,
    user_agent: row.userAgent,
  };
}
