import { BadRequest } from "./errors.ts";
import type { ExecUseLimits } from "./sandbox-operations.ts";

/** The field of the first limit that needs a control group of the command's own; undefined: none does. */
export function ownLimit(limits: ExecUseLimits | undefined): "limits.memory_mb" | "limits.pids" | undefined {
  if (limits?.memoryMb !== undefined) return "limits.memory_mb";
  return limits?.pids === undefined ? undefined : "limits.pids";
}

/** What a provider without the capability says. @throws BadRequest naming field and capability. */
export function refuseOwnLimits(limits: ExecUseLimits | undefined): void {
  const field = ownLimit(limits);
  if (field !== undefined)
    throw new BadRequest(
      `${field} needs the capability "exec_limits", which the provider of this sandbox does not have`,
    );
}
