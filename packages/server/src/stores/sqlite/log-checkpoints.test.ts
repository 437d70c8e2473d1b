import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { describeWith } from "../../../test/support/requirements.ts";
import { currentRequestId, withinRequest } from "../../platform/request-scope.ts";
import { SqliteStore } from "./sqlite-store.ts";

const mebibyte = 1 << 20;

let home: string;
let file: string;
beforeEach(() => {
  home = mkdtempSync(path.join(tmpdir(), "alcove-checkpoints-"));
  file = path.join(home, "alcove.db");
});
afterEach(() => {
  vi.restoreAllMocks();
  rmSync(home, { recursive: true });
});

function logged() {
  const lines: string[] = [];
  const log = (_fields: object, message: string) => void lines.push(message);
  return { lines, logger: { warn: log, info: log } };
}

/** What stands in the database itself, without its log. */
function withoutLog(name: string): string | undefined {
  const copy = path.join(home, "copy.db");
  copyFileSync(file, copy);
  using db = new DatabaseSync(copy);
  db.exec("PRAGMA journal_mode = DELETE");
  const row = db.prepare("SELECT value FROM settings WHERE name = ?").get(name);
  return row?.value as string | undefined;
}

const logBytes = () => statSync(`${file}-wal`, { throwIfNoEntry: false })?.size ?? 0;

describe("LogCheckpoints", () => {
  it("brings what was committed into the database soon, and the close leaves no log behind", async () => {
    const { lines, logger } = logged();
    {
      await using store = await SqliteStore.open({ path: file });
      await using _checkpoints = store.checkpoints({ logger });
      await store.changeSetting("some", "first");
      await vi.waitFor(() => expect(withoutLog("some")).toBe("first"), 5_000);
      await store.changeSetting("some", "second");
      await vi.waitFor(() => expect(withoutLog("some")).toBe("second"), 5_000);
      await store.changeSetting("some", "last");
    }
    expect(existsSync(`${file}-wal`)).toBe(false);
    expect(withoutLog("some")).toBe("last");
    expect(lines).toEqual([]);
  });

  it("leaves checkpoints to its thread while that works, and takes them back with the close", async () => {
    const exec = vi.spyOn(DatabaseSync.prototype, "exec");
    await using store = await SqliteStore.open({ path: file });
    const [db] = exec.mock.contexts as DatabaseSync[];
    const own = () => db?.prepare("PRAGMA wal_autocheckpoint").get()?.wal_autocheckpoint;
    const checkpoints = store.checkpoints(logged());
    // However long the log is: it is longest while the disk is slow.
    expect(own()).toBe(0);
    await checkpoints[Symbol.asyncDispose]();
    expect(own()).toBe(1_000);
  });

  it("bounds the log however much is written without a pause, and loses nothing of it", async () => {
    await using store = await SqliteStore.open({ path: file });
    await using checkpoints = store.checkpoints(logged());
    let longest = 0;
    for (let n = 0; n < 80; n++) {
      await Promise.all([0, 1].map((at) => store.changeSetting(`n${n}-${at}`, "x".repeat(mebibyte))));
      longest = Math.max(longest, logBytes());
    }
    // Of 160 MiB.
    expect(longest).toBeLessThan(70 * mebibyte);
    await checkpoints.settle();
    await store.changeSetting("some", "last");
    expect(logBytes()).toBeLessThan(17 * mebibyte);
    expect((await store.setting("n41-1"))?.length).toBe(mebibyte);
  });

  it("waits for nobody who reads the database or holds its lock, and goes on when they have ended", async () => {
    const { lines, logger } = logged();
    await using store = await SqliteStore.open({ path: file });
    await using checkpoints = store.checkpoints({ logger });
    await store.changeSetting("some", "before");
    await checkpoints.settle();
    {
      using other = new DatabaseSync(file);
      other.exec("BEGIN; SELECT count(*) FROM settings");
      for (let n = 0; n < 24; n++) await store.changeSetting("some", `${n}${"x".repeat(mebibyte)}`);
      await checkpoints.settle();
      expect(logBytes()).toBeGreaterThan(20 * mebibyte);
      expect(withoutLog("some")).toBe("before");
      other.exec("COMMIT; BEGIN IMMEDIATE");
      await checkpoints.settle();
      expect(withoutLog("some")?.slice(0, 3)).toBe("23x");
    }
    await store.changeSetting("some", "after");
    expect(logBytes()).toBeLessThan(17 * mebibyte);
    expect(lines).toEqual([]);
  });

  it("goes on in the file it has open when another takes its name, and leaves that one alone", async () => {
    await using store = await SqliteStore.open({ path: file });
    await using checkpoints = store.checkpoints(logged());
    await store.changeSetting("some", "before");
    await checkpoints.settle();
    for (const name of [file, `${file}-wal`]) {
      renameSync(name, `${name}.away`);
      writeFileSync(name, "somebody else's");
    }
    await store.changeSetting("some", "meanwhile");
    await checkpoints.settle();
    for (const name of [file, `${file}-wal`]) {
      expect(readFileSync(name, "utf8")).toBe("somebody else's");
      renameSync(`${name}.away`, name);
    }
    expect(withoutLog("some")).toBe("meanwhile");
  });

  it("leaves them to the connection that writes when the thread cannot open the file, which it does not make anew", async () => {
    const { lines, logger } = logged();
    const exec = vi.spyOn(DatabaseSync.prototype, "exec");
    await using store = await SqliteStore.open({ path: file });
    const [db] = exec.mock.contexts as DatabaseSync[];
    await store.changeSetting("some", "value");
    renameSync(file, `${file}.away`);
    await using checkpoints = store.checkpoints({ logger });
    await checkpoints.settle();
    expect(existsSync(file)).toBe(false);
    expect(lines).toEqual([expect.stringContaining("the thread that brings the log into the database")]);
    expect(db?.prepare("PRAGMA wal_autocheckpoint").get()?.wal_autocheckpoint).toBe(1_000);
    await store.changeSetting("some", "another");
    expect(await store.setting("some")).toBe("another");
    renameSync(`${file}.away`, file);
  });

  it("bounds the log again when a long reader has ended", async () => {
    await using store = await SqliteStore.open({ path: file });
    await using checkpoints = store.checkpoints(logged());
    const write = (n: number) => store.changeSetting(`n${n % 20}`, "x".repeat(mebibyte));
    {
      using reader = new DatabaseSync(file);
      reader.exec("BEGIN");
      reader.prepare("SELECT count(*) FROM settings").get();
      for (let n = 0; n < 110; n++) await write(n);
      expect(logBytes()).toBeGreaterThan(105 * mebibyte);
    }
    await checkpoints.settle();
    let longest = 0;
    for (let n = 0; n < 120; n++) {
      await write(n);
      longest = Math.max(longest, logBytes());
    }
    expect(longest).toBeLessThan(70 * mebibyte);
  });

  it("goes on when the log cannot be looked at", async () => {
    await using store = await SqliteStore.open({ path: file });
    await using checkpoints = store.checkpoints(logged());
    await store.changeSetting("some", "first");
    // As a right that was taken away: also from a superuser, whom rights do not stop.
    const folder = `${home}.away`;
    renameSync(home, folder);
    symlinkSync(home, home);
    try {
      await store.changeSetting("some", "second");
      await checkpoints.settle();
      expect(await store.setting("some")).toBe("second");
    } finally {
      rmSync(home);
      renameSync(folder, home);
    }
  });

  it("keeps the process alive for a commit that waits for its round", async () => {
    const index = JSON.stringify(fileURLToPath(new URL("./index.ts", import.meta.url)));
    const program = `
      const { SqliteStore } = await import(${index});
      const store = await SqliteStore.open({ path: process.argv[1] });
      store.checkpoints({ logger: { warn: console.log, info: console.log } });
      for (let n = 0; n < 40; n++) await store.changeSetting("n" + n, "x".repeat(1 << 20));`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", program, file], {
      timeout: 15_000,
      stdio: "inherit",
    });
    expect(await once(child, "exit")).toEqual([0, null]);
  });

  it("tells of a disk whose syncs have no end, and has writes wait for a while only", async () => {
    const { lines, logger } = logged();
    await using store = await SqliteStore.open({ path: file });
    await using checkpoints = store.checkpoints({ logger });
    // As a thread that waits for the disk: it answers nothing.
    const post = vi.spyOn(Worker.prototype, "postMessage").mockImplementation(() => undefined);
    const startedMs = performance.now();
    for (let n = 0; n < 68; n++) await store.changeSetting(`n${n}`, "x".repeat(mebibyte));
    const waitedMs = performance.now() - startedMs;
    expect(waitedMs).toBeGreaterThan(4_000);
    expect(waitedMs).toBeLessThan(15_000);
    expect(lines).toEqual([expect.stringContaining("cannot be brought into the database now")]);
    expect(store.commits.sum).toBeGreaterThan(4_000);
    await store.changeSetting("some", "soon");
    expect(performance.now() - startedMs - waitedMs).toBeLessThan(1_000);
    const [thread] = post.mock.contexts as Worker[];
    post.mockRestore();
    thread?.postMessage("checkpoint");
    await checkpoints.settle();
    await checkpoints.settle();
    expect(lines[1]).toBe("the log is brought into the database again");
    expect(withoutLog("some")).toBe("soon");
    await store.changeSetting("some", "begins the log anew");
    expect(logBytes()).toBeLessThan(17 * mebibyte);
  });

  it("tells of the disk for no request, whoever wrote before", async () => {
    const requests: (string | undefined)[] = [];
    const log = () => void requests.push(currentRequestId());
    await using store = await SqliteStore.open({ path: file });
    await using checkpoints = store.checkpoints({ logger: { warn: log, info: log } });
    const post = vi.spyOn(Worker.prototype, "postMessage").mockImplementation(function (this: Worker) {
      this.emit("message", { error: "disk I/O error", errcode: 10 });
    });
    const { promise, resolve } = Promise.withResolvers<void>();
    withinRequest({ id: "req-1", span: undefined }, () =>
      resolve(store.changeSetting("some", "value").then(() => undefined)),
    );
    await promise;
    await vi.waitFor(() => expect(requests).toEqual([undefined]), 5_000);
    post.mockRestore();
    await checkpoints.settle();
  });

  it("tells the store of damage that the thread has met", async () => {
    const { lines, logger } = logged();
    await using store = await SqliteStore.open({ path: file });
    await using checkpoints = store.checkpoints({ logger });
    await using watch = await store.watch({ logger: { ...logger, error: logger.warn } });
    await store.changeSetting("some", "x".repeat(4 * mebibyte));
    await checkpoints.settle();
    await store.changeSetting("some", "x".repeat(4 * mebibyte));
    await store.changeSetting("another", "begins the log anew");
    truncateSync(file, 0);
    expect(watch.refusal).toBeUndefined();
    await checkpoints.settle();
    expect(watch.refusal).toContain("the database is damaged");
    await expect(store.ping()).rejects.toThrow("the database is damaged");
    expect(lines[0]).toContain("cannot be brought into the database now");
  });

  it("keeps no process from ending, with or without a close", async () => {
    const index = JSON.stringify(fileURLToPath(new URL("./index.ts", import.meta.url)));
    const program = `
      const { SqliteStore } = await import(${index});
      const store = await SqliteStore.open({ path: process.argv[1] });
      store.checkpoints({ logger: { warn: console.log, info: console.log } });
      await store.changeSetting("some", "value");`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", program, file], {
      timeout: 15_000,
      stdio: ["ignore", "inherit", "inherit"],
    });
    try {
      expect(await once(child, "exit")).toEqual([0, null]);
    } finally {
      child.kill("SIGKILL");
    }
    await using store = await SqliteStore.open({ path: file });
    expect(await store.setting("some")).toBe("value");
  });
});

await describeWith(["linux", "root"], "LogCheckpoints on a full disk", () => {
  it("tells once that the log cannot be brought over, and that it is again", async () => {
    const disk = path.join(home, "disk");
    mkdirSync(disk);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=8m", "alcove-test", disk]);
    file = path.join(disk, "alcove.db");
    try {
      const { lines, logger } = logged();
      await using store = await SqliteStore.open({ path: file });
      await using checkpoints = store.checkpoints({ logger });
      await checkpoints.settle();
      for (let n = 0; n < 3; n++) await store.changeSetting(`n${n}`, "x".repeat(mebibyte));
      const filler = path.join(disk, "filler");
      execFileSync("sh", ["-c", 'head -c 8M /dev/zero >"$1" || true', "sh", filler], { stdio: "ignore" });
      await checkpoints.settle();
      await checkpoints.settle();
      expect(lines).toEqual([expect.stringContaining("cannot be brought into the database now")]);
      rmSync(filler);
      await checkpoints.settle();
      expect(lines[1]).toBe("the log is brought into the database again");
      expect(withoutLog("n2")?.length).toBe(mebibyte);
    } finally {
      execFileSync("umount", ["--lazy", disk]);
    }
  });
});
