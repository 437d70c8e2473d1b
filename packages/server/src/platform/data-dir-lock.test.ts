import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { DataDirLocked, isDataDirLocked, lockDataDir } from "./data-dir-lock.ts";

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
