import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { PoolInUse, PoolRules, PoolSlot, SandboxRow } from "../../ports/store.ts";

/** Below it are the users that images know. */
const firstUid = 10_001;

const inPool = "pool_vm IS NOT NULL AND state <> 'destroyed'";
const living = "state IN ('creating', 'running', 'unhealthy')";

/** Slots of the pool. There is no table of them: a slot is what the rows of its user's living sandboxes say. */
export class SqlitePool {
  readonly #own: StatementSync;
  readonly #vms: StatementSync;
  readonly #uids: StatementSync;
  readonly #inUse: StatementSync;

  constructor(db: DatabaseSync) {
    this.#own = db.prepare(`
      SELECT pool_vm AS vmId, pool_uid AS uid FROM sandboxes
      WHERE ${inPool} AND ${living} AND owner_id = ? AND provider = ? LIMIT 1`);
    this.#vms = db.prepare(`
      SELECT pool_vm AS vmId, min(provider) AS provider, count(DISTINCT owner_id) AS users FROM sandboxes
      WHERE ${inPool} AND ${living} GROUP BY pool_vm ORDER BY users DESC, pool_vm`);
    // One whose end is not confirmed keeps its id to itself.
    this.#uids = db.prepare(`SELECT DISTINCT pool_uid AS uid FROM sandboxes WHERE ${inPool} AND pool_vm = ?`);
    this.#inUse = db.prepare(`
      SELECT count(DISTINCT pool_vm) AS vms, count(DISTINCT owner_id) AS users FROM sandboxes
      WHERE ${inPool} AND ${living}`);
  }

  /** @returns undefined when the pool is full. */
  slotFor(
    row: Pick<SandboxRow, "ownerId" | "provider">,
    pool: PoolRules & { newVmId: string },
  ): PoolSlot | undefined {
    const own = this.#own.get(row.ownerId, row.provider) as unknown as PoolSlot | undefined;
    if (own !== undefined) return { ...own };
    const vms = this.#vms.all() as unknown as { vmId: string; provider: string; users: number }[];
    const roomy = vms.find(({ provider, users }) => provider === row.provider && users < pool.maxUsersPerVm);
    if (roomy !== undefined) return { vmId: roomy.vmId, uid: this.#freeUid(roomy.vmId) };
    return vms.length < pool.maxVms ? { vmId: pool.newVmId, uid: firstUid } : undefined;
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
