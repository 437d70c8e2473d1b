import { ProviderDetail, ProviderHealth, ProviderTestResult } from "@alcove/wire";
import { Type } from "typebox";
import { localWorkerId } from "../../core/providers/provider-address.ts";
import type { ProviderHealthEntry, ProviderRegistry } from "../../core/providers/provider-registry.ts";
import type { SandboxService } from "../../core/sandboxes/sandbox-service.ts";
import { NotFound } from "../../ports/errors.ts";
import { presentHealth } from "../present.ts";
import { type RouteApp, withAdmin } from "./route-app.ts";

interface ProviderServices {
  registry: ProviderRegistry;
  sandboxes: SandboxService;
}

/** What runs sandboxes, and how it does, below `/admin` too. docs/api/providers.md. */
export function providerRoutes(app: RouteApp, options: ProviderServices): void {
  for (const place of withAdmin("/providers")) providerRoutesAt(app, { ...options, ...place });
}

function providerRoutesAt(
  app: RouteApp,
  options: ProviderServices & ReturnType<typeof withAdmin>[number],
): void {
  const { registry, sandboxes, path, admin, id } = options;
  const tags = [admin ? "admin" : "providers"];
  const countOf = (name: string, ownerId: string | undefined) =>
    sandboxes.countOf({ workerId: localWorkerId, provider: name }, ownerId);
  /** The key of an owner is told of that owner's sandboxes alone, and not of what holds all of them less than it could. */
  const healthFor = (entry: ProviderHealthEntry, ownerId: string | undefined) => {
    const health = presentHealth(entry);
    if (ownerId === undefined)
      return entry.notes.length === 0 ? health : { ...health, notes: [...entry.notes] };
    if (health.runtime_count === undefined) return health;
    return { ...health, runtime_count: countOf(entry.name, ownerId) };
  };

  app.route({
    method: "GET",
    url: path,
    schema: {
      tags,
      operationId: id("listProviders"),
      summary: "Providers and their health",
      response: { 200: Type.Array(ProviderHealth) },
    },
    handler: async (request, reply) => {
      const entries = await registry.health({ signal: reply.callerSignal });
      return entries.map((entry) => healthFor(entry, request.principal.ownerId));
    },
  });

  app.route({
    method: "GET",
    url: `${path}/:name`,
    schema: {
      tags,
      operationId: id("getProvider"),
      summary: "One provider",
      params: Type.Object({
        name: Type.String({ description: "Provider.", minLength: 1, maxLength: 128, examples: ["native"] }),
      }),
      response: { 200: ProviderDetail },
    },
    handler: async (request, reply) => {
      const { name } = request.params;
      const provider = registry.get(name);
      const entries = await registry.health({ signal: reply.callerSignal });
      const { ownerId } = request.principal;
      const health = healthFor(entryOf(entries, name), ownerId);
      return {
        name,
        healthy: health.healthy,
        default: health.default,
        sandbox_count: countOf(name, ownerId),
        health,
        config: presentSettings(provider.settings()),
      };
    },
  });

  app.route({
    method: "POST",
    url: `${path}/test`,
    schema: {
      tags,
      operationId: id("testProviders"),
      summary: "Check every provider now",
      response: { 200: ProviderTestResult },
    },
    handler: async (_request, reply) => {
      const entries = await registry.health({ refresh: true, signal: reply.callerSignal });
      return Object.fromEntries(entries.map(({ name, healthy }) => [name, healthy]));
    },
  });
}

/** Clients read a map of text. */
function presentSettings(settings: Record<string, unknown>): Record<string, string> {
  const text = (value: unknown): string =>
    Array.isArray(value)
      ? value.map(text).join(",")
      : typeof value === "object"
        ? JSON.stringify(value)
        : String(value);
  return Object.fromEntries(Object.entries(settings).map(([name, value]) => [name, text(value)]));
}

function entryOf(entries: readonly ProviderHealthEntry[], name: string): ProviderHealthEntry {
  const entry = entries.find((candidate) => candidate.name === name);
  if (entry === undefined)
    throw new NotFound(`provider ${JSON.stringify(name)} does not exist`, { what: "provider" });
  return entry;
}
