import {
  AcquireRequest,
  AdmissionDecision,
  ExtendRequest,
  formatDuration,
  OwnerId,
  PruneResult,
  Sandbox,
  SandboxName,
  SandboxStats,
  SandboxUsage,
  SpawnRequest,
  sandboxStates,
  statusBody,
} from "@alcove/wire";
import type { FastifyRequest } from "fastify";
import { type Static, Type } from "typebox";
import type { AnswerBudget } from "../../core/answers/answer-budget.ts";
import type { ExecService } from "../../core/exec/exec-service.ts";
import { cursorPattern, type ListRequest, largestPage } from "../../core/sandboxes/listing.ts";
import type { SandboxService } from "../../core/sandboxes/sandbox-service.ts";
import { longestLog } from "../../core/sandboxes/sandbox-service.ts";
import { largestUsagePage } from "../../core/sandboxes/usage.ts";
import { BadRequest } from "../../ports/errors.ts";
import { confinedTo, wantedOwner } from "../access.ts";
import { answered } from "../answers.ts";
import { defined, given, requiredDuration } from "../parse.ts";
import { presentSandbox, presentStats } from "../present.ts";
import { turnFor } from "../turn-for.ts";
import { emptyBody, type RouteApp, SandboxParams } from "./route-app.ts";
import {
  acquired,
  acquiredHeaders,
  OwnerHeaders,
  SpawnHeaders,
  spawned,
  spawnedHeaders,
  spawnInput,
} from "./spawn-request.ts";

const filters = {
  state: Type.Optional(Type.Enum([...sandboxStates, ""])),
  owner_id: Type.Optional(OwnerId),
  name: Type.Optional(SandboxName),
  provider: Type.Optional(Type.String({ description: "Provider that runs them.", examples: ["native"] })),
  cursor: Type.Optional(
    Type.String({
      "x-rule": "core",
      description: "X-Next-Cursor of the page before.",
      pattern: `^(?:${cursorPattern})?$`,
      examples: ["1777888800000.sb-k3v9x0a1b2c3"],
    }),
  ),
};
const pageOf = (most: number) => Type.Optional(Type.Integer({ minimum: 1, maximum: most, default: most }));
const ListQuery = Type.Object({ ...filters, limit: pageOf(largestPage) });
const StatsQuery = Type.Object({ ...filters, limit: pageOf(largestUsagePage) });
const LogsQuery = Type.Object({
  lines: Type.Optional(Type.Integer({ minimum: 1, maximum: longestLog, default: 100 })),
});
/** Spawn, look at, extend and destroy sandboxes. docs/api/sandboxes.md. */
export function sandboxRoutes(
  app: RouteApp,
  options: {
    sandboxes: SandboxService;
    execs: Pick<ExecService, "runningIn">;
    answers: AnswerBudget;
    server: { previewDomain: string };
    pooled: boolean;
  },
): void {
  const { sandboxes, execs, answers, server, pooled } = options;
  const present = (row: Parameters<typeof presentSandbox>[0]) =>
    presentSandbox(row, { previewDomain: server.previewDomain });
  const tags = ["sandboxes"];

  app.route({
    method: "POST",
    url: "/sandboxes",
    schema: {
      tags,
      operationId: "spawnSandbox",
      summary: "Spawn a sandbox",
      headers: SpawnHeaders,
      body: SpawnRequest,
      response: { 201: Sandbox },
      openapi: { headers: { 201: spawnedHeaders } },
    },
    preValidation: emptyBody,
    handler: async (request, reply) =>
      present(await spawned(sandboxes, spawnInput(request, { pooled }), { request, reply })),
  });

  app.route({
    method: "POST",
    url: "/sandboxes/acquire",
    schema: {
      tags,
      operationId: "acquireSandbox",
      summary: "The owner's living sandbox of a name, or a new one",
      headers: OwnerHeaders,
      body: AcquireRequest,
      response: { 200: Sandbox, 201: Sandbox },
      openapi: { headers: { 200: acquiredHeaders, 201: acquiredHeaders } },
    },
    handler: async (request, reply) =>
      present(await acquired(sandboxes, spawnInput(request, { pooled }), reply)),
  });

  app.route({
    method: "POST",
    url: "/sandboxes/admission",
    schema: {
      tags,
      operationId: "checkAdmission",
      summary: "Whether limits leave a place for a spawn; nothing is created",
      headers: OwnerHeaders,
      body: SpawnRequest,
      response: { 200: AdmissionDecision },
    },
    preValidation: emptyBody,
    handler: async (request) => {
      const decision = await sandboxes.admission(spawnInput(request, { pooled }));
      return {
        allowed: decision.allowed,
        queueable: decision.queueable,
        reason: decision.reason,
        active_sandboxes: decision.activeSandboxes,
        max_sandboxes: decision.maxSandboxes,
        active_owner_sandboxes: decision.activeOwnerSandboxes,
        max_owner_sandboxes: decision.maxOwnerSandboxes,
        max_ttl: formatDuration(decision.maxTtlMs),
      };
    },
  });

  app.route({
    method: "GET",
    url: "/sandboxes",
    schema: {
      tags,
      operationId: "listSandboxes",
      summary: "Sandboxes, newest first, without destroyed ones",
      querystring: ListQuery,
      response: { 200: Type.Array(Sandbox) },
      openapi: { headers: { 200: ["X-Next-Cursor"] } },
    },
    handler: (request, reply) =>
      answered(reply, answers, async (answer) => {
        const wanted = listRequest(request, largestPage);
        const turn = () => turnFor(request);
        const { items, nextCursor } = await sandboxes.list(wanted, {
          answer,
          signal: reply.callerSignal,
          turn,
        });
        if (nextCursor !== undefined) reply.header("x-next-cursor", nextCursor);
        return items.map(present);
      }),
  });

  app.route({
    method: "GET",
    url: "/sandboxes/stats",
    schema: {
      tags,
      operationId: "listSandboxStats",
      summary: "Sandboxes, newest first, and what each uses now",
      querystring: StatsQuery,
      response: { 200: Type.Array(SandboxUsage) },
      openapi: { headers: { 200: ["X-Next-Cursor"] } },
    },
    handler: (request, reply) =>
      answered(reply, answers, async (answer) => {
        const wanted = listRequest(request, largestUsagePage);
        const turn = () => turnFor(request);
        const { items, nextCursor } = await sandboxes.usage(wanted, {
          answer,
          signal: reply.callerSignal,
          turn,
        });
        await turn();
        if (nextCursor !== undefined) reply.header("x-next-cursor", nextCursor);
        return items.map(({ sandbox, stats }) =>
          defined({
            sandbox: present(sandbox),
            stats: stats && presentStats(stats, execs.runningIn(sandbox.id)),
          }),
        );
      }),
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id",
    schema: {
      tags,
      operationId: "getSandbox",
      summary: "One sandbox",
      params: SandboxParams,
      response: { 200: Sandbox },
    },
    handler: async (request) => present(await sandboxes.get(request.params.id)),
  });

  app.route({
    method: "DELETE",
    url: "/sandboxes/:id",
    schema: {
      tags,
      operationId: "destroySandbox",
      summary: "Destroy a sandbox; safe to repeat",
      params: SandboxParams,
      response: { 200: statusBody("destroyed") },
    },
    handler: async (request, reply) => {
      await sandboxes.destroy(request.params.id, { signal: reply.callerSignal });
      return { status: "destroyed" as const };
    },
  });

  app.route({
    method: "DELETE",
    url: "/sandboxes",
    schema: {
      tags,
      operationId: "pruneSandboxes",
      summary: "Destroy the expired ones",
      response: { 200: PruneResult },
    },
    handler: async (request, reply) => {
      const ownerId = confinedTo(request);
      await turnFor(request);
      return { pruned: await sandboxes.prune(defined({ signal: reply.callerSignal, ownerId })) };
    },
  });

  app.route({
    method: "POST",
    url: "/sandboxes/:id/extend",
    schema: {
      tags,
      operationId: "extendSandbox",
      summary: "Let a sandbox live for ttl from now",
      params: SandboxParams,
      body: ExtendRequest,
      response: { 200: Sandbox },
    },
    handler: async (request, reply) => {
      const ttlMs = requiredDuration("ttl", request.body.ttl);
      return present(await sandboxes.extend(request.params.id, ttlMs, { signal: reply.callerSignal }));
    },
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/logs",
    schema: {
      tags,
      operationId: "getSandboxLogs",
      summary: "Console lines, newest last",
      params: SandboxParams,
      querystring: LogsQuery,
      response: {
        200: Type.Array(Type.String(), {
          examples: [["2026-05-04T10:00:00.000Z mock: sandbox sb-k3v9x0a1b2c3 started with image mock"]],
        }),
      },
    },
    handler: (request, reply) =>
      sandboxes.logs(request.params.id, request.query.lines ?? 100, { signal: reply.callerSignal }),
  });

  app.route({
    method: "GET",
    url: "/sandboxes/:id/stats",
    schema: {
      tags,
      operationId: "getSandboxStats",
      summary: "What a sandbox uses now",
      params: SandboxParams,
      response: { 200: SandboxStats },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      const stats = await sandboxes.stats(id, { signal: reply.callerSignal });
      return presentStats(stats, execs.runningIn(id));
    },
  });
}

/** @throws Forbidden when the caller may not see whose sandboxes are wanted. */
function listRequest(
  request: FastifyRequest & { query: Static<typeof ListQuery> },
  usualLimit: number,
): ListRequest {
  const { query } = request;
  return defined({
    state: query.state === "" ? undefined : query.state,
    ownerId: wantedOwner(request, given(query.owner_id)),
    name: given(query.name),
    provider: given(query.provider),
    metadata: metadataFilter(query),
    limit: query.limit ?? usualLimit,
    cursor: given(query.cursor),
  });
}

/** `metadata.<key>=<value>` of the query. */
function metadataFilter(query: object): Record<string, string> | undefined {
  const prefix = "metadata.";
  const labels = Object.entries(query).filter(([name]) => name.startsWith(prefix));
  if (labels.length === 0) return undefined;
  return Object.fromEntries(
    labels.map(([name, value]) => {
      if (!name.isWellFormed()) throw new BadRequest("the name of a label in the query is not UTF-8");
      if (typeof value !== "string") throw new BadRequest(`${name} may be given once`);
      if (!value.isWellFormed()) throw new BadRequest(`${name} is not UTF-8`);
      return [name.slice(prefix.length), value];
    }),
  );
}
