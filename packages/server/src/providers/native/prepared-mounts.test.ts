import { chmod, mkdir, mkdtemp, readFile, readlink, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { agentBinary } from "../../../test/support/agent-binary.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import { silentLogger } from "../../platform/logger.ts";
import { Launcher, type LaunchSpec } from "../launcher/index.ts";

await describeWith(["root", "agent", "launcher", "native", "busybox"], "what waits with a sandbox", () => {
  let folder: string;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "alcove-prepared-"));
    await chmod(folder, 0o755);
    await mkdir(join(folder, ".trash"));
  });
  afterEach(() => rm(folder, { recursive: true, force: true }));

  // A layer of memory is made at a path on every kernel, and every layer is before Linux 6.13.
  it.each<[string, LaunchSpec["disk"]]>([
    ["at a path", { tmpfs_mb: 16 }],
    ["from descriptors", {}],
  ])("has no mounts of its own after it made a layer %s: the machine's can be unmounted", async (_, disk) => {
    await using launcher = new Launcher({ binary: agentBinary("alcove-launch"), logger: silentLogger });
    const ids = { kind: "range", base: 4_000_055_296, count: 65_536 } as const;
    const { pid } = await launcher.prepare({
      dir: join(folder, "prepared-1"),
      record: {},
      agent: agentBinary("alcove-agent"),
      root: { kind: "image", rootfs: (await busyboxRootfs()).dir },
      ids,
      hostname: "sb-prepared",
      network: "none",
      cgroup: null,
      limits: { memory_mb: 64, vcpus: 1, pids: 64, exec_group: false },
      added_caps: [],
      disk,
      proc_outside: false,
    } as unknown as LaunchSpec);
    const stat = await readFile(`/proc/${pid}/stat`, "utf8");
    const maker = stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1];
    expect(await readlink(`/proc/${maker}/ns/mnt`)).toBe(await readlink("/proc/self/ns/mnt"));
    expect(await readlink(`/proc/${maker}/cwd`)).toBe(join(folder, "prepared-1"));
    await launcher.destroy({
      dir: join(folder, "prepared-1"),
      trash: join(folder, ".trash"),
      cgroup: null,
      ids,
    });
  });
});
