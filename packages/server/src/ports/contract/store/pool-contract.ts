import { expect, it } from "vitest";
import { noCapacityLimits } from "../../capacity.ts";
import type { Fence, PoolSlot, SandboxRow, Store } from "../../store.ts";

const fence: Fence = { holder: "local", generation: 0 };
const rules = { maxVms: 2, maxUsersPerVm: 2 };

/** Slots of the pool: which VM a reservation is given, and as whom. */
export function poolContract(options: {
  store: () => Store;
  reopen: () => Promise<Store>;
  row: (change: Partial<SandboxRow>) => SandboxRow;
}): void {
  const { row } = options;
  let vms = 0;
  const place = async (change: Partial<SandboxRow>, most = rules) => {
    const made = row(change);
    const pool = { ...most, newVmId: `vm-${++vms}` };
    const outcome = await options
      .store()
      .sandboxes.reserve({ row: made, limits: noCapacityLimits, fence, pool });
    return { made, outcome, slot: outcome.admitted ? outcome.slot : undefined };
  };
  const end = async ({ made }: { made: SandboxRow }, state: "destroyed" | "expired" | "error") => {
    const change = {
      state,
      updatedAt: made.updatedAt,
      ...(state === "destroyed" && { destroyedAt: made.updatedAt }),
    };
    await options.store().sandboxes.update(made.id, ["creating", "expired"], change, fence);
  };
  const room = (ownerId: string, provider = "native") =>
    options
      .store()
      .sandboxes.poolDenial({ ownerId, provider, rules })
      .then((denial) => denial === undefined);

  it("gives each user a slot, its further sandboxes the same, and refuses one more when all are taken", async () => {
    const slots = new Map<string, PoolSlot | undefined>();
    for (const ownerId of ["a", "b", "c", "d"]) {
      expect(await room(ownerId)).toBe(true);
      slots.set(ownerId, (await place({ ownerId })).slot);
    }
    expect(slots.get("a")).toEqual({ vmId: expect.any(String), uid: 10_001 });
    expect(slots.get("b")).toEqual({ vmId: slots.get("a")?.vmId, uid: 10_002 });
    expect(slots.get("c")?.vmId).not.toBe(slots.get("a")?.vmId);
    expect(slots.get("d")?.vmId).toBe(slots.get("c")?.vmId);
    const again = await place({ ownerId: "a" });
    expect(again.slot).toEqual(slots.get("a"));
    expect(await options.store().sandboxes.get(again.made.id)).toEqual({ ...again.made, slot: again.slot });
    expect(await room("a")).toBe(true);
    expect(await room("e")).toBe(false);
    const refused = await place({ ownerId: "e" });
    expect(refused.outcome).toMatchObject({ admitted: false, reason: "pool_full", hopeless: false });
    expect(await options.store().sandboxes.get(refused.made.id)).toBeUndefined();
    expect(await options.store().sandboxes.poolInUse()).toEqual({ vms: 2, users: 4 });
  });

  it("frees a slot when the last sandbox in it has ended, after a restart too", async () => {
    const first = await place({ ownerId: "a" });
    const second = await place({ ownerId: "a" });
    const other = await place({ ownerId: "b" });
    await end(first, "destroyed");
    const store = await options.reopen();
    expect(await store.sandboxes.poolInUse()).toEqual({ vms: 1, users: 2 });
    await end(second, "expired");
    // Its end is not confirmed: its user goes on as the one it is, and nobody else is given its id.
    expect(await store.sandboxes.poolInUse()).toEqual({ vms: 1, users: 2 });
    expect((await place({ ownerId: "c" }, { maxVms: 1, maxUsersPerVm: 2 })).outcome).toMatchObject({
      reason: "pool_full",
    });
    const again = await place({ ownerId: "a" });
    expect(again.slot).toEqual(first.slot);
    await end(again, "destroyed");
    const third = await place({ ownerId: "c" }, { maxVms: 1, maxUsersPerVm: 3 });
    expect(third.slot).toEqual({ vmId: other.slot?.vmId, uid: 10_003 });
    await end(second, "destroyed");
    await end(third, "error");
    expect((await place({ ownerId: "d" })).slot).toEqual({ vmId: other.slot?.vmId, uid: 10_001 });
    expect(await store.sandboxes.poolInUse()).toEqual({ vms: 1, users: 2 });
  });

  it("keeps to both numbers when many ask at once", async () => {
    const owners = Array.from({ length: 60 }, (_, index) => `owner-${index % 20}`);
    const placed = await Promise.all(
      owners.map((ownerId) => place({ ownerId }, { maxVms: 3, maxUsersPerVm: 4 })),
    );
    const users = new Map<string, Set<string>>();
    for (const { made, slot } of placed) {
      if (slot === undefined) continue;
      users.set(slot.vmId, (users.get(slot.vmId) ?? new Set()).add(`${made.ownerId} ${slot.uid}`));
    }
    expect([...users.values()].map(({ size }) => size)).toEqual([4, 4, 4]);
    expect(placed.filter(({ slot }) => slot !== undefined)).toHaveLength(36);
    expect(await options.store().sandboxes.poolInUse()).toEqual({ vms: 3, users: 12 });
  });

  it("a VM is of one provider, and rows outside the pool take no slot", async () => {
    await place({ ownerId: "a", provider: "native" });
    await place({ ownerId: "b", provider: "docker" });
    expect(await options.store().sandboxes.poolInUse()).toEqual({ vms: 2, users: 2 });
    expect([await room("c", "docker"), await room("c", "mock")]).toEqual([true, false]);
    const outside = row({ ownerId: "c" });
    const outcome = await options
      .store()
      .sandboxes.reserve({ row: outside, limits: noCapacityLimits, fence });
    expect(outcome).toEqual({ admitted: true });
    expect(await options.store().sandboxes.poolInUse()).toEqual({ vms: 2, users: 2 });
  });

  it("gives a user no second slot on another provider, and one there once the first is free", async () => {
    const first = await place({ ownerId: "a", provider: "native" });
    const refused = await place({ ownerId: "a", provider: "docker" });
    expect(refused.outcome).toEqual({ admitted: false, reason: "slot_elsewhere", provider: "native" });
    expect(await options.store().sandboxes.get(refused.made.id)).toBeUndefined();
    const wanted = { ownerId: "a", provider: "docker", rules };
    expect(await options.store().sandboxes.poolDenial(wanted)).toEqual({
      reason: "slot_elsewhere",
      provider: "native",
    });
    expect(await options.store().sandboxes.poolInUse()).toEqual({ vms: 1, users: 1 });
    await end(first, "destroyed");
    expect(await options.store().sandboxes.poolDenial(wanted)).toBeUndefined();
    expect((await place({ ownerId: "a", provider: "docker" })).slot).toMatchObject({ uid: 10_001 });
  });
}
