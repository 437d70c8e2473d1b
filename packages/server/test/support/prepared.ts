import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, vi } from "vitest";
import { Launcher } from "../../src/providers/launcher/index.ts";

/** What a place's provider has prepared: names of their directories, by their first process. */
export async function preparedIn(dataDir: string): Promise<Map<number, string>> {
  const root = join(dataDir, "runtimes/native");
  const names = (await readdir(root).catch(() => [])).filter((name) => name.startsWith("prepared-"));
  const found = new Map<number, string>();
  for (const name of names) {
    const text = await readFile(join(root, name, "process.json"), "utf8").catch(() => undefined);
    if (text !== undefined) found.set(JSON.parse(text).pid, name);
  }
  return found;
}

/** The first process of a runtime. */
export async function processOf(dataDir: string, runtimeId: string): Promise<number> {
  const text = await readFile(join(dataDir, "runtimes/native", runtimeId, "process.json"), "utf8");
  return JSON.parse(text).pid;
}

/** Sees what launchers prepare. Restored with all mocks. */
export function watchPrepares(): { until(dataDir: string, count: number): Promise<Map<number, string>> } {
  const answers = vi.spyOn(Launcher.prototype, "prepare").mock.settledResults;
  return {
    /** Until so many wait there, all of them answered. */
    until: async (dataDir, count) => {
      const settled = () => answers.every(({ type }) => type !== "incomplete");
      await expect
        .poll(async () => ((await preparedIn(dataDir)).size === count && settled() ? count : -1), {
          timeout: 20_000,
        })
        .toBe(count);
      return preparedIn(dataDir);
    },
  };
}
