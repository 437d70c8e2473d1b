import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { DatabaseSync, StatementSync } from "node:sqlite";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { storeContract } from "../../ports/contract/store-contract.ts";
import type { SandboxId } from "../../ports/ids.ts";
import { SqliteStore } from "./index.ts";
import { migrate, migrations } from "./migrations.ts";

storeContract("SQLite", () => {
  const directory = mkdtempSync(path.join(tmpdir(), "alcove-store-"));
  const file = path.join(directory, "alcove.db");
  return {
    create: () => SqliteStore.open({ path: file }),
    reopen: () => SqliteStore.open({ path: file }),
    cleanUp: async () => rmSync(directory, { recursive: true }),
  };
});

describe("SqliteStore", () => {
  let directory: string;
  let file: string;
  beforeEach(() => {
    directory = mkdtempSync(path.join(tmpdir(), "alcove-store-"));
    file = path.join(directory, "alcove.db");
  });
  afterEach(() => rmSync(directory, { recursive: true }));

  it("makes a file only its owner can read", async () => {
    await using _store = await SqliteStore.open({ path: file });
    expect(statSync(file).mode & 0o777).toBe(0o600);
  });

  it("gives the disk back what its log took while somebody else read the database", async () => {
    await using store = await SqliteStore.open({ path: file });
    const logMb = () => statSync(`${file}-wal`).size / 2 ** 20;
    const write = () => store.changeSetting("some", "x".repeat(4 << 20));
    {
      using reader = new DatabaseSync(file, { readOnly: true });
      reader.exec("BEGIN; SELECT count(*) FROM settings");
      for (let n = 0; n < 6; n++) await write();
      expect(logMb()).toBeGreaterThan(20);
    }
    // The first of them looks through the log, the next begins a new one.
    await write();
    await write();
    expect(logMb()).toBeLessThan(17);
  });

  it.each([
    ["of a format that SQLite does not know", 47, 9],
    ["that SQLite may only read", 18, 7],
  ])("names a file %s", async (_, offset, value) => {
    const db = new DatabaseSync(file);
    db.exec("CREATE TABLE some (value)");
    db.close();
    const bytes = readFileSync(file);
    bytes[offset] = value;
    writeFileSync(file, bytes);
    await expect(SqliteStore.open({ path: file })).rejects.toThrow(`the database ${file} cannot be opened (`);
  });

  it("refuses a database of a newer release and says so", async () => {
    await (await SqliteStore.open({ path: file }))[Symbol.asyncDispose]();
    const db = new DatabaseSync(file);
    db.exec("PRAGMA user_version = 99");
    db.close();
    await expect(SqliteStore.open({ path: file })).rejects.toThrow(/version 99.*newer release/);
  });

  it("leaves a database as it was when a migration fails", () => {
    const db = new DatabaseSync(file);
    const steps = ["CREATE TABLE a (x) STRICT", "CREATE TABLE b (x INTEGER) STRICT"];
    expect(() => migrate(db, { path: file, steps })).toThrow(/version 1/);
    migrate(db, { path: file, steps: ["CREATE TABLE a (x INTEGER) STRICT"] });
    const broken = ["CREATE TABLE a (x INTEGER) STRICT", "CREATE TABLE b (x INTEGER) STRICT; nonsense"];
    expect(() => migrate(db, { path: file, steps: broken })).toThrow(/version 2/);
    expect(db.prepare("PRAGMA user_version").get()).toEqual({ user_version: 1 });
    expect(db.prepare("SELECT name FROM sqlite_schema").all()).toEqual([{ name: "a" }]);
    db.close();
  });

  it("brings a database of the first release to today's shape, with its sandboxes, keys, events and counts", async () => {
    // A released step is never changed: databases out there were made by it.
    const first = migrations[0] ?? "";
    expect(createHash("sha256").update(first.replaceAll(/\s+/g, " ")).digest("hex")).toBe(
      "03d77063befbb2f94314395e66fac4aea21c03234e5775fa3ab6831c9832761b",
    );
    const db = new DatabaseSync(file);
    migrate(db, { path: file, steps: [first] });
    const insert = db.prepare(`
      INSERT INTO sandboxes (id, runtime_id, state, provider, worker_id, image, memory_mb, vcpus, owner_id, metadata, env,
        created_at, expires_at, updated_at, destroyed_at, destroy_requested)
      VALUES (?, ?, ?, 'native', 'local', 'host', 512, 1, ?, '{"a":"b"}', '{}', 1, 2, 3, ?, 0)`);
    const states = ["creating", "running", "unhealthy", "expired", "error", "destroyed"];
    for (const [n, state] of states.entries())
      for (const owner of ["", "acme"])
        insert.run(`sb-${n}${owner}`, `rt-${n}${owner}`, state, owner, state === "destroyed" ? 5 : null);
    db.exec(`
      INSERT INTO idempotency VALUES ('acme', 'k', 'h', 'sb-1acme', 9000), ('acme', 'nowhere', 'h', 'sb-gone', 9000);
      INSERT INTO events VALUES (41, 'sandbox.created', 'sb-1', 1, NULL), (42, 'sandbox.running', 'sb-1', 2, '{"n":1}');`);
    db.close();

    await using store = await SqliteStore.open({ path: file });
    expect(await store.sandboxes.inUse("acme")).toEqual({
      all: { sandboxes: 8, memoryMb: 4_096, vcpus: 8 },
      owner: { sandboxes: 4, memoryMb: 2_048, vcpus: 4 },
    });
    const running = await store.sandboxes.get("sb-1acme" as SandboxId);
    expect(running).toMatchObject({ state: "running", ownerId: "acme", metadata: { a: "b" } });
    const claim = (key: string) => store.idempotency.find({ ownerId: "acme", key, now: new Date(0) });
    expect(await claim("k")).toEqual({ bodyHash: "h", sandboxId: "sb-1acme" });
    expect(await claim("nowhere")).toBeUndefined();
    expect(await store.events.append([{ type: "exec.started", sandboxId: "", timestamp: new Date() }])).toBe(
      43,
    );
    expect(await store.sandboxes.purge({ before: new Date(0), keep: 1 })).toBe(1);
  });

  it("knows what was forgotten of the event history before it kept it by owner, as far as can be said", async () => {
    const db = new DatabaseSync(file);
    const before = migrations.findIndex((step) => step.includes("forgotten_upto"));
    const events = [
      [3, "gentle"],
      [8, "noisy"],
      [9, "noisy"],
      [10, "new"],
    ] as const;
    migrate(db, { path: file, steps: migrations.slice(0, before) });
    const insert = db.prepare("INSERT INTO events VALUES (?, 'exec.started', '', 1, NULL, ?)");
    const count = db.prepare("INSERT OR REPLACE INTO event_owners VALUES (?, 1)");
    for (const [id, owner] of events) {
      insert.run(id, owner);
      count.run(owner);
    }
    db.exec("UPDATE counters SET value = 10 WHERE name = 'events'");
    db.exec("UPDATE counters SET value = 4 WHERE name = 'events_kept'");
    db.close();
    await using store = await SqliteStore.open({ path: file });
    const upto = async (owner?: string) => {
      const whose = owner === undefined ? {} : { ownerId: owner };
      return (await store.events.list({ afterId: 0, limit: 1, ...whose })).forgotten;
    };
    // At 7 the last is missing: what came later is kept, whoever's it is.
    expect(await upto()).toEqual({ upto: 7, atMost: 6 });
    expect(await upto("gentle")).toEqual({ upto: 2, atMost: 2 });
    for (const owner of ["noisy", "new", "gone"]) expect(await upto(owner)).toEqual({ upto: 7, atMost: 7 });
  });

  it("keeps what was forgotten of a bounded number of owners without events, and says too much of others", async () => {
    await using store = await SqliteStore.open({ path: file });
    const owners = 1_200;
    await store.events.append(
      Array.from({ length: owners }, (_, n) => ({
        type: "exec.started" as const,
        sandboxId: "",
        ownerId: `owner ${n}`,
        timestamp: new Date(0),
      })),
    );
    await store.events.trim(0);
    const db = new DatabaseSync(file, { readOnly: true });
    expect(db.prepare("SELECT count(*) AS rows FROM event_owners").get()).toEqual({ rows: 1_000 });
    db.close();
    const forgotten = async (ownerId: string) =>
      (await store.events.list({ afterId: 0, limit: 1, ownerId })).forgotten;
    let exact = 0;
    for (let n = 0; n < owners; n++) {
      const { upto, atMost } = await forgotten(`owner ${n}`);
      expect(upto).toBeGreaterThanOrEqual(n + 1);
      expect(atMost).toBeGreaterThanOrEqual(1);
      if (upto === n + 1 && atMost === 1) exact++;
    }
    expect(exact).toBeGreaterThanOrEqual(1_000);
  });

  it("forgets with pauses of some milliseconds, in which others have their turn", async () => {
    await (await SqliteStore.open({ path: file }))[Symbol.asyncDispose]();
    const db = new DatabaseSync(file);
    const insert = db.prepare("INSERT INTO idempotency VALUES ('a', ?, 'h', 'sb-1', 5)");
    db.exec("BEGIN");
    for (let n = 0; n < 10_000; n++) insert.run(`k${n}`);
    db.exec("COMMIT");
    db.close();
    await using store = await SqliteStore.open({ path: file });
    const startedMs = performance.now();
    expect(await store.idempotency.purge(new Date(6))).toBe(10_000);
    const tookMs = performance.now() - startedMs;
    expect(tookMs).toBeGreaterThan(99 * 3.5);
  });

  it("finds sandboxes, counts and pages without walking through the table", async () => {
    await (await SqliteStore.open({ path: file }))[Symbol.asyncDispose]();
    const db = new DatabaseSync(file);
    const plan = (sql: string) =>
      db
        .prepare(`EXPLAIN QUERY PLAN ${sql}`)
        .all()
        .map(({ detail }) => detail)
        .join("; ");
    const order = "ORDER BY created_at DESC, id DESC LIMIT 5";
    const page = (where: string) =>
      `SELECT * FROM sandboxes WHERE ${where} AND (created_at, id) < (9, 'x') ${order}`;
    const owned = "owner_id = 'a' AND owner_id <> ''";
    expect(plan(page("true"))).toMatch(/USING INDEX sandboxes_newest/);
    expect(plan(page("state <> 'destroyed'"))).toMatch(/USING INDEX sandboxes_live/);
    expect(plan(page(owned))).toMatch(/USING INDEX sandboxes_owned /);
    expect(plan(page(`${owned} AND state <> 'destroyed'`))).toMatch(/USING INDEX sandboxes_owned_live/);
    for (const where of ["true", owned]) expect(plan(page(where))).not.toMatch(/TEMP B-TREE/);
    db.close();
  });

  it("reads a small page without walking through thousands of rows that would follow", async () => {
    // Statements keep the one that is there when they are made.
    const get = vi.spyOn(StatementSync.prototype, "get");
    await using store = await SqliteStore.open({ path: file });
    const db = new DatabaseSync(file);
    const insert = db.prepare(`
      INSERT INTO sandboxes (id, runtime_id, state, provider, worker_id, image, memory_mb, vcpus, owner_id, metadata,
        env, created_at, expires_at, updated_at, destroy_requested)
      VALUES (?, 'rt', 'running', ?, 'local', 'host', 512, 1, '', '{}', '{}', ?, 2, 3, 0)`);
    db.exec("BEGIN");
    for (let n = 0; n < 6_000; n++) insert.run(`sb-${n}`, n === 0 ? "mock" : "native", n + 1);
    db.exec("COMMIT");
    db.close();
    get.mockClear();
    const lookedAt = () => {
      const offsets = get.mock.calls.map(([values]) => (values as { offset?: number }).offset ?? 0);
      get.mockClear();
      return offsets.reduce((sum, offset) => sum + offset + 1, 0);
    };
    const states = ["running"] as const;
    const page = await store.sandboxes.list({ states, limit: 10 });
    expect(page.rows.map(({ id }) => id).slice(0, 2)).toEqual(["sb-5999", "sb-5998"]);
    expect(page.rows).toHaveLength(10);
    expect(lookedAt()).toBe(11);
    // Whoever finds nothing looks at many, and goes on from there.
    const none = await store.sandboxes.list({ states, provider: "mock", limit: 10 });
    expect(none).toMatchObject({ rows: [], next: { id: "sb-1000" } });
    expect(lookedAt()).toBe(5_000);
    const rest = await store.sandboxes.list({
      states,
      provider: "mock",
      limit: 10,
      ...(none.next && { after: none.next }),
    });
    expect(rest.rows.map(({ id }) => id)).toEqual(["sb-0"]);
    expect(rest.next).toBeUndefined();
    get.mockRestore();
  });

  it("finds the sandbox of a name that lives behind any number of others, living or once of that name", async () => {
    await using store = await SqliteStore.open({ path: file });
    const db = new DatabaseSync(file);
    const insert = db.prepare(`
      INSERT INTO sandboxes (id, runtime_id, state, provider, worker_id, image, memory_mb, vcpus, owner_id, name, metadata,
        env, created_at, expires_at, updated_at, destroyed_at, destroy_requested)
      VALUES (?, 'rt', ?, 'native', 'local', 'host', 512, 1, 'acme', ?, '{}', '{}', ?, 2, 3, 4, 0)`);
    db.exec("BEGIN");
    insert.run("sb-wanted", "running", "wanted", 1);
    for (let n = 0; n < 6_000; n++) insert.run(`sb-live-${n}`, "running", `other-${n}`, 2);
    for (let n = 0; n < 6_000; n++) insert.run(`sb-gone-${n}`, "destroyed", "wanted", 3);
    db.exec("COMMIT");
    db.close();
    for (const owner of [{}, { ownerId: "acme" }]) {
      const page = await store.sandboxes.list({ states: ["running"], name: "wanted", limit: 10, ...owner });
      expect(page.rows.map(({ id }) => id)).toEqual(["sb-wanted"]);
      expect(page.next).toBeUndefined();
    }
  });

  it("finds the sandboxes of a name, whatever their state, behind any number of others", async () => {
    const prepare = vi.spyOn(DatabaseSync.prototype, "prepare");
    await using store = await SqliteStore.open({ path: file });
    const walks = prepare.mock.calls
      .map(([sql]) => sql)
      .filter((sql) => /WHERE .*name = :name AND/.test(sql));
    prepare.mockRestore();
    const db = new DatabaseSync(file);
    const plans = walks.map((sql) =>
      db
        .prepare(`EXPLAIN QUERY PLAN ${sql}`)
        .all()
        .map(({ detail }) => detail)
        .join("; "),
    );
    const byName = /^SEARCH sandboxes USING (COVERING )?INDEX sandboxes_of_name \(name=\?/;
    const byOwnerAndName =
      /^SEARCH sandboxes USING (COVERING )?INDEX sandboxes_owned_of_name \(owner_id=\? AND name=\?/;
    const byNameLive = /^SEARCH sandboxes USING (COVERING )?INDEX sandboxes_live_of_name \(name=\?/;
    const byOwnerAndNameLive =
      /^SEARCH sandboxes USING (COVERING )?INDEX sandboxes_owned_live_of_name \(owner_id=\? AND name=\?/;
    const indexes = [byName, byNameLive, byOwnerAndName, byOwnerAndNameLive];
    const expected = indexes.flatMap((plan) => [expect.stringMatching(plan), expect.stringMatching(plan)]);
    expect(plans).toEqual(expected);
    expect(plans.join("; ")).not.toContain("TEMP B-TREE");
    const insert = db.prepare(`
      INSERT INTO sandboxes (id, runtime_id, state, provider, worker_id, image, memory_mb, vcpus, owner_id, name, metadata,
        env, created_at, expires_at, updated_at, destroyed_at, destroy_requested)
      VALUES (?, 'rt', 'destroyed', 'native', 'local', 'host', 512, 1, 'acme', ?, '{}', '{}', ?, 2, 3, 4, 0)`);
    db.exec("BEGIN");
    insert.run("sb-wanted", "wanted", 1);
    for (let n = 0; n < 6_000; n++) insert.run(`sb-${n}`, "another", 2);
    db.exec("COMMIT");
    db.close();
    const filter = { states: ["running", "destroyed"], name: "wanted", limit: 10 } as const;
    for (const owner of [{}, { ownerId: "acme" }]) {
      const page = await store.sandboxes.list({ ...filter, ...owner });
      expect(page.rows.map(({ id }) => id)).toEqual(["sb-wanted"]);
      expect(page.next).toBeUndefined();
    }
  });

  it("has kept every write that was answered when its process is killed", async () => {
    const index = JSON.stringify(fileURLToPath(new URL("./index.ts", import.meta.url)));
    const program = `
      const { SqliteStore } = await import(${index});
      const store = await SqliteStore.open({ path: process.argv[1] });
      store.checkpoints({ logger: console });
      for (let id = 1; ; id++) {
        await store.events.append([{ type: "exec.started", sandboxId: "", timestamp: new Date() }]);
        console.log(id);
        // What the reader was too slow for leaves in a later turn of the event loop.
        await new Promise((resolve) => setImmediate(resolve));
      }`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", program, file], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    let answered = 0;
    try {
      for await (const line of createInterface({ input: child.stdout })) {
        answered = Number(line);
        if (answered === 300) child.kill("SIGKILL");
      }
    } finally {
      child.kill("SIGKILL");
    }
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
    await using store = await SqliteStore.open({ path: file });
    expect(await store.events.lastId()).toBeGreaterThanOrEqual(answered);
  });
});
