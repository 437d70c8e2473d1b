import { formatDuration, Health, Liveness, Readiness } from "@alcove/wire";
import type { ProviderHealthEntry, ProviderRegistry } from "../../core/providers/provider-registry.ts";
import type { Drain } from "../../core/workers/drain.ts";
import { messageOf } from "../../platform/message-of.ts";
import type { Clock } from "../../ports/clock.ts";
import { Unavailable } from "../../ports/errors.ts";
import type { Store } from "../../ports/store.ts";
import { presentHealth } from "../present.ts";
import type { RouteApp } from "./route-app.ts";

/** Health, liveness and readiness; probes need no key. docs/api/providers.md. */
export function systemRoutes(
  app: RouteApp,
  options: {
    registry: ProviderRegistry;
    clock: Clock;
    version: string;
    /** Monotonic, milliseconds. */
    startedMs: number;
    ready: () => boolean;
    drain: Pick<Drain, "refusal">;
    store: Pick<Store, "ping">;
    storeRefusal?: () => string | undefined;
  },
): void {
  const { registry, clock, version, startedMs } = options;
  const tags = ["system"];
  const common = () => ({ version, uptime: formatDuration(clock.monotonicMs() - startedMs) });

  app.route({
    method: "GET",
    url: "/health",
    config: { open: true, probe: true },
    schema: { tags, operationId: "getHealth", summary: "The service answers", response: { 200: Health } },
    handler: async () => ({ status: "ok" as const, ...common() }),
  });

  app.route({
    method: "GET",
    url: "/live",
    config: { open: true, probe: true },
    schema: {
      tags,
      operationId: "getLiveness",
      summary: "The process responds",
      response: { 200: Liveness },
    },
    handler: async () => ({ status: "alive" as const, ...common() }),
  });

  app.route({
    method: "GET",
    url: "/ready",
    config: { open: true, probe: true },
    schema: {
      tags,
      operationId: "getReadiness",
      summary: "Spawns can succeed: the start is done and the default provider takes them",
      response: { 200: Readiness, 503: Readiness },
    },
    // Asked for every few seconds, by many and without a key: it looks at nothing itself.
    handler: async (_request, reply) => {
      const entries = registry.lastKnown();
      const providers = entries.map(presentHealth);
      const refusal =
        whyNotReady(options.ready(), entries) ?? options.drain.refusal ?? (await whyNotStored(options));
      const healthy = providers.filter((provider) => provider.healthy).length;
      const counts = { ready_providers: healthy, total_providers: providers.length, providers };
      if (refusal === undefined) return { status: "ready" as const, ...common(), ...counts };
      reply.code(503);
      return {
        status: "not_ready" as const,
        ...common(),
        ...counts,
        code: "unavailable",
        message: refusal,
      };
    },
  });
}

/** @returns why nothing new could be written down now. */
async function whyNotStored(options: {
  store: Pick<Store, "ping">;
  storeRefusal?: () => string | undefined;
}): Promise<string | undefined> {
  try {
    await options.store.ping();
  } catch (error) {
    const known = options.storeRefusal?.();
    if (known !== undefined) return known;
    if (error instanceof Unavailable) return error.message;
    return `the database does not answer (${messageOf(error)}); \`alcove doctor\` tells more`;
  }
  return options.storeRefusal?.();
}

/** @returns why a spawn that names no provider would fail now. */
function whyNotReady(started: boolean, entries: readonly ProviderHealthEntry[]): string | undefined {
  if (!started) return "the service is starting: its default provider has not listed its runtimes yet";
  const standard = entries.find((entry) => entry.default);
  if (standard === undefined) return "there is no default provider";
  if (!standard.healthy)
    return `the default provider "${standard.name}" is not healthy: ${standard.error}; \`alcove doctor\` tells more`;
  return standard.cannotSpawn;
}
