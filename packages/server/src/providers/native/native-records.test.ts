import { existsSync } from "node:fs";
import { readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { runScript } from "../../../test/support/attack-probe.ts";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { RuntimeGone, type RuntimeId } from "../../ports/index.ts";
import { UnreadableRecord } from "../runtime-records/index.ts";
import type { NativeProvider } from "./native-provider.ts";

const soon = (ms = 15_000) => ({ signal: AbortSignal.timeout(ms) });

await describeWith(["root", "agent", "launcher", "native", "busybox"], "what native has written down", () => {
  let home: NativeHome;
  let provider: NativeProvider;
  let runtimeId: RuntimeId;
  let file: string;
  let written: string;

  beforeAll(async () => {
    home = await nativeHome();
    provider = home.open();
    runtimeId = randomIds.runtimeId();
    const spec = { runtimeId, sandboxId: randomIds.sandboxId(), image: testImage, memoryMb: 64, vcpus: 1 };
    await provider.spawn({ ...spec, env: {}, expiresInMs: 600_000, metadata: {} }, soon());
    file = join(home.dataDir, "runtimes/native", runtimeId, "runtime.json");
    written = await readFile(file, "utf8");
  });

  afterAll(async () => {
    await writeFile(file, written);
    await provider.destroy(runtimeId, soon());
    await provider[Symbol.asyncDispose]();
    await home.remove();
  });

  const works = async (among: NativeProvider) =>
    expect((await runScript(among.sandbox(runtimeId), "echo works")).output).toBe("works\n");

  /** A runtime whose first process was killed. */
  const endedOne = async () => {
    const ended = randomIds.runtimeId();
    const sandboxId = randomIds.sandboxId();
    const spec = { runtimeId: ended, sandboxId, image: testImage, memoryMb: 64, vcpus: 1 };
    const { promise, resolve } = Promise.withResolvers<void>();
    using _ = { [Symbol.dispose]: provider.onExit((id) => id === ended && resolve()) };
    await provider.spawn({ ...spec, env: {}, expiresInMs: 600_000, metadata: {} }, soon());
    const folder = join(home.dataDir, "runtimes/native", ended);
    const first = JSON.parse(await readFile(join(folder, "process.json"), "utf8"));
    process.kill(first.pid, "SIGKILL");
    await promise;
    return { ended, folder, first };
  };

  it("one that has ended is removed although a thread of somebody's has the number of its first process", async () => {
    const { ended, folder, first } = await endedOne();
    const thread = (await readdir("/proc/self/task")).find((id) => Number(id) !== process.pid);
    await writeFile(join(folder, "process.json"), JSON.stringify({ ...first, pid: Number(thread) }));
    await provider.destroy(ended, soon());
    expect((await provider.inventory(soon())).map((entry) => entry.runtimeId)).toEqual([runtimeId]);
  });

  it.each([
    [["process.json"], []],
    [["runtime.json"], ["process.json"]],
    [["process.json", "runtime.json"], []],
  ])(
    "one of which a loss of power left %j empty, and nothing of %j, is no sandbox any more and is removed",
    async (empty, lost) => {
      const { ended, folder } = await endedOne();
      for (const name of empty) await writeFile(join(folder, name), "");
      for (const name of lost) await rm(join(folder, name));
      const found = (await provider.inventory(soon())).filter((entry) => entry.runtimeId === ended);
      expect(found).toMatchObject([{ state: "dead" }]);
      await expect(provider.adopt(ended, soon())).rejects.toThrow(RuntimeGone);
      await provider.destroy(ended, soon());
      expect(existsSync(folder)).toBe(false);
    },
  );

  it.each([
    ["of a newer release", (text: string) => JSON.stringify({ ...JSON.parse(text), version: 2 })],
    ["of another shape", (text: string) => JSON.stringify({ ...JSON.parse(text), token: 7 })],
    ["that is no JSON", (text: string) => text.slice(0, 40)],
  ])(
    "a record %s is never taken for none: its sandbox is not touched, and works once it can be read",
    async (_, change) => {
      await writeFile(file, change(written));
      await using next = home.open();
      expect(await next.inventory(soon())).toEqual([{ runtimeId, state: "unreadable" }]);
      await expect(next.adopt(runtimeId, soon())).rejects.toThrow(UnreadableRecord);
      await writeFile(file, written);
      await next.adopt(runtimeId, soon());
      await works(next);
    },
  );

  it("a record of another installation touches no process: its sandbox is neither listed nor adopted nor ended", async () => {
    await writeFile(file, JSON.stringify({ ...JSON.parse(written), instanceId: "another" }));
    await using next = home.open();
    expect(await next.inventory(soon())).toEqual([]);
    await expect(next.adopt(runtimeId, soon())).rejects.toThrow(RuntimeGone);
    await next.destroy(runtimeId, soon());
    await works(provider);
  });
});
