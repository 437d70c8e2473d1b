import { availableParallelism } from "node:os";
import { afterAll, beforeAll, expect, it } from "vitest";
import { runScript } from "../../../test/support/attack-probe.ts";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import type { RuntimeId } from "../../ports/index.ts";
import type { NativeProvider } from "./native-provider.ts";
import { processorEnv } from "./processor-env.ts";

const soon = (ms = 15_000) => ({ signal: AbortSignal.timeout(ms) });

it("programs are told of whole processors, and of none where the sandbox has all", () => {
  expect(processorEnv(0.5, 8)).toMatchObject({ OMP_NUM_THREADS: "1", GOMAXPROCS: "1" });
  expect(processorEnv(2.5, 8)).toMatchObject({ RAYON_NUM_THREADS: "3" });
  expect(processorEnv(8, 8)).toEqual({});
});

await describeWith(["root", "agent", "launcher", "native", "busybox"], "figures of a native sandbox", () => {
  let home: NativeHome;
  let provider: NativeProvider;
  const made: RuntimeId[] = [];

  beforeAll(async () => {
    home = await nativeHome();
    provider = home.open();
  });

  afterAll(async () => {
    await Promise.all(made.map((runtimeId) => provider.destroy(runtimeId, soon())));
    await provider[Symbol.asyncDispose]();
    await home.remove();
  });

  it("memory and processors are the sandbox's own, and nobody inside can change what is told", async () => {
    const runtimeId = randomIds.runtimeId();
    made.push(runtimeId);
    const spec = { runtimeId, sandboxId: randomIds.sandboxId(), image: testImage, memoryMb: 96, vcpus: 1 };
    const env = { GOMAXPROCS: "7" };
    await provider.spawn({ ...spec, env, expiresInMs: 600_000, metadata: {} }, soon());
    const run = async (script: string) => (await runScript(provider.sandbox(runtimeId), script)).output;
    expect(await run("grep MemTotal /proc/meminfo")).toMatch(/^MemTotal: +98304 kB$/m);
    expect(await run("grep -c ^processor /proc/cpuinfo")).toBe("1\n");
    expect(await run("echo 1 > /proc/meminfo; rm -f /proc/meminfo; ls -A /dev | grep figures")).not.toContain(
      ".figures",
    );
    expect(await run("grep MemTotal /proc/meminfo")).toContain("98304");
    const told = availableParallelism() > 1 ? "1 7" : " 7";
    expect((await run('echo "$OMP_NUM_THREADS $GOMAXPROCS"')).trimEnd()).toBe(told);
  });

  it.each([
    ["of an image", testImage, ["overlay", "tmpfs", "proc", "devpts", "tmpfs", "tmpfs"]],
    [
      "of the machine's programs",
      "host",
      ["overlay", "tmpfs", "overlay", "proc", "devpts", "tmpfs", "tmpfs"],
    ],
  ])(
    "%s: few file systems, each of which every memory group of the machine pays for",
    async (_, image, kinds) => {
      const runtimeId = randomIds.runtimeId();
      made.push(runtimeId);
      const spec = { runtimeId, sandboxId: randomIds.sandboxId(), image, memoryMb: 96, vcpus: 1 };
      await provider.spawn({ ...spec, env: {}, expiresInMs: 600_000, metadata: {} }, soon());
      const { output } = await runScript(provider.sandbox(runtimeId), "cat /proc/self/mountinfo");
      const kindOf = new Map(
        output
          .trimEnd()
          .split("\n")
          .map((line) => [line.split(" ")[2], line.split(" - ")[1]?.split(" ")[0]]),
      );
      expect([...kindOf.values()].sort()).toEqual([...kinds].sort());
    },
  );
});
