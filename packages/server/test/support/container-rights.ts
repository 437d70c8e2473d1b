import { readFile, readlink, stat } from "node:fs/promises";
import { join } from "node:path";
import type { SandboxOperations } from "../../src/ports/index.ts";
import { runScript } from "./attack-probe.ts";
import type { TestEngine } from "./docker-engine.ts";
import { mustRun } from "./programs.ts";
import { rightsInStatus } from "./sandbox-rights.ts";

/** What commands of a container see beside what those of every sandbox do. */
const inside = [
  "id; hostname; cat /proc/cgroups | cut -f 1,2,4; cat /etc/hosts /etc/hostname /etc/resolv.conf /proc/self/cgroup; ulimit -a",
  "df -k / /dev /dev/shm | awk '{ print $6 }'; cat /etc/passwd; ls -a /tmp /dev/shm /run",
  // Links to /proc count the machine's processes.
  "ls -lan / /dev /etc /proc/sys | sed 's/ [A-Z][a-z][a-z] .*:.. / /; s/^\\([a-z-]*\\) *[0-9]*/\\1/'",
  "cat /sys/class/net/*/operstate; ls /proc/sys/net/ipv4/conf; env | sort",
  "cat /proc/1/cmdline | tr '\\0' '\\n'; cut -d ' ' -f 4- /proc/self/mountinfo | sort",
  "cat /proc/1/environ 2>&1; ls -ln /.alcove /.alcove/run 2>&1 | sed 's/ [A-Z][a-z][a-z] .*:.. / /'; stat -c '%n %a %u %g' / /workspace /tmp /proc/1 /.alcove",
  "for f in $(find /sys/fs/cgroup -maxdepth 2 -name '*limit*' -o -maxdepth 2 -name '*cfs*' -o -maxdepth 2 -name '*.max'); do echo $f $(cat $f 2>&1); done",
  "ls /proc | grep -v '^[0-9]'; ls /proc/1/fd 2>&1; ls -l /proc/self/ns | wc -l; sort /proc/mounts",
  "ps -o user,args | head -3; cat /proc/self/status | grep -E '^(Cap|Seccomp|NoNew|Groups)'",
].join("; ");

interface Mount {
  Destination: string;
}

/** Keys of a container's description that are its own, whatever it was made for. */
const own = new Set([
  "Id",
  "Created",
  "StartedAt",
  "FinishedAt",
  "Pid",
  "SandboxID",
  "SandboxKey",
  "EndpointID",
]);

/**
 * Everything that bounds a container and that it may, as its engine, the machine and the sandbox itself tell it, without what is
 * its own: names, numbers of processes, layers and mounts.
 */
export async function containerRights(
  engine: TestEngine,
  { dataDir, container }: { dataDir: string; container: string },
  sandbox: { runtimeId: string; sandboxId: string; operations: SandboxOperations },
): Promise<Record<string, unknown>> {
  const { stdout } = await mustRun("docker", ["-H", engine.socket, "inspect", container]);
  const [described] = JSON.parse(stdout);
  // Engines list them in no order.
  described.Mounts.sort((one: Mount, other: Mount) => one.Destination.localeCompare(other.Destination));
  const { Id: id } = described;
  const { Pid: pid } = described.State;
  const folder = join(dataDir, "runtimes/docker", sandbox.runtimeId);
  const { output } = await runScript(sandbox.operations, inside);
  const plain = (text: string) =>
    text
      .replaceAll(id, "CONTAINER")
      .replaceAll(/\b[0-9a-f]{64}(-init)?\b/g, "LAYER")
      .replaceAll(/overlay2\/l\/[A-Z0-9]{26}/g, "overlay2/l/LINK")
      .replaceAll(/prepared-[0-9a-f]{12}/g, "NAME")
      .replaceAll(sandbox.runtimeId, "NAME")
      .replaceAll(sandbox.sandboxId, "SANDBOX")
      .replaceAll(/(?<=^|\n)\d+ \d+ \d+:\d+ /g, "")
      .replaceAll(/(?<= (master|shared):)\d+/g, "N");
  const proc = async (name: string) => plain(await readFile(`/proc/${pid}/${name}`, "utf8"));
  const record = JSON.parse(await readFile(join(folder, "runtime.json"), "utf8"));
  const modes = await Promise.all(
    ["", "runtime.json", "sock", "sock/agent.sock"].map((name) => stat(join(folder, name))),
  );
  const namespaces = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"].map(async (name) => [
    name,
    (await readlink(`/proc/${pid}/ns/${name}`)) === (await readlink(`/proc/self/ns/${name}`)),
  ]);
  return {
    description: JSON.parse(plain(JSON.stringify(described, (key, value) => (own.has(key) ? "OWN" : value)))),
    record: {
      ...record,
      runtimeId: "",
      sandboxId: "",
      token: record.token.length,
      createdAt: "",
      sandbox: Object.keys(record.sandbox),
      socket: Object.keys(record.socket),
    },
    modes: modes.map(({ mode, uid, gid }) => [mode, uid, gid]),
    status: (await proc("status"))
      .split("\n")
      .filter((line) => rightsInStatus.test(line) && !line.startsWith("Threads"))
      .map((line) => line.replace(/^NSpid:.*\t/, "NSpid: ")),
    limits: await proc("limits"),
    maps: [await proc("uid_map"), await proc("gid_map"), await proc("setgroups")],
    scores: [await proc("oom_score_adj"), await proc("coredump_filter"), await proc("timerslack_ns")],
    cgroup: await proc("cgroup"),
    command: await proc("cmdline"),
    mounts: (await proc("mountinfo"))
      .split("\n")
      .map((line) => line.split(" ").slice(3).join(" "))
      .sort(),
    namespaces: await Promise.all(namespaces),
    inside: plain(output).split("\n"),
  };
}
