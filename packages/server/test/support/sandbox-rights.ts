import { readdir, readFile, readlink } from "node:fs/promises";
import { join } from "node:path";
import type { SandboxOperations } from "../../src/ports/index.ts";
import { runScript } from "./attack-probe.ts";
import { processOf } from "./prepared.ts";

/** Files of a control group that are settings, of both versions. */
const settings =
  /(limit_in_bytes|\.(max|high|low|min|weight|shares)|cfs_\w+_us|swappiness|use_hierarchy|subtree_control|oom_control|oom\.group)$/;
/** Lines of /proc/<pid>/status that say what a process may. */
export const rightsInStatus =
  /^(Umask|Uid|Gid|Groups|NSpid|Threads|Sig(Blk|Ign|Cgt)|Cap\w+|NoNewPrivs|Seccomp\w*|Cpus_allowed|Mems_allowed|CoreDumping|THP_enabled):/;

const inside = [
  // What two streams say at once comes in either order.
  "exec 2>&1",
  "id",
  "hostname",
  "cat /proc/meminfo /proc/cpuinfo /proc/cgroups",
  "cat /etc/hosts /etc/hostname /etc/resolv.conf /proc/self/cgroup",
  "ulimit -a",
  "df -k / /dev /dev/shm | awk '{ print $2, $6 }'",
  "for f in /proc/sys/net/ipv4/*port* /proc/sys/net/ipv4/tcp_*mem /proc/sys/user/*; do echo $f $(cat $f); done",
  // Links to /proc count the machine's processes.
  "ls -lan / /dev /etc /proc/sys | sed 's/ [A-Z][a-z][a-z] .*:.. / /; s/^\\([a-z-]*\\) *[0-9]*/\\1/'",
  "ls -a /tmp /dev/shm /run",
  "cat /sys/class/net/*/operstate; ls /proc/sys/net/ipv4/conf",
  "env | sort",
].join("; ");

/**
 * Everything that bounds a sandbox and that it may, as the machine and the sandbox itself tell it, without what is its own:
 * names, numbers of ids, devices and processes.
 */
export async function rightsOf(
  dataDir: string,
  sandbox: { runtimeId: string; sandboxId: string; operations: SandboxOperations },
): Promise<Record<string, unknown>> {
  const pid = await processOf(dataDir, sandbox.runtimeId);
  const record = JSON.parse(
    await readFile(join(dataDir, "runtimes/native", sandbox.runtimeId, "runtime.json"), "utf8"),
  );
  const { base } = record.ids;
  const names: [string | RegExp, string][] = [
    [/prepared-[0-9a-f]+/g, "NAME"],
    [new RegExp(sandbox.runtimeId, "g"), "NAME"],
    [new RegExp(sandbox.sandboxId, "g"), "SANDBOX"],
    [/\/dev\/loop\d+/g, "LOOP"],
  ];
  const ownId = (digits: string) => {
    const id = Number(digits) - base;
    return id >= 0 && id < record.ids.count ? `BASE+${id}` : digits;
  };
  const plain = (text: string) =>
    names.reduce((found, [from, to]) => found.replaceAll(from, to), text).replaceAll(/\b\d{10}\b/g, ownId);
  const proc = async (name: string) => plain(await readFile(`/proc/${pid}/${name}`, "utf8"));
  const lines = async (name: string, wanted: RegExp) =>
    (await proc(name)).split("\n").filter((line) => wanted.test(line));
  const stat = (await proc("stat")).split(") ")[1]?.split(" ") ?? [];
  const { output } = await runScript(sandbox.operations, inside);
  return {
    record: {
      ...record,
      runtimeId: "",
      sandboxId: "",
      token: record.token.length,
      createdAt: "",
      ids: record.ids.count,
      sandbox: Object.keys(record.sandbox ?? {}),
      cgroup: JSON.parse(plain(JSON.stringify(record.cgroup))),
    },
    files: (await readdir(join(dataDir, "runtimes/native", sandbox.runtimeId))).sort(),
    groups: await groupsOf(record.cgroup?.dirs ?? [], plain),
    status: (await lines("status", rightsInStatus)).map((line) => line.replace(/^NSpid:.*\t/, "NSpid: ")),
    limits: await proc("limits"),
    maps: [await proc("uid_map"), await proc("gid_map"), await proc("setgroups")],
    scores: [await proc("oom_score_adj"), await proc("coredump_filter"), await proc("timerslack_ns")],
    cgroup: await proc("cgroup"),
    command: (await proc("cmdline"))
      .split("\0")
      .join(" ")
      // By these it waited; `descriptors` tells that it has them no longer.
      .replace(/--owner-fd \d+ --told-fd \d+ /, "")
      // The numbers of others depend on what the launcher had open, and on those.
      .replace(/(?<=-fd )\d+/g, "N"),
    environment: await proc("environ"),
    priority: [stat[15], stat[16], stat[38], stat[37]],
    mounts: await mountsOf(await proc("mountinfo")),
    descriptors: await descriptorsOf(pid),
    inside: plain(output).split("\n"),
  };
}

async function groupsOf(
  dirs: { controller: string; path: string }[],
  plain: (text: string) => string,
): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  const look = async (dir: string) => {
    for (const entry of await readdir(dir, { withFileTypes: true })) {
      const path = join(dir, entry.name);
      if (entry.isDirectory()) await look(path);
      else if (settings.test(entry.name))
        found[plain(path)] = await readFile(path, "utf8").catch((error) => String(error.code));
    }
  };
  for (const { path } of dirs) await look(path);
  return found;
}

/**
 * Without numbers of mounts and of devices, which are given anew each time, and in no order: the kernel tells them by when they were made,
 * and the root is made while /proc and /dev are.
 */
function mountsOf(mountinfo: string): string[] {
  return mountinfo
    .trim()
    .split("\n")
    .map((line) => line.split(" ").slice(3).join(" "))
    .sort();
}

/** What the agent was started with: it opens more as it goes. */
async function descriptorsOf(pid: number): Promise<string[]> {
  const names = (await readdir(`/proc/${pid}/fd`)).map(Number).sort((one, other) => one - other);
  const targets = await Promise.all(
    names.map((name) => readlink(`/proc/${pid}/fd/${name}`).catch(() => "gone")),
  );
  return targets.map((target) => target.replace(/\d+/g, "N").replace(/^\/.*\//, "")).sort();
}
