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
>;

/** Which limit one more sandbox would exceed, those of all before the owner's; undefined: none. */
export function capacityDenial(
  inUse: CapacityInUse,
  limits: CapacityLimits,
  wanted: { ownerId: string; memoryMb: number; vcpus: number },
): CapacityReason | undefined {
  const { all, owner } = inUse;
  const over = (used: number, more: number, limit: number) => limit > 0 && used + more > limit;
  if (over(all.sandboxes, 1, limits.all.sandboxes)) return "max_sandboxes";
  if (over(all.memoryMb, wanted.memoryMb, limits.all.memoryMb)) return "max_memory_mb";
  if (over(all.vcpus, wanted.vcpus, limits.all.vcpus)) return "max_vcpus";
  if (wanted.ownerId === "") return undefined;
  if (over(owner.sandboxes, 1, limits.owner.sandboxes)) return "max_sandboxes_per_owner";
  if (over(owner.memoryMb, wanted.memoryMb, limits.owner.memoryMb)) return "max_memory_mb_per_owner";
  if (over(owner.vcpus, wanted.vcpus, limits.owner.vcpus)) return "max_vcpus_per_owner";
  return undefined;
}

/** Whether a denial is of everybody: then no other owner's turn would help. */
export function deniesAll(reason: CapacityReason): boolean {
  return reason === "max_sandboxes" || reason === "max_memory_mb" || reason === "max_vcpus";
}
