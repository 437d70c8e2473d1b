import { DatabaseSync } from "node:sqlite";
import { expect, test } from "vitest";
import { migrate, migrations } from "./migrations.ts";
import { SqlitePool } from "./sqlite-pool.ts";

const rules = { maxVms: 3, maxUsersPerVm: 2, newVmId: "vm-new" };
const living = ["creating", "running", "unhealthy"];

interface Row {
  ownerId: string;
  vm: string | null;
  uid?: number;
  state?: string;
  provider?: string;
}

let rows = 0;
function insert(
  db: DatabaseSync,
  { ownerId, vm, uid = 10_001, state = "running", provider = "native" }: Row,
) {
  const id = `sb-${++rows}`;
  db.prepare(
    `INSERT INTO sandboxes (id, runtime_id, state, provider, worker_id, image, memory_mb, vcpus, owner_id, metadata, env,
      created_at, expires_at, updated_at, destroy_requested, pool_vm, pool_uid)
    VALUES (?, ?, ?, ?, 'local', 'i', 64, 1, ?, '{}', '{}', 0, 0, 0, 0, ?, ?)`,
  ).run(id, id, state, provider, ownerId, vm, vm === null ? null : uid);
  return id;
}

test("a database from before the counters has them counted", () => {
  using db = new DatabaseSync(":memory:");
  const counting = migrations.findIndex((step) => step.includes("CREATE TABLE pool_users"));
  migrate(db, { path: "", steps: migrations.slice(0, counting) });
  insert(db, { ownerId: "ann", vm: "vm-1" });
  insert(db, { ownerId: "ann", vm: "vm-1", state: "unhealthy" });
  insert(db, { ownerId: "bob", vm: "vm-1", uid: 10_002 });
  insert(db, { ownerId: "ann", vm: "vm-2", provider: "docker" });
  insert(db, { ownerId: "cyd", vm: "vm-2", uid: 10_002, state: "error", provider: "docker" });
  // What had expired was given another id than what came after it.
  insert(db, { ownerId: "bob", vm: "vm-1", uid: 10_001, state: "expired" });
  insert(db, { ownerId: "dan", vm: null });
  migrate(db);
  const pool = new SqlitePool(db);
  expect(pool.inUse()).toEqual({ vms: 2, users: 2 });
  expect(pool.slotFor({ ownerId: "bob", provider: "native" }, rules)).toEqual({ vmId: "vm-1", uid: 10_002 });
  // Two slots, from when there was one for each provider: they are kept until they are free.
  expect(pool.slotFor({ ownerId: "ann", provider: "docker" }, rules)).toEqual({ vmId: "vm-2", uid: 10_001 });
  expect(pool.slotFor({ ownerId: "ann", provider: "native" }, rules)).toEqual({ vmId: "vm-1", uid: 10_001 });
  expect(pool.slotFor({ ownerId: "eve", provider: "docker" }, rules)).toEqual({ vmId: "vm-2", uid: 10_003 });
  expect(pool.slotFor({ ownerId: "eve", provider: "native" }, rules)).toEqual({
    vmId: "vm-new",
    uid: 10_001,
  });
});

test("the counters say what the rows do, whatever happens to them", () => {
  using db = new DatabaseSync(":memory:");
  migrate(db);
  const ids: string[] = [];
  const states = [...living, "expired", "error", "destroyed"];
  const next = numbers();
  for (let step = 0; step < 600; step++) {
    const id = ids[next(ids.length)];
    if (id === undefined || next(3) === 0) {
      const vm = next(5) === 0 ? null : `vm-${next(4)}`;
      ids.push(insert(db, { ownerId: `owner-${next(6)}`, vm, state: states[next(6)] ?? "" }));
    } else if (next(6) === 0) db.prepare("DELETE FROM sandboxes WHERE id = ?").run(id);
    else db.prepare("UPDATE sandboxes SET state = ? WHERE id = ?").run(states[next(6)] ?? "", id);
    const users = db.prepare(`
      SELECT owner_id, pool_vm AS vm, count(*) AS sandboxes FROM sandboxes
      WHERE pool_vm IS NOT NULL AND (state IN ('${living.join("', '")}') OR (state = 'expired' AND runtime_ended = 0)) GROUP BY 1, 2 ORDER BY 1, 2`);
    const counted = db.prepare("SELECT owner_id, vm, sandboxes FROM pool_users ORDER BY 1, 2").all();
    expect(counted).toEqual(users.all());
    const vms = db.prepare("SELECT vm, count(*) AS users FROM pool_users GROUP BY 1 ORDER BY 1").all();
    expect(db.prepare("SELECT vm, users FROM pool_vms ORDER BY 1").all()).toEqual(vms);
  }
});

test("nothing that a slot costs grows with the rows of the pool", () => {
  using db = new DatabaseSync(":memory:");
  migrate(db);
  const statements: string[] = [];
  const prepare = db.prepare.bind(db);
  db.prepare = (sql: string) => {
    statements.push(sql);
    return prepare(sql);
  };
  void new SqlitePool(db);
  expect(statements).not.toEqual([]);
  for (const sql of statements) {
    const plan = prepare(`EXPLAIN QUERY PLAN ${sql}`).all() as { detail: string }[];
    for (const { detail } of plan.filter((step) => / sandboxes\b/.test(step.detail)))
      expect(detail, sql).toMatch(/^SEARCH .*\(pool_vm=\?/);
  }
});

/** The same each time. */
function numbers(): (below: number) => number {
  let seed = 1;
  return (below) => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % Math.max(below, 1);
  };
}
