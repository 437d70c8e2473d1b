import type { Logger } from "../../platform/logger.ts";
import type { Clock, EventSink, Fence, Ids, SandboxRow, Store } from "../../ports/index.ts";
import type { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import type { Pool } from "../pool/pool.ts";
import type { ProviderRegistry } from "../providers/provider-registry.ts";
import type { Limits } from "../quotas/limits.ts";
import type { SandboxDefaults } from "../quotas/sandbox-defaults.ts";
import type { SpawnQueue } from "../scheduling/spawn-queue.ts";
import type { Drain } from "../workers/drain.ts";
import type { ExpiryQueue } from "./expiry-queue.ts";
import type { LiveSandboxes } from "./live-sandboxes.ts";
import type { SpawnInput } from "./spawn-plan.ts";

/** Puts a template's fields below those of a request that names one. */
export interface TemplateExpansion {
  /** @throws NotFound when there is no such template. */
  expand(input: SpawnInput): Promise<Omit<SpawnInput, "template">>;
}

/** What the flows of a sandbox's life share. */
export interface SandboxContext {
  readonly store: Store;
  readonly registry: ProviderRegistry;
  readonly events: EventSink;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly operations: OperationMetrics;
  readonly defaults: SandboxDefaults;
  readonly deadmanGraceMs: number;
  readonly workerId: string;
  /** Names this process among those that have made sandboxes. */
  readonly run: string;
  /** This process as a writer of the store. */
  readonly fence: Fence;
  readonly limits: Limits;
  readonly pool: Pool;
  readonly templates: TemplateExpansion;
  readonly drain: Pick<Drain, "since" | "admit">;
  readonly live: LiveSandboxes;
  readonly expiry: ExpiryQueue;
  readonly queue: SpawnQueue;
  /** Awaited before a spawn is answered, its runtime made; does not fail. */
  readonly beforeAnswered?: () => Promise<void>;
}

/** How long a spawn may take, image download included, milliseconds. */
export const spawnDeadlineMs = 15 * 60_000;
/** How long one attempt to end a runtime may take, milliseconds. */
export const destroyDeadlineMs = 30_000;
/** How long a short question to a sandbox or its provider may take, milliseconds. */
export const callDeadlineMs = 10_000;
/** How long a sandbox may take to say that it is there, milliseconds. */
export const probeDeadlineMs = 5_000;

/** Remaining life of a sandbox as its own dead-man's switch counts it, grace included. */
export function expiresInMs(
  row: SandboxRow,
  context: Pick<SandboxContext, "clock" | "deadmanGraceMs">,
): number {
  const leftMs = row.expiresAt.getTime() - context.clock.now().getTime();
  return Math.max(0, leftMs) + context.deadmanGraceMs;
}
