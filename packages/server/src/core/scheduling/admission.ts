import { type AdmissionReason, leastMemoryMb } from "@alcove/wire";
import {
  type Capacity,
  type CapacityReason,
  Conflict,
  capacityDenial,
  type DomainError,
  isOfOwner,
  ResourceLimit,
  type SlotDenial,
  type Store,
  Unavailable,
} from "../../ports/index.ts";
import type { OwnerLimits } from "../quotas/limits.ts";
import { capacityRetryS } from "./capacity-retry.ts";
import type { ReserveDenied } from "./spawn-queue.ts";

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

/** Says what a spawn would meet now; reserves nothing. @throws Conflict for a user whose slot is on another provider. */
export async function decideAdmission(options: {
  store: Store;
  limits: OwnerLimits;
  /** Nothing new is taken, or not by this provider. */
  refused: boolean;
  overflow: "reject" | "queue";
  /** Whether one more spawn of the owner could wait. */
  queueHasPlace: boolean;
  wanted: { ownerId: string; memoryMb: number; vcpus: number };
  ttlMs: number | undefined;
  /** Absent: no pool. */
  pool?: { overflow: "reject" | "queue"; denial: () => Promise<SlotDenial | undefined> };
}): Promise<AdmissionDecision> {
  const { store, ttlMs, limits, wanted, refused } = options;
  const { maxTtlMs } = limits;
  const inUse = await store.sandboxes.inUse(wanted.ownerId);
  const tooLong = ttlMs !== undefined && maxTtlMs > 0 && ttlMs > maxTtlMs;
  const denial = tooLong ? undefined : capacityDenial(inUse, limits, wanted);
  const slotDenial = tooLong || denial !== undefined ? undefined : await options.pool?.denial();
  if (slotDenial?.reason === "slot_elsewhere") throw slotElsewhere(slotDenial);
  const poolFull = slotDenial !== undefined;
  const mayWait = (overflow: "reject" | "queue" | undefined) => overflow === "queue" && options.queueHasPlace;
  const queueable = poolFull
    ? mayWait(options.pool?.overflow)
    : denial !== undefined && !denial.hopeless && mayWait(options.overflow);
  const reason = tooLong ? "max_ttl" : poolFull ? "pool_full" : (denial?.reason ?? "");
  return {
    allowed: !refused && !tooLong && denial === undefined && !poolFull,
    queueable: !refused && queueable,
    reason: refused ? "worker_unavailable" : reason,
    activeSandboxes: inUse.all.sandboxes,
    maxSandboxes: limits.all.sandboxes,
    activeOwnerSandboxes: inUse.owner.sandboxes,
    maxOwnerSandboxes: limits.owner.sandboxes,
    maxTtlMs,
  };
}

/** What a reservation would be denied for now; reserves nothing. */
export async function foreseenDenial(
  {
    store,
    limits,
    slot,
  }: {
    store: Pick<Store, "sandboxes">;
    limits: OwnerLimits;
    /** Absent: no pool. */
    slot?: () => Promise<SlotDenial | undefined>;
  },
  wanted: { ownerId: string; name: string | null; memoryMb: number; vcpus: number },
): Promise<ReserveDenied | undefined> {
  const [namesake, inUse] = await Promise.all([
    wanted.name === null ? undefined : store.sandboxes.named(wanted.ownerId, wanted.name),
    store.sandboxes.inUse(wanted.ownerId),
  ]);
  if (namesake !== undefined) return { admitted: false, reason: "name_taken", sandboxId: namesake.id };
  const denial = capacityDenial(inUse, limits, wanted);
  if (denial !== undefined) return { admitted: false, ...denial, inUse, limits };
  const slotDenial = await slot?.();
  if (slotDenial?.reason === "slot_elsewhere") return { admitted: false, ...slotDenial };
  return slotDenial && { admitted: false, ...slotDenial, hopeless: false, inUse, limits };
}

const units: Record<Exclude<CapacityReason, "pool_full">, { of: keyof Capacity; words: string }> = {
  max_sandboxes: { of: "sandboxes", words: "sandboxes" },
  max_sandboxes_per_owner: { of: "sandboxes", words: "sandboxes" },
  max_memory_mb: { of: "memoryMb", words: "MB of memory" },
  max_memory_mb_per_owner: { of: "memoryMb", words: "MB of memory" },
  max_vcpus: { of: "vcpus", words: "virtual processors" },
  max_vcpus_per_owner: { of: "vcpus", words: "virtual processors" },
};

/** What bounds those of all sandboxes. */
const boundBy: Record<keyof Capacity, string> = {
  sandboxes: "defaults.max_sandboxes",
  memoryMb: "defaults.max_memory_mb, else the machine's memory times defaults.memory_overcommit",
  vcpus: "defaults.max_vcpus, else the machine's processors times defaults.vcpu_overcommit",
};

/** What a spawn asks for them with, and at least how much. */
const sizes = {
  memoryMb: { field: "memory_mb", least: leastMemoryMb },
  vcpus: { field: "vcpus", least: 1 },
} as const;

/** A living sandbox of the owner has the name. */
export class NameTaken extends Conflict {}

function slotElsewhere({ provider }: { provider: string }): Conflict {
  return new Conflict(
    `this user's slot in the pool is on provider "${provider}"; spawn there, or destroy the user's sandboxes first`,
  );
}

/** Words for a denial. @param defaults what a sandbox takes that does not say. */
export function denied(
  ownerId: string,
  result: ReserveDenied,
  defaults: Pick<Capacity, "memoryMb" | "vcpus">,
): DomainError {
  if (result.reason === "name_taken") {
    return new NameTaken(
      `sandbox "${result.sandboxId}" has this name already; use that one (POST /sandboxes/acquire, alcove acquire), destroy it or choose another name`,
    );
  }
  if (result.reason === "slot_elsewhere") return slotElsewhere(result);
  if (result.reason === "pool_full") {
    return new Unavailable("every VM of the pool has all the users it may have; try again later", {
      details: { reason: result.reason },
      retryAfterS: capacityRetryS,
    });
  }
  const { of, words } = units[result.reason];
  const all = !isOfOwner(result.reason);
  const [limit, used] = all
    ? [result.limits.all[of], result.inUse.all[of]]
    : [result.limits.owner[of], result.inUse.owner[of]];
  const who = all ? "this service" : `owner "${ownerId}"`;
  const size = of === "sandboxes" ? undefined : { ...sizes[of], byDefault: defaults[of] };
  const bound = all ? `; its bound is ${boundBy[of]}` : "";
  const byDefault =
    size === undefined || size.byDefault <= size.least
      ? ""
      : `; a sandbox has ${size.byDefault} unless its ${size.field} asks for less`;
  if (result.hopeless) {
    return new ResourceLimit(
      `${who} may hold ${limit} ${words} in all, fewer than this sandbox asks for${bound}${byDefault}`,
      {
        details: { reason: result.reason },
      },
    );
  }
  return new ResourceLimit(
    `${who} may hold ${limit} ${words} and has ${used}${bound}${byDefault}; destroy a sandbox or try again later`,
    { details: { reason: result.reason }, retryAfterS: capacityRetryS },
  );
}
