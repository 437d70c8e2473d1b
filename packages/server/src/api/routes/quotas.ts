import {
  formatDuration,
  OwnerQuota,
  OwnerUsage,
  parseDuration,
  QuotaRequest,
  QuotaSummary,
  statusBody,
} from "@alcove/wire";
import { Type } from "typebox";
import type { Limits } from "../../core/quotas/limits.ts";
import type { Quotas } from "../../core/quotas/quotas.ts";
import { BadRequest } from "../../ports/errors.ts";
import type { QuotaRow } from "../../ports/quota-store.ts";
import { defined, type Total } from "../parse.ts";
import { turnFor } from "../turn-for.ts";
import { emptyBody, type RouteApp, withAdmin } from "./route-app.ts";

const largestPage = 1_000;
const OwnerParams = Type.Object({
  ownerID: Type.String({
    "x-rule": "core",
    description: "Owner.",
    minLength: 1,
    maxLength: 128,
    pattern: String.raw`^[^\s/\\\u0000-\u001f\u007f-\u00a0\u2028\u2029]+$`,
    examples: ["acme"],
  }),
});
const ListQuery = Type.Object({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: largestPage, default: largestPage })),
  cursor: Type.Optional(
    Type.String({ description: "X-Next-Cursor of the page before.", maxLength: 512, examples: ["YWNtZQ"] }),
  ),
});

/** Quotas of owners, on their own paths and, for those who administer, below `/admin`. docs/api/quotas.md. */
export function quotaRoutes(app: RouteApp, options: { quotas: Quotas; limits: Limits }): void {
  for (const place of withAdmin("/quotas")) quotaRoutesAt(app, { ...options, ...place });
}

function quotaRoutesAt(
  app: RouteApp,
  options: { quotas: Quotas; limits: Limits } & ReturnType<typeof withAdmin>[number],
): void {
  const { quotas, limits, path, admin, id } = options;
  const tags = [admin ? "admin" : "quotas"];

  app.route({
    method: "GET",
    url: path,
    schema: {
      tags,
      operationId: id("listQuotas"),
      summary: "Quotas, by owner",
      querystring: ListQuery,
      response: { 200: Type.Array(OwnerQuota) },
      openapi: { headers: { 200: ["X-Next-Cursor"] } },
    },
    handler: async (request, reply) => {
      const { limit = largestPage, cursor = "" } = request.query;
      await turnFor(request);
      const rows = await quotas.list({ afterOwnerId: ownerOfCursor(cursor), limit: limit + 1 });
      const page = rows.slice(0, limit);
      const last = page.at(-1);
      if (rows.length > limit && last !== undefined) reply.header("x-next-cursor", cursorOf(last));
      return page.map(present);
    },
  });

  app.route({
    method: "GET",
    url: `${path}/summary`,
    schema: {
      tags,
      operationId: id("getQuotaSummary"),
      summary: "How many quotas set which limit",
      response: { 200: QuotaSummary },
    },
    handler: async () => {
      const summary = await quotas.summary();
      return {
        total: summary.total,
        with_max_sandboxes: summary.withMaxSandboxes,
        with_max_ttl: summary.withMaxTtl,
        with_max_exec_timeout: summary.withMaxExecTimeout,
      };
    },
  });

  app.route({
    method: "GET",
    url: `${path}/:ownerID`,
    schema: {
      tags,
      operationId: id("getQuota"),
      summary: "One owner's quota",
      params: OwnerParams,
      response: { 200: OwnerQuota },
    },
    handler: async (request) => present(await quotas.get(request.params.ownerID)),
  });

  app.route({
    method: "PUT",
    url: `${path}/:ownerID`,
    schema: {
      tags,
      operationId: id("saveQuota"),
      summary: "Give an owner a quota",
      params: OwnerParams,
      body: QuotaRequest,
      response: { 200: OwnerQuota },
    },
    preValidation: emptyBody,
    handler: async (request) => {
      // Of those who send back what they got.
      const { owner_id: _, created_at: _c, updated_at: _u, ...fields } = request.body;
      return present(await quotas.save(request.params.ownerID, quotaInput(fields)));
    },
  });

  app.route({
    method: "GET",
    url: `${path}/:ownerID/usage`,
    schema: {
      tags,
      operationId: id("getQuotaUsage"),
      summary: "What an owner has and may have",
      params: OwnerParams,
      response: { 200: OwnerUsage },
    },
    handler: async (request) => {
      const usage = await quotas.usage(request.params.ownerID, limits);
      const { inUse, limits: applied } = usage;
      return {
        owner_id: usage.ownerId,
        active_sandboxes: inUse.owner.sandboxes,
        active_memory_mb: inUse.owner.memoryMb,
        active_vcpus: inUse.owner.vcpus,
        max_sandboxes: applied.owner.sandboxes,
        max_memory_mb: applied.owner.memoryMb,
        max_vcpus: applied.owner.vcpus,
        max_ttl: formatDuration(applied.maxTtlMs),
        max_exec_timeout: formatDuration(applied.maxExecTimeoutMs),
        quota_configured: usage.configured,
      };
    },
  });

  app.route({
    method: "DELETE",
    url: `${path}/:ownerID`,
    schema: {
      tags,
      operationId: id("deleteQuota"),
      summary: "Let an owner have the defaults again",
      params: OwnerParams,
      response: { 200: statusBody("deleted") },
    },
    handler: async (request) => {
      await quotas.remove(request.params.ownerID);
      return { status: "deleted" as const };
    },
  });
}

type QuotaFields = Omit<QuotaRequest, "owner_id" | "created_at" | "updated_at">;

function quotaInput(fields: QuotaFields) {
  const { max_sandboxes, max_ttl, max_exec_timeout, max_memory_mb, max_vcpus, ...rest } = fields;
  rest satisfies Record<string, never>;
  return defined<Total<Parameters<Quotas["save"]>[1]>>({
    maxSandboxes: max_sandboxes,
    maxTtlMs: quotaDuration("max_ttl", max_ttl),
    maxExecTimeoutMs: quotaDuration("max_exec_timeout", max_exec_timeout),
    maxMemoryMb: max_memory_mb,
    maxVcpus: max_vcpus,
  });
}

/** `0s` and the empty text inherit. That it is whole seconds core says; that its numbers are whole, as the schema has it, is said here. */
function quotaDuration(field: string, text: string | undefined): number | undefined {
  if (text === undefined || text === "") return undefined;
  const ms = parseDuration(text);
  if (ms === undefined)
    throw new BadRequest(`${field} ${JSON.stringify(text.slice(0, 64))} is not a duration such as 90s or 2h`);
  if (ms % 1_000 === 0 && /\.\d*[1-9]/.test(text))
    throw new BadRequest(
      `${field} takes whole numbers alone, such as ${formatDuration(ms)}, not ${text}; 0s inherits the default`,
    );
  return ms;
}

function present(row: QuotaRow): OwnerQuota {
  return {
    owner_id: row.ownerId,
    max_sandboxes: row.maxSandboxes,
    max_ttl: formatDuration(row.maxTtlMs),
    max_exec_timeout: formatDuration(row.maxExecTimeoutMs),
    max_memory_mb: row.maxMemoryMb,
    max_vcpus: row.maxVcpus,
    created_at: row.createdAt.toISOString(),
    updated_at: row.updatedAt.toISOString(),
  };
}

function cursorOf(row: QuotaRow): string {
  return Buffer.from(row.ownerId).toString("base64url");
}

/** A cursor is where to go on in an order, so every one leads somewhere. */
function ownerOfCursor(cursor: string): string {
  return Buffer.from(cursor, "base64url").toString();
}
