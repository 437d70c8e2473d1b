import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdir, readFile, stat } from "node:fs/promises";
import { release } from "node:os";
import { Readable } from "node:stream";
import { expect, it } from "vitest";
import { runScript } from "../../../test/support/attack-probe.ts";
import { probedSandboxes } from "../../../test/support/native-sandboxes.ts";
import { mustRun } from "../../../test/support/programs.ts";
import { describeWith, skipWithout } from "../../../test/support/requirements.ts";
import { orMissing } from "../../platform/missing.ts";
import { shell } from "../../ports/contract/provider/harness.ts";
import { type RuntimeId, Unavailable } from "../../ports/index.ts";
import { findProgram } from "../launcher/index.ts";

const memoryMb = 64;

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "what a sandbox cannot take from others",
  () => {
    const sandboxes = probedSandboxes({ memoryMb, patienceMs: 15_000 });

    async function sandbox(image?: string) {
      const spawned = await sandboxes.spawn(image === undefined ? {} : { image });
      const run = async (script: string, user = "0") =>
        (await runScript(spawned.operations, script, { user })).output;
      return { ...spawned, run };
    }

    it("terminals: one sandbox has 64, and others have theirs", async () => {
      const [greedy, other] = [await sandbox(), await sandbox()];
      const taken = await greedy.take("terminals", 300);
      expect(taken).toBeGreaterThan(16);
      expect(taken).toBeLessThanOrEqual(64);
      expect(await other.take("terminals", 10)).toBe(10);
    });

    it("an id that it has not got is refused in the same words for commands and files", async () => {
      const { operations } = await sandbox();
      const call = () => ({ signal: AbortSignal.timeout(10_000) });
      for (const user of ["70000", "1000:70000"]) {
        const tries = [
          () => operations.execs.startDetached({ ...shell("true"), user }, call()),
          () => operations.files.write("/workspace/f", Readable.from([]), { ...call(), user }),
        ];
        for (const tried of tries)
          await expect(tried()).rejects.toThrow(/has an id that this sandbox does not have/);
      }
    });

    it("a command that finds no terminal left is told that, and of no memory or disk", async () => {
      const { operations } = await sandbox();
      const until = new AbortController();
      const call = { signal: until.signal };
      const begin = () =>
        operations.execs.startDetached({ ...shell("sleep 60"), tty: { cols: 80, rows: 24 } }, call);
      let refused: unknown;
      for (let count = 0; count <= 64 && refused === undefined; count++)
        refused = await begin().then(
          () => undefined,
          (error: unknown) => error,
        );
      expect(refused).toBeInstanceOf(Unavailable);
      expect(String(refused)).toMatch(/no terminal can be opened: .* have used up theirs/);
      until.abort();
    });

    it("what carries commands runs soon beside programs that use all their processor, and commands as all programs do", async (context) => {
      const sliceOf = (text: string) => Number(/se\.slice +: +(\d+)/.exec(text)?.[1]);
      const { run } = await sandbox();
      const own = sliceOf(await orMissing(readFile("/proc/self/sched", "utf8"), ""));
      if (Number.isNaN(own)) return skipWithout(context, "the kernel tells no slices of threads");
      const [major = 0, minor = 0] = release().split(".").map(Number);
      if (major * 1_000 + minor < 6_012) return skipWithout(context, "slices of threads need Linux 6.12");
      // This process stands for the service.
      expect(own).toBe(200_000);
      expect(sliceOf(await run("cat /proc/1/sched"))).toBe(own);
      expect(sliceOf(await run("cat /proc/self/sched"))).toBeGreaterThan(own);
    });

    it("inotify instances are counted for each sandbox by itself", async () => {
      const [greedy, other] = [await sandbox(), await sandbox()];
      const most = Number(await readFile("/proc/sys/fs/inotify/max_user_instances", "utf8"));
      expect(await greedy.take("inotify", 70_000)).toBeGreaterThan(Math.min(most, 10_000) * 0.8);
      expect(await other.take("inotify", 20)).toBe(20);
    });

    it("bytes that wait in sockets stay within the order of the memory limit", async () => {
      const greedy = await sandbox();
      const queued = await greedy.take("streams", 300);
      expect(queued).toBeGreaterThan(0);
      expect(queued).toBeLessThan(memoryMb << 20);
      expect(await greedy.take("datagrams", 300)).toBeLessThan((memoryMb << 20) / 2);
    });

    it("no limit of core dumps can be set that would start the host's handler", async () => {
      const { run } = await sandbox();
      // Nobody can have more than the service has.
      const none = /^Max core file size +\S+ +0 /m.test(await readFile("/proc/self/limits", "utf8"));
      for (const user of ["0", "1000"]) {
        const output = await run(
          "ulimit -c 0; ulimit -c unlimited; grep 'core file' /proc/self/limits",
          user,
        );
        expect(output).toMatch(none ? /^Max core file size\s+0\s+0/m : /^Max core file size\s+1\s+1/m);
      }
    });

    it("of memory that cannot be given up a process has 64 KB: what is locked may be everybody's, and counts for nobody", async () => {
      const { run } = await sandbox();
      for (const user of ["0", "1000"]) {
        const output = await run("ulimit -l unlimited; grep 'locked memory' /proc/self/limits", user);
        expect(output).toMatch(/^Max locked memory\s+65536\s+65536/m);
      }
    });

    it("image host: the machine keeps its programs in memory, whatever a sandbox advises", async (context) => {
      if ((await findProgram("fincore")) === undefined)
        return skipWithout(context, "fincore is not installed");
      const { run } = await sandbox("host");
      const program = "/usr/bin/shred";
      const inMemory = async () =>
        Number((await mustRun("fincore", ["--bytes", "--noheadings", "--output", "RES", program])).stdout);
      await readFile(program);
      const before = await inMemory();
      expect(before).toBeGreaterThan(0);
      // Of all of the file.
      expect(await run(`dd if=${program} iflag=nocache count=0 2>&1 && echo advised`)).toContain("advised");
      expect(await inMemory()).toBe(before);
    });

    it("figures of the host's disks, devices, modules and command line are not shown, nor what a newer kernel adds", async () => {
      const shown =
        "cgroups cpuinfo devices filesystems loadavg meminfo mounts net self stat sys sysrq-trigger sysvipc thread-self tty uptime version vmstat";
      for (const image of [undefined, "host"]) {
        const { run } = await sandbox(image);
        // What is neither shown nor a process: a folder with entries, or a file with bytes.
        const seen = `cd /proc && for name in *; do
  case "$name" in [0-9]*) continue;; esac
  case " ${shown} " in *" $name "*) continue;; esac
  if [ -d "$name" ]; then ls -A "$name"; else head -c 1 "$name" | wc -c | grep -v '^0$'; fi 2>/dev/null | sed "s|^|$name |"
done`;
        for (const user of ["0", "1000"]) expect(await run(seen, user)).toBe("");
        expect(await run("cat /proc/sys/user/max_user_namespaces")).toBe("0\n");
        // Controllers, which a JVM looks for, without the number of the machine's groups.
        expect(await run("cut -f 3 /proc/cgroups | sort -u")).toMatch(/^(1\nnum_cgroups|num_cgroups\n1)\n$/);
      }
    });

    it("image host: the host's locks on its programs are not in the way, and theirs not in the host's", async (context) => {
      if ((await findProgram("flock")) === undefined) return skipWithout(context, "flock is not installed");
      const { run } = await sandbox("host");
      const program = "/usr/bin/env";
      // It holds the lock until its input ends: of a signal only flock itself would hear.
      const holder = spawn("flock", [program, "sh", "-c", "echo held; exec cat"], {
        stdio: ["pipe", "pipe", "inherit"],
      });
      try {
        await once(holder.stdout, "data");
        expect(await run(`flock -n ${program} true && echo free`)).toBe("free\n");
      } finally {
        const ended = once(holder, "exit");
        holder.stdin.end();
        await ended;
      }
    });

    it("image host: a watch on the host's programs sees neither what the host nor what another sandbox does with them", async (context) => {
      const numbers = { x64: [294, 254], arm64: [26, 27] }[process.arch as string];
      if (numbers === undefined) return context.skip(`system calls of ${process.arch} are not known here`);
      const [watching, other] = [await sandbox("host"), await sandbox("host")];
      const program = "/usr/bin/shred";
      // Says of each line it reads how many bytes of events came since the one before: opened, read.
      const watcher = `$path = "${program}"; $fd = syscall(${numbers[0]}, 04000);
syscall(${numbers[1]}, $fd, $path, 0x21) > 0 or die $!;
open($events, "<&=", $fd); $| = 1; while (<STDIN>) { print sysread($events, $_, 4096) || 0, "\n" }`;
      const seen = watching.run(
        `(echo; until [ -e /tmp/read ]; do sleep 0.02; done; echo
until [ $(wc -l < /tmp/seen) = 2 ]; do sleep 0.02; done; cat ${program} > /tmp/copy; echo) |
perl -e '${watcher}' | tee /tmp/seen`,
      );
      await watching.run("until grep -q 0 /tmp/seen; do sleep 0.02; done");
      await readFile(program);
      await other.run(`cat ${program} > /tmp/copy`);
      await watching.run("touch /tmp/read");
      const [begun, others, own] = (await seen).trim().split("\n");
      expect([begun, others]).toEqual(["0", "0"]);
      expect(Number(own)).toBeGreaterThan(0);
    });

    it("device nodes are each sandbox's own: watches and locks on them reach nobody else", async () => {
      const { run } = await sandbox();
      const inside = (
        await run("stat -L -c '%d %i' /dev/null; echo x > /dev/null && head -c 4 /dev/zero | wc -c")
      )
        .trim()
        .split("\n");
      const { dev, ino } = await stat("/dev/null");
      expect(inside[0]).toMatch(/^\d+ \d+$/);
      expect(inside[0]).not.toBe(`${dev} ${ino}`);
      expect(inside[1]).toBe("4");
      expect(await run("ls -l /dev/null /dev/tty | cut -c 1-10", "1000")).toBe("crw-rw-rw-\ncrw-rw-rw-\n");
      expect(
        await run("echo x > /dev/null && rm -f /dev/null /dev/new; mknod /dev/new c 1 3 || echo no", "1000"),
      ).toContain("no\n");
    });

    it("no file of a sandbox has the host's disk flushed with each write", async (context) => {
      if ((await findProgram("chattr")) === undefined) return skipWithout(context, "chattr is not installed");
      const { runtimeId, run } = await sandbox("host");
      const disk = await diskOf(runtimeId);
      if (disk === undefined) return skipWithout(context, "sandboxes have no disk of their own here");
      const before = await flushes(disk);
      const wrote = await run(
        "touch /tmp/f && chattr +S /tmp/f && dd if=/dev/zero of=/tmp/f bs=512 count=200 conv=notrunc 2>&1",
      );
      expect(wrote).toContain("200+0 records out");
      expect((await flushes(disk)) - before).toBeLessThan(20);
    });

    it("a user whose id the sandbox does not have is the caller's mistake", async () => {
      const { run } = await sandbox();
      for (const user of ["65536", "70000:0", "0:70000"])
        await expect(run("true", user)).rejects.toMatchObject({ code: "bad_request" });
    });
  },
);

/** @returns the name of the loop device that a sandbox's disk is on. */
async function diskOf(runtimeId: RuntimeId): Promise<string | undefined> {
  for (const name of await readdir("/sys/block")) {
    const image = await readFile(`/sys/block/${name}/loop/backing_file`, "utf8").catch(() => "");
    if (image.includes(`/${runtimeId}/`)) return name;
  }
  return undefined;
}

/** How often a disk was flushed. */
async function flushes(disk: string): Promise<number> {
  const figures = (await readFile(`/sys/block/${disk}/stat`, "utf8")).trim().split(/ +/);
  return Number(figures[15]);
}
