import { existsSync } from "node:fs";
import {
  cp,
  glob,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { afterEach, beforeEach, expect, it, onTestFinished, vi } from "vitest";
import { runScript } from "../../../test/support/attack-probe.ts";
import { type NativeHome, nativeHome, nativeProvider, testImage } from "../../../test/support/native.ts";
import { preparedIn, processOf, watchPrepares } from "../../../test/support/prepared.ts";
import { describeWith, requirement, skipWithout } from "../../../test/support/requirements.ts";
import { rightsOf } from "../../../test/support/sandbox-rights.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import { randomIds } from "../../platform/random-ids.ts";
import type { RuntimeSpec } from "../../ports/index.ts";
import { Launcher } from "../launcher/index.ts";
import type { NativeProvider } from "./native-provider.ts";
import { machineClaims } from "./range-claims.ts";

const soon = (ms = 60_000) => ({ signal: AbortSignal.timeout(ms) });

await describeWith(["root", "agent", "launcher", "native", "busybox"], "prepared sandboxes", () => {
  let home: NativeHome;
  let provider: NativeProvider;
  let prepares: ReturnType<typeof watchPrepares>;
  beforeEach(async () => {
    prepares = watchPrepares();
    home = await nativeHome();
    provider = home.open({ prepared: 2 });
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    await provider[Symbol.asyncDispose]();
    await home.remove();
  });

  const specOf = (image = testImage): RuntimeSpec => ({
    runtimeId: randomIds.runtimeId(),
    sandboxId: randomIds.sandboxId(),
    image,
    memoryMb: 96,
    vcpus: 0.5,
    env: {},
    expiresInMs: 600_000,
    metadata: {},
  });
  const spawn = async (image = testImage, by = provider) => {
    const spec = specOf(image);
    await by.spawn(spec, soon());
    const { runtimeId, sandboxId } = spec;
    return {
      runtimeId,
      sandboxId,
      operations: by.sandbox(runtimeId),
      pid: await processOf(home.dataDir, runtimeId),
    };
  };
  /** One that was prepared, after a cold one of its kind. */
  const claimed = async (image = testImage) => {
    const cold = await spawn(image);
    const waiting = await prepares.until(home.dataDir, 2);
    const one = await spawn(image);
    expect(waiting.has(one.pid)).toBe(true);
    return { cold, claimed: one };
  };
  const groupsHere = async () => {
    const parent = `/sys/fs/cgroup/memory/alcove-test${home.dataDir.slice(-6)}`;
    const unified = `/sys/fs/cgroup/alcove-test${home.dataDir.slice(-6)}`;
    const names = await readdir(parent).catch(() => readdir(unified).catch(() => []));
    return names.filter((name) => name.startsWith("prepared-"));
  };
  const groupOf = async (runtimeId: string) => {
    const record = await readFile(join(home.dataDir, "runtimes/native", runtimeId, "runtime.json"), "utf8");
    return basename(JSON.parse(record).cgroup.dirs[0].path);
  };
  const launcherHere = async () => {
    const stats = await Promise.all(
      (await readdir("/proc"))
        .filter((name) => /^\d+$/.test(name))
        .map(async (name) => {
          const read = (file: string) => readFile(`/proc/${name}/${file}`, "utf8").catch(() => "");
          return {
            pid: Number(name),
            command: await read("cmdline"),
            parent: (await read("stat")).split(") ")[1]?.split(" ")[1],
          };
        }),
    );
    const found = stats.filter(
      ({ command, parent }) =>
        command.includes("alcove-launch\0serve") &&
        command.includes(home.dataDir) &&
        Number(parent) === process.pid,
    );
    return found.map(({ pid }) => pid);
  };

  it.each(["host", testImage])("of %s have every limit, range and right of a cold one", async (image) => {
    const pair = await claimed(image);
    const [cold, warm] = [
      await rightsOf(home.dataDir, pair.cold),
      await rightsOf(home.dataDir, pair.claimed),
    ];
    expect(Object.keys(cold.groups as object).length).toBeGreaterThan(4);
    expect(warm).toEqual(cold);
  });

  it("are told with the name of their groups, which is not theirs", async () => {
    const [first, second] = [specOf(), specOf()];
    expect(await provider.spawn(first, soon())).toEqual({ image: testImage });
    await prepares.until(home.dataDir, 2);
    expect(provider.controlGroup(first.runtimeId)).toBe(undefined);
    await provider.spawn(second, soon());
    const controlGroup = provider.controlGroup(second.runtimeId);
    expect(controlGroup).toMatch(/^prepared-/);
    expect(await groupsHere()).toContain(controlGroup);
  });

  it("have told other services whose their ids are, and leave no other name of that", async () => {
    const { claimed: one } = await claimed();
    const dir = join(home.dataDir, "runtimes/native", one.runtimeId);
    const { base } = JSON.parse(await readFile(join(dir, "runtime.json"), "utf8")).ids;
    expect(await readlink(join(machineClaims, String(base)))).toBe(dir);
    const names = async () => (await readdir(machineClaims)).filter((name) => name.startsWith(`${base}`));
    await expect.poll(names).toEqual([String(base)]);
    await expect.poll(() => readdir(dir)).not.toContain("runtime.json.new");
  });

  it("are counted: those that wait, spawns that got one and spawns that did not, and no probe", async () => {
    await provider.check(soon());
    expect(provider.madeAhead).toEqual({ waiting: 0, claimed: 0, cold: 0, failed: 0, gaveWay: 0 });
    await spawn();
    await prepares.until(home.dataDir, 2);
    await expect
      .poll(() => provider.madeAhead)
      .toEqual({ waiting: 2, claimed: 0, cold: 1, failed: 0, gaveWay: 0 });
    await spawn();
    expect(provider.madeAhead).toMatchObject({ claimed: 1, cold: 1 });
  });

  it("that cannot be made are counted, and those of another kind go on", async () => {
    const prepare = vi.spyOn(Launcher.prototype, "prepare").mockRejectedValue(new Error("no loop device"));
    await spawn();
    await expect.poll(() => provider.madeAhead?.failed).toBe(1);
    prepare.mockRestore();
    await spawn("host");
    await expect.poll(() => provider.madeAhead?.waiting).toBe(2);
  });

  it("with a network have the same of it, and it is theirs", async (context) => {
    const { ok } = await requirement("slirp4netns");
    if (!ok) return skipWithout(context, "slirp4netns is not installed");
    await provider[Symbol.asyncDispose]();
    provider = home.open({ prepared: 2, networkMode: "outbound" });
    const changes: string[] = [];
    using _ = { [Symbol.dispose]: provider.onNetwork((runtimeId) => changes.push(runtimeId)) };
    const pair = await claimed("host");
    const [cold, warm] = [
      await rightsOf(home.dataDir, pair.cold),
      await rightsOf(home.dataDir, pair.claimed),
    ];
    expect(warm).toEqual(cold);
    const { output } = await runScript(
      pair.claimed.operations,
      "cat /etc/resolv.conf; ls /sys/class/net /proc/sys/net/ipv4/conf",
    );
    expect(output).toContain("nameserver");
    // Its relay is the one that was prepared: who kills that sees the network come back.
    const relay = JSON.parse(
      await readFile(join(home.dataDir, "runtimes/native", pair.claimed.runtimeId, "network.json"), "utf8"),
    );
    process.kill(relay.pid, "SIGKILL");
    await expect.poll(() => changes, { timeout: 15_000 }).toContain(pair.claimed.runtimeId);
  });

  it("are nobody's: in no inventory, and gone when the service stops", async () => {
    const { runtimeId } = await spawn();
    const waiting = await prepares.until(home.dataDir, 2);
    expect((await provider.inventory(soon())).map((entry) => entry.runtimeId)).toEqual([runtimeId]);
    expect(await groupsHere()).toHaveLength(2);
    await provider[Symbol.asyncDispose]();
    expect(await preparedIn(home.dataDir)).toEqual(new Map());
    expect(await groupsHere()).toEqual([]);
    for (const pid of waiting.keys()) await expect(readFile(`/proc/${pid}/stat`)).rejects.toThrow();
    const links = await readdir(machineClaims);
    expect(links.filter((name) => name.includes("prepared-"))).toEqual([]);
    provider = home.open();
  });

  it.each(["missing", "empty"])("have the names of their machine where an image's are %s", async (what) => {
    const folder = await mkdtemp(join(tmpdir(), "alcove-image-"));
    onTestFinished(() => rm(folder, { recursive: true }));
    const rootfs = join(folder, "rootfs");
    await cp((await busyboxRootfs()).dir, rootfs, { recursive: true, verbatimSymlinks: true });
    for (const file of ["etc/hosts", "etc/hostname"]) {
      await rm(join(rootfs, file), { force: true });
      // As `docker export` writes them.
      if (what === "empty") await writeFile(join(rootfs, file), "");
    }
    await using provider = nativeProvider(home.dataDir, rootfs, { prepared: 2 });
    const cold = await spawn(testImage, provider);
    const waiting = await prepares.until(home.dataDir, 2);
    const claimed = await spawn(testImage, provider);
    expect(waiting.has(claimed.pid)).toBe(true);
    for (const { operations, sandboxId } of [cold, claimed]) {
      const { output } = await runScript(operations, "cat /etc/hostname; grep localhost /etc/hosts");
      expect(output).toBe(`${sandboxId}\n127.0.0.1\tlocalhost ${sandboxId}\n::1\tlocalhost ${sandboxId}\n`);
    }
  });

  it("of image host resolve their own name, and change it for nobody else", async () => {
    const cold = await spawn("host");
    const waiting = await prepares.until(home.dataDir, 2);
    const claimed = await spawn("host");
    expect(waiting.has(claimed.pid)).toBe(true);
    for (const { operations, sandboxId } of [cold, claimed]) {
      const { output } = await runScript(
        operations,
        "cat /etc/hostname; cat /etc/hosts; getent hosts $(hostname) > /tmp/found && echo known; echo '192.0.2.1 other' >> /etc/hosts",
      );
      const hosts = `127.0.0.1\tlocalhost ${sandboxId}\n::1\tlocalhost ${sandboxId}\n`;
      expect(output).toBe(`${sandboxId}\n${hosts}known\n`);
    }
  });

  it("one of an image, an agent or a root that was replaced is not claimed", async () => {
    const folder = await mkdtemp(join(tmpdir(), "alcove-image-"));
    onTestFinished(() => rm(folder, { recursive: true }));
    const rootfs = join(folder, "rootfs");
    await cp((await busyboxRootfs()).dir, rootfs, { recursive: true, verbatimSymlinks: true });
    await using changing = nativeProvider(home.dataDir, rootfs, { prepared: 2 });
    await spawn(testImage, changing);
    const waiting = await prepares.until(home.dataDir, 2);
    await cp(rootfs, `${rootfs}.new`, { recursive: true, verbatimSymlinks: true });
    await writeFile(join(`${rootfs}.new`, "newer"), "");
    await rm(rootfs, { recursive: true });
    await rename(`${rootfs}.new`, rootfs);
    const { operations, pid } = await spawn(testImage, changing);
    expect(waiting.has(pid)).toBe(false);
    expect((await runScript(operations, "ls /newer")).output).toBe("/newer\n");

    for (const what of ["agents/*/alcove-agent", "native/host-*"]) {
      await spawn("host", changing);
      const before = await prepares.until(home.dataDir, 4);
      const [found = ""] = await Array.fromAsync(glob(what, { cwd: home.dataDir }));
      const path = join(home.dataDir, found);
      await cp(path, `${path}.new`, { recursive: true, verbatimSymlinks: true });
      await rename(path, `${path}.old`);
      await rename(`${path}.new`, path);
      expect(before.has((await spawn("host", changing)).pid)).toBe(false);
    }
  });

  it("groups that no record names are removed by the next start, and nobody's that runs", async () => {
    const { claimed: one } = await claimed();
    await provider[Symbol.asyncDispose]();
    const dir = join(home.dataDir, "runtimes/native", one.runtimeId);
    const { cgroup } = JSON.parse(await readFile(join(dir, "runtime.json"), "utf8"));
    const [own] = cgroup.dirs.map(({ path }: { path: string }) => path);
    const left = join(dirname(own), "prepared-left");
    await mkdir(join(left, "execs"), { recursive: true });
    provider = home.open({ prepared: 2 });
    await provider.inventory(soon());
    await provider.adopt(one.runtimeId, soon());
    expect(existsSync(left)).toBe(false);
    expect(existsSync(own)).toBe(true);
    expect((await runScript(provider.sandbox(one.runtimeId), "echo works")).output).toBe("works\n");
  });

  it("none keeps from a spawn what there is only so much of", async () => {
    await provider[Symbol.asyncDispose]();
    const ranges = 6;
    // The last one of all stays free.
    provider = home.open({ prepared: 2, uidBase: 0xffff_0000 - ranges * 65_536 });
    await provider.check(soon());
    await spawn();
    await prepares.until(home.dataDir, 2);
    const sizes = Array.from({ length: ranges - 1 }, (_, index) => 97 + index);
    for (const memoryMb of sizes) await provider.spawn({ ...specOf(), memoryMb }, soon());
    expect(await provider.inventory(soon())).toHaveLength(ranges);
    await expect(spawn()).rejects.toThrow("id ranges");
    expect(provider.madeAhead?.gaveWay).toBeGreaterThan(0);
  });

  it("one that was made otherwise than it would be now is not claimed", async () => {
    await provider[Symbol.asyncDispose]();
    const addedCaps: string[] = [];
    provider = home.open({ prepared: 2, addedCaps });
    await spawn();
    const waiting = await prepares.until(home.dataDir, 2);
    addedCaps.push("CAP_NET_RAW");
    const { operations, pid } = await spawn();
    expect(waiting.has(pid)).toBe(false);
    const { output } = await runScript(operations, "grep CapEff /proc/self/status");
    expect(Number.parseInt(output.split(":")[1] ?? "", 16)).not.toBe(0);
  });

  it("one of another size is not claimed", async () => {
    await spawn();
    const waiting = await prepares.until(home.dataDir, 2);
    const spec = { ...specOf(), memoryMb: 128 };
    await provider.spawn(spec, soon());
    expect(waiting.has(await processOf(home.dataDir, spec.runtimeId))).toBe(false);
  });

  it("one that was adopted by the next service works on, and those that wait end with theirs", async () => {
    const { claimed: one } = await claimed();
    await using next = home.open();
    await next.adopt(one.runtimeId, soon());
    expect(next.controlGroup(one.runtimeId)).toMatch(/^prepared-/);
    const { output } = await runScript(next.sandbox(one.runtimeId), "hostname");
    expect(output.trim()).toBe(one.sandboxId);
    expect((await next.sandbox(one.runtimeId).stats(soon())).memoryLimitBytes).toBe(96 << 20);
    expect((await next.inventory(soon())).every(({ state }) => state === "running")).toBe(true);
  });

  it("a launcher that is killed takes those that wait with it, and no spawn fails for it", async () => {
    await spawn();
    const waiting = await prepares.until(home.dataDir, 2);
    const [launcher] = await launcherHere();
    process.kill(launcher ?? 0, "SIGKILL");
    for (const pid of waiting.keys())
      await expect
        .poll(
          () =>
            readFile(`/proc/${pid}/stat`).then(
              () => "there",
              () => "gone",
            ),
          { timeout: 5_000 },
        )
        .toBe("gone");
    const { runtimeId, operations, pid } = await spawn();
    expect(waiting.has(pid)).toBe(false);
    expect((await runScript(operations, "echo works")).output).toBe("works\n");
    // It may itself have been prepared since, and its group is called so then.
    const own = await groupOf(runtimeId);
    const ofOthers = async () => (await groupsHere()).filter((name) => name !== own);
    await expect.poll(ofOthers, { timeout: 15_000 }).toHaveLength(2);
    const again = await prepares.until(home.dataDir, 2);
    expect([...again.keys()].some((found) => waiting.has(found))).toBe(false);
  });

  it("those that end while the directories are out of sight are removed once these are back", async () => {
    await spawn();
    const waiting = await prepares.until(home.dataDir, 2);
    const runtimes = join(home.dataDir, "runtimes");
    await rename(runtimes, `${runtimes}.away`);
    const [launcher] = await launcherHere();
    process.kill(launcher ?? 0, "SIGKILL");
    for (const pid of waiting.keys())
      await expect.poll(() => existsSync(`/proc/${pid}/stat`), { timeout: 5_000 }).toBe(false);
    await expect(spawn()).rejects.toThrow("not there any more");
    await rename(`${runtimes}.away`, runtimes);
    const left = async () => {
      await provider.inventory(soon());
      const there = await preparedIn(home.dataDir);
      return [...waiting.keys()].filter((pid) => there.has(pid));
    };
    await expect.poll(left, { timeout: 10_000 }).toEqual([]);
  });

  it("an agent that waits ends with who made it although it stands still", async () => {
    await spawn();
    for (const pid of (await prepares.until(home.dataDir, 2)).keys()) {
      const parent = (await readFile(`/proc/${pid}/stat`, "utf8")).split(") ")[1]?.split(" ")[1];
      expect(await readFile(`/proc/${pid}/cmdline`, "utf8")).toContain("alcove-agent");
      process.kill(pid, "SIGSTOP");
      process.kill(Number(parent), "SIGKILL");
      await expect.poll(() => existsSync(`/proc/${pid}/stat`), { timeout: 5_000 }).toBe(false);
    }
  });

  it.each(["the first process", "the one that made it"])(
    "one of which %s was killed while it waited is no failed spawn",
    async (which) => {
      await spawn();
      for (const pid of (await prepares.until(home.dataDir, 2)).keys()) {
        const parent = (await readFile(`/proc/${pid}/stat`, "utf8")).split(") ")[1]?.split(" ")[1];
        process.kill(which === "the first process" ? pid : Number(parent), "SIGKILL");
      }
      const { operations } = await spawn();
      expect((await runScript(operations, "echo works")).output).toBe("works\n");
    },
  );

  it.each(["first process", "maker", "first process and maker"])(
    "one that waits with its %s stopped holds up a spawn for three seconds, and leaves nothing",
    { timeout: 60_000 },
    async (which) => {
      const { runtimeId: first } = await spawn();
      const waiting = await prepares.until(home.dataDir, 2);
      const all = new Set<number>();
      for (const pid of waiting.keys()) {
        const parent = Number((await readFile(`/proc/${pid}/stat`, "utf8")).split(") ")[1]?.split(" ")[1]);
        for (const one of [pid, parent]) all.add(one);
        if (which !== "maker") process.kill(pid, "SIGSTOP");
        if (which !== "first process") process.kill(parent, "SIGSTOP");
      }
      const claim = vi.spyOn(Launcher.prototype, "claim");
      const beganMs = performance.now();
      const { runtimeId, sandboxId, operations, pid } = await spawn();
      expect(performance.now() - beganMs).toBeLessThan(15_000);
      await expect(claim.mock.results[0]?.value).rejects.toThrow("said nothing for 3000 ms");
      expect(all.has(pid)).toBe(false);
      expect((await runScript(operations, "hostname")).output).toBe(`${sandboxId}\n`);
      // Nobody is left who could go on with it, and nothing under either of its names.
      const claimed = claim.mock.calls[0]?.[0].prepared ?? "";
      const [gone] = [...waiting].find(([, name]) => name === basename(claimed)) ?? [];
      expect(gone).toBeDefined();
      expect(existsSync(claimed)).toBe(false);
      expect(existsSync(`/proc/${gone}/stat`)).toBe(false);
      const ids = (await provider.inventory(soon())).map((entry) => entry.runtimeId);
      expect(ids.sort()).toEqual([first, runtimeId].sort());
      expect(await groupsHere()).not.toContain(basename(claimed));
      const links = await readdir(machineClaims);
      // Other services of the machine take away theirs meanwhile.
      const targetOf = (name: string) => readlink(join(machineClaims, name)).catch(() => undefined);
      const targets = await Promise.all(links.map(targetOf));
      const runtimes = join(home.dataDir, "runtimes/native");
      expect(targets.filter((target) => target === join(runtimes, runtimeId))).toHaveLength(1);
      expect(targets).not.toContain(claimed);
    },
  );

  it("one that ends over a claim whose caller has left ends nothing else", async () => {
    await spawn();
    const waiting = await prepares.until(home.dataDir, 2);
    const leaves = new AbortController();
    const connectionEnded = vi.fn();
    vi.spyOn(Launcher.prototype, "claim").mockImplementationOnce(async () => {
      // With a connection that it has not taken yet, which is an error to the other end; nobody listens there any more.
      for (const pid of waiting.keys()) process.kill(pid, "SIGKILL");
      for (const pid of waiting.keys())
        await expect.poll(() => existsSync(`/proc/${pid}/stat`), { timeout: 5_000 }).toBe(false);
      connectionEnded();
      throw new Error("who prepared it ended over it");
    });
    const onStage = (stage: string) => {
      if (stage === "wait") leaves.abort(new Error("the caller has left"));
    };
    const left = provider.spawn(specOf(), { signal: leaves.signal, onStage });
    await expect(left).rejects.toThrow("the caller has left");
    await vi.waitFor(() => expect(connectionEnded).toHaveBeenCalled());
    expect((await runScript((await spawn()).operations, "echo works")).output).toBe("works\n");
  });

  it("a launcher that is killed over a claim loses and doubles nothing", { timeout: 60_000 }, async () => {
    await spawn();
    const claim = vi.spyOn(Launcher.prototype, "claim");
    for (let waitMs = 0; waitMs < 6; waitMs += 1) {
      await prepares.until(home.dataDir, 2);
      const [launcher] = await launcherHere();
      claim.mockImplementationOnce(async function (this: Launcher, spec) {
        claim.mockRestore();
        const asked = this.claim(spec);
        const from = performance.now();
        while (performance.now() - from < waitMs / 2);
        process.kill(launcher ?? 0, "SIGKILL");
        return asked;
      });
      const { runtimeId, operations } = await spawn();
      expect((await runScript(operations, "hostname && echo works")).output).toContain("works\n");
      const found = await provider.inventory(soon());
      expect(found.filter((entry) => entry.runtimeId === runtimeId)).toHaveLength(1);
      vi.spyOn(Launcher.prototype, "claim");
      await provider.destroy(runtimeId, soon());
    }
    expect(await provider.inventory(soon())).toHaveLength(1);
  });

  it("a burst far beyond those that wait is served", { timeout: 180_000 }, async () => {
    await spawn("host");
    await prepares.until(home.dataDir, 2);
    const burst = await Promise.all(Array.from({ length: 200 }, () => spawn("host")));
    expect(new Set(burst.map(({ pid }) => pid)).size).toBe(200);
    expect(await provider.inventory(soon())).toHaveLength(201);
    const [one] = burst.slice(-1);
    expect((await runScript(one?.operations as never, "echo works")).output).toBe("works\n");
    await Promise.all(burst.map(({ runtimeId }) => provider.destroy(runtimeId, soon(120_000))));
    await prepares.until(home.dataDir, 2);
  });
});
