import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { CgroupSpec } from "../launcher/index.ts";
import { StandingStill } from "./standing-still.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-still-"));
});
afterEach(() => rm(folder, { recursive: true }));

const limits = {
  1: { "cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n" },
  2: { "cpu.max": "150000 100000\n" },
};

/** Groups of both kinds, as far as they are looked at. */
async function group(version: 1 | 2, change: Record<string, string> = {}): Promise<CgroupSpec> {
  await mkdir(join(folder, "execs", "ex-1"), { recursive: true });
  const files = { ...limits[version], "cgroup.procs": "7\n", "ex-1/cgroup.procs": "8\n9\n", ...change };
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, "execs", name), text);
  const controllers = version === 2 ? ["unified"] : ["memory", "cpu", "pids"];
  return { version, dirs: controllers.map((controller) => ({ controller, path: folder })) };
}

/** Without ends of lines, which only the kernel writes. */
async function limitsNow(version: 1 | 2): Promise<string[]> {
  const names = Object.keys(limits[version]);
  return Promise.all(names.map(async (name) => (await readFile(join(folder, "execs", name), "utf8")).trim()));
}

describe.each([1, 2] as const)("commands that stand still, with v%i", (version) => {
  const [usual, still] =
    version === 2
      ? [["150000 100000"], ["1000 1000000"]]
      : [
          ["150000", "100000"],
          ["1000", "1000000"],
        ];

  it("have next to no processor time, and what they had before afterwards", async () => {
    const commands = new StandingStill(await group(version), 1.5);
    {
      await using _ = await commands.begin();
      expect(await limitsNow(version)).toEqual(still);
    }
    expect(await limitsNow(version)).toEqual(usual);
  });

  it("go on where nobody has let them, as much as they are to have", async () => {
    const commands = new StandingStill(await group(version), 1.5);
    await commands.begin();
    await commands.goOn();
    expect(await limitsNow(version)).toEqual(usual);
  });

  it("are not held for good by a look after one that could not give back what they had", async () => {
    const commands = new StandingStill(await group(version), 1.5);
    await commands.begin();
    {
      await using _ = await commands.begin();
      expect(await limitsNow(version)).toEqual(still);
    }
    expect(await limitsNow(version)).toEqual(usual);
  });

  it("get back what could not be given at once", async () => {
    const file = join(folder, "execs", version === 2 ? "cpu.max" : "cpu.cfs_quota_us");
    const held = await new StandingStill(await group(version), 1.5).begin();
    await rm(file);
    await mkdir(file);
    await expect(held[Symbol.asyncDispose]()).rejects.toThrow("EISDIR");
    await rm(file, { recursive: true });
    await vi.waitFor(async () => expect(await limitsNow(version)).toEqual(usual), { timeout: 5_000 });
  });

  it("go on after a second, however long whoever looks at them takes", async () => {
    const held = await new StandingStill(await group(version), 1.5).begin();
    await vi.waitFor(async () => expect(await limitsNow(version)).toEqual(usual), { timeout: 10_000 });
    await held[Symbol.asyncDispose]();
    expect(await limitsNow(version)).toEqual(usual);
  });

  it("are given back what they had by one attempt at a time, however often it fails", async () => {
    const file = join(folder, "execs", version === 2 ? "cpu.max" : "cpu.cfs_quota_us");
    const cgroup = await group(version);
    const held = await Promise.all([1, 2, 3].map(() => new StandingStill(cgroup, 1.5).begin()));
    await rm(file);
    await mkdir(file);
    const later = vi.spyOn(globalThis, "setTimeout");
    const ended = vi.spyOn(globalThis, "clearTimeout");
    try {
      for (const one of held) await expect(one[Symbol.asyncDispose]()).rejects.toThrow("EISDIR");
      const attempts = later.mock.results.map(({ value }) => value);
      expect(attempts).toHaveLength(3);
      const cleared = ended.mock.calls.map(([timer]) => timer);
      expect(attempts.filter((timer) => !cleared.includes(timer))).toHaveLength(1);
    } finally {
      later.mockRestore();
      ended.mockRestore();
      await rm(file, { recursive: true });
    }
    await vi.waitFor(async () => expect(await limitsNow(version)).toEqual(usual), { timeout: 5_000 });
  });

  it("are those with limits of their own as well", async () => {
    expect((await new StandingStill(await group(version), 1.5).processes()).sort()).toEqual([7, 8, 9]);
  });

  it("are left alone where there is no limit", async () => {
    const change = version === 2 ? { "cpu.max": "max 100000\n" } : { "cpu.cfs_quota_us": "-1\n" };
    await expect(new StandingStill(await group(version, change), 1.5).begin()).rejects.toThrow("no limit");
  });

  it("may end meanwhile", async () => {
    const still = await new StandingStill(await group(version), 1.5).begin();
    await rm(join(folder, "execs"), { recursive: true });
    await still[Symbol.asyncDispose]();
  });
});
