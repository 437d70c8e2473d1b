import type { AdmissionReason } from "@alcove/wire";
import { ResourceLimit, type Store } from "../../ports/index.ts";
import { parseOwnerId } from "../owners.ts";
import type { SandboxDefaults } from "../sandboxes/spawn-plan.ts";
import type { ReserveResult } from "./spawn-queue.ts";

/** Spec §2, Spawn admission decision. */
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
  defaults: SandboxDefaults;
  ownerId: string | undefined;
  ttlMs: number | undefined;
}): Promise<AdmissionDecision> {
  const { store, defaults, ttlMs } = options;
  const ownerId = parseOwnerId(options.ownerId);
  const active = await store.sandboxes.activeCounts(ownerId);
  const reason = reasonAgainst();
  const capacity = reason === "max_sandboxes" || reason === "max_sandboxes_per_owner";
  return {
    allowed: reason === "",
    queueable: capacity && defaults.spawnOverflow === "queue",
    reason,
    activeSandboxes: active.total,
    maxSandboxes: defaults.maxSandboxes,
    activeOwnerSandboxes: active.owner,
    maxOwnerSandboxes: defaults.maxSandboxesPerOwner,
    maxTtlMs: defaults.maxTtlMs,
  };

  function reasonAgainst(): AdmissionReason {
    if (ttlMs !== undefined && defaults.maxTtlMs > 0 && ttlMs > defaults.maxTtlMs) return "max_ttl";
    if (defaults.maxSandboxes > 0 && active.total >= defaults.maxSandboxes) return "max_sandboxes";
    const ownerLimited = ownerId !== "" && defaults.maxSandboxesPerOwner > 0;
    if (ownerLimited && active.owner >= defaults.maxSandboxesPerOwner) return "max_sandboxes_per_owner";
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
  });
}
