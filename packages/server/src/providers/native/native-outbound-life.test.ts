import { existsSync } from "node:fs";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, it, vi } from "vitest";
import { allowed, FarNetwork, farAddress } from "../../../test/support/far-network.ts";
import { type NativeHome, nativeHome } from "../../../test/support/native.ts";
import {
  lives,
  type NetworkProcess,
  networkProcesses,
  OutboundSandboxes,
  outboundSandbox,
} from "../../../test/support/outbound-sandboxes.ts";
import { mustRun } from "../../../test/support/programs.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import type { NetworkChange, RuntimeId } from "../../ports/index.ts";
import type { NativeProvider } from "./native-provider.ts";

const soon = (ms = 15_000) => ({ signal: AbortSignal.timeout(ms) });
/** Longer than the silence after which a relay or its helper counts as hung. */
const hungMs = 40_000;
const toGroups = `import socket
sender, sent = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), 0
sender.bind(("::1", 0))
for last in range(1, 200):
    try: sender.sendto(b"x", ("ff02::%x" % last, 9, 0, socket.if_nametoindex("tap0"))); sent += 1
    except OSError: pass
print(sent, "sent")
`;
const ask = `python3 -c 'import socket; print(socket.create_connection(("${farAddress}", 80), 5).recv(100).decode())'`;

await describeWith(["root", "agent", "launcher", "native", "slirp4netns"], "the life of a network", () => {
  let network: FarNetwork;
  let home: NativeHome;
  let provider: NativeProvider;
  let sandboxes: OutboundSandboxes;
  let changes: { runtimeId: RuntimeId; change: NetworkChange }[];

  const open = () => {
    const config = { networkMode: "outbound", networkAllow: [allowed] } as const;
    const opened = home.open(config, { launcher: network.launcher });
    opened.onNetwork((runtimeId, change) => changes.push({ runtimeId, change }));
    return opened;
  };

  beforeAll(async () => {
    network = await FarNetwork.open();
    home = await nativeHome();
    changes = [];
    provider = open();
    sandboxes = new OutboundSandboxes(() => provider);
  }, 60_000);

  afterEach(async () => {
    await sandboxes.destroyAll();
    changes = [];
  });

  afterAll(async () => {
    await provider[Symbol.asyncDispose]();
    await home.remove();
    await network[Symbol.asyncDispose]();
  });

  const processesOf = (runtimeId: RuntimeId) => networkProcesses(home.dataDir, runtimeId);
  /** @returns what runs programs where the launcher is, which has mounts of its own here. */
  const atLauncher = async () => {
    const [relay] = await processesOf((await sandboxes.spawn()).runtimeId);
    return (...words: string[]) => mustRun("nsenter", [`--mount=/proc/${relay?.pid}/ns/mnt`, "--", ...words]);
  };
  const told = (runtimeId: RuntimeId) => changes.filter((one) => one.runtimeId === runtimeId);
  const restored = (runtimeId: RuntimeId, times = 1) =>
    vi.waitFor(
      () => expect(told(runtimeId).filter(({ change }) => change.state === "restored")).toHaveLength(times),
      { timeout: hungMs, interval: 20 },
    );
  const gone = (processes: NetworkProcess[]) =>
    vi.waitFor(
      async () =>
        expect(await Promise.all(processes.map(({ pid }) => lives(pid)))).toEqual(processes.map(() => false)),
      { timeout: 5_000, interval: 10 },
    );

  it.each([
    ["the helper", 1, "SIGKILL", "slirp4netns ended"],
    ["the relay", 0, "SIGKILL", "its relay ended"],
    ["the helper", 1, "SIGSTOP", "slirp4netns does not answer"],
    ["the relay", 0, "SIGSTOP", "its relay does not answer"],
  ] as const)(
    "%s (process %i) gets %s: the sandbox has a network again, and it is told",
    async (_, which, signal, reason) => {
      const sandbox = await sandboxes.spawn();
      expect(await sandbox.run(ask)).toContain("reached");
      const before = await processesOf(sandbox.runtimeId);
      process.kill(before[which]?.pid ?? 0, signal);
      await restored(sandbox.runtimeId);
      expect(told(sandbox.runtimeId).map(({ change }) => change)).toEqual([
        { state: "lost", reason },
        { state: "restored", afterMs: expect.any(Number) },
      ]);
      await gone(before);
      expect(await sandbox.run(ask)).toContain("reached");
      expect(await sandbox.run("grep -c : /proc/net/dev")).toBe("2\n");
    },
    hungMs + 20_000,
  );

  it("a network that is lost again and again is given again, each time a little later", async () => {
    const { runtimeId } = await sandboxes.spawn();
    for (let times = 1; times <= 3; times += 1) {
      const [, helper] = await processesOf(runtimeId);
      process.kill(helper?.pid ?? 0, "SIGKILL");
      await restored(runtimeId, times);
    }
    const waits = told(runtimeId).flatMap(({ change }) =>
      change.state === "restored" ? [change.afterMs] : [],
    );
    expect(waits[1]).toBeGreaterThan(400);
    expect(waits[2]).toBeGreaterThan(900);
  }, 60_000);

  it("the network outlives its service, and the next one mends it", async () => {
    const kept = await sandboxes.spawn();
    const broken = await sandboxes.spawn();
    const [keptBefore, brokenBefore] = await Promise.all(
      [kept, broken].map((one) => processesOf(one.runtimeId)),
    );
    await provider[Symbol.asyncDispose]();
    process.kill(brokenBefore?.[0]?.pid ?? 0, "SIGKILL");
    await gone(brokenBefore ?? []);
    provider = open();
    for (const { runtimeId } of [kept, broken]) await provider.adopt(runtimeId, soon());
    await restored(broken.runtimeId);
    for (const { runtimeId } of [kept, broken])
      expect(await outboundSandbox(provider, runtimeId).run(ask)).toContain("reached");
    expect(told(kept.runtimeId)).toEqual([]);
    expect((await processesOf(kept.runtimeId)).map(({ pid }) => pid)).toEqual(
      keptBefore?.map(({ pid }) => pid),
    );
  }, 60_000);

  it("a sandbox takes its network along: destroyed, and when it dies with nobody there", async () => {
    const destroyed = await sandboxes.spawn();
    const dies = await sandboxes.spawn();
    const hung = await sandboxes.spawn();
    const ends = await Promise.all([destroyed, dies, hung].map((one) => processesOf(one.runtimeId)));
    for (const { pid } of ends[2] ?? []) process.kill(pid, "SIGSTOP");
    await Promise.all([destroyed, hung].map((one) => provider.destroy(one.runtimeId, soon())));
    const directory = join(home.dataDir, "runtimes", "native", dies.runtimeId);
    process.kill(JSON.parse(await readFile(join(directory, "process.json"), "utf8")).pid, "SIGKILL");
    await gone(ends.flat());
    for (const one of [destroyed, hung])
      expect(existsSync(join(home.dataDir, "runtimes", "native", one.runtimeId))).toBe(false);
    expect(changes.filter(({ runtimeId }) => runtimeId !== dies.runtimeId)).toEqual([]);
  }, 30_000);

  it("relay and helper are charged to the sandbox, in a group of their own", async () => {
    const { runtimeId } = await sandboxes.spawn();
    for (const { pid } of await processesOf(runtimeId)) {
      const groups = await readFile(`/proc/${pid}/cgroup`, "utf8");
      const memory = groups.split("\n").find((line) => /^\d+:memory:|^0::/.test(line));
      expect(memory).toMatch(new RegExp(`${runtimeId}/network$`));
    }
  });

  it("a disk of the machine that was mounted when a network was made is free once it is unmounted", async () => {
    const there = await atLauncher();
    const disk = join(home.dataDir, "other-disk.img");
    const place = join(home.dataDir, "other-disk");
    await mkdir(place);
    await mustRun("truncate", ["--size=16M", disk]);
    await mustRun("mkfs.ext4", ["-q", disk]);
    await there("mount", "-o", "loop", disk, place);
    const { runtimeId } = await sandboxes.spawn();
    const [, helper] = await processesOf(runtimeId);
    await there("umount", place);
    const busy = () => mustRun("losetup", ["--associated", disk]);
    await vi.waitFor(async () => expect(await busy()).toMatchObject({ stdout: "" }), 5_000);
    expect(await lives(helper?.pid ?? 0)).toBe(true);
  }, 30_000);

  it("where settings cannot be written its interface has no address of IPv6, and sends to none, all the same", async () => {
    const there = await atLauncher();
    const { runtimeId, run, write } = await sandboxes.spawn();
    await there("mount", "--bind", "/proc/sys", "/proc/sys");
    try {
      await there("mount", "-o", "remount,ro,bind", "/proc/sys");
      process.kill((await processesOf(runtimeId))[0]?.pid ?? 0, "SIGKILL");
      await restored(runtimeId);
      expect(await run("sleep 1; grep -c tap0: /proc/net/dev; grep tap0 /proc/net/if_inet6; true")).toBe(
        "1\n",
      );
      expect(await run("cat /proc/sys/net/ipv6/conf/tap0/disable_ipv6 2>&1")).not.toBe("1\n");
      // Groups are neighbours too, and an address of the sandbox alone is enough to send to them.
      await write("/tmp/send.py", Buffer.from(toGroups));
      expect(await run("python3 /tmp/send.py")).toBe("0 sent\n");
    } finally {
      await there("umount", "/proc/sys");
    }
  }, 30_000);

  it("check() tries the network too", async () => {
    expect(await provider.check(soon())).toMatchObject({ healthy: true });
    const without = home.open(
      { networkMode: "outbound", networkAllow: ["nowhere"] },
      { launcher: network.launcher },
    );
    const { healthy, error } = await without.check(soon());
    expect([healthy, error]).toEqual([false, expect.stringContaining("network_allow: nowhere")]);
    await without[Symbol.asyncDispose]();
  });
});
