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
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { describeWith } from "../../../test/support/requirements.ts";
import { longestTurnMs, TurnWatch } from "../../../test/support/turn-watch.ts";
import { AuditLog } from "../../core/audit/audit-log.ts";
import { FakeClock } from "../../core/testing/fake-clock.ts";
import { forever, Harness } from "../../core/testing/harness.ts";
import { lockDataDir } from "../../platform/data-dir-lock.ts";
import { DiskReserve, lackOfReserve } from "../../platform/disk-reserve.ts";
import { silentLogger } from "../../platform/logger.ts";
import { StorageFull } from "../../ports/errors.ts";
import type { SandboxId } from "../../ports/ids.ts";
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
    expect(told).toEqual([{ event: "audit.suspended" }]);
    expect((await store.audit.list({ limit: 100 })).map(({ method }) => method)).toEqual(["PUT"]);
    const event = { type: "file.read" as const, sandboxId: "sb-a", timestamp: new Date(0) };
    await expect(store.events.append([event])).rejects.toThrow(StorageFull);
    for (const id of made) await h.service.destroy(id, { signal: forever });
    expect((await store.sandboxes.listLive()).map(({ state }) => state)).toEqual([]);
    expect(h.provider.backend.runtimes.size).toBe(0);
    await expect(h.spawn()).rejects.toThrow(StorageFull);
    rmSync(path.join(disk, "filler"));
    await reserve.keep();
    expect([reserve.spent, existsSync(path.join(disk, "reserve"))]).toEqual([false, true]);
    expect((await h.spawn()).state).toBe("running");
    await audit.record(stranger);
    expect(told[1]).toEqual({ event: "audit.resumed", calls: 54 });
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
    expect([reserve.spent, Math.round(sizeMb())]).toEqual([false, 4]);
  });
});
