import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { fileAppears } from "./socket-wait.ts";

const table = vi.hoisted(() => ({ full: false }));
vi.mock("node:fs", async (original) => {
  const fs = await original<typeof import("node:fs")>();
  const watch = (folder: string) => {
    if (table.full) throw Object.assign(new Error("too many open files"), { code: "EMFILE" });
    return fs.watch(folder);
  };
  return { ...fs, watch };
});

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-wait-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

it.each([false, true])("fileAppears() sees the file come, with no watch to be had: %s", async (full) => {
  table.full = full;
  const waiting = fileAppears(folder, "agent.sock", AbortSignal.timeout(5_000));
  const late = fileAppears(folder, "never.sock", AbortSignal.timeout(100));
  await expect(late).rejects.toThrow("timeout");
  await writeFile(join(folder, "agent.sock"), "");
  await waiting;
});
