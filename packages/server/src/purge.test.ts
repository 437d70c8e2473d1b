import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, test, vi } from "vitest";
import { describeWith } from "../test/support/requirements.ts";
import { loadConfig } from "./config/load.ts";
import { silentLogger } from "./platform/logger.ts";
import { ProviderError, type RuntimeId, Unavailable } from "./ports/index.ts";
import { endRuntimes, purge } from "./purge.ts";

const providerOf = (destroy: (id: string) => Promise<void>) => ({
  name: "docker",
  inventory: async () => ["rt-1", "rt-2", "rt-3"].map((id) => ({ runtimeId: id as RuntimeId })),
  destroy,
});

test("a sandbox that cannot be ended keeps none of the others alive, and is told by its id", async () => {
  const purged = { ended: [], left: [] };
  const destroy = async (id: string) => {
    if (id === "rt-1") throw new ProviderError("the folder of runtime rt-1 cannot be removed");
  };
  await endRuntimes(providerOf(destroy), purged);
  expect(purged).toEqual({
    ended: ["docker/rt-2", "docker/rt-3"],
    left: ["docker/rt-1: the folder of runtime rt-1 cannot be removed"],
  });
});

test("a sandbox that does not end while its provider tries for half a minute keeps none of the others alive", async () => {
  vi.useFakeTimers();
  try {
    const purged = { ended: [], left: [] };
    const destroy = async (id: string) => {
      if (id !== "rt-1") return;
      await new Promise((resolve) => setTimeout(resolve, 35_000));
      throw new ProviderError("rt-1 did not end");
    };
    const ending = endRuntimes(providerOf(destroy), purged);
    await vi.advanceTimersByTimeAsync(35_000);
    await ending;
    expect(purged).toEqual({
      ended: ["docker/rt-2", "docker/rt-3"],
      left: ["docker/rt-1: rt-1 did not end"],
    });
  } finally {
    vi.useRealTimers();
  }
});

test("an engine that is away is asked and told of once", async () => {
  const purged = { ended: [], left: [] };
  let asked = 0;
  const destroy = async () => {
    asked++;
    throw new Unavailable("no Docker Engine");
  };
  await endRuntimes(providerOf(destroy), purged);
  const left = ["rt-1", "rt-2", "rt-3"].map((id) => `docker/${id}: it may still run`);
  expect([asked, purged]).toEqual([1, { ended: [], left: ["docker: no Docker Engine", ...left] }]);
});

test("what has a record is named when the engine cannot be asked for what it runs", async () => {
  const purged = { ended: [], left: [] };
  const silent = {
    ...providerOf(async () => undefined),
    inventory: () => Promise.reject(new Unavailable("silent")),
  };
  await endRuntimes(silent, purged, ["rt-1"]);
  expect(purged).toEqual({ ended: [], left: ["docker: silent", "docker/rt-1: it may still run"] });
});

await describeWith(["linux", "root"], "a data directory on a file system that is read-only", () => {
  test.each([
    ["whose installation is known", "0123456789abcdef", /alcove purge --instance 0123456789ab --yes$/],
    ["whose installation is not", undefined, /alcove purge --instance NAME --yes \(names: find /],
  ])("%s is refused in words, with the way to end what runs", async (_, id, advice) => {
    const home = mkdtempSync(path.join(tmpdir(), "alcove-purge-"));
    const dataDir = path.join(home, "data");
    mkdirSync(dataDir);
    const directory = { path: dataDir, device: "1", inode: "1", born: "0" };
    if (id !== undefined)
      writeFileSync(
        path.join(dataDir, "installation.json"),
        JSON.stringify({ version: 1, id, generation: 0, directory }),
      );
    execFileSync("mount", ["--bind", dataDir, dataDir]);
    try {
      execFileSync("mount", ["-o", "remount,bind,ro", dataDir]);
      const config = loadConfig({ env: { ALCOVE_DATA_DIR: dataDir }, cwd: home });
      const refused = purge({ config, remove: false, logger: silentLogger });
      await expect(refused).rejects.toThrow(/cannot be written to .*EROFS.* not read-only/);
      await expect(refused).rejects.toThrow(advice);
    } finally {
      execFileSync("umount", ["--lazy", dataDir]);
      rmSync(home, { recursive: true, force: true });
    }
  });
});
