import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { PoolInUse, PoolRules, PoolSlot, SandboxRow, SlotDenial } from "../../ports/store.ts";

/** Below it are the users that images know. */
const firstUid = 10_001;

/** Slots of the pool. A slot is what the rows of its user's living sandboxes say; triggers count them as they change. */
export class SqlitePool {
  readonly #own: StatementSync;
  readonly #roomy: StatementSync;
  readonly #uids: StatementSync;
  readonly #vms: StatementSync;
  readonly #inUse: StatementSync;

  constructor(db: DatabaseSync) {
    // Who had two before a user had one goes on with that of the provider asked for.
    this.#own = db.prepare(`
      SELECT vm AS vmId, uid, provider FROM pool_users WHERE owner_id = ? ORDER BY provider <> ?, vm LIMIT 1`);
    this.#roomy = db.prepare(`
      SELECT vm AS vmId FROM pool_vms WHERE provider = ? AND users < ? ORDER BY users DESC, vm LIMIT 1`);
    // One whose end is not confirmed keeps its id to itself.
    this.#uids = db.prepare(`
      SELECT DISTINCT pool_uid AS uid FROM sandboxes
      WHERE pool_vm IS NOT NULL AND state <> 'destroyed' AND pool_vm = ?`);
    this.#vms = db.prepare("SELECT count(*) AS vms FROM pool_vms");
    this.#inUse = db.prepare(`
      SELECT (SELECT count(*) FROM pool_vms) AS vms, (SELECT count(DISTINCT owner_id) FROM pool_users) AS users`);
  }

  slotFor(
    row: Pick<SandboxRow, "ownerId" | "provider">,
    pool: PoolRules & { newVmId: string },
  ): PoolSlot | SlotDenial {
    const own = this.#own.get(row.ownerId, row.provider) as (PoolSlot & { provider: string }) | undefined;
    if (own !== undefined) {
      const { provider, vmId, uid } = own;
      return provider === row.provider ? { vmId, uid } : { reason: "slot_elsewhere", provider };
    }
    const roomy = this.#roomy.get(row.provider, pool.maxUsersPerVm) as { vmId: string } | undefined;
    if (roomy !== undefined) return { vmId: roomy.vmId, uid: this.#freeUid(roomy.vmId) };
    const { vms } = this.#vms.get() as unknown as { vms: number };
    return vms < pool.maxVms ? { vmId: pool.newVmId, uid: firstUid } : { reason: "pool_full" };
  }

  inUse(): PoolInUse {
    return { ...(this.#inUse.get() as unknown as PoolInUse) };
  }

  #freeUid(vmId: string): number {
    const taken = new Set((this.#uids.all(vmId) as unknown as { uid: number }[]).map(({ uid }) => uid));
    let uid = firstUid;
    while (taken.has(uid)) uid++;
    return uid;
  }
}
