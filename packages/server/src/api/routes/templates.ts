import {
  formatDuration,
  Sandbox,
  statusBody,
  Template,
  TemplateReplacement,
  TemplateRequest,
  TemplateSpawnRequest,
} from "@alcove/wire";
import type { FastifyRequest } from "fastify";
import { Type } from "typebox";
import type { SandboxService } from "../../core/sandboxes/sandbox-service.ts";
import type { TemplateInput, Templates } from "../../core/templates/templates.ts";
import type { Logger } from "../../platform/logger.ts";
import type { TemplateRow } from "../../ports/template-store.ts";
import { defined, given, optionalDuration, type Total } from "../parse.ts";
import { presentSandbox } from "../present.ts";
import { turnFor } from "../turn-for.ts";
import { emptyBody, type RouteApp } from "./route-app.ts";
import { SpawnHeaders, spawned, spawnedHeaders, spawnInput } from "./spawn-request.ts";

const largestPage = 1_000;
const TemplateParams = Type.Object({
  name: Type.String({ description: "Template.", minLength: 1, maxLength: 128, examples: ["python"] }),
});
const ListQuery = Type.Object({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: largestPage, default: largestPage })),
  cursor: Type.Optional(
    Type.String({ description: "X-Next-Cursor of the page before.", maxLength: 128, examples: ["python"] }),
  ),
});

/** Named ways to spawn. docs/api/templates.md. */
export function templateRoutes(
  app: RouteApp,
  options: {
    templates: Templates;
    sandboxes: SandboxService;
    server: { previewDomain: string };
    logger: Pick<Logger, "info">;
    pooled: boolean;
  },
): void {
  const { templates, sandboxes, server, logger, pooled } = options;
  const tell = (request: FastifyRequest, event: "template.saved" | "template.deleted", name: string) =>
    logger.info({ event, outcome: "ok", name, principal: request.principal.name }, event);
  const tags = ["templates"];

  app.route({
    method: "POST",
    url: "/templates",
    schema: {
      tags,
      operationId: "createTemplate",
      summary: "Make a template",
      body: TemplateRequest,
      response: { 201: Template },
      openapi: { headers: { 201: ["Location"] } },
    },
    handler: async (request, reply) => {
      const { name, ...fields } = request.body;
      const made = await templates.create(name, templateInput(fields));
      tell(request, "template.saved", name);
      reply.code(201).header("location", `/api/v1/templates/${encodeURIComponent(name)}`);
      return present(made);
    },
  });

  app.route({
    method: "GET",
    url: "/templates",
    schema: {
      tags,
      operationId: "listTemplates",
      summary: "Templates, by name",
      querystring: ListQuery,
      response: { 200: Type.Array(Template) },
      openapi: { headers: { 200: ["X-Next-Cursor"] } },
    },
    handler: async (request, reply) => {
      const { limit = largestPage, cursor = "" } = request.query;
      await turnFor(request);
      const { rows, more } = await templates.list({ afterName: cursor, limit });
      const last = rows.at(-1);
      if (more && last !== undefined) reply.header("x-next-cursor", last.name);
      return rows.map(present);
    },
  });

  app.route({
    method: "GET",
    url: "/templates/:name",
    schema: {
      tags,
      operationId: "getTemplate",
      summary: "One template",
      params: TemplateParams,
      response: { 200: Template },
    },
    handler: async (request) => present(await templates.get(request.params.name)),
  });

  app.route({
    method: "PUT",
    url: "/templates/:name",
    schema: {
      tags,
      operationId: "replaceTemplate",
      summary: "Replace a template",
      params: TemplateParams,
      body: TemplateReplacement,
      response: { 200: Template },
    },
    handler: async (request) => {
      const { name: _, ...fields } = request.body;
      const replaced = await templates.replace(request.params.name, templateInput(fields));
      tell(request, "template.saved", replaced.name);
      return present(replaced);
    },
  });

  app.route({
    method: "DELETE",
    url: "/templates/:name",
    schema: {
      tags,
      operationId: "deleteTemplate",
      summary: "Remove a template",
      params: TemplateParams,
      response: { 200: statusBody("deleted") },
    },
    handler: async (request) => {
      await templates.remove(request.params.name);
      tell(request, "template.deleted", request.params.name);
      return { status: "deleted" as const };
    },
  });

  app.route({
    method: "POST",
    url: "/templates/:name/spawn",
    schema: {
      tags,
      operationId: "spawnFromTemplate",
      summary: "Spawn a sandbox from a template",
      params: TemplateParams,
      headers: SpawnHeaders,
      body: TemplateSpawnRequest,
      response: { 201: Sandbox },
      openapi: { headers: { 201: spawnedHeaders } },
    },
    preValidation: emptyBody,
    handler: async (request, reply) => {
      const input = { ...spawnInput(request, { pooled }), template: request.params.name };
      const row = await spawned(sandboxes, input, { request, reply });
      return presentSandbox(row, { previewDomain: server.previewDomain });
    },
  });
}

function templateInput(fields: Omit<TemplateReplacement, "name">): TemplateInput {
  const {
    description,
    image,
    provider,
    memory_mb,
    vcpus,
    ttl,
    metadata,
    env,
    user,
    workdir,
    network,
    ...rest
  } = fields;
  // Of those who send back what they got.
  const { created_at: _c, updated_at: _u, ...none } = rest;
  none satisfies Record<string, never>;
  return defined<Total<TemplateInput>>({
    description: given(description),
    image,
    provider: given(provider),
    memoryMb: memory_mb === 0 ? undefined : memory_mb,
    vcpus: vcpus === 0 ? undefined : vcpus,
    ttlMs: optionalDuration("ttl", ttl),
    metadata,
    env,
    user: given(user),
    workdir: given(workdir),
    network,
  });
}

function present(row: TemplateRow): Template {
  return defined<Total<Template>>({
    name: row.name,
    description: row.description,
    image: row.image,
    memory_mb: row.memoryMb,
    vcpus: row.vcpus,
    ttl: row.ttlMs === undefined ? undefined : formatDuration(row.ttlMs),
    provider: row.provider,
    metadata: row.metadata,
    env: row.env,
    user: row.user,
    workdir: row.workdir,
    network: row.network,
    created_at: row.createdAt.toISOString(),
    updated_at: row.updatedAt.toISOString(),
  });
}
