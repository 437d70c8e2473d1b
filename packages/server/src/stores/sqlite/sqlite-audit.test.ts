import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setImmediate } from "node:timers/promises";
import { afterEach, beforeEach, expect, test } from "vitest";
import { SqliteStore } from "./index.ts";
import { migrate, migrations } from "./migrations.ts";

const rows = 5_000;
let folder: string;
let store: SqliteStore;
beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "alcove-audit-"));
  store = await SqliteStore.open({ path: path.join(folder, "alcove.db") });
  await Promise.all(
    Array.from({ length: rows }, (_, index) =>
      store.audit.append({
        createdAt: new Date(index),
        actor: "known",
        method: "GET",
        path: "/x",
        status: 401,
        durationMs: 1,
        requestId: `r${index}`,
        remoteAddr: "",
        userAgent: "",
      }),
    ),
  );
});
afterEach(async () => {
  await store[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

/** How many turns of the event loop others get while `work` goes on. */
async function turnsDuring(work: Promise<unknown>): Promise<number> {
  let over = false;
  void work.finally(() => {
    over = true;
  });
  let turns = 0;
  while (!over) {
    await setImmediate();
    turns++;
  }
  await work;
  return turns;
}

test("a search that finds nothing gives others a turn after every few hundred records", async () => {
  expect(await turnsDuring(store.audit.list({ path: "nothing", limit: 10 }))).toBeGreaterThan(rows / 1_000);
  expect(await store.audit.list({ actor: "nobody", limit: 10 })).toEqual([]);
});

test("a search looks at each few hundred records in a turn, and ends with its caller", async () => {
  let turns = 0;
  const turn = async () => void turns++;
  expect(await store.audit.list({ actor: "nobody", limit: 10 }, { turn })).toEqual([]);
  expect(turns).toBeGreaterThanOrEqual(rows / 500);
  turns = 0;
  const caller = new AbortController();
  const leave = async () => {
    if (++turns === 3) caller.abort(new Error("gone"));
  };
  const search = { turn: leave, signal: caller.signal };
  await expect(store.audit.list({ actor: "nobody", limit: 10 }, search)).rejects.toThrow("gone");
  expect(turns).toBe(3);
});

test("what a search finds is the same across slices, newest first", async () => {
  const found = await store.audit.list({ status: 401, until: new Date(rows - 600), limit: 1_200 });
  expect(found.map(({ requestId }) => requestId)).toEqual(
    Array.from({ length: 1_200 }, (_, index) => `r${rows - 600 - index}`),
  );
});

test("forgetting goes in slices, by age and by number, and looks at nothing when there is nothing to forget", async () => {
  const old = store.audit.purge({ before: new Date(1_000), keep: 100_000 });
  expect(await turnsDuring(old)).toBeGreaterThan(10);
  expect(await old).toBe(1_000);
  expect(await store.audit.purge({ before: new Date(0), keep: 3_000 })).toBe(1_000);
  expect(await store.audit.purge({ before: new Date(0), keep: 3_000 })).toBe(0);
  const left = await store.audit.list({ limit: 10_000 });
  expect([left.length, left.at(-1)?.requestId]).toEqual([3_000, "r2000"]);
  expect(await store.audit.purge({ before: new Date(0), keep: 0 })).toBe(3_000);
  expect(await store.audit.list({ limit: 1 })).toEqual([]);
});

test("strangers have a share of their own, and push out nobody's record", async () => {
  // What makes a record a stranger's is how it is written, not who is named.
  const actorOf = (index: number) => (index % 2 === 0 ? "anonymous" : "bound");
  const stranger = (index: number, ofStrangers: number) =>
    store.audit.append(
      {
        createdAt: new Date(rows + index),
        actor: actorOf(index),
        method: "GET",
        path: "/x",
        status: 401,
        durationMs: 1,
        requestId: `s${index}`,
        remoteAddr: "",
        userAgent: "",
      },
      { refused: true, ofStrangers },
    );
  await Promise.all(Array.from({ length: 2_000 }, (_, index) => stranger(index, 300)));
  const strangers = await store.audit.list({ since: new Date(rows), limit: 10_000 });
  expect(strangers.map(({ requestId }) => requestId)).toEqual(
    Array.from({ length: 300 }, (_, index) => `s${1_999 - index}`),
  );
  expect(await store.audit.list({ actor: "known", limit: 10_000 })).toHaveLength(rows);
  expect(await store.audit.purge({ before: new Date(0), keep: 1_000, ofStrangers: 100 })).toBe(4_300);
  const left = await store.audit.list({ limit: 10_000 });
  expect(left.map(({ actor }) => actor).sort()).toEqual([
    ...Array.from({ length: 50 }, () => "anonymous"),
    ...Array.from({ length: 50 }, () => "bound"),
    ...Array.from({ length: 900 }, () => "known"),
  ]);
  expect(left.at(-1)?.requestId).toBe(`r${rows - 900}`);
});

test("records of an earlier release are strangers' where nobody is named, and counted as they were", async () => {
  const file = path.join(folder, "earlier.db");
  const db = new DatabaseSync(file);
  const before = migrations.findIndex((step) => step.includes("ADD COLUMN stranger"));
  migrate(db, { path: file, steps: migrations.slice(0, before) });
  const insert = db.prepare(`
    INSERT INTO audit (created_at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent)
    VALUES (1, ?, 'GET', '/x', 401, 1, '', '', '')`);
  for (const actor of ["anonymous", "known", "anonymous", "anonymous", "known"]) insert.run(actor);
  db.close();
  await using earlier = await SqliteStore.open({ path: file });
  expect(await earlier.audit.purge({ before: new Date(0), keep: 3, ofStrangers: 1 })).toBe(2);
  const left = await earlier.audit.list({ limit: 10 });
  expect(left.map(({ id, actor }) => `${id} ${actor}`)).toEqual(["5 known", "4 anonymous", "2 known"]);
});
