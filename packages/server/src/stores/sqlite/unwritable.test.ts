import { mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { longestTurnMs, TurnWatch } from "../../../test/support/turn-watch.ts";
import { FakeClock } from "../../core/testing/fake-clock.ts";
import { forever, Harness } from "../../core/testing/harness.ts";
import { Unavailable } from "../../ports/errors.ts";
import { SqliteStore } from "./sqlite-store.ts";

let home: string;
let turns: TurnWatch;
beforeEach(() => {
  turns = new TurnWatch();
  home = mkdtempSync(path.join(tmpdir(), "alcove-unwritable-"));
});
afterEach(() => {
  vi.restoreAllMocks();
  rmSync(home, { recursive: true });
  turns[Symbol.dispose]();
  expect(turns.longestMs).toBeLessThan(longestTurnMs);
});

/** A store, and the connection it made. */
async function opened(): Promise<{ store: SqliteStore; db: DatabaseSync }> {
  const exec = vi.spyOn(DatabaseSync.prototype, "exec");
  const store = await SqliteStore.open({ path: path.join(home, "alcove.db") });
  const db = exec.mock.contexts[0];
  exec.mockRestore();
  if (!(db instanceof DatabaseSync)) throw new Error("the store has made no connection");
  return { store, db };
}

/** Linux lets nobody make a file system read-only while a file is open for writing: SQLite itself refuses here. */
it("refuses what has to be written as unavailable while it cannot, undoes it, and goes on once it can", async () => {
  const { store, db } = await opened();
  await using _closed = store;
  await using h = await new Harness({ store, clock: new FakeClock() }).start();
  const kept = await h.spawn();
  db.exec("PRAGMA query_only = ON");
  await expect(h.spawn()).rejects.toThrow(Unavailable);
  await expect(h.service.extend(kept.id, 3_600_000, { signal: forever })).rejects.toThrow(Unavailable);
  expect(h.provider.backend.runtimes.size).toBe(1);
  expect(h.service.running(kept.id).row).toEqual(kept);
  await expect(h.service.destroy(kept.id, { signal: forever })).rejects.toThrow(Unavailable);
  db.exec("PRAGMA query_only = OFF");
  expect((await h.spawn()).state).toBe("running");
  await h.service.destroy(kept.id, { signal: forever });
  expect((await store.sandboxes.get(kept.id))?.state).toBe("destroyed");
  expect(h.provider.backend.runtimes.size).toBe(1);
  expect(await store.sandboxes.listLive()).toHaveLength(1);
});

function logged() {
  const lines: string[] = [];
  const log = (_fields: object, message: string) => void lines.push(message);
  return { lines, logger: { error: log, info: log } };
}

it("is told as unwritable from the write that fails, or a look, to the one that succeeds", async () => {
  const { store, db } = await opened();
  await using _closed = store;
  const { lines, logger } = logged();
  await using watch = await store.watch({ logger });
  await watch.look();
  expect(watch.refusal).toBeUndefined();
  db.exec("PRAGMA query_only = ON");
  await watch.look();
  await watch.look();
  expect(watch.refusal).toContain("the database cannot be written");
  db.exec("PRAGMA query_only = OFF");
  await watch.look();
  expect(watch.refusal).toBeUndefined();
  expect(lines).toEqual([
    expect.stringContaining("cannot be written"),
    "what is written arrives in the database again",
  ]);
  await using h = await new Harness({ store, clock: new FakeClock() }).start();
  db.exec("PRAGMA query_only = ON");
  await expect(h.spawn()).rejects.toThrow(Unavailable);
  expect(watch.refusal).toContain("the database cannot be written");
  db.exec("PRAGMA query_only = OFF");
  await h.spawn();
  expect(watch.refusal).toBeUndefined();
});

it.each(["alcove.db", "alcove.db-wal"])(
  "%s that is removed or replaced is told until it is there again",
  async (name) => {
    const { store } = await opened();
    await using _closed = store;
    await store.changeSetting("name", "value");
    const { lines, logger } = logged();
    await using watch = await store.watch({ logger });
    const file = path.join(home, name);
    renameSync(file, `${file}.away`);
    await watch.look();
    await watch.look();
    expect(watch.refusal).toContain("a file of the database was removed or replaced");
    writeFileSync(file, "");
    await watch.look();
    expect(watch.refusal).toContain("a file of the database was removed or replaced");
    renameSync(`${file}.away`, file);
    await watch.look();
    expect(watch.refusal).toBeUndefined();
    expect(lines).toEqual([
      expect.stringContaining(`${file} was removed under the running service`),
      expect.stringContaining(`${file} was replaced under the running service`),
      "what is written arrives in the database again",
    ]);
  },
);
