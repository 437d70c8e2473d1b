import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, expect, it } from "vitest";
import { mustRun } from "../../../test/support/programs.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import { findProgram } from "../launcher/index.ts";

const service = fileURLToPath(new URL("../../../test/support/programs/native-service.ts", import.meta.url));
const folders: string[] = [];

afterEach(async () => {
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true, force: true });
});

interface Said {
  check: { healthy: boolean; error?: string; notes: string[] };
  host: string;
  "busybox:test": string;
  left: unknown[];
}

/** Runs the service with mounts of its own: `mounts` are shell lines that see the folder as `$d`; they end with it. */
async function serve(mounts: string[], env: Record<string, string> = {}): Promise<Said> {
  const folder = await mkdtemp(join(tmpdir(), "alcove-around-"));
  folders.push(folder);
  const { dir: rootfs } = await busyboxRootfs();
  const lines = ["set -e", "mount --make-rprivate /", `d=${folder}`, "mkdir $d/data", ...mounts];
  const { stdout } = await mustRun(
    "unshare",
    ["-m", "sh", "-c", [...lines, `exec "$0" ${service} $d/data ${rootfs}`].join("\n"), process.execPath],
    { timeoutMs: 60_000, env: { ...process.env, ...env } },
  );
  return JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
}

async function loopDevicesWork(): Promise<boolean> {
  const folder = await mkdtemp(join(tmpdir(), "alcove-loop-"));
  folders.push(folder);
  const attempt = "truncate -s 1M $0/image && losetup -d $(losetup --find --show $0/image)";
  return mustRun("sh", ["-ec", attempt, folder], { timeoutMs: 10_000 }).then(
    () => true,
    () => false,
  );
}

async function kernelMounts(kind: string): Promise<boolean> {
  await mustRun("modprobe", ["-q", kind], { timeoutMs: 10_000 }).catch(() => undefined);
  return (await readFile("/proc/filesystems", "utf8")).includes(`\t${kind}\n`);
}

/** A sandbox with users, processes, a writable root and programs that cannot be changed. */
function expectSandboxes(said: Said): void {
  expect(said.check).toMatchObject({ healthy: true });
  expect(said.host).toMatch(/^0\nfew\n\/etc\n\/proc\/self\/status\n\/usr\n/);
  expect(said.host).not.toContain("written");
  expect(said["busybox:test"]).toMatch(/^0\nfew\n\/etc\n\/proc\/self\/status\n/);
  expect(said.left).toEqual([]);
}

const onOverlay = [
  "mkdir $d/tmp",
  "mount -t tmpfs none $d/tmp",
  "mkdir $d/tmp/lower $d/tmp/upper $d/tmp/work",
  "mount -t overlay -o lowerdir=$d/tmp/lower,upperdir=$d/tmp/upper,workdir=$d/tmp/work none $d/data",
];
/** As engines do it for containers without all rights. */
const maskedProc = ["mount -t tmpfs -o ro none /proc/bus", "mount --bind /dev/null /proc/timer_list"];
const noCgroups = ["mount -t tmpfs -o ro none /sys/fs/cgroup"];

await describeWith(
  ["linux", "root", "agent", "launcher", "native", "busybox"],
  "native where the service is",
  () => {
    it("data_dir on tmpfs", { timeout: 90_000 }, async () => {
      expectSandboxes(await serve(["mount -t tmpfs none $d/data"]));
    });

    it("a mount whose name is no UTF-8, as some sticks have them", { timeout: 90_000 }, async () => {
      expectSandboxes(await serve(['n=$d/$(printf "\\377")', 'mkdir "$n"', 'mount -t tmpfs none "$n"']));
    });

    it("data_dir on a file system that refuses programs: the message says so", {
      timeout: 90_000,
    }, async () => {
      const said = await serve(["mount -t tmpfs -o noexec none $d/data"]);
      expect(said.check.healthy).toBe(false);
      expect(said.check.error).toContain("noexec");
      expect(said.left).toEqual([]);
    });

    it("data_dir on overlayfs: roots are copied, and a note says what that costs", {
      timeout: 90_000,
    }, async () => {
      const said = await serve(onOverlay);
      expectSandboxes(said);
      expect(said.check.notes.join("\n")).toContain("share one range of ids");
    });

    it("a /proc with places covered: sandboxes get theirs from outside", { timeout: 90_000 }, async () => {
      const said = await serve(maskedProc);
      expectSandboxes(said);
      expect(said.check.notes.join("\n")).toContain("from outside");
    });

    it("everything at once, and no cgroups, as in a bare container", { timeout: 90_000 }, async () => {
      const said = await serve([...onOverlay, ...maskedProc, ...noCgroups]);
      expectSandboxes(said);
      expect(said.check.notes.join("\n")).toContain("limits are rlimits");
    });

    for (const kind of ["xfs", "btrfs", "ext4"]) {
      it(`data_dir on ${kind}`, { timeout: 90_000 }, async (context) => {
        const mkfs = await findProgram(`mkfs.${kind}`);
        if (mkfs === undefined) return context.skip(`mkfs.${kind} is not installed`);
        if (!(await kernelMounts(kind))) return context.skip(`the kernel has no ${kind}`);
        if (!(await loopDevicesWork())) return context.skip("there are no loop devices");
        expectSandboxes(
          await serve([
            "truncate -s 400M $d/image",
            `${mkfs} -q $d/image`,
            `mount -t ${kind} -o loop $d/image $d/data`,
          ]),
        );
      });
    }
  },
);
