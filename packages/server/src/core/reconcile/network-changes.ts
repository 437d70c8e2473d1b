import type { Logger } from "../../platform/logger.ts";
import type { EventSink, NetworkChange, SandboxRow } from "../../ports/index.ts";
import type { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import { ownerData } from "../events/owner-data.ts";
import { logSandbox } from "../sandboxes/sandbox-log.ts";

/** Tells and logs that a sandbox has lost its network, or has it again; it goes on, and its provider mends it. */
export function tellNetworkChange(
  row: SandboxRow,
  change: NetworkChange,
  {
    events,
    logger,
    operations,
  }: { events: EventSink; logger: Logger; operations: Pick<OperationMetrics, "incidents"> },
): void {
  const { id: sandboxId, ownerId, provider } = row;
  if (change.state === "lost") {
    const { reason } = change;
    operations.incidents.networkLost();
    const happening = { event: "sandbox.network_lost", outcome: "failed", reason } as const;
    logSandbox(logger, row, happening, "a sandbox has lost its network");
    const data = { provider, reason, ...ownerData(ownerId) };
    events.emit({ type: "sandbox.network_lost", sandboxId, ownerId, data });
    return;
  }
  const durationMs = change.afterMs;
  const happening = { event: "sandbox.network_restored", outcome: "ok", durationMs } as const;
  logSandbox(logger, row, happening, "a sandbox has its network again");
  const data = { provider, after_ms: durationMs, ...ownerData(ownerId) };
  events.emit({ type: "sandbox.network_restored", sandboxId, ownerId, data });
}
