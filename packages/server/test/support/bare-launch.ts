import { join } from "node:path";
import type { LaunchSpec } from "../../src/providers/launcher/index.ts";
import { agentBinary } from "./agent-binary.ts";
import { busyboxRootfs } from "./tiny-images.ts";

type GroupDirs = NonNullable<LaunchSpec["cgroup"]>["dirs"];

/**
 * A rooted launch for the launcher alone, without a provider: busybox into `folder`/runtime, without a network.
 * @param options.base of its ids: another one for each file of tests.
 * @param options.dirs folders that are taken for groups of cgroup v1.
 */
export async function bareLaunch(
  folder: string,
  { base, dirs, execGroup }: { base: number; dirs: GroupDirs; execGroup: boolean },
): Promise<LaunchSpec> {
  const ids = { kind: "range", base, count: 65_536 } as const;
  const cgroup = { version: 1 as const, dirs };
  const { dir: rootfs } = await busyboxRootfs();
  const identity = { instanceId: "test", runtimeId: "rt", sandboxId: "sb", token: "" };
  return {
    dir: join(folder, "runtime"),
    record: { version: 1, ...identity, image: "", rootfs, ids, cgroup, createdAt: "" },
    agent: agentBinary("alcove-agent"),
    root: { kind: "image", rootfs },
    ids,
    hostname: "test",
    network: "none",
    cgroup,
    limits: { memory_mb: 64, vcpus: 1, pids: 64, exec_group: execGroup },
    added_caps: [],
    disk: { tmpfs_mb: 16 },
    proc_outside: false,
  };
}
