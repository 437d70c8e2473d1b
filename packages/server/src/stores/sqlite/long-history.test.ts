import { mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { expect, test } from "vitest";
import { noCapacityLimits } from "../../ports/capacity.ts";
import type { RuntimeId, SandboxId } from "../../ports/ids.ts";
import type { SandboxRow } from "../../ports/store.ts";
import { SqliteStore } from "./sqlite-store.ts";

const owners = 10;
const day = 86_400_000;

/** The longest time for which nothing else could have its turn. */
function longestTurn(): { readonly ms: number; stop(): void } {
  let longest = 0;
  let last = performance.now();
  const timer = setInterval(() => {
    longest = Math.max(longest, performance.now() - last - 5);
    last = performance.now();
  }, 5);
  return {
    get ms() {
      return longest;
    },
    stop: () => clearInterval(timer),
  };
}

/** One sandbox that was made and destroyed, so many times. */
async function pileUpDestroyed(
  store: SqliteStore,
  { file, count }: { file: string; count: number },
): Promise<void> {
  const id = "sb-0" as SandboxId;
  const fence = { holder: "local", generation: 0 };
  const row: SandboxRow = {
    id,
    runtimeId: "rt-0" as RuntimeId,
    state: "creating",
    provider: "mock",
    workerId: "local",
    image: "host",
    imageResolved: null,
    memoryMb: 512,
    vcpus: 1,
    ownerId: "",
    name: null,
    metadata: {},
    env: {},
    user: null,
    workdir: null,
    network: null,
    createdAt: new Date(0),
    expiresAt: new Date(1),
    updatedAt: new Date(0),
    endsItselfAt: null,
    destroyedAt: null,
    destroyRequested: false,
    error: null,
  };
  await store.sandboxes.reserve({ row, limits: noCapacityLimits, fence });
  const gone = { state: "destroyed", destroyedAt: new Date(1), updatedAt: new Date(1) } as const;
  await store.sandboxes.update(id, ["creating"], gone, fence);
  using db = new DatabaseSync(file);
  const columns = (db.prepare("PRAGMA table_info(sandboxes)").all() as { name: string }[]).map(
    ({ name }) => name,
  );
  const values = columns.map((name) =>
    name === "id" || name === "runtime_id" ? `${name} || '-' || i` : name,
  );
  db.exec(`
    WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ${count})
    INSERT INTO sandboxes (${columns.join(", ")}) SELECT ${values.join(", ")} FROM n, sandboxes WHERE id = 'sb-0'`);
}

async function databaseBytes(file: string): Promise<number> {
  const sizes = await Promise.all([file, `${file}-wal`].map((name) => stat(name).catch(() => ({ size: 0 }))));
  return sizes.reduce((all, { size }) => all + size, 0);
}

test("a million events pass through a database that stays small, and as fast as it was", {
  timeout: 120_000,
}, async () => {
  await using stack = new AsyncDisposableStack();
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-history-"));
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const file = path.join(folder, "alcove.db");
  const store = stack.use(await SqliteStore.open({ path: file }));
  const [total, batch, keep] = [1_000_000, 2_000, 10_000];
  let atKeep = 0;
  const timeOf = async (task: () => Promise<unknown>) => {
    const startedMs = performance.now();
    for (let times = 0; times < 20; times++) await task();
    return (performance.now() - startedMs) / 20;
  };
  const looks = async () => {
    const afterId = (await store.events.lastId()) - 1_000;
    return await timeOf(() => store.events.list({ afterId, ownerId: "owner-1", limit: 100 }));
  };
  let early = 0;
  for (let made = 0; made < total; made += batch) {
    const events = Array.from({ length: batch }, (_, index) => ({
      type: "exec.completed" as const,
      sandboxId: `sb-${made + index}`,
      ownerId: `owner-${index % owners}`,
      timestamp: new Date(made + index),
      data: { exec_id: "ex-0123456789ab", exit_code: 0 },
    }));
    await store.events.append(events);
    await store.events.trim(keep);
    if (made === 50_000) {
      atKeep = await databaseBytes(file);
      early = await looks();
    }
  }
  await store.events.trim(keep);
  expect(await store.events.kept()).toBe(keep);
  expect(await databaseBytes(file)).toBeLessThan(atKeep * 1.5);
  expect(await looks()).toBeLessThan(Math.max(early * 10, 5));
  expect((await store.events.list({ afterId: 0, limit: 1 })).forgotten.upto).toBeGreaterThan(
    total - 2 * keep,
  );
});

test("what has piled up is forgotten by age, a slice at a time", { timeout: 120_000 }, async () => {
  await using stack = new AsyncDisposableStack();
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-history-"));
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const file = path.join(folder, "alcove.db");
  const store = stack.use(await SqliteStore.open({ path: file }));
  const count = 200_000;
  for (let made = 0; made < count; made += 1_000)
    await store.events.append(
      Array.from({ length: 1_000 }, (_, index) => ({
        type: "exec.completed" as const,
        sandboxId: "sb-1",
        ownerId: `owner-${index % owners}`,
        timestamp: new Date(made + index < count - 5_000 ? 0 : 10 * day),
      })),
    );
  {
    // As a release would have left them that forgot nothing.
    using db = new DatabaseSync(file);
    db.exec(`
      WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
      INSERT INTO audit (created_at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, stranger)
      SELECT 0, 'admin', 'GET', '/api/v1/admin/quotas', 200, 1, 'req-' || i, '::1', '', 0 FROM n`);
  }
  const destroyed = 20_000;
  await pileUpDestroyed(store, { file, count: destroyed });
  const turns = longestTurn();
  const before = new Date(5 * day);
  const [events, audit, sandboxes] = await Promise.all([
    store.events.purge({ before }),
    store.audit.purge({ before, keep: 100_000 }),
    store.sandboxes.purge({ before, keep: 100_000 }),
  ]);
  turns.stop();
  expect([events, audit, sandboxes]).toEqual([count - 5_000, 100_000, destroyed]);
  expect(await store.events.kept()).toBe(5_000);
  const page = await store.events.list({ afterId: 0, limit: 1 });
  expect([page.events[0]?.id, page.forgotten.upto]).toEqual([String(count - 5_000 + 1), count - 5_000]);
  expect((await store.events.list({ afterId: 0, ownerId: "owner-3", limit: 1 })).forgotten).toEqual({
    upto: count - 5_000 - owners + 4,
    atMost: (count - 5_000) / owners,
  });
  expect(await store.events.purge({ before })).toBe(0);
  // A busy machine adds to it; one transaction over everything takes seconds.
  expect(turns.ms).toBeLessThan(500);
  const leaving = AbortSignal.abort(new Error("stop"));
  await expect(store.events.purge({ before, signal: leaving })).rejects.toThrow("stop");
  // The room is used again.
  const size = await databaseBytes(file);
  for (let made = 0; made < 100_000; made += 1_000)
    await store.events.append(
      Array.from({ length: 1_000 }, () => ({
        type: "exec.completed" as const,
        sandboxId: "sb-1",
        ownerId: "owner-1",
        timestamp: new Date(10 * day),
      })),
    );
  expect(await databaseBytes(file)).toBeLessThan(size * 1.2);
});
