import { DatabaseSync } from "node:sqlite";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Unavailable } from "../../ports/errors.ts";
import { GroupCommit } from "./group-commit.ts";

let db: DatabaseSync;
beforeEach(() => {
  db = new DatabaseSync(":memory:");
  db.exec("CREATE TABLE kept (n INTEGER PRIMARY KEY) STRICT");
});
afterEach(() => db.close());

const insert = (n: number) => db.prepare("INSERT INTO kept (n) VALUES (?)").run(n);
const kept = () =>
  db
    .prepare("SELECT n FROM kept ORDER BY n")
    .all()
    .map(({ n }) => n);

describe("GroupCommit", () => {
  it("undoes a write that throws with all of its statements, and keeps the others of its batch", async () => {
    const commit = new GroupCommit(db);
    const outcomes = await Promise.allSettled([
      commit.write(() => insert(1)),
      commit.write(() => {
        insert(2);
        insert(3);
        throw new Error("third thoughts");
      }),
      commit.write(() => insert(4)),
    ]);
    expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect(kept()).toEqual([1, 4]);
  });

  it("ends a batch after some milliseconds and lets the event loop turn before the next", async () => {
    let nowMs = 0;
    const commit = new GroupCommit(db, { nowMs: () => nowMs });
    const turns: number[] = [];
    let turn = 0;
    let counting = true;
    const count = () => {
      turn++;
      if (counting) setImmediate(count);
    };
    setImmediate(count);
    const slowWrite = (n: number) => () => {
      nowMs += 4;
      turns.push(turn);
      insert(n);
    };
    await Promise.all(Array.from({ length: 12 }, (_, n) => commit.write(slowWrite(n))));
    counting = false;
    expect(kept()).toHaveLength(12);
    expect(new Set(turns).size).toBe(4);
  });

  it("waits for the disk with a batch in which something is to outlive a power cut, and with no other", async () => {
    db.exec("PRAGMA synchronous = NORMAL");
    const commit = new GroupCommit(db);
    const level = () => Number(db.prepare("PRAGMA synchronous").get()?.synchronous);
    const [normal, full] = [1, 2];
    expect(await commit.write(level)).toBe(normal);
    const together = [commit.write(level), commit.write(level, { lasting: true })];
    expect(await Promise.all(together)).toEqual([full, full]);
    expect(await commit.write(level)).toBe(normal);
    const failing = () => {
      throw new Error("no");
    };
    await expect(commit.write(failing, { lasting: true })).rejects.toThrow("no");
    expect(level()).toBe(normal);
  });

  it("commits everything at once when it is closed, and refuses what comes later", async () => {
    let nowMs = 0;
    const commit = new GroupCommit(db, { nowMs: () => (nowMs += 20) });
    const writes = [1, 2, 3].map((n) => commit.write(() => insert(n)));
    const follows = writes[2]?.then(() => commit.write(() => insert(4)));
    commit.close();
    expect(kept()).toEqual([1, 2, 3]);
    await Promise.all(writes);
    await expect(follows).rejects.toThrow(Unavailable);
    await expect(commit.write(() => insert(5))).rejects.toThrow("the database is closed");
  });

  it("commits nothing while it is held, then everything in its order, and at once when it is closed", async () => {
    const commit = new GroupCommit(db);
    let batches = 0;
    commit.onCommit = () => void batches++;
    const held = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    for (const { promise } of held) commit.holdUntil(promise);
    const writes = [1, 2].map((n) => commit.write(() => insert(n)));
    const turn = () => new Promise((resolve) => setImmediate(resolve));
    await turn();
    held[0]?.resolve();
    await turn();
    expect([kept(), batches]).toEqual([[], 0]);
    held[1]?.reject(new Error("ended otherwise"));
    await Promise.all(writes);
    expect([kept(), batches]).toEqual([[1, 2], 1]);
    commit.holdUntil(new Promise(() => undefined));
    const last = commit.write(() => insert(3));
    commit.close();
    await last;
    expect(kept()).toEqual([1, 2, 3]);
  });

  it("rejects what waits when the database is closed under it", async () => {
    const closed = new DatabaseSync(":memory:");
    const commit = new GroupCommit(closed);
    const write = commit.write(() => undefined);
    closed.close();
    await expect(write).rejects.toThrow("database is not open");
  });
});
