import type { AdmissionReason } from "@alcove/wire";
import type { QuotaRow } from "./quota-store.ts";

/** What sandboxes take up together; as a limit, 0 means none. */
export interface Capacity {
  sandboxes: number;
  memoryMb: number;
  vcpus: number;
}

/** What all sandboxes and those of one owner may take up. */
export interface CapacityLimits {
  all: Capacity;
  owner: Capacity;
}

/** What is taken up now, of states that count. For sandboxes of nobody the owner's part is zero. */
export interface CapacityInUse {
  all: Capacity;
  owner: Capacity;
}

/** What an owner may hold, as it stands when it is asked. */
export interface CapacityRules {
  /** @param quota the owner's own, as the store has it now. */
  of(ownerId: string, quota: QuotaRow | undefined): CapacityLimits;
}

export const noCapacityLimit: Capacity = { sandboxes: 0, memoryMb: 0, vcpus: 0 };
/** Everybody may hold everything. */
export const noCapacityLimits: CapacityRules = {
  of: () => ({ all: noCapacityLimit, owner: noCapacityLimit }),
};

export type CapacityReason = Extract<
  AdmissionReason,
  | "max_sandboxes"
  | "max_memory_mb"
  | "max_vcpus"
  | "max_sandboxes_per_owner"
  | "max_memory_mb_per_owner"
  | "max_vcpus_per_owner"
  | "pool_full"
>;

export interface CapacityDenial {
  reason: CapacityReason;
  /** It asks for more than the limit itself: no waiting helps. */
  hopeless: boolean;
}

/**
 * Which limit one more sandbox would exceed, the owner's before those of all: what others give back does not help an owner
 * that has all it may have. Undefined: none.
 */
export function capacityDenial(
  inUse: CapacityInUse,
  limits: CapacityLimits,
  wanted: { ownerId: string; memoryMb: number; vcpus: number },
): CapacityDenial | undefined {
  const { all, owner } = inUse;
  const { memoryMb, vcpus } = wanted;
  const rows: [CapacityReason, used: number, more: number, limit: number][] = [
    ["max_sandboxes", all.sandboxes, 1, limits.all.sandboxes],
    ["max_memory_mb", all.memoryMb, memoryMb, limits.all.memoryMb],
    ["max_vcpus", all.vcpus, vcpus, limits.all.vcpus],
  ];
  if (wanted.ownerId !== "") {
    rows.push(
      ["max_sandboxes_per_owner", owner.sandboxes, 1, limits.owner.sandboxes],
      ["max_memory_mb_per_owner", owner.memoryMb, memoryMb, limits.owner.memoryMb],
      ["max_vcpus_per_owner", owner.vcpus, vcpus, limits.owner.vcpus],
    );
  }
  const exceeded = rows.filter(([, used, more, limit]) => limit > 0 && used + more > limit);
  // What can never be is said first: a spawn that waited for another limit would wait for nothing.
  const hopeless = exceeded.find(([, , more, limit]) => more > limit);
  const own = exceeded.find(([reason]) => isOfOwner(reason));
  const [reason] = hopeless ?? own ?? exceeded[0] ?? [];
  return reason === undefined ? undefined : { reason, hopeless: hopeless !== undefined };
}

/** Whether it is the owner that has all it may have. */
export function isOfOwner(reason: CapacityReason): boolean {
  return reason.endsWith("_per_owner");
}

/** Whether no other spawn would fit either. Of memory and processors others may ask for less. */
export function deniesAll(reason: CapacityReason): boolean {
  return reason === "max_sandboxes";
}
