import { Diagnostics, Metrics } from "@alcove/wire";
import type { ServiceFigures } from "../../core/diagnostics/service-figures.ts";
import { Exposition } from "../../platform/metrics/exposition.ts";
import { exposeFigures } from "../expose-figures.ts";
import { presentDiagnostics } from "../present-diagnostics.ts";
import { presentMetrics } from "../present-figures.ts";
import { type RouteApp, withAdmin } from "./route-app.ts";

interface MetricsOptions {
  figures: ServiceFigures;
  version: string;
}

/** Figures of the whole service, on their own paths and below `/admin`. docs/api/metrics.md. */
export function metricsRoutes(app: RouteApp, options: MetricsOptions): void {
  for (const place of withAdmin("")) metricsRoutesAt(app, { ...options, ...place });
}

function metricsRoutesAt(
  app: RouteApp,
  options: MetricsOptions & ReturnType<typeof withAdmin>[number],
): void {
  const { figures, version, path, admin, id } = options;
  const tags = [admin ? "admin" : "system"];

  app.route({
    method: "GET",
    url: `${path}/metrics`,
    schema: {
      tags,
      operationId: id("getMetrics"),
      summary: "Counters of the service",
      response: { 200: Metrics },
    },
    handler: async () => presentMetrics(await figures.current()),
  });

  app.route({
    method: "GET",
    url: `${path}/metrics/prometheus`,
    schema: {
      tags,
      operationId: id("getPrometheusMetrics"),
      summary: "Counters of the service, for a scrape",
      openapi: {
        responses: {
          200: {
            description: "Metrics in the text format of Prometheus, 0.0.4.",
            content: {
              "text/plain": {
                schema: { type: "string" },
                example: "# TYPE service_uptime_seconds gauge\nservice_uptime_seconds 2.655\n",
              },
            },
          },
        },
      },
    },
    handler: async (_request, reply) =>
      reply.type(Exposition.contentType).send(exposeFigures(await figures.current())),
  });

  app.route({
    method: "GET",
    url: `${path}/diagnostics`,
    schema: {
      tags,
      operationId: id("getDiagnostics"),
      summary: "What somebody who helps needs to know",
      response: { 200: Diagnostics },
    },
    handler: async () => {
      const [now, store] = await Promise.all([figures.current(), figures.storeHealth()]);
      return presentDiagnostics(now, {
        store,
        version,
        platform: process.platform,
        arch: process.arch,
      });
    },
  });
}
