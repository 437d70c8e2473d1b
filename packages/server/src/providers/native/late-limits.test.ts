import { glob, readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, it } from "vitest";
import { nativeHome } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { run } from "../../ports/contract/provider/harness.ts";
import type { RuntimeSpec } from "../../ports/index.ts";

const soon = () => ({ signal: AbortSignal.timeout(60_000) });
/** More than the kernel takes for a quota. */
const tooMany = 1e9;

const specOf = (vcpus: number): RuntimeSpec => ({
  runtimeId: randomIds.runtimeId(),
  sandboxId: randomIds.sandboxId(),
  image: "host",
  memoryMb: 64,
  vcpus,
  env: {},
  expiresInMs: 600_000,
  metadata: {},
});

/** Numbers of the processes in a group; none where it is gone. */
async function processesIn(group: string): Promise<string> {
  return readFile(join(group, "cgroup.procs"), "utf8").catch(() => "");
}

await describeWith(
  ["root", "agent", "launcher", "native"],
  "limits, which are set while a sandbox is furnished",
  () => {
    it("of which one is refused end the launch: nothing has run, and nothing is left", async () => {
      await using stack = new AsyncDisposableStack();
      const home = await nativeHome();
      stack.defer(() => home.remove());
      const provider = stack.use(home.open());
      await provider.spawn(specOf(1), soon());
      const refused = specOf(tooMany);
      await expect(provider.spawn(refused, soon())).rejects.toThrow(/cgroup: .*cpu.*Invalid argument/);
      const groups = await Array.fromAsync(glob(`/sys/fs/cgroup/{,*/}alcove-test*/${refused.runtimeId}`));
      expect(await Promise.all(groups.map(processesIn))).toEqual(groups.map(() => ""));
      const left = async () =>
        (await readdir(join(home.dataDir, "runtimes/native"))).filter((name) => name === refused.runtimeId);
      await expect.poll(left, { timeout: 15_000 }).toEqual([]);

      const next = specOf(1);
      await provider.spawn(next, soon());
      expect((await run(provider.sandbox(next.runtimeId), "echo works")).stdout).toBe("works\n");
    });
  },
);
