import {
  chmod,
  glob,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  readlink,
  rm,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { expect, it } from "vitest";
import { agentBinary } from "../../../test/support/agent-binary.ts";
import { bareLaunch } from "../../../test/support/bare-launch.ts";
import { nativeHome } from "../../../test/support/native.ts";
import { mustRun } from "../../../test/support/programs.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { silentLogger } from "../../platform/logger.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { run } from "../../ports/contract/provider/harness.ts";
import type { RuntimeSpec } from "../../ports/index.ts";
import { Launcher, type LaunchSpec } from "../launcher/index.ts";

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

/** The control groups of a runtime, by whatever controller. */
const groupsOf = (runtimeId: string) =>
  Array.fromAsync(glob(`/sys/fs/cgroup/{,*/}alcove-test*/${runtimeId}`));

/** A launch into `folder`, with a group of files in it of which `pids.max` takes nothing until somebody reads it. */
async function withSlowLimit(folder: string): Promise<LaunchSpec> {
  await chmod(folder, 0o755);
  const group = join(folder, "group");
  await mkdir(group);
  await writeFile(join(group, "tasks"), "");
  await mustRun("mkfifo", [join(group, "pids.max")]);
  const dirs = [{ controller: "pids", path: group }];
  return bareLaunch(folder, { base: 1_879_048_192, dirs, execGroup: false });
}

/** Such a launch, begun; what is left of it goes with `stack`. */
async function beginWithSlowLimit(stack: AsyncDisposableStack) {
  const folder = await mkdtemp(join(tmpdir(), "alcove-late-"));
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const launch = await withSlowLimit(folder);
  const { dir, ids } = launch;
  const launcher = stack.use(new Launcher({ binary: agentBinary("alcove-launch"), logger: silentLogger }));
  const trash = join(folder, ".trash");
  await mkdir(trash);
  const undo = () => launcher.destroy({ dir, trash, cgroup: null, ids });
  stack.defer(undo);
  const launched = launcher.launch(launch);
  launched.catch(() => undefined);
  return { folder, dir, launched, undo };
}

/** What the first process of the sandbox in `dir` is by now. */
async function firstProcess(dir: string) {
  const text = await readFile(join(dir, "process.json"), "utf8").catch(() => undefined);
  if (text === undefined) return {};
  const { pid } = JSON.parse(text);
  const status = await readFile(`/proc/${pid}/status`, "utf8");
  const field = (name: string) => new RegExp(`^${name}:\\s*(\\S+)`, "m").exec(status)?.[1];
  return {
    pid,
    parent: field("PPid"),
    seccomp: field("Seccomp"),
    state: field("State"),
    program: basename(await readlink(`/proc/${pid}/exe`)),
  };
}

await describeWith(
  ["root", "agent", "launcher", "native"],
  "limits, which are set while a sandbox is furnished",
  () => {
    it("are waited for by a sandbox that is furnished: its agent starts with the last of them", async () => {
      await using stack = new AsyncDisposableStack();
      const { folder, dir, launched } = await beginWithSlowLimit(stack);
      const sleeping = { seccomp: "2", state: "S" };
      await expect.poll(() => firstProcess(dir), { timeout: 15_000 }).toMatchObject(sleeping);
      expect(await firstProcess(dir)).toMatchObject({ program: "alcove-launch" });
      await using reader = await open(join(folder, "group", "pids.max"), "r");
      await launched;
      expect((await reader.read()).bytesRead).toBeGreaterThan(0);
      expect(await firstProcess(dir)).toMatchObject({ program: expect.not.stringMatching("alcove-launch") });
    });

    it("are missed by a launch whose process is killed over them: whoever waits hears so at once, and it can be undone", async () => {
      await using stack = new AsyncDisposableStack();
      const { dir, launched, undo } = await beginWithSlowLimit(stack);
      await expect.poll(() => firstProcess(dir), { timeout: 15_000 }).toMatchObject({ state: "S" });
      const { pid, parent } = await firstProcess(dir);
      process.kill(Number(parent), "SIGKILL");
      const killedMs = performance.now();
      expect(await launched.catch((error: unknown) => error)).toMatchObject({
        step: "request",
        unanswered: true,
        died: false,
        message: expect.stringContaining("killed before it answered"),
      });
      expect(performance.now() - killedMs).toBeLessThan(10_000);
      await undo();
      expect(await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "gone")).toBe("gone");
    });

    it("of which one is refused end the launch, and nothing is left", async () => {
      await using stack = new AsyncDisposableStack();
      const home = await nativeHome();
      stack.defer(() => home.remove());
      const provider = stack.use(home.open());
      const first = specOf(1);
      await provider.spawn(first, soon());
      expect(await groupsOf(first.runtimeId)).not.toEqual([]);
      const refused = specOf(tooMany);
      await expect(provider.spawn(refused, soon())).rejects.toThrow(/cgroup: .*cpu.*Invalid argument/);
      const left = async () =>
        (await readdir(join(home.dataDir, "runtimes/native"))).filter((name) => name === refused.runtimeId);
      await expect.poll(left, { timeout: 15_000 }).toEqual([]);
      await expect.poll(() => groupsOf(refused.runtimeId), { timeout: 15_000 }).toEqual([]);

      const next = specOf(1);
      await provider.spawn(next, soon());
      expect((await run(provider.sandbox(next.runtimeId), "echo works")).stdout).toBe("works\n");
    });
  },
);
