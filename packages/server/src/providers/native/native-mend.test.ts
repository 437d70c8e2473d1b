import { existsSync } from "node:fs";
import { glob, mkdir, readdir, readFile, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it, onTestFinished, vi } from "vitest";
import { type NativeHome, nativeHome, nativeProvider, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { run } from "../../ports/contract/provider/harness.ts";
import type { RuntimeSpec } from "../../ports/index.ts";
import { LauncherFailure } from "../launcher/index.ts";
import { LaunchSite } from "./launch-site.ts";
import type { NativeProvider } from "./native-provider.ts";

const soon = () => ({ signal: AbortSignal.timeout(60_000) });

await describeWith(["root", "agent", "launcher", "native", "busybox"], "what was taken away", () => {
  let home: NativeHome;
  let provider: NativeProvider;
  beforeEach(async () => {
    home = await nativeHome();
    provider = home.open();
  });
  afterEach(async () => {
    await provider[Symbol.asyncDispose]();
    await home.remove();
  });

  /** What is being made there meanwhile is in the way. */
  const takeAway = async () => {
    for (const name of ["agents", "native"])
      await rm(join(home.dataDir, name), { recursive: true, force: true, maxRetries: 5 });
  };

  const specOf = (image: string): RuntimeSpec => ({
    runtimeId: randomIds.runtimeId(),
    sandboxId: randomIds.sandboxId(),
    image,
    memoryMb: 64,
    vcpus: 1,
    env: {},
    expiresInMs: 600_000,
    metadata: {},
  });

  it("is made again by the next spawn: agents, the template of disks, ready ones, the root of image host", async () => {
    await provider.spawn(specOf("host"), soon());
    await takeAway();
    for (const image of ["host", testImage]) {
      const spec = specOf(image);
      await provider.spawn(spec, soon());
      expect((await run(provider.sandbox(spec.runtimeId), "echo works")).stdout).toBe("works\n");
    }
  });

  it("a check whose process is killed says that it says nothing for certain", async () => {
    const killed = new LauncherFailure("request", "killed", undefined, { unanswered: true });
    const broken = new LauncherFailure("overlay", "refused");
    for (const failure of [killed, broken]) {
      using _launch = vi.spyOn(LaunchSite.prototype, "launch").mockRejectedValue(failure);
      const { healthy, unanswered } = await provider.check(soon());
      expect([healthy, unanswered]).toEqual([false, failure === killed ? true : undefined]);
    }
  });

  it("is made again by the next inventory, which is taken every minute", async () => {
    await provider.spawn(specOf("host"), soon());
    await takeAway();
    await provider.inventory(soon());
    expect((await readdir(join(home.dataDir, "agents"))).length).toBeGreaterThan(0);
    expect((await readdir(join(home.dataDir, "native"))).length).toBeGreaterThan(0);
  });

  it("a launcher's end leaves nothing behind: the next one deletes what was being deleted", async () => {
    await provider.spawn(specOf("host"), soon());
    const left = join(home.dataDir, "runtimes/native/.trash/rt-left.1");
    await mkdir(join(left, "upper"), { recursive: true });
    for (const pid of await launchersHere()) process.kill(pid, "SIGKILL");
    const spawned = async () => {
      await provider.spawn(specOf("host"), soon());
      return !existsSync(left);
    };
    await expect.poll(spawned, { timeout: 15_000 }).toBe(true);
  });

  it("a probe that an earlier start left and that is not gone yet stops no start, and goes later", async () => {
    await provider.check(soon());
    const instance = `alcove-test${home.dataDir.slice(-6)}`;
    const [parent] = (await Array.fromAsync(glob(`/sys/fs/cgroup/{,*/,*/*/}${instance}`))).sort();
    await provider[Symbol.asyncDispose]();
    const group = join(parent ?? "", "probe-left");
    onTestFinished(async () => {
      for (const dir of [join(group, "foreign"), group]) if (existsSync(dir)) await rmdir(dir);
    });
    // Busy for as long as there is a group in it that is not ours.
    await mkdir(join(group, "foreign"), { recursive: true });
    await mkdir(join(home.dataDir, "runtimes/native/probe-left"));
    provider = home.open();
    expect(await provider.check(soon())).toMatchObject({ healthy: true });
    expect(existsSync(group)).toBe(true);
    await rmdir(join(group, "foreign"));
    const left = async () => {
      await provider.inventory(soon());
      return existsSync(group);
    };
    await expect.poll(left, { timeout: 30_000 }).toBe(false);
  });

  it("is told as what it is when it was an image", async () => {
    await using without = nativeProvider(home.dataDir, join(home.dataDir, "gone"));
    await expect(without.spawn(specOf(testImage), soon())).rejects.toThrow(
      `the files of image "${testImage}" are gone from the store; get it again: alcove image pull ${testImage}`,
    );
  });
});

/** Processes of this one's children that launch. */
async function launchersHere(): Promise<number[]> {
  const found: number[] = [];
  for (const name of await readdir("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const [stat, line] = await Promise.all(
      ["stat", "cmdline"].map((file) => readFile(`/proc/${name}/${file}`, "utf8").catch(() => "")),
    );
    const parent = Number(stat?.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
    if (parent === process.pid && line?.includes("alcove-launch")) found.push(Number(name));
  }
  return found;
}
