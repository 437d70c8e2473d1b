import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { DatabaseSync } from "node:sqlite";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { storeContract } from "../../ports/contract/store-contract.ts";
import { SqliteStore } from "./index.ts";
import { migrate } from "./migrations.ts";

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

  it("has kept every write that was answered when its process is killed", async () => {
    const index = JSON.stringify(fileURLToPath(new URL("./index.ts", import.meta.url)));
    const program = `
      const { SqliteStore } = await import(${index});
      const store = await SqliteStore.open({ path: process.argv[1] });
      for (let id = 1; ; id++) {
        await store.events.append([{ id, type: "exec.started", sandboxId: "", timestamp: new Date() }]);
        console.log(id);
      }`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", program, file], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    let answered = 0;
    for await (const line of createInterface({ input: child.stdout })) {
      answered = Number(line);
      if (answered === 300) child.kill("SIGKILL");
    }
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
    await using store = await SqliteStore.open({ path: file });
    expect(await store.events.lastId()).toBeGreaterThanOrEqual(answered);
  });
});
