import { once } from "node:events";
import { createServer, type Server } from "node:net";
import { afterAll, beforeAll, expect, it } from "vitest";
import { attackProbe } from "../../../test/support/attack-probe.ts";
import { attackColumn, attacksAs } from "../../../test/support/attack-table.ts";
import { sharedEngine } from "../../../test/support/docker-engine.ts";
import { containerOf, type DockerUnderTest, openDocker } from "../../../test/support/docker-provider.ts";
import { compileProbe, probeOutcomes } from "../../../test/support/probe.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { tarEnd, tarHeader } from "../../platform/tar/tar-writer.ts";
import { chunks, run, shell, soon } from "../../ports/contract/provider/harness.ts";
import type { RuntimeId, RuntimeSpec, SandboxOperations } from "../../ports/index.ts";

/** Places that are read-only, masked or not there at all. */
const places = /^(agent-|core-pattern|sysrq|kcore|cgroup|host-disk|dev-|setns-)/;

/** Whether an attempt of the probe's got nothing. */
function isHarmless(attempt: string, outcome: string): boolean {
  if (outcome === "EPERM" || outcome === "EACCES") return true;
  if (places.test(attempt)) return ["EROFS", "ENOENT", "ENODATA", "ENXIO", "EIO"].includes(outcome);
  if (attempt === "host-abstract-socket") return outcome === "ECONNREFUSED";
  // Not in this kernel, or not in the profile's table of calls.
  if (/^x32-|^x86-|^fsopen|^move-mount/.test(attempt))
    return ["ENOSYS", "killed", "EFAULT"].includes(outcome);
  return outcome === "ENOSYS";
}

await describeWith(["docker", "agent", "busybox", "compiler"], "attacks from inside a container", () => {
  let docker: DockerUnderTest;
  const spawned: RuntimeId[] = [];

  const spawn = async (change: Partial<RuntimeSpec> = {}) => {
    const spec = containerOf({ image: docker.image, ...change });
    spawned.push(spec.runtimeId);
    await docker.provider.spawn(spec, soon(30_000));
    return { ...spec, operations: docker.provider.sandbox(spec.runtimeId) };
  };
  let victim: SandboxOperations;
  const output = async (script: string, user = "0") =>
    (await run(victim, shell(`{ ${script}; } 2>&1`, { user }))).stdout;

  beforeAll(async () => {
    docker = await openDocker(await sharedEngine());
    victim = (await spawn()).operations;
  });
  afterAll(async () => {
    for (const runtimeId of spawned) await docker.provider.destroy(runtimeId, soon(30_000));
    await docker.close();
  });

  it("commands hold no capability, gain none, and run under seccomp", async () => {
    for (const user of ["0", "app"]) {
      const status = await output("cat /proc/self/status", user);
      for (const set of ["CapInh", "CapPrm", "CapEff", "CapAmb"]) {
        expect(status).toMatch(new RegExp(`^${set}:\\s+0+$`, "m"));
      }
      expect(status).toMatch(/^NoNewPrivs:\s+1$/m);
      expect(status).toMatch(/^Seccomp:\s+2$/m);
    }
  });

  it("the folder of the agent's socket cannot be entered, moved or covered by any user", async () => {
    for (const user of ["0", "app", "64000:64000"]) {
      expect(await output("ls /.alcove/run", user)).toContain("Permission denied");
      expect(await output("cd /.alcove/run", user)).toMatch(/Permission denied|can't cd/);
      expect(await output("mv /.alcove /elsewhere", user)).toMatch(/busy|Permission denied|Read-only/);
      expect(await output("rm -f /.alcove/alcove-agent; rmdir /.alcove/run", user)).toMatch(
        /busy|denied|Read-only/,
      );
      expect(await output("touch /.alcove/new; echo x >> /.alcove/alcove-agent", user)).toMatch(
        /denied|Read-only/,
      );
      expect(await output("chmod 777 /.alcove/run; chown 0 /.alcove/run", user)).toMatch(
        /not permitted|Read-only/,
      );
    }
    expect(await output("test -x /.alcove/alcove-agent && stat -c '%u %a' /.alcove/run")).toBe(
      "1879000001 700\n",
    );
  });

  it("nothing that clients ask for reaches the folder of the agent's socket, which lies on the service's disk", async () => {
    for (const user of ["1879000001", "01879000001", "1879000001:0"])
      await expect(run(victim, shell("true", { user }))).rejects.toThrow("user id of the agent");
    await expect(spawn({ user: "1879000001" })).rejects.toThrow("user id of the agent");
    const { files } = victim;
    const folder = "/.alcove/run";
    await output(`ln -s ${folder} /tmp/run`);
    const wide = tarHeader({ name: folder.slice(1), type: "dir", mode: 0o777, size: 0 });
    const attempts = [
      () => files.unpack("/", chunks(Buffer.concat([wide, tarEnd])), soon()),
      () => files.write(`${folder}/f`, chunks("x"), soon()),
      () => files.write("/tmp/run/f", chunks("x"), soon()),
      () => files.mkdir(`${folder}/d`, { ...soon(), parents: true }),
      () => files.chmod(folder, 0o777, soon()),
      () => files.move(`${folder}/agent.sock`, "/tmp/agent.sock", soon()),
      () => files.remove(`${folder}/agent.sock`, { ...soon(), recursive: false }),
    ];
    for (const attempt of attempts) await expect(attempt()).rejects.toThrow(/Permission denied/i);
    expect(await output(`stat -c '%u %a' ${folder}`)).toBe("1879000001 700\n");
  });

  it("the agent survives every signal of its sandbox", async () => {
    await output("for s in 1 2 3 9 15 19 20; do kill -$s 1; done; kill -9 -1; true");
    expect(await output("echo alive")).toBe("alive\n");
  });

  it("sockets for datagrams are bounded by the memory", async () => {
    await victim.files.write("/take", chunks(await attackProbe()), { ...soon(30_000), mode: 0o755 });
    const { stdout } = await run(victim, shell("/take datagram-sockets 400 0"));
    expect(Number(stdout)).toBeGreaterThan(32);
    expect(Number(stdout)).toBeLessThanOrEqual(64);
  }, 120_000);

  it.each(["0", "app"])("user %s gets nothing from hostile system calls", async (user) => {
    await victim.files.write("/probe", chunks(await compileProbe()), { ...soon(), mode: 0o755 });
    const name = `alcove-attack-${randomIds.execId()}`;
    const server = createServer();
    server.listen(`\0${name}`);
    await once(server, "listening");
    const { stdout } = await run(victim, shell(`/probe ${name}`, { user }));
    server.close();
    const outcomes = probeOutcomes(stdout);
    expect(outcomes.size).toBeGreaterThan(50);
    const gotThrough = [...outcomes].filter(([attempt, outcome]) => !isHarmless(attempt, outcome));
    expect(gotThrough).toEqual([]);
  });

  it("what gets through is what the table of attacks says", async () => {
    expect(await attacksAs(victim, ["0", "app"])).toEqual(attackColumn("docker"));
  });

  it.each(["0", "app"])("user %s reaches no table and no disk of the whole machine", async (user) => {
    await victim.files.write("/probe", chunks(await compileProbe()), { ...soon(), mode: 0o755 });
    const { stdout } = await run(victim, shell("/probe --shared", { user }));
    expect(Object.fromEntries(probeOutcomes(stdout))).toEqual({
      aio: "ENOSYS",
      mptcp: "EPROTONOSUPPORT",
      sctp: "EPROTONOSUPPORT",
      udplite: "EPROTONOSUPPORT",
      "crypto-socket": "EAFNOSUPPORT",
      "line-discipline": "EPERM",
      "syncfs-pretended": "ok",
      "core-limit-kept": "ok",
      "secret-memory": "ENOSYS",
      "migrate-pages": "EPERM",
      "huge-file": "EINVAL",
      "linger-pretended": "ok",
      "message-queue": "ENOSYS",
      "pipe-size": "EPERM",
      tcp: "ok",
      udp: "ok",
    });
  });

  it.each(["0", "app"])("user %s can cripple neither its agent nor its monitor", async (user) => {
    const own = await spawn();
    await own.operations.files.write("/probe", chunks(await compileProbe()), { ...soon(), mode: 0o755 });
    const { stdout, exit } = await run(own.operations, shell("exec /probe --cripple", { user }));
    const attempts = stdout.trim().split("\n");
    expect(attempts).toHaveLength(18);
    expect(attempts.filter((line) => !/ (EPERM|EACCES)$/.test(line))).toEqual([]);
    expect(exit).toMatchObject({ exitCode: 0, reason: "exited" });
    expect((await run(own.operations, "cat /proc/1/oom_score_adj")).stdout).toBe("0\n");
    await expect(Promise.all([1, 2, 3].map(() => run(own.operations, "true")))).resolves.toHaveLength(3);
    const startedAt = performance.now();
    await docker.provider.destroy(own.runtimeId, soon());
    expect(performance.now() - startedAt).toBeLessThan(5_000);
  });

  it("nobody runs as the agent's own user", async () => {
    await expect(run(victim, shell("true", { user: "65533" }))).rejects.toThrow("user id of the agent");
  });

  it("a setuid program gives nobody its owner's rights", async () => {
    await output("cp /bin/busybox /tmp/busybox && chmod 4755 /tmp/busybox");
    expect(await output("/tmp/busybox id -u; /tmp/busybox cat /etc/shadow /proc/1/environ", "app")).toMatch(
      /^1000\n/,
    );
  });

  it("there is no engine socket, no network but loopback, and no way to the host's loopback", async () => {
    expect(
      await output(
        "find / -name 'docker*.sock' -o -name 'containerd*.sock' 2>/dev/null; grep docker.sock /proc/mounts",
      ),
    ).toBe("");
    expect(await output("ls /sys/class/net")).toBe("lo\n");
    const server: Server = createServer((socket) => socket.end("host"));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const address = server.address();
    const port = typeof address === "object" && address !== null ? address.port : 0;
    expect(
      await output(`nc -w 1 127.0.0.1 ${port} </dev/null; nc -w 1 10.0.0.1 80 </dev/null`),
    ).not.toContain("host\n");
    server.close();
  });

  it("neither environment nor descriptors leak in", async () => {
    const names = (await output("env | cut -d= -f1 | sort")).trim().split("\n");
    const expected = ["HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "SHLVL", "USER"];
    expect(names.filter((name) => !expected.includes(name))).toEqual([]);
    // The fourth is the listing's own.
    expect((await output("ls /proc/self/fd")).trim().split("\n").length).toBeLessThanOrEqual(4);
  });

  it("nothing of the service or of another sandbox is to be seen", async () => {
    const other = await spawn();
    await run(other.operations, "echo theirs > /workspace/theirs; sleep 987 & true");
    const seen = await output("ps; cat /proc/mounts; find / -name theirs 2>/dev/null");
    expect(seen).not.toContain("sleep 987");
    expect(seen).not.toContain("/theirs");
    expect(seen).not.toMatch(/dockerd|node /);
  });

  it("the kernel's own knobs are read-only", async () => {
    const writes =
      "for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/uevent_helper /proc/sys/vm/drop_caches; do echo x > $f; done";
    expect((await output(writes)).match(/Read-only|nonexistent|denied/g)?.length).toBe(4);
  });

  it.each(["0", "app"])("user %s sees of /proc and /sys/fs only what programs need", async (user) => {
    const shown = [
      ...["cgroups", "cpuinfo", "devices", "filesystems", "loadavg", "meminfo", "mounts", "net", "self"],
      ...["stat", "sys", "sysrq-trigger", "sysvipc", "thread-self", "tty", "uptime", "version", "vmstat"],
    ];
    // Nothing is mounted at most of these in a container; `tmpfs` holds names of features.
    const shownInSys = ["bpf", "cgroup", "pstore", "resctrl", "selinux", "smackfs", "tmpfs"];
    // What is neither shown nor a process: a folder with entries, or a file with bytes.
    const seen = (folder: string, names: string[]) => `cd ${folder} && for name in *; do
  case "$name" in [0-9]*) continue;; esac
  case " ${names.join(" ")} " in *" $name "*) continue;; esac
  if [ -d "$name" ]; then ls -A "$name"; else head -c 1 "$name" | wc -c | grep -v '^0$'; fi 2>/dev/null | sed "s|^|$name |"
done`;
    expect(await output(seen("/proc", shown), user)).toBe("");
    expect(await output(seen("/sys/fs", shownInSys), user)).toBe("");
    expect(
      await output("ls -A /sys/kernel/slab /sys/kernel/irq /sys/firmware | grep -v '^/sys\\|^$'", user),
    ).toBe("");
    // What programs size themselves by stays.
    expect(await output("ls /sys/fs/cgroup | wc -l; ls /sys/devices/system/cpu", user)).toMatch(
      /^[1-9][\s\S]*cpu0/,
    );
  });

  it("memory beyond the limit ends the command with reason oom, and only that", async () => {
    const { operations } = await spawn({ memoryMb: 64 });
    const { exit } = await run(operations, "tail /dev/zero");
    expect(exit).toMatchObject({ exitCode: 137, reason: "oom" });
    expect((await run(operations, "echo alive")).stdout).toBe("alive\n");
  });

  it("a fork bomb with a memory bomb is destroyed within 5 s, and its neighbours go on", async () => {
    const bomb = await spawn({ memoryMb: 64 });
    const spec = shell("b() { b | b & }; b; while :; do tail /dev/zero & done", { detached: true });
    await bomb.operations.execs.startDetached(spec, soon());
    expect((await run(victim, "sleep 1; echo fine")).stdout).toBe("fine\n");
    const startedAt = performance.now();
    await docker.provider.destroy(bomb.runtimeId, soon(30_000));
    expect(performance.now() - startedAt).toBeLessThan(5_000);
  });
});
