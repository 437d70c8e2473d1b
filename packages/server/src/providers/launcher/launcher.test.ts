import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, rmdir, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { afterEach, expect, it, vi } from "vitest";
import { agentBinary } from "../../../test/support/agent-binary.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { withoutDescriptors } from "../../../test/support/without-descriptors.ts";
import { silentLogger } from "../../platform/logger.ts";
import { toldFailure } from "../native/advice.ts";
import { openDiskPool } from "../native/disk-template.ts";
import { findProgram } from "./find-program.ts";
import { Launcher, LauncherFailure, type LauncherPatience } from "./launcher.ts";
import type { LaunchSpec } from "./requests.ts";

const folders: string[] = [];

afterEach(async () => {
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true, force: true });
});

/** A launcher that is started by a shell script of these lines; the script tells its process number in `pid`. */
async function launcherBy(
  lines: (folder: string) => string,
  patience?: Partial<LauncherPatience>,
): Promise<{ launcher: Launcher; folder: string }> {
  const folder = await mkdtemp(join(tmpdir(), "alcove-launcher-"));
  folders.push(folder);
  await chmod(folder, 0o755);
  const binary = join(folder, "launcher");
  await writeFile(binary, `#!/bin/sh\necho $$ >> ${folder}/pids\n${lines(folder)}\n`, { mode: 0o755 });
  const options = { binary, logger: silentLogger, ...(patience && { patience }) };
  return { launcher: new Launcher(options), folder };
}

const nothing = (folder: string) => ({
  dir: join(folder, "no-such-runtime"),
  trash: folder,
  cgroup: null,
  ids: { kind: "single" } as const,
});

/** Answers each removal after 0.2 s, and the first two with a refusal. */
const busy = () => `n=0
while read -r request; do
  n=$((n + 1)); sleep 0.2
  if [ $n -lt 3 ]; then echo '{"id":'$n',"ok":false,"step":"kill","message":"it did not end within 200 ms"}'
  else echo '{"id":'$n',"ok":true}'; fi
done`;

it("a removal that wanted for time is repeated as long as somebody waits for it, one that is refused at once is not", async () => {
  const patient = await launcherBy(busy, { slowMs: 150 });
  await using _patient = patient.launcher;
  await patient.launcher.destroy(nothing(patient.folder));
  for (const patience of [{ slowMs: 60_000 }, { slowMs: 150, removalMs: 0 }]) {
    const { launcher, folder } = await launcherBy(busy, patience);
    await using _ = launcher;
    await expect(launcher.destroy(nothing(folder))).rejects.toMatchObject({ step: "kill" });
  }
});

/** Tells of the first request that who was to serve it has ended. */
const lostFirst = () => `ok='false,"unanswered":true,"step":"request","message":"it was killed"'
while read -r request; do
  id=\${request#*'"id":'}; echo '{"id":'\${id%%[!0-9]*}',"ok":'$ok'}'; ok=true
done`;

it("a removal whose process was killed over it is repeated; what else was asked for is told as unanswered", async () => {
  const removing = await launcherBy(lostFirst);
  await using _removing = removing.launcher;
  await removing.launcher.destroy(nothing(removing.folder));
  const lending = await launcherBy(lostFirst);
  await using _lending = lending.launcher;
  await expect(lending.launcher.lend({} as never)).rejects.toMatchObject({
    step: "request",
    unanswered: true,
    died: false,
  });
});

it("one that cannot be started for want of a descriptor is no failure of the machine's, and the next request starts it", async () => {
  const answers = `while read -r request; do id=\${request#*'"id":'}; echo '{"id":'\${id%%[!0-9]*}',"ok":true}'; done`;
  const { launcher, folder } = await launcherBy(() => answers);
  await using _ = launcher;
  const [lent, unlent] = withoutDescriptors(() => [
    launcher.lend({} as never).catch((error: unknown) => error),
    launcher.lend({} as never).catch((error: unknown) => error),
  ]);
  for (const failure of [await lent, await unlent]) {
    expect(failure).toMatchObject({
      step: "serve",
      unanswered: true,
      died: false,
      cause: { code: "EMFILE" },
    });
    expect(await toldFailure(failure)).toMatchObject({ code: "unavailable", retryAfterS: 5 });
  }
  await launcher.lend({} as never);
  expect(await started(folder)).toHaveLength(1);
  const { launcher: closed } = await launcherBy(() => answers);
  const refused = withoutDescriptors(() => {
    const failing = expect(closed.lend({} as never)).rejects.toThrow("EMFILE");
    return { failing, closing: closed[Symbol.asyncDispose]() };
  });
  await refused.closing;
  await refused.failing;
});

/** Says nothing to `lend`, answers what is no operation after 0.3 s and everything else at once. */
const slowToLend = () => `while read -r request; do
  case $request in
  *'"op":"lend"'*) continue ;;
  *'"op":"alive"'*) sleep 0.3 ;;
  esac
  id=\${request#*'"id":'}; echo '{"id":'\${id%%[!0-9]*}',"ok":true}'
done`;

it("one that is only slow with a request stays, even if this process stands still when its time is over", async () => {
  const patience = { replyMs: 300, destroyMs: 10_000, aliveMs: 200 };
  const { launcher, folder } = await launcherBy(slowToLend, patience);
  await using _ = launcher;
  await launcher.destroy(nothing(folder));
  const slow = launcher.lend({} as never).catch((error: unknown) => error);
  // From before the answer comes to after its time. It ends outside the timers, so that those are next, before what has come is read.
  const stand = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_500);
  setTimeout(() => setImmediate(stand), 150);
  expect(await slow).toMatchObject({ unanswered: true, died: false });
  await launcher.destroy(nothing(folder));
  expect(await started(folder)).toHaveLength(1);
});

it("one that answers nothing at all is killed", async () => {
  const { launcher } = await launcherBy(() => "cat > /dev/null", { replyMs: 100, aliveMs: 50 });
  await using _ = launcher;
  await expect(launcher.lend({} as never)).rejects.toMatchObject({ unanswered: true, died: true });
});

await describeWith(["root", "launcher"], "the resident launcher", () => {
  it("refuses a request that it has no process for, and stays", async () => {
    const binary = agentBinary("alcove-launch");
    const { launcher, folder } = await launcherBy(
      (folder) =>
        `cp ${binary} ${folder}/real && chmod 755 ${folder}/real && chmod 777 ${folder}
exec setpriv --reuid 54321 --regid 54321 --clear-groups prlimit --nproc=1:1 ${folder}/real "$@"`,
    );
    await using _ = launcher;
    for (let turn = 0; turn < 3; turn += 1) {
      const refused = await launcher.destroy(nothing(folder)).catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(LauncherFailure);
      expect(refused).toMatchObject({ step: "fork" });
    }
    expect(await started(folder)).toHaveLength(1);
  });

  it("is started anew when it has died, and an undoing that it took along is repeated", async () => {
    const { launcher, folder } = await launcherBy(
      (folder) =>
        `if [ $(wc -l < ${folder}/pids) -eq 1 ]; then read request; exit 3; fi
exec ${agentBinary("alcove-launch")} "$@"`,
    );
    await using _ = launcher;
    await launcher.destroy(nothing(folder));
    expect(await started(folder)).toHaveLength(2);
  });

  it("is killed when it stands still, the next request starts another, and an undoing is repeated in time", async () => {
    // A start of the launcher takes its time on a busy machine. Nothing is asked before the last part of a wait: an answer
    // to that, on its way while the launcher is stopped, would be a word of one that lives.
    const patience = { replyMs: 12_000, destroyMs: 2_000, aliveMs: 500 };
    const { launcher, folder } = await launcherBy(
      () => `exec ${agentBinary("alcove-launch")} "$@"`,
      patience,
    );
    await using _ = launcher;
    await launcher.destroy(nothing(folder));
    const [first] = await started(folder);
    process.kill(Number(first), "SIGSTOP");
    const stuck = launcher.lend({} as never).catch((error: unknown) => error);
    await launcher.destroy(nothing(folder));
    expect(await stuck).toMatchObject({ died: true, unanswered: true });
    expect(await started(folder)).toHaveLength(2);
    // SIGKILL ends one that is stopped, too.
    await expect.poll(() => isThere(Number(first)), { timeout: 5_000 }).toBe(false);
  });

  it("refuses a request that is longer than it reads, and answers the next", async () => {
    const { launcher, folder } = await launcherBy(() => `exec ${agentBinary("alcove-launch")} "$@"`);
    await using _ = launcher;
    const long = { ...nothing(folder), dir: `/${"x".repeat(3 << 20)}` };
    const [refused] = await Promise.all([
      launcher.destroy(long).catch((error: unknown) => error),
      launcher.destroy(nothing(folder)),
    ]);
    expect(refused).toMatchObject({ step: "request", message: "a request is longer than 1048576 bytes" });
    await launcher.destroy(nothing(folder));
    expect(await started(folder)).toHaveLength(1);
  });

  it("tells that an agent's socket takes connections before it answers, once", async () => {
    const { launcher, folder } = await launcherBy(() => `exec ${agentBinary("alcove-launch")} "$@"`);
    await using _ = launcher;
    const told: string[] = [];
    // Its root has no place for /proc: what is told comes before that, and not when not even a process came to be.
    const ids = { kind: "single" } as const;
    const { record, ...spec } = { ...impossible(folder, 0, ""), ids, disk: {} };
    const homeless = { ...spec, cgroup: null, record: { ...record, ids, cgroup: null } };
    for (const launched of [homeless, { ...spec, record, dir: join(folder, "runtime-1") }]) {
      const launch = launcher.launch(launched, () => told.push("listening"));
      await launch.catch((error: LauncherFailure) => told.push(error.step));
    }
    expect(told).toEqual(["listening", "proc", "cgroup"]);
  });

  it("that says what is no answer is warned of, and no more", async () => {
    const { launcher, folder } = await launcherBy(
      () => `echo '{"id": 1, "ok":'; echo null; exec ${agentBinary("alcove-launch")} "$@"`,
    );
    await using _ = launcher;
    const warned = vi.spyOn(silentLogger, "warn");
    try {
      await launcher.destroy(nothing(folder));
      expect(warned.mock.calls).toEqual([
        [{ line: '{"id": 1, "ok":' }, "the launcher said what is no answer"],
        [{ line: "null" }, "the launcher said what is no answer"],
      ]);
    } finally {
      warned.mockRestore();
    }
  });

  it("a new one removes the disks that the one before it had made ready", async (context) => {
    const { launcher, folder } = await launcherBy(() => `exec ${agentBinary("alcove-launch")} "$@"`);
    const pool = await openDiskPool({ dataDir: folder, diskMb: 64, mkfs: await findProgram("mkfs.ext4") });
    if ("missing" in pool) return context.skip(pool.missing);
    await using _ = launcher;
    launcher.keepDisks({ ...pool, count: 1 });
    await launcher.destroy(nothing(folder));
    await writeFile(join(pool.dir, "left.img"), "");
    process.kill(Number((await started(folder))[0]), "SIGKILL");
    const restarted = async () => {
      await launcher.destroy(nothing(folder));
      return (await started(folder)).length;
    };
    await expect.poll(restarted, { timeout: 15_000 }).toBe(2);
    expect(await readdir(pool.dir)).not.toContain("left.img");
  });

  it("a launch that fails leaves none of the disks made ahead, and those are made again", async (context) => {
    const { launcher, folder } = await launcherBy(() => `exec ${agentBinary("alcove-launch")} "$@"`);
    const mkfs = await findProgram("mkfs.ext4");
    const pool = await openDiskPool({ dataDir: folder, diskMb: 64, mkfs });
    if ("missing" in pool) return context.skip(pool.missing);
    await using _ = launcher;
    launcher.keepDisks({ ...pool, count: 2 });
    await launcher.destroy(nothing(folder));
    const ready = () => readdir(pool.dir);
    const made = await waitFor(async () => (await ready()).length >= 2);
    if (!made) return context.skip("loop devices are refused");
    const before = await ready();
    for (let turn = 0; turn < 2; turn += 1)
      await expect(launcher.launch(impossible(folder, turn, pool.template))).rejects.toThrow(LauncherFailure);
    // Which of them were taken depends on how soon new ones were there; one that is left behind would be a third.
    const renewed = async () => {
      const now = await ready();
      return now.length === 2 && now.some((name) => !before.includes(name));
    };
    await expect.poll(renewed, { timeout: 15_000 }).toBe(true);
  });
});

const freezer = "/sys/fs/cgroup/freezer";
const canFreeze = process.getuid?.() === 0 && existsSync(`${freezer}/cgroup.procs`);

describeWith(["launcher"], "the removal of a runtime with a network", () => {
  it.runIf(canFreeze).each(["destroy", "detach"] as const)(
    "gives the relay the time that it has for the sandbox, and is repeated after it: %s",
    async (what) => {
      const folder = await mkdtemp(join(tmpdir(), "alcove-launcher-"));
      folders.push(folder);
      const group = join(freezer, basename(folder));
      await mkdir(group);
      const relay = spawn("sleep", ["60"]);
      const ended = once(relay, "exit");
      try {
        const dir = join(folder, "runtime");
        await mkdir(dir);
        const { pid = 0 } = relay;
        const line = await readFile(`/proc/${pid}/stat`, "utf8");
        const boot_id = (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
        const start_time = Number(line.slice(line.lastIndexOf(")") + 2).split(" ")[19]);
        await writeFile(join(dir, "network.json"), JSON.stringify({ pid, start_time, boot_id }));
        // What is frozen does not end when it is killed, as on a machine without time for it.
        await writeFile(join(group, "cgroup.procs"), String(pid));
        await writeFile(join(group, "freezer.state"), "FROZEN");
        await using launcher = new Launcher({ binary: agentBinary("alcove-launch"), logger: silentLogger });
        const removed =
          what === "destroy"
            ? launcher.destroy({ ...nothing(folder), dir })
            : launcher.detach({ dir, cgroup: null });
        const first = await Promise.race([
          removed.catch((error: unknown) => error),
          pause(6_000, "repeated"),
        ]);
        expect(first).toBe("repeated");
        await writeFile(join(group, "freezer.state"), "THAWED");
        await removed;
        await ended;
        if (what === "destroy") await expect(stat(dir)).rejects.toThrow("ENOENT");
      } finally {
        await writeFile(join(group, "freezer.state"), "THAWED");
        relay.kill("SIGKILL");
        await ended;
        await rmdir(group);
      }
    },
    30_000,
  );
});

async function waitFor(condition: () => Promise<boolean>): Promise<boolean> {
  for (let tried = 0; tried < 100; tried += 1) {
    if (await condition()) return true;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return false;
}

/** Fails before its disk is needed: the parent of its group is not there. */
function impossible(folder: string, turn: number, template: string): LaunchSpec {
  const ids = { kind: "range", base: 1_879_048_192, count: 65_536 } as const;
  const cgroup = {
    version: 1 as const,
    dirs: [{ controller: "pids", path: `${folder}/no-such-parent/group` }],
  };
  return {
    dir: join(folder, `runtime-${turn}`),
    record: {
      version: 1,
      instanceId: "test",
      runtimeId: "rt",
      sandboxId: "sb",
      token: "",
      image: "host",
      rootfs: null,
      ids,
      cgroup,
      createdAt: "",
    },
    agent: agentBinary("alcove-agent"),
    root: { kind: "host", skeleton: folder },
    ids,
    hostname: "test",
    network: "none",
    cgroup,
    limits: { memory_mb: 64, vcpus: 1, pids: 64, exec_group: false },
    added_caps: [],
    disk: { template },
    proc_outside: false,
  };
}

function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

async function started(folder: string): Promise<string[]> {
  return (await readFile(join(folder, "pids"), "utf8")).trim().split("\n");
}
