import type { AdmissionReason } from "@alcove/wire";
import { ResourceLimit, type Store } from "../../ports/index.ts";
import { parseOwnerId } from "../owners.ts";
import type { Limits } from "../quotas/limits.ts";
import type { SandboxDefaults } from "../quotas/sandbox-defaults.ts";
import { capacityRetryS } from "./capacity-retry.ts";
import type { ReserveResult } from "./spawn-queue.ts";

/** See docs/api/sandboxes.md. */
export interface AdmissionDecision {
  allowed: boolean;
  queueable: boolean;
  reason: AdmissionReason;
  activeSandboxes: number;
  maxSandboxes: number;
  activeOwnerSandboxes: number;
  maxOwnerSandboxes: number;
  maxTtlMs: number;
}

/** Says what a spawn would meet now; reserves nothing. */
export async function decideAdmission(options: {
  store: Store;
  limits: Limits;
  overflow: "reject" | "queue";
  ownerId: string | undefined;
  ttlMs: number | undefined;
}): Promise<AdmissionDecision> {
  const { store, ttlMs } = options;
  const ownerId = parseOwnerId(options.ownerId);
  const { maxSandboxes, maxSandboxesPerOwner, maxTtlMs } = options.limits.of(ownerId);
  const active = await store.sandboxes.activeCounts(ownerId);
  const reason = reasonAgainst();
  const capacity = reason === "max_sandboxes" || reason === "max_sandboxes_per_owner";
  return {
    allowed: reason === "",
    queueable: capacity && options.overflow === "queue",
    reason,
    activeSandboxes: active.total,
    maxSandboxes,
    activeOwnerSandboxes: active.owner,
    maxOwnerSandboxes: maxSandboxesPerOwner,
    maxTtlMs,
  };

  function reasonAgainst(): AdmissionReason {
    if (ttlMs !== undefined && maxTtlMs > 0 && ttlMs > maxTtlMs) return "max_ttl";
    if (maxSandboxes > 0 && active.total >= maxSandboxes) return "max_sandboxes";
    const ownerLimited = ownerId !== "" && maxSandboxesPerOwner > 0;
    if (ownerLimited && active.owner >= maxSandboxesPerOwner) return "max_sandboxes_per_owner";
    return "";
  }
}

/** Words for a denial of capacity. */
export function capacityDenied(
  defaults: SandboxDefaults,
  ownerId: string,
  result: ReserveResult & { admitted: false },
): ResourceLimit {
  const message =
    result.reason === "max_sandboxes"
      ? `this service may hold ${defaults.maxSandboxes} sandboxes and has ${result.active.total}`
      : `owner "${ownerId}" may hold ${defaults.maxSandboxesPerOwner} sandboxes and has ${result.active.owner}`;
  return new ResourceLimit(`${message}; destroy one or try again later`, {
    details: { reason: result.reason },
    retryAfterS: capacityRetryS,
  });
}
