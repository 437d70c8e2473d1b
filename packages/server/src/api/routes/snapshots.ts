import { SnapshotSummary } from "@alcove/wire";
import { Type } from "typebox";
import type { ProviderRegistry } from "../../core/providers/provider-registry.ts";
import { listSnapshots } from "../../core/providers/snapshots.ts";
import { presentSnapshot } from "../present.ts";
import type { RouteApp } from "./route-app.ts";

/** What providers have made of images. docs/api/providers.md. */
export function snapshotRoutes(
  app: RouteApp,
  { registry }: { registry: Pick<ProviderRegistry, "all"> },
): void {
  app.route({
    method: "GET",
    url: "/snapshots",
    schema: {
      tags: ["providers"],
      operationId: "listSnapshots",
      summary: "Snapshots of images, newest first",
      response: { 200: Type.Array(SnapshotSummary) },
    },
    handler: async (_request, reply) =>
      (await listSnapshots(registry.all, { signal: reply.callerSignal })).map(presentSnapshot),
  });
}
