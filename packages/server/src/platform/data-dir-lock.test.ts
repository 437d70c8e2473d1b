import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { DataDirLocked, isDataDirLocked, lockDatabase, lockDataDir } from "./data-dir-lock.ts";

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(path.join(tmpdir(), "alcove-lock-"));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const program = `
  const { lockDataDir } = await import(${JSON.stringify(fileURLToPath(new URL("./data-dir-lock.ts", import.meta.url)))});
  globalThis.lock = lockDataDir(process.argv[1]);
  console.log("locked");
  setInterval(() => undefined, 1000);
`;

describe("lockDataDir", () => {
  it("refuses a second lock in the same process until the first is released", () => {
    expect(isDataDirLocked(directory)).toBe(false);
    const first = lockDataDir(directory);
    expect(() => lockDataDir(directory)).toThrow(DataDirLocked);
    expect(isDataDirLocked(directory)).toBe(true);
    first[Symbol.dispose]();
    expect(isDataDirLocked(directory)).toBe(false);
    lockDataDir(directory)[Symbol.dispose]();
  });

  it("names a lock file that is damaged, and not as the database", () => {
    const file = path.join(directory, "lock.db");
    writeFileSync(file, "nonsense".repeat(512));
    const words = `${file} is there for the lock alone`;
    for (const use of [lockDataDir, isDataDirLocked]) {
      expect(() => use(directory)).toThrow(words);
      expect(() => use(directory)).toThrow(expect.not.objectContaining({ cause: expect.anything() }));
    }
  });

  it("refuses while another process holds it, names that process, and is free once it was killed", async () => {
    const child = spawn(process.execPath, ["--input-type=module", "-e", program, directory], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    try {
      await once(child.stdout, "data");
      expect(() => lockDataDir(directory)).toThrow(`process ${child.pid}`);
    } finally {
      child.kill("SIGKILL");
      await once(child, "exit");
    }
    lockDataDir(directory)[Symbol.dispose]();
  });

  it("refuses while a process holds a lock whose file was removed", () => {
    const first = lockDataDir(directory);
    rmSync(path.join(directory, "lock.db"));
    expect(() => lockDataDir(directory)).toThrow(`process ${process.pid}, whose lock file was removed`);
    first[Symbol.dispose]();
    lockDataDir(directory)[Symbol.dispose]();
  });
});

describe("lockDatabase", () => {
  it("refuses a second lock whatever the name, and where the lock file was removed, not one on a neighbour", () => {
    const [file, link] = [path.join(directory, "state.db"), path.join(directory, "link.db")];
    writeFileSync(file, "");
    symlinkSync(file, link);
    const first = lockDatabase(file);
    expect(() => lockDatabase(file)).toThrow(`the database ${file} is in use`);
    expect(() => lockDatabase(link)).toThrow("--set database.path=FILE");
    lockDatabase(path.join(directory, "other.db"))[Symbol.dispose]();
    rmSync(`${file}.lock`);
    expect(() => lockDatabase(file)).toThrow(`process ${process.pid}, whose lock file was removed`);
    first[Symbol.dispose]();
    lockDatabase(link)[Symbol.dispose]();
  });

  it("names a folder that is missing", () => {
    const folder = path.join(directory, "none");
    const file = path.join(folder, "state.db");
    expect(() => lockDatabase(file)).toThrow(`there is no folder ${folder} for the database ${file}`);
    mkdirSync(folder);
    lockDatabase(file)[Symbol.dispose]();
  });
});
