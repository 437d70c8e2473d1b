import { PoolStatus } from "@alcove/wire";
import type { SandboxService } from "../../core/sandboxes/sandbox-service.ts";
import type { RouteApp } from "./route-app.ts";

/** What the pool holds. docs/api/pool.md. */
export function poolRoutes(
  app: RouteApp,
  { sandboxes }: { sandboxes: Pick<SandboxService, "poolStatus"> },
): void {
  app.route({
    method: "GET",
    url: "/pool/status",
    schema: {
      tags: ["pool"],
      operationId: "getPoolStatus",
      summary: "VMs and users of the pool",
      response: { 200: PoolStatus },
    },
    handler: async () => {
      const pool = await sandboxes.poolStatus();
      if (pool === undefined) return { enabled: false as const };
      return {
        enabled: true as const,
        vms: pool.vms,
        max_vms: pool.maxVms,
        total_users: pool.users,
        max_users_per_vm: pool.maxUsersPerVm,
      };
    },
  });
}
