import { randomBytes } from "node:crypto";
import { copyFile, mkdir } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { bootAgentGuest, guestDisks } from "../../../test/support/agent-guest.ts";
import { attackColumn, attacksAs } from "../../../test/support/attack-table.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import { argv, collect, finish, run, shell } from "../../ports/contract/provider/harness.ts";
import type { ExecSpec } from "../../ports/index.ts";
import { bootArguments } from "./boot-arguments.ts";

const options = () => ({ signal: AbortSignal.timeout(30_000) });
const bootMs = 120_000;

type Guest = Awaited<ReturnType<typeof bootAgentGuest>>;

const sh = (guest: Guest, line: string, change: Partial<ExecSpec> = {}) =>
  run(guest.client, shell(line, change));

await describeWith(["linux", "agent", "mkfs", "qemu-guest", "compiler"], "a microVM's guest", () => {
  let disks: Awaited<ReturnType<typeof guestDisks>>;
  let rootfs: string;
  beforeAll(async () => {
    disks = await guestDisks();
    rootfs = await disks.rootfs((await busyboxRootfs()).dir);
  });
  afterAll(() => disks[Symbol.asyncDispose]());

  describe("that has booted", () => {
    let guest: Guest;
    beforeAll(async () => {
      guest = await bootAgentGuest({ rootfs, layer: await disks.layer(), hostname: "box-1" });
      await guest.configure();
    }, bootMs);
    afterAll(() => guest[Symbol.asyncDispose]());

    it("runs commands with both streams and exit codes, and tells what does not run", async () => {
      expect(await sh(guest, "echo out; echo err >&2; exit 7")).toMatchObject({
        stdout: "out\n",
        stderr: "err\n",
        exit: { exitCode: 7, reason: "exited" },
      });
      const missing = await sh(guest, "", { argv: ["no-such-program"] });
      expect(missing.exit).toMatchObject({ exitCode: 127, startError: expect.stringContaining("not found") });
    });

    it("has its agent as process 1, and the mounts, names and network that programs expect", async () => {
      expect(await guest.client.info(options())).toMatchObject({ pid: 1 });
      const { stdout } = await sh(
        guest,
        [
          "hostname",
          "cat /etc/hosts",
          "stat -c %a /tmp /dev/shm",
          "awk '$2 ~ \"^/(proc|sys|dev|dev/pts|dev/shm|sys/fs/cgroup)?$\" { print $2, $3 }' /proc/mounts | sort",
          "cat /sys/class/net/lo/operstate /proc/sys/net/ipv4/ip_unprivileged_port_start",
          "echo in memory > /dev/shm/a && cat /dev/shm/a",
          "ls -d /lost+found /.alcove/*",
        ].join("\n"),
      );
      expect(stdout.split("\n").filter((line) => line !== "/ rootfs")).toEqual([
        "box-1",
        "127.0.0.1\tlocalhost box-1",
        "::1\tlocalhost box-1",
        "1777",
        "1777",
        "/ overlay",
        "/dev devtmpfs",
        "/dev/pts devpts",
        "/dev/shm tmpfs",
        "/proc proc",
        "/sys sysfs",
        "/sys/fs/cgroup cgroup2",
        "unknown",
        "0",
        "in memory",
        "/.alcove/alcove-agent",
        "",
      ]);
    });

    it("gives root every capability of the machine, and another user none", async () => {
      const caps = "grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status | tr '\\n\\t' '  '";
      const all = "1ffffffffff";
      const root = (await sh(guest, `${caps}; mkdir /mnt; mount -t tmpfs none /mnt && touch /mnt/a && id -u`))
        .stdout;
      expect(root).toMatch(
        new RegExp(`CapPrm: 0*${all} CapEff: 0*${all} CapBnd: 0*${all} NoNewPrivs: 1 0\n$`),
      );
      const user = await sh(guest, `${caps}; id -u; mount -t tmpfs none /mnt`, { user: "app" });
      expect(user.stdout).toMatch(/CapPrm: 0+ CapEff: 0+ .*NoNewPrivs: 1 1000\n$/);
      expect(user.exit.exitCode).not.toBe(0);
    });

    it("refuses a user that is not root what the table of attacks says", async () => {
      expect(await attacksAs(guest.client, ["app"])).toEqual(attackColumn("firecracker, not root"));
    });

    it("has terminals", async () => {
      await using view = await guest.client.execs.start(
        // What is typed is echoed as it comes: before everything else here.
        shell("read line; tty; stty size; echo got $line", { tty: { cols: 100, rows: 30 }, stdin: true }),
        options(),
      );
      await view.writeStdin(Buffer.from("text\n"));
      const { stdout, exit } = await finish(view);
      expect(stdout.replaceAll("\r", "")).toMatch(/\/dev\/pts\/\d+\n30 100\n/);
      expect(stdout).toContain("got text");
      expect(exit.exitCode).toBe(0);
    });

    it("takes and gives files of a size that fills every buffer on the way", async () => {
      const bytes = randomBytes(3 * 1024 * 1024 + 5);
      const body = async function* () {
        for (let at = 0; at < bytes.length; at += 65_536) yield bytes.subarray(at, at + 65_536);
      };
      await guest.client.files.write("/workspace/a/b", body(), { mode: 0o640, ...options() });
      const back = await guest.client.files.read("/workspace/a/b", options());
      expect((await collect(back.body)).equals(bytes)).toBe(true);
      expect(await guest.client.files.list("/workspace/a", { depth: 1, ...options() })).toMatchObject([
        { name: "b", size: bytes.length, mode: 0o640 },
      ]);
      await guest.client.files.remove("/workspace/a", { recursive: true, ...options() });
    });

    it("answers 50 commands at once, each on a connection of its own", async () => {
      const all = await Promise.all(
        Array.from({ length: 50 }, (_, index) => sh(guest, `echo ${index}; sleep 0.2`)),
      );
      expect(all.map(({ stdout }) => stdout)).toEqual(Array.from({ length: 50 }, (_, index) => `${index}\n`));
    });

    it("kills the whole tree of a command, whatever it did to get away", async () => {
      const started = shell("(setsid sleep 1000 & setsid sh -c 'sleep 1001 & sleep 1002') & sleep 1003");
      await using _view = await guest.client.execs.start(started, options());
      const count = async () => (await sh(guest, "ps -o args | grep -c '^sleep 100'")).stdout.trim();
      await expect.poll(count).toBe("4");
      await guest.client.execs.kill(started.execId, { reason: "cancelled", ...options() });
      expect(await count()).toBe("0");
    });

    it("ends a command that forks without pause, and serves on", { timeout: 60_000 }, async () => {
      const bomb = shell("f() { f | f & }; f; sleep 100", { timeoutMs: 2_000 });
      expect((await run(guest.client, bomb)).exit.reason).toBe("timeout");
      await guest.client.execs.kill(bomb.execId, { reason: "cancelled", ...options() });
      expect((await sh(guest, "echo on")).stdout).toBe("on\n");
    });

    it("holds single commands to limits of memory and processes", async () => {
      const greedy = await sh(guest, "dd if=/dev/zero of=/dev/null bs=60M count=1", {
        limits: { memoryMb: 16 },
      });
      expect(greedy.exit).toMatchObject({ reason: "limit", limit: "memory_mb" });
      const many = await sh(guest, "for i in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait", {
        limits: { pids: 4 },
      });
      expect(many.stderr).toMatch(/fork/);
      expect((await sh(guest, "echo unhindered")).stdout).toBe("unhindered\n");
      // What is left of the groups goes when the next is made.
      const groups = async () => {
        await sh(guest, "true", { limits: { pids: 4 } });
        return (await sh(guest, "ls -d /sys/fs/cgroup/sandbox/execs/*/ | wc -l")).stdout.trim();
      };
      await expect.poll(groups, { timeout: 5_000 }).toBe("1");
    });

    it("says that the machine's memory was used up, and goes on", { timeout: 60_000 }, async () => {
      const { exit } = await sh(guest, "dd if=/dev/zero of=/dev/null bs=205M count=1");
      expect(exit).toMatchObject({ reason: "oom", exitCode: 137 });
      expect((await sh(guest, "echo on")).stdout).toBe("on\n");
    });

    it("tells the figures of the whole machine", async () => {
      const stats = await guest.client.stats(options());
      expect(stats.memoryLimitBytes).toBeGreaterThan(150 * 1024 ** 2);
      expect(stats.memoryLimitBytes).toBeLessThanOrEqual(256 * 1024 ** 2);
      expect(stats.memoryBytes).toBeGreaterThan(10 * 1024 ** 2);
      expect(stats.memoryBytes).toBeLessThan(stats.memoryLimitBytes ?? 0);
      expect(stats.pids).toBeLessThan(40);
      expect(stats.pidsLimit).toBe(512);
      expect(stats.diskLimitBytes).toBeGreaterThan(200 * 1024 ** 2);
      expect(stats.cpuUsageMs).toBeGreaterThan(500);
    });

    it("carries connections to programs that listen in it, as its user on a low port", async () => {
      const server = shell("echo served from inside | nc -l -p 80", { user: "app" });
      await using _view = await guest.client.execs.start(server, options());
      let text = "";
      await expect
        .poll(async () => {
          const socket = await guest.client.dialPort(80, options()).catch(() => undefined);
          if (socket === undefined) return "";
          for await (const part of socket) text += String(part);
          return text;
        })
        .toBe("served from inside\n");
    });

    it("renewed, has another clock, name and random numbers", async () => {
      const entropy = randomBytes(32);
      const realtime = new Date(Date.UTC(2031, 4, 6, 7, 8, 9));
      const before = await sh(guest, "cat /proc/sys/kernel/random/entropy_avail");
      expect(Number(before.stdout)).toBeGreaterThan(0);
      await guest.client.renew({ realtime, entropy, hostname: "box-2" }, options());
      const { stdout } = await sh(guest, "date -u +%Y-%m-%dT%H:%M; hostname; cat /etc/hosts /etc/hostname");
      expect(stdout).toBe(
        "2031-05-06T07:08\nbox-2\n127.0.0.1\tlocalhost box-2\n::1\tlocalhost box-2\ntiny\n",
      );
      await expect(guest.client.renew({ realtime, entropy: randomBytes(8) }, options())).rejects.toThrow(
        /entropy: 32 to 256 bytes/,
      );
      await expect(guest.client.renew({ realtime, entropy, hostname: "a b" }, options())).rejects.toThrow(
        /hostname: "a b" is no name/,
      );
      // A command that began before goes by another clock.
      expect((await sh(guest, "sleep 0.3; echo on", { timeoutMs: 5_000 })).stdout).toBe("on\n");
    });
  });

  it("writes to a layer of its own, which another guest of the image sees nothing of, and has the network it is given", {
    timeout: bootMs,
  }, async () => {
    const server = createServer((_request, response) => response.end("from outside\n"));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    await using _closes = {
      [Symbol.asyncDispose]: () => new Promise<void>((resolve) => server.close(() => resolve())),
    };
    const network = { address: "10.0.2.15/24", gateway: "10.0.2.2", dns: "10.0.2.3" };
    await using one = await bootAgentGuest({
      rootfs,
      layer: await disks.layer(64),
      forwardTo: (server.address() as AddressInfo).port,
      bootArguments: bootArguments({ hostname: "box", pids: 512, network }),
    });
    await using other = await bootAgentGuest({ rootfs, layer: await disks.layer(64) });
    await Promise.all([one.configure(), other.configure()]);
    await sh(one, "echo mine > /etc/mine; rm /etc/passwd; sync");
    expect((await sh(one, "cat /etc/mine")).stdout).toBe("mine\n");
    const seen = await sh(other, "ls /etc");
    expect(seen.stdout).not.toContain("mine");
    expect(seen.stdout).toContain("passwd");
    const surroundings = "cat /etc/resolv.conf; ip -4 -o addr | awk '{ print $2, $4 }'; ip route";
    expect((await sh(one, surroundings)).stdout.trim().split(/ *\n/)).toEqual([
      "nameserver 10.0.2.3",
      "lo 127.0.0.1/8",
      "eth0 10.0.2.15/24",
      "default via 10.0.2.2 dev eth0",
      "10.0.2.0/24 dev eth0 scope link  src 10.0.2.15",
    ]);
    expect((await sh(one, "wget -qO- http://10.0.2.100/")).stdout).toBe("from outside\n");
    expect((await sh(other, surroundings)).stdout).toBe("lo 127.0.0.1/8\n");
    // What fills its layer hurts nobody else.
    const full = await sh(one, "dd if=/dev/zero of=/big bs=1M count=200 2>&1; rm /big");
    expect(full.stdout).toContain("No space left");
    // A kernel that panics ends the machine, and says so.
    await other.client.execs
      .startDetached(shell("echo c > /proc/sysrq-trigger", { detached: true }), options())
      .catch(() => undefined);
    expect(await other.ended).toBe(0);
    expect(other.console()).toMatch(/Kernel panic/);
  });

  it("needs no shell and no folder of its image, and ends QEMU when its agent is shut down", {
    timeout: bootMs,
  }, async () => {
    const tree = join(disks.folder, "bare");
    await mkdir(tree);
    await copyFile(join((await busyboxRootfs()).dir, "bin/busybox"), join(tree, "echo"));
    await using guest = await bootAgentGuest({
      rootfs: await disks.rootfs(tree, "2"),
      layer: await disks.layer(),
    });
    await guest.configure();
    const said = await run(guest.client, argv("/echo", "hello"));
    expect(said).toMatchObject({ stdout: "hello\n", exit: { exitCode: 0 } });
    const listed = await guest.client.files.list("/", { depth: 1, ...options() });
    expect(listed.map(({ name }) => name)).toEqual([
      ".alcove",
      "dev",
      "echo",
      "etc",
      "proc",
      "run",
      "sys",
      "tmp",
      "workspace",
    ]);
    await guest.client.shutdown(options());
    expect(await guest.ended).toBe(0);
    expect(guest.console()).toMatch(/alcove-agent: the machine ends/);
  });

  it("says on its console why it does not start, and ends", { timeout: bootMs }, async () => {
    await using without = await bootAgentGuest({ rootfs, layer: undefined });
    expect(await without.ended).toBe(0);
    expect(without.console()).toMatch(/alcove-agent: init: layer \/dev\/vdb: No such file or directory/);
    const mistaken = bootArguments({ hostname: "box", pids: 512 }).replace("port=1024", "port=x");
    await using wrong = await bootAgentGuest({ rootfs, layer: undefined, bootArguments: mistaken });
    expect(await wrong.ended).toBe(0);
    expect(wrong.console()).toMatch(/alcove-agent: init: port="x" is no port/);
  });
});
