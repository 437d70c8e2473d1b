import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pino } from "pino";
import { afterEach, expect, it } from "vitest";
import {
  type FirecrackerHome,
  firecrackerHome,
  testImage,
} from "../../../test/support/firecracker/firecracker-home.ts";
import { findProgram } from "../../../test/support/programs.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { argv, eventually, run, shell } from "../../ports/contract/provider/harness.ts";
import {
  BadRequest,
  ProviderError,
  RuntimeGone,
  type RuntimeId,
  type RuntimeSpec,
  StorageFull,
} from "../../ports/index.ts";
import { spaceOf } from "../guards/index.ts";
import type { FirecrackerProvider } from "./firecracker-provider.ts";

const soon = () => ({ signal: AbortSignal.timeout(30_000) });

function specOf(change: Partial<RuntimeSpec> = {}): RuntimeSpec {
  return {
    runtimeId: randomIds.runtimeId(),
    sandboxId: randomIds.sandboxId(),
    image: testImage,
    memoryMb: 256,
    vcpus: 1,
    env: {},
    expiresInMs: 600_000,
    metadata: {},
    ...change,
  };
}

await describeWith(["linux", "root", "agent", "mkfs", "native", "busybox"], "FirecrackerProvider", () => {
  let home: FirecrackerHome;
  const providers: FirecrackerProvider[] = [];

  async function opened(
    change: Parameters<FirecrackerHome["open"]>[0] = {},
    options: { rootfs?: string; jailed?: boolean } = {},
  ): Promise<FirecrackerProvider> {
    home = await firecrackerHome("process", options);
    return reopened(change);
  }

  function reopened(change: Parameters<FirecrackerHome["open"]>[0] = {}): FirecrackerProvider {
    const provider = home.open(change);
    providers.push(provider);
    return provider;
  }

  afterEach(async () => {
    for (const provider of providers.splice(0)) await provider[Symbol.asyncDispose]();
    await home.remove();
  });

  /** Files of machines and records, and processes; nothing of a machine that is gone. */
  function left(runtimeId: RuntimeId): string[] {
    const folders = ["firecracker/machines", "runtimes/firecracker"].map((name) => join(home.dataDir, name));
    const files = folders
      .filter(existsSync)
      .flatMap((folder) => readdirSync(folder))
      .filter((name) => name === runtimeId);
    return [...files, ...processesOf(runtimeId).map(String)];
  }

  /** What the fake of a machine was given before its start. */
  function given(runtimeId: RuntimeId): Record<string, unknown> {
    const path = join(home.dataDir, "firecracker/machines", runtimeId, "given.json");
    return JSON.parse(readFileSync(path, "utf8"));
  }

  async function failureOf(provider: FirecrackerProvider, spec = specOf()): Promise<Error> {
    const failure: unknown = await provider.spawn(spec, soon()).catch((error: unknown) => error);
    expect(left(spec.runtimeId)).toEqual([]);
    expect(await provider.inventory(soon())).toEqual([]);
    return failure as Error;
  }

  it("shows the last of the console of a machine that panics, and leaves nothing", async () => {
    const provider = await opened();
    const lines = Array.from({ length: 40 }, (_, index) => `line ${index}\r\n`).join("");
    home.behave({ panics: true, says: `${lines}Kernel panic - not syncing: no init found\r\n` });
    const failure = await failureOf(provider);
    expect(failure).toBeInstanceOf(ProviderError);
    expect(failure.message).toMatch(
      /^the microVM of image "busybox:test" did not come up: the machine ended; the last of its console: line 36 \| .*\| Kernel panic - not syncing: no init found$/,
    );
    home.behave({});
    await provider.spawn(specOf(), soon());
  });

  it("tells why Firecracker does not run, does not listen, dies or hangs, and leaves nothing", async () => {
    const provider = await opened({ patience: { openMs: 3_000, bootMs: 1_500, api: { call: 1_000 } } });
    home.behave({ refusesToRun: "KVM is not there" });
    expect((await failureOf(provider)).message).toMatch(/ended before it answered.*KVM is not there/);
    home.behave({ opensAfterMs: 20_000 });
    expect((await failureOf(provider)).message).toMatch(/did not answer at its API socket within 3 s/);
    home.behave({ dies: ["PUT /vsock"] });
    expect((await failureOf(provider)).message).toMatch(
      /Firecracker ended; the last of its console: nothing/,
    );
    home.behave({ hangs: ["PUT /entropy"] });
    expect((await failureOf(provider)).message).toMatch(/PUT \/entropy: it took more than 1 s/);
    home.behave({ answers: { "PUT /actions": { status: 200, text: "<html>" } } });
    expect((await failureOf(provider)).message).toMatch(/answer to PUT \/actions is unfit/);
    home.behave({ guest: "none", says: "booting, and that is all\r\n" });
    expect((await failureOf(provider)).message).toMatch(
      /its agent did not answer within 1.5 s; the last of its console: booting, and that is all/,
    );
  });

  it("says what a refusal was about, and keeps what Firecracker said out of it", async () => {
    const provider = await opened({ config: { kernelPath: "/no/such/kernel" } });
    const failure = await failureOf(provider);
    expect(failure.message).toMatch(/Firecracker refused PUT \/boot-source with status 400/);
    expect(failure.message).not.toContain("/no/such/kernel");
    expect(await provider.check(soon())).toMatchObject({
      healthy: false,
      error: expect.stringContaining("providers.firecracker.kernel_path /no/such/kernel cannot be read"),
    });
  });

  it("names what the host lacks", async () => {
    const provider = await opened({ kvm: "/no/such/kvm" });
    const errorOf = async (change: Parameters<FirecrackerHome["open"]>[0]) =>
      (await reopened(change).check(soon())).error;
    expect((await provider.check(soon())).error).toMatch(/^\/no\/such\/kvm cannot be opened/);
    expect(await errorOf({ config: { kernelPath: "" } })).toMatch(/kernel_path is not set/);
    expect(await errorOf({ config: { initrdPath: "/no/initrd" } })).toMatch(
      /initrd_path \/no\/initrd cannot/,
    );
    expect(await errorOf({ config: { firecrackerPath: "/no/firecracker" } })).toMatch(/firecracker_path\)$/);
    expect(await errorOf({ config: { firecrackerPath: "/bin/true" } })).toMatch(/does not say that it is/);
    expect(await errorOf({ agentBinary: "/no/agent" })).toMatch(/the agent \/no\/agent is missing/);
    expect(await reopened().check(soon())).toMatchObject({
      healthy: true,
      notes: [expect.stringContaining("1.17")],
    });
    const packed = join(home.dataDir, "vmlinuz");
    await writeFile(packed, "MZ");
    if (process.arch === "x64")
      expect((await reopened({ config: { kernelPath: packed } }).check(soon())).notes).toContainEqual(
        expect.stringMatching(/vmlinuz is no ELF file/),
      );
  });

  it("names all that the host lacks at once", async () => {
    const provider = await opened({
      kvm: "/no/such/kvm",
      config: { kernelPath: "/no/vmlinux", firecrackerPath: "/no/firecracker" },
    });
    const { error } = await provider.check(soon());
    for (const lack of ["/no/such/kvm", "/no/vmlinux", "/no/firecracker"]) expect(error).toContain(lack);
  });

  it("refuses what no machine can have", async () => {
    const provider = await opened();
    const refusals: [Partial<RuntimeSpec>, RegExp][] = [
      [{ memoryMb: 32 }, /memory_mb 32 is too little/],
      [{ vcpus: 33 }, /vcpus 33 is too many/],
      [{ network: "outbound" }, /network "outbound" is not allowed/],
    ];
    for (const [change, message] of refusals) {
      const failure = await failureOf(provider, specOf(change));
      expect(failure).toBeInstanceOf(BadRequest);
      expect(failure.message).toMatch(message);
    }
  });

  it("gives a machine the memory and the whole processors that were asked for, its drives and its host name", async () => {
    const provider = await opened();
    const spec = specOf({ memoryMb: 384, vcpus: 1.5 });
    await provider.spawn(spec, soon());
    expect(given(spec.runtimeId)).toMatchObject({
      vcpu_count: 2,
      mem_size_mib: 384,
      boot_args:
        "console=ttyS0 quiet reboot=k panic=1 random.trust_cpu=on pci=off root=/dev/vda ro " +
        `init=/.alcove/alcove-agent -- init layer=/dev/vdb port=1024 hostname=${spec.sandboxId} pids=512`,
      interfaces: [],
    });
    const folder = join(home.dataDir, "firecracker/machines", spec.runtimeId);
    expect((await run(provider.sandbox(spec.runtimeId), "hostname")).stdout).toBe(`${spec.sandboxId}\n`);
    expect(readdirSync(folder)).toEqual(expect.arrayContaining(["root.img", "layer.img", "v.sock"]));
  });

  it("gives each machine a network of the pool, bounded, until none is left, also over a restart", async () => {
    const network = ["tap7 172.16.0.2/30 172.16.0.1 1.1.1.1", "tap8 172.16.0.6/30 172.16.0.5"];
    const config = { network, networkMbit: 80, diskRateMb: 5 };
    const provider = await opened({ config });
    const specs = [specOf(), specOf({ network: "none" })] as const;
    // A reboot took them.
    expect(await provider.check(soon())).toMatchObject({ cannotSpawn: expect.stringMatching(/tap7, tap8/) });
    const failure = await failureOf(provider);
    expect(failure).toMatchObject({
      code: "unavailable",
      message: expect.stringMatching(/not on this host/),
    });
    for (const name of ["tap7", "tap8"]) await mkdir(join(home.dataDir, "fake", name));
    expect(await provider.check(soon())).not.toHaveProperty("cannotSpawn");
    for (const spec of specs) await provider.spawn(spec, soon());
    const limiter = { bandwidth: { size: 10_000_000, refill_time: 1000 } };
    expect(given(specs[0].runtimeId)).toMatchObject({
      boot_args: expect.stringMatching(/ address=172.16.0.2\/30 gateway=172.16.0.1 dns=1.1.1.1$/),
      interfaces: [
        {
          iface_id: "eth0",
          host_dev_name: "tap7",
          guest_mac: "06:00:ac:10:00:02",
          rx_rate_limiter: limiter,
          tx_rate_limiter: limiter,
        },
      ],
      drives: [
        { drive_id: "root", rate_limiter: { bandwidth: { size: 5 * 1024 ** 2, refill_time: 1000 } } },
        { drive_id: "layer", rate_limiter: { bandwidth: { size: 5 * 1024 ** 2, refill_time: 1000 } } },
      ],
    });
    expect(given(specs[1].runtimeId).interfaces).toEqual([]);
    const next = reopened({ config });
    const third = specOf({ network: "outbound" });
    await next.spawn(third, soon());
    expect(given(third.runtimeId).interfaces).toMatchObject([{ host_dev_name: "tap8" }]);
    await expect(next.spawn(specOf(), soon())).rejects.toThrow(/each of the 2 networks .* is in use/);
    await next.destroy(specs[0].runtimeId, soon());
    const fourth = specOf();
    await next.spawn(fourth, soon());
    expect(given(fourth.runtimeId).interfaces).toMatchObject([{ host_dev_name: "tap7" }]);
    await expect(next.spawn(specOf({ network: "host" }), soon())).rejects.toThrow(/"host" is not allowed/);
    expect(() => reopened({ config: { network: ["tap0"] } })).toThrow(/"tap0" is no TAP ADDRESS/);
  });

  it("makes one root file system for two first spawns of an image, and keeps it for the next", async () => {
    const provider = await opened();
    const specs = [specOf(), specOf(), specOf()] as const;
    await Promise.all([provider.spawn(specs[0], soon()), provider.spawn(specs[1], soon())]);
    const folder = join(home.dataDir, "firecracker/rootfs");
    const [name = "", ...others] = readdirSync(folder);
    expect(others).toEqual([]);
    const inode = (path: string) => execFileSync("stat", ["-c", "%i", path], { encoding: "utf8" });
    await reopened().spawn(specs[2], soon());
    for (const { runtimeId } of specs)
      expect(inode(join(home.dataDir, "firecracker/machines", runtimeId, "root.img"))).toBe(
        inode(join(folder, name)),
      );
  });

  it("says that the disk is full while it makes a root file system, and leaves nothing", async () => {
    const small = await mkdtemp(join(tmpdir(), "alcove-fc-small-"));
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=1M", "small", small]);
    try {
      const provider = await opened({ config: { dataDir: small } });
      const failure = await failureOf(provider);
      expect(failure).toBeInstanceOf(StorageFull);
      expect(failure.message).toMatch(/root file system of image "busybox:test".*disk.*is full/);
      expect(execFileSync("find", [small, "-type", "f"], { encoding: "utf8" })).toBe("");
    } finally {
      execFileSync("umount", [small]);
      await rm(small, { recursive: true });
    }
  });

  it("finds and ends a machine whose service died before it wrote its process down", async () => {
    const provider = await opened();
    const spec = specOf();
    await provider.spawn(spec, soon());
    const path = join(home.dataDir, "runtimes/firecracker", spec.runtimeId, "runtime.json");
    const { process: _process, ...half } = JSON.parse(await readFile(path, "utf8"));
    await writeFile(path, JSON.stringify(half));
    const next = reopened();
    expect(await next.inventory(soon())).toMatchObject([{ runtimeId: spec.runtimeId, state: "dead" }]);
    expect(processesOf(spec.runtimeId)).toHaveLength(1);
    await next.destroy(spec.runtimeId, soon());
    expect(left(spec.runtimeId)).toEqual([]);
  });

  it("tells of a machine whose process was killed, once, and can remove what it left", async () => {
    const provider = await opened();
    const spec = specOf();
    await provider.spawn(spec, soon());
    const told: string[] = [];
    provider.onExit((runtimeId, reason) => told.push(`${runtimeId} ${reason}`));
    for (const pid of processesOf(spec.runtimeId)) process.kill(pid, "SIGKILL");
    await eventually(() => expect(told).toEqual([`${spec.runtimeId} the machine ended by itself`]));
    expect(() => provider.sandbox(spec.runtimeId)).toThrow(RuntimeGone);
    expect(await provider.inventory(soon())).toMatchObject([{ runtimeId: spec.runtimeId, state: "dead" }]);
    await provider.destroy(spec.runtimeId, soon());
    expect(left(spec.runtimeId)).toEqual([]);
  });

  it("logs what a machine said last that ended by itself", async () => {
    const lines: string[] = [];
    const provider = await opened({
      logger: pino({ level: "warn" }, { write: (line) => void lines.push(line) }),
    });
    home.behave({ says: "Kernel panic - not syncing: Attempted to kill init!\r\n" });
    const spec = specOf();
    await provider.spawn(spec, soon());
    const told = new Promise((resolve) => provider.onExit(resolve));
    for (const pid of processesOf(spec.runtimeId)) process.kill(pid, "SIGKILL");
    expect(await told).toBe(spec.runtimeId);
    const line = lines.find((each) => each.includes("ended by itself"));
    expect(line).toContain(spec.sandboxId);
    expect(line).toContain("Kernel panic");
  });

  it("tells why the guard of the disk stopped a machine, however long its disks take to be removed", {
    timeout: 60_000,
  }, async () => {
    const small = await mkdtemp(join(tmpdir(), "alcove-fc-small-"));
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=300M", "small", small]);
    try {
      const provider = await opened({ config: { dataDir: small, minFreeMb: 200 } });
      expect(provider.guards).toEqual([{ guard: "disk", helpless: false }]);
      const spec = specOf();
      await provider.spawn(spec, soon());
      const told: string[] = [];
      provider.onExit((_runtimeId, reason) => told.push(reason));
      const machine = join(small, "machines", spec.runtimeId);
      execFileSync("sh", ["-c", `mkdir ${machine}/many && cd ${machine}/many && seq 20000 | xargs touch`]);
      for (let part = 0; part < 20 && told.length === 0; part += 1) {
        const seek = `bs=1M count=10 seek=${part * 10} conv=notrunc status=none`;
        execFileSync("sh", [
          "-c",
          `[ ! -e ${machine}/layer.img ] || dd if=/dev/urandom of=${machine}/layer.img ${seek}`,
        ]);
        await new Promise((resolve) => setTimeout(resolve, 400));
      }
      await eventually(() => expect(told).toEqual([expect.stringMatching(/^stopped: it had written .* MB/)]));
      await provider.destroy(spec.runtimeId, soon());
    } finally {
      execFileSync("umount", ["-l", small]);
      await rm(small, { recursive: true });
    }
  });

  it("leaves what another installation made alone", async () => {
    const provider = await opened();
    const spec = specOf();
    await provider.spawn(spec, soon());
    const other = reopened({ instanceId: "another" });
    expect(await other.inventory(soon())).toEqual([]);
    await expect(other.adopt(spec.runtimeId, soon())).rejects.toThrow(RuntimeGone);
    await other.destroy(spec.runtimeId, soon());
    expect((await run(provider.sandbox(spec.runtimeId), "echo on")).stdout).toBe("on\n");
  });

  it("keeps the last of what a machine writes to its console without end, over a restart too", async () => {
    const provider = await opened();
    home.behave({ says: "x".repeat(99).concat("\r\n").repeat(12_000) });
    const spec = specOf();
    await provider.spawn(spec, soon());
    const log = join(home.dataDir, "runtimes/firecracker", spec.runtimeId, "console.log");
    expect(readFileSync(log).length).toBeLessThanOrEqual(256 * 1024);
    await provider[Symbol.asyncDispose]();
    const next = reopened();
    await next.adopt(spec.runtimeId, soon());
    await run(next.sandbox(spec.runtimeId), shell("sleep 60", { timeoutMs: 50 }));
    await eventually(async () =>
      expect((await next.logs(spec.runtimeId, { ...soon(), lines: 1 })).join()).toContain("timeout"),
    );
  });

  it("confines each machine to a jail and a user of its own, and removes both", async () => {
    const provider = await opened({}, { jailed: true });
    expect(await provider.check(soon())).toMatchObject({
      healthy: true,
      notes: [expect.stringContaining("in jails")],
    });
    const specs = [specOf(), specOf()] as const;
    for (const spec of specs) await provider.spawn(spec, soon());
    const insideOf = (runtimeId: RuntimeId) =>
      join(home.dataDir, "firecracker/machines", runtimeId, "firecracker", runtimeId, "root");
    const owners = specs.map(({ runtimeId }) =>
      ["layer.img", "root.img", "vmlinux"].map((name) => statSync(join(insideOf(runtimeId), name)).uid),
    );
    expect(owners).toEqual([
      [1_878_982_657, 0, 0],
      [1_878_982_658, 0, 0],
    ]);
    const next = reopened();
    await next.adopt(specs[0].runtimeId, soon());
    expect((await run(next.sandbox(specs[0].runtimeId), "hostname")).stdout).toBe(`${specs[0].sandboxId}\n`);
    await next.destroy(specs[0].runtimeId, soon());
    expect(left(specs[0].runtimeId)).toEqual([]);
    const third = specOf();
    await next.spawn(third, soon());
    expect(statSync(join(insideOf(third.runtimeId), "layer.img")).uid).toBe(1_878_982_657);
    // What a service that died did not write down is found by its jail's arguments too.
    const path = join(home.dataDir, "runtimes/firecracker", specs[1].runtimeId, "runtime.json");
    const { process: _process, ...half } = JSON.parse(await readFile(path, "utf8"));
    await writeFile(path, JSON.stringify(half));
    await next.destroy(specs[1].runtimeId, soon());
    expect(left(specs[1].runtimeId)).toEqual([]);
    expect((await reopened({ config: { jailerPath: "/bin/true" } }).check(soon())).error).toMatch(
      /does not say that it is Jailer/,
    );
  });

  it("restores the next machines of an image from a snapshot, until what it is of changes or it cannot be loaded", {
    timeout: 60_000,
  }, async () => {
    const config = { snapshots: true };
    const provider = await opened({ config }, { jailed: true });
    const stagesOf = async (from: FirecrackerProvider, change: Partial<RuntimeSpec> = {}) => {
      const spec = specOf(change);
      const stages: string[] = [];
      await from.spawn(spec, { ...soon(), onStage: (name) => stages.push(name) });
      expect((await run(from.sandbox(spec.runtimeId), "echo works")).stdout).toBe("works\n");
      await from.snapshotsSettled();
      return stages;
    };
    const booted = ["disks", "launch", "boot", "agent"];
    const restored = ["disks", "launch", "restore", "agent"];
    expect(await stagesOf(provider)).toEqual(booted);
    expect(await provider.snapshots(soon())).toMatchObject([{ image: testImage, kernel: "vmlinux" }]);
    // Nothing is left of the machine that it was made of.
    expect(await provider.inventory(soon())).toHaveLength(1);
    expect(readdirSync(join(home.dataDir, "firecracker/machines"))).toHaveLength(1);
    expect(await stagesOf(provider)).toEqual(restored);
    // Another size is another snapshot; so is another kernel.
    expect(await stagesOf(provider, { memoryMb: 300 })).toEqual(booted);
    expect(await provider.snapshots(soon())).toHaveLength(2);
    const kernel = join(home.dataDir, "fake/vmlinux");
    await writeFile(kernel, "another kernel");
    const next = reopened({ config });
    expect(await stagesOf(next)).toEqual(booted);
    expect(await stagesOf(next)).toEqual(restored);
    home.behave({ answers: { "PUT /snapshot/load": { status: 400, text: '{"fault_message":"bad"}' } } });
    expect(await stagesOf(next)).toEqual(["disks", "launch", ...booted]);
    home.behave({ hangs: ["PUT /snapshot/create"] });
    await next[Symbol.asyncDispose]();
    // What a service that ended left of one that was under way goes when the next begins.
    const last = reopened({ config });
    await mkdir(join(home.dataDir, "firecracker/machines/sn-left"), { recursive: true });
    await mkdir(join(home.dataDir, "firecracker/snapshots/a.draft-1"), { recursive: true });
    home.behave({});
    await stagesOf(last);
    const left = ["machines", "snapshots"].flatMap((name) =>
      readdirSync(join(home.dataDir, "firecracker", name)),
    );
    expect(left.filter((name) => /^sn-|draft/.test(name))).toEqual([]);
  });

  it("names no process in the record of a machine that boots because it could not be restored", async () => {
    const provider = await opened({ config: { snapshots: true } });
    await provider.spawn(specOf(), soon());
    await provider.snapshotsSettled();
    home.behave({ answers: { "PUT /snapshot/load": { status: 400, text: '{"fault_message":"bad"}' } } });
    const spec = specOf();
    const named: boolean[] = [];
    const onStage = (name: string) => {
      const path = join(home.dataDir, "runtimes/firecracker", spec.runtimeId, "runtime.json");
      if (name === "disks") named.push("process" in JSON.parse(readFileSync(path, "utf8")));
    };
    await provider.spawn(spec, { ...soon(), onStage });
    expect(named).toEqual([false, false]);
  });

  it("makes no snapshot whose memory would leave the disk less than is kept free, and boots", async () => {
    const { freeMb } = await spaceOf(tmpdir());
    const config = { snapshots: true, minFreeMb: Math.floor(freeMb / 2) };
    const provider = await opened({ config });
    for (const memoryMb of [Math.floor(freeMb * 0.6), Math.ceil(freeMb * 2)]) {
      const spec = specOf({ memoryMb });
      await provider.spawn(spec, soon());
      await provider.snapshotsSettled();
      expect(await provider.snapshots(soon())).toEqual([]);
    }
    await provider.spawn(specOf({ memoryMb: 64 }), soon());
    await provider.snapshotsSettled();
    expect(await provider.snapshots(soon())).toHaveLength(1);
  });

  it.each([true, false])(
    "ends the machine of a snapshot that a service which died was making, with snapshots: %s",
    {
      timeout: 60_000,
    },
    async (snapshots) => {
      const dying = await opened({ config: { snapshots: true } });
      home.behave({ hangs: ["PUT /snapshot/create"] });
      await dying.spawn(specOf(), soon());
      const machines = join(home.dataDir, "firecracker/machines");
      const unfinished = () => readdirSync(machines).find((name) => name.startsWith("sn-")) as RuntimeId;
      await eventually(() => expect(processesOf(unfinished())).not.toEqual([]));
      const id = unfinished();
      const next = reopened({ config: { snapshots } });
      expect(await next.inventory(soon())).toHaveLength(1);
      expect(left(id)).toEqual([]);
    },
  );

  it("finds and removes machines whose folder is where data_dir was when they were made", async () => {
    const provider = await opened();
    const spec = specOf();
    await provider.spawn(spec, soon());
    const [one, two] = ["one", "two"].map((name) => join(home.dataDir, name)) as [string, string];
    const moved = reopened({ config: { dataDir: one } });
    const other = specOf();
    await moved.spawn(other, soon());
    const next = reopened({ config: { dataDir: two } });
    for (const { runtimeId } of [spec, other]) {
      await next.adopt(runtimeId, soon());
      expect((await run(next.sandbox(runtimeId), "echo works")).stdout).toBe("works\n");
      await next.destroy(runtimeId, soon());
      expect(left(runtimeId)).toEqual([]);
    }
    expect(readdirSync(join(one, "machines"))).toEqual([]);
  });

  it("keeps a snapshot whatever a spawn asked for that is refused", async () => {
    const provider = await opened({ config: { snapshots: true } });
    await provider.spawn(specOf(), soon());
    await provider.snapshotsSettled();
    const [kept] = await provider.snapshots(soon());
    const stages: string[] = [];
    const asked = { ...soon(), onStage: (name: string) => stages.push(name) };
    await expect(provider.spawn(specOf({ user: "nobody-here" }), asked)).rejects.toThrow(BadRequest);
    expect(stages).toEqual(["disks", "launch", "restore"]);
    expect(await provider.snapshots(soon())).toEqual([kept]);
  });

  it("runs an image without a shell, and refuses one with a folder of Alcove's name", async () => {
    const rootfs = await mkdtemp(join(tmpdir(), "alcove-fc-bare-"));
    try {
      await copyFile(findProgram("busybox") ?? "", join(rootfs, "echo"));
      const provider = await opened({}, { rootfs });
      const spec = specOf();
      await provider.spawn(spec, soon());
      expect((await run(provider.sandbox(spec.runtimeId), argv("/echo", "hello"))).stdout).toBe("hello\n");
      await provider.destroy(spec.runtimeId, soon());
      await rm(join(home.dataDir, "firecracker/rootfs"), { recursive: true });
      await mkdir(join(rootfs, ".alcove"));
      expect((await failureOf(reopened())).message).toMatch(/the image has \/\.alcove itself/);
    } finally {
      await rm(rootfs, { recursive: true });
    }
  });
});

/** Those of the fake that were started for a machine. */
function processesOf(runtimeId: RuntimeId): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((name) => {
      try {
        const words = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0");
        const isOf = words.includes(runtimeId) || words.includes(`--id=${runtimeId}`);
        return words.includes("--api-sock") && isOf;
      } catch {
        return false;
      }
    })
    .map(Number);
}
