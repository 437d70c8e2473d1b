import type { Logger } from "../../platform/logger.ts";
import type { SandboxRow } from "../../ports/store.ts";

export interface SandboxHappening {
  event:
    | "sandbox.spawn"
    | "sandbox.destroy"
    | "sandbox.extend"
    | "sandbox.adopt"
    | "sandbox.recover"
    | "sandbox.unhealthy"
    | "sandbox.network_lost"
    | "sandbox.network_restored"
    | "sandbox.error"
    | "file.cut";
  /** `gone`: whoever asked for it left, and it was undone. */
  outcome: "ok" | "failed" | "gone";
  durationMs?: number;
  /** As the machine's log names it, where that is not the runtime's name. */
  controlGroup?: string | undefined;
  /** Of a file in the sandbox. */
  filePath?: string;
  reason?: string;
  /** In words; a stack belongs to the line of the request. */
  error?: string;
  /** An error that no request tells. */
  err?: unknown;
}

/** The one line for something that happened to a sandbox, the same fields each time. */
export function logSandbox(
  logger: Logger,
  row: SandboxRow,
  happening: SandboxHappening,
  message: string,
): void {
  const { event, outcome, durationMs, controlGroup, filePath, reason, error, err } = happening;
  const fields = {
    event,
    outcome,
    sandbox_id: row.id,
    runtime_id: row.runtimeId,
    ...(row.ownerId !== "" && { owner_id: row.ownerId }),
    provider: row.provider,
    ...(durationMs !== undefined && { duration_ms: Math.round(durationMs * 100) / 100 }),
    ...(controlGroup !== undefined && { control_group: controlGroup }),
    ...(filePath !== undefined && { file_path: filePath }),
    ...(reason !== undefined && { reason }),
    ...(error !== undefined && { error }),
    ...(err !== undefined && { err }),
  };
  if (outcome !== "failed") logger.info(fields, message);
  else logger.warn(fields, message);
}
