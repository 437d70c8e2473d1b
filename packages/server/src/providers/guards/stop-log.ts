import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";

/** The one line for a sandbox that a guard has stopped, or could not. */
export function logStop(
  logger: Logger,
  stopped: { sandbox_id?: string; owner_id?: string; runtime_id: string; reason: string },
  { beganMs, ...end }: { beganMs: number; error?: unknown },
): void {
  const fields = { ...stopped, duration_ms: Math.round((performance.now() - beganMs) * 100) / 100 };
  if ("error" in end)
    logger.warn(
      {
        event: "sandbox.stop",
        outcome: "failed",
        ...fields,
        error: messageOf(end.error),
        err: end.error,
      },
      "a sandbox that a guard stopped is not gone",
    );
  else logger.warn({ event: "sandbox.stop", outcome: "ok", ...fields }, "a sandbox was stopped by a guard");
}
