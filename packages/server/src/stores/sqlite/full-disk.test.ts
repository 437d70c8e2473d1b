import { execFileSync } from "node:child_process";
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { afterEach, beforeEach, expect, it } from "vitest";
import { describeWith } from "../../../test/support/requirements.ts";
import { longestTurnMs, TurnWatch } from "../../../test/support/turn-watch.ts";
import { AuditLog } from "../../core/audit/audit-log.ts";
import { Templates } from "../../core/templates/templates.ts";
import { FakeClock } from "../../core/testing/fake-clock.ts";
import { forever, Harness } from "../../core/testing/harness.ts";
import { lockDataDir } from "../../platform/data-dir-lock.ts";
import { DiskReserve, lackOfReserve } from "../../platform/disk-reserve.ts";
import { freeBytes } from "../../platform/free-space.ts";
import { silentLogger } from "../../platform/logger.ts";
import { StorageFull } from "../../ports/errors.ts";
import type { SandboxId } from "../../ports/ids.ts";
import { migrate, migrations } from "./migrations.ts";
import { SqliteStore } from "./sqlite-store.ts";

await describeWith(["linux", "root"], "a database on a full disk", () => {
  let home: string;
  let disk: string;
  let turns: TurnWatch;
  beforeEach(() => {
    turns = new TurnWatch();
    home = mkdtempSync(path.join(tmpdir(), "alcove-full-"));
    disk = path.join(home, "disk");
    mkdirSync(disk);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=16m", "alcove-test", disk]);
  });
  afterEach(() => {
    turns[Symbol.dispose]();
    execFileSync("umount", ["--lazy", disk]);
    rmSync(home, { recursive: true });
    expect(turns.longestMs).toBeLessThan(longestTurnMs);
  });

  function fill(): void {
    const file = openSync(path.join(disk, "filler"), "a");
    try {
      for (;;) writeSync(file, Buffer.alloc(4_096, 1));
    } catch (error) {
      expect(error).toMatchObject({ code: "ENOSPC" });
    } finally {
      closeSync(file);
      turns.restart();
    }
  }

  it("refuses spawns as storage_full, records every destroy, and takes spawns again once there is space", async () => {
    await using reserve = new DiskReserve({ directory: disk, bytes: 2 << 20 });
    await using store = await SqliteStore.open({ path: path.join(disk, "alcove.db"), reserve });
    await using h = new Harness({ store, clock: new FakeClock(), defaults: { maxSandboxes: 0 } });
    await h.start();
    await reserve.keep();
    const made: SandboxId[] = [];
    for (let index = 0; index < 20; index += 1) made.push((await h.spawn()).id);
    const templates = new Templates({ store: store.templates, clock: new FakeClock() });
    await templates.create("t", { image: "host" });
    fill();
    let refusal: unknown;
    const metadata = { filler: "x".repeat(4_000) };
    for (let index = 0; index < 2_000 && refusal === undefined; index += 1) {
      await h.spawn({ metadata }).then(
        ({ id }) => made.push(id),
        (error: unknown) => {
          refusal = error;
        },
      );
    }
    expect(refusal).toBeInstanceOf(StorageFull);
    expect(reserve.spent).toBe(true);
    // Whoever may do nothing takes none of the space that the end of things needs.
    const told: object[] = [];
    const logger = {
      ...silentLogger,
      warn: (fields: object) => void told.push(fields),
    } as typeof silentLogger;
    const retention = { ageMs: 1_000_000_000, count: 100_000 };
    const audit = new AuditLog({ store: store.audit, clock: new FakeClock(), logger, retention });
    const call = { method: "GET", path: "/api/v1/admin/x", durationMs: 1, requestId: "r", userAgent: "" };
    const stranger = { ...call, actor: "anonymous", status: 401, remoteAddr: "", mayAdminister: false };
    for (let index = 0; index < 50; index += 1) await audit.record(stranger);
    for (const status of [400, 401, 403, 404]) await audit.record({ ...stranger, actor: "bound", status });
    const admin = { ...stranger, actor: "admin_api_key", mayAdminister: true };
    await audit.record({ ...admin, method: "PUT", status: 200 });
    const suspended = (calls: number) => ({ event: "audit.suspended", calls });
    expect(told).toEqual([suspended(1), suspended(10)]);
    expect((await store.audit.list({ limit: 100 })).map(({ method }) => method)).toEqual(["PUT"]);
    const event = { type: "file.read" as const, sandboxId: "sb-a", timestamp: new Date(0) };
    await expect(store.events.append([event])).rejects.toThrow(StorageFull);
    const larger = { image: "host", env: { FILLER: "x".repeat(100_000) } };
    await expect(templates.replace("t", larger)).rejects.toThrow(StorageFull);
    for (const id of made) await h.service.destroy(id, { signal: forever });
    expect((await store.sandboxes.listLive()).map(({ state }) => state)).toEqual([]);
    expect(h.provider.backend.runtimes.size).toBe(0);
    await expect(h.spawn()).rejects.toThrow(StorageFull);
    rmSync(path.join(disk, "filler"));
    await reserve.keep();
    expect([reserve.spent, existsSync(path.join(disk, "reserve"))]).toEqual([false, true]);
    expect((await h.spawn()).state).toBe("running");
    await audit.record(stranger);
    expect(told[2]).toEqual({ event: "audit.resumed", calls: 54 });
    expect(await store.audit.list({ limit: 100 })).toHaveLength(2);
  });

  it("opens out of the reserve, and without one says what is full and how to go on", async () => {
    const file = path.join(disk, "alcove.db");
    const before = new DiskReserve({ directory: disk, bytes: 2 << 20 });
    {
      await using _kept = before;
      await using store = await SqliteStore.open({ path: file, reserve: before });
      await store.changeSetting("name", "value");
      await before.keep();
    }
    fill();
    await using reserve = new DiskReserve({ directory: disk, bytes: 2 << 20 });
    {
      await using store = await SqliteStore.open({ path: file, reserve });
      expect(await store.setting("name")).toBe("value");
      expect(reserve.spent).toBe(true);
      await store.changeSetting("name", "another");
    }
    fill();
    const told = `the database ${file} cannot be opened (`;
    await expect(SqliteStore.open({ path: file, reserve })).rejects.toThrow(told);
    await expect(SqliteStore.open({ path: file })).rejects.toThrow(
      /its disk is full, \d+ KiB are free\. Free/,
    );
  });

  it("brings an older database to today's shape out of the reserve, and without one says what is full and leaves it as it was", async () => {
    const file = path.join(disk, "alcove.db");
    const before = migrations.findIndex((step) => step.includes("CREATE TABLE event_owners"));
    {
      using db = new DatabaseSync(file);
      db.exec("PRAGMA journal_mode = WAL");
      migrate(db, { path: file, steps: migrations.slice(0, before) });
      const insert = db.prepare("INSERT INTO events (type, sandbox_id, timestamp, data) VALUES (?, ?, 1, ?)");
      db.exec("BEGIN");
      for (let n = 0; n < 600; n++) insert.run("exec.started", `sb-${n}`, JSON.stringify("x".repeat(1_000)));
      db.exec("COMMIT");
    }
    // Enough to open it, not to bring it further.
    const fillButHalfMb = () => {
      fill();
      const filler = path.join(disk, "filler");
      truncateSync(filler, statSync(filler).size - (512 << 10));
    };
    fillButHalfMb();
    await expect(SqliteStore.open({ path: file })).rejects.toThrow(
      /alcove\.db cannot be opened \(.*version \d+: database or disk is full\): its disk is full, \d+ KiB are free\. Free/,
    );
    {
      using db = new DatabaseSync(file, { readOnly: true });
      expect(db.prepare("PRAGMA user_version").get()).toEqual({ user_version: before });
      expect(db.prepare("SELECT count(*) AS kept FROM events").get()).toEqual({ kept: 600 });
    }
    rmSync(path.join(disk, "filler"));
    await using reserve = new DiskReserve({ directory: disk, bytes: 4 << 20 });
    await reserve.keep();
    fillButHalfMb();
    await using store = await SqliteStore.open({ path: file, reserve });
    expect(reserve.spent).toBe(true);
    expect((await store.events.list({ afterId: 500, limit: 200 })).events).toHaveLength(100);
  });

  it("a data directory that is new is locked, and its database names the file", async () => {
    const dataDir = path.join(disk, "data");
    mkdirSync(dataDir);
    fill();
    using _lock = lockDataDir(dataDir);
    const file = path.join(dataDir, "alcove.db");
    await expect(SqliteStore.open({ path: file })).rejects.toThrow(`the database ${file} cannot be opened (`);
  });

  it("sets aside a third of what is free where that is little, tells so, and is as large as usual once there is room", async () => {
    const told: string[] = [];
    const logger = { warn: (_fields: object, message: string) => void told.push(message) };
    await using reserve = new DiskReserve({ directory: disk, bytes: 8 << 20, logger });
    const sizeMb = () => statSync(path.join(disk, "reserve")).size / 2 ** 20;
    fill();
    await reserve.keep();
    await reserve.keep();
    expect(lackOfReserve(disk)).toContain("the service does not start again");
    expect([existsSync(path.join(disk, "reserve")), reserve.spend()]).toEqual([false, false]);
    expect(told).toEqual([
      expect.stringContaining("only 0.0 MiB are free on the disk of the database, too little"),
      expect.stringContaining("is full: spawns are refused"),
    ]);
    truncateSync(path.join(disk, "filler"), 10 << 20);
    await reserve.keep();
    expect([reserve.spent, Math.round(sizeMb())]).toEqual([false, 2]);
    expect(told[2]).toMatch(/only [56]\.\d MiB are free .* [12]\.\d MiB are set aside .* instead of 8\.0/);
    rmSync(path.join(disk, "filler"));
    execFileSync("mount", ["-o", "remount,size=40m", disk]);
    await reserve.keep();
    expect([sizeMb(), told.length]).toEqual([8, 3]);
    // What is free then is what was given up: no more is begun until some more is.
    execFileSync("mount", ["-o", "remount,size=16m", disk]);
    fill();
    expect(reserve.spend()).toBe(true);
    await reserve.keep();
    expect(reserve.spent).toBe(true);
    truncateSync(path.join(disk, "filler"), 4 << 20);
    await reserve.keep();
    expect([reserve.spent, sizeMb()]).toEqual([false, 8]);
  });

  it("takes back what was given up however often the service starts, and nothing new before that leaves some room", async () => {
    const sizeMb = () => statSync(path.join(disk, "reserve"), { throwIfNoEntry: false })?.size ?? 0;
    const start = () => new DiskReserve({ directory: disk, bytes: 4 << 20 });
    {
      await using first = start();
      await first.keep();
    }
    for (let round = 0; round < 3; round++) {
      {
        await using full = start();
        fill();
        expect([full.spent, full.spend(), full.spent]).toEqual([false, true, true]);
        expect(freeBytes(disk)).toBeGreaterThan(3.9 * 2 ** 20);
        expect(lackOfReserve(disk)).toMatch(/4\.0 MiB .* given up: .* until 8\.0 MiB are free/);
      }
      // As a start finds it, and one that dies between the two halves of it.
      for (const died of [false, true]) {
        if (died) writeFileSync(path.join(disk, "reserve.spent"), Buffer.alloc(4 << 20, 1));
        await using again = start();
        expect(again.spent).toBe(true);
        await again.keep();
        expect([again.spent, again.spend(), sizeMb()]).toEqual([true, false, 0]);
        expect(freeBytes(disk)).toBeGreaterThan(3.9 * 2 ** 20);
      }
      const filler = path.join(disk, "filler");
      truncateSync(filler, statSync(filler).size - (2 << 20));
      await using emptied = start();
      await emptied.keep();
      expect([emptied.spent, sizeMb()]).toEqual([false, 4 << 20]);
      expect(existsSync(path.join(disk, "reserve.spent"))).toBe(false);
    }
  });

  it("a reserve that is smaller than usual is kept, and grows with the space that comes free", async () => {
    const filler = path.join(disk, "filler");
    const sizeMb = () => Math.floor(statSync(path.join(disk, "reserve")).size / 2 ** 20);
    const start = () => new DiskReserve({ directory: disk, bytes: 8 << 20 });
    const kept: number[] = [];
    fill();
    for (const fillerMb of [13, 13, 15, 10, 10, 7, 1]) {
      if (statSync(filler).size < fillerMb << 20) fill();
      truncateSync(filler, Math.min(statSync(filler).size, fillerMb << 20));
      await using reserve = start();
      await reserve.keep();
      kept.push(sizeMb());
    }
    expect(kept).toEqual([1, 1, 1, 2, 2, 3, 5]);
  });
});
