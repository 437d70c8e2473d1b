import { spawn } from "node:child_process";
import {
  chmod,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, expect, it } from "vitest";
import { agentBinary } from "../../../test/support/agent-binary.ts";
import { bareLaunch } from "../../../test/support/bare-launch.ts";
import { nativeHome } from "../../../test/support/native.ts";
import { mustRun } from "../../../test/support/programs.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import { silentLogger } from "../../platform/logger.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { run } from "../../ports/contract/provider/harness.ts";
import { Launcher, type LaunchSpec } from "../launcher/index.ts";

const soon = () => ({ signal: AbortSignal.timeout(60_000) });
const kinds = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] as const;

const others: readonly string[] = kinds.filter((kind) => kind !== "user");

const namespacesOf = async (pid: number | "self") =>
  Object.fromEntries(
    await Promise.all(kinds.map(async (kind) => [kind, await readlink(`/proc/${pid}/ns/${kind}`)])),
  );

/** By kind: the namespace that owns the one of a process. */
async function ownersOf(pid: number): Promise<Record<string, string>> {
  const ask = () => mustRun("lsns", ["--noheadings", "--output", "TYPE,ONS", "--task", String(pid)]);
  // It looks at all processes of the machine, and fails when one of them ends meanwhile.
  const { stdout } = await ask().catch(ask).catch(ask);
  const lines = stdout.trim().split("\n");
  const owners = lines.map((line) => line.trim().split(/\s+/) as [string, string]);
  return Object.fromEntries(owners.filter(([kind]) => others.includes(kind)));
}

/** By controller, as the machine sees it. */
async function groupsOf(pid: number): Promise<Record<string, string>> {
  const lines = (await readFile(`/proc/${pid}/cgroup`, "utf8")).trim().split("\n");
  return Object.fromEntries(lines.map((line) => line.split(":").slice(1) as [string, string]));
}

/** Of a program's memory: what may be done with the part that its start relocates, by which its functions are found. */
async function relocatedPartOf(pid: number): Promise<string | undefined> {
  const elf = await readFile(`/proc/${pid}/exe`);
  const { ino } = await stat(`/proc/${pid}/exe`);
  const maps = (await readFile(`/proc/${pid}/maps`, "utf8")).trim().split("\n");
  const parts = maps.map((line) => {
    const [range = "", rights, offset, , inode] = line.split(/ +/);
    const [first, end] = range.split("-").map((at) => BigInt(`0x${at}`)) as [bigint, bigint];
    return { first, end, rights, isBeginning: BigInt(`0x${offset}`) === 0n && inode === String(ino) };
  });
  const relocated = 0x6474e552;
  const headers = Array.from({ length: elf.readUInt16LE(56) }, (_, at) =>
    elf.subarray(Number(elf.readBigUInt64LE(32)) + at * elf.readUInt16LE(54)),
  );
  const address = headers.find((header) => header.readUInt32LE(0) === relocated)?.readBigUInt64LE(16);
  const base = parts.find(({ isBeginning }) => isBeginning)?.first;
  if (address === undefined || base === undefined) return undefined;
  const at = base + address;
  return parts.find(({ first, end }) => first <= at && at < end)?.rights;
}

/** Children of this process that run a program. */
async function childrenWith(program: string): Promise<number[]> {
  const own = await readFile(`/proc/self/task/${process.pid}/children`, "utf8");
  const pids = own.trim().split(" ").map(Number);
  const programs = await Promise.all(pids.map((pid) => readlink(`/proc/${pid}/exe`).catch(() => "")));
  return pids.filter((_, at) => programs[at] === program);
}

/** Who works in a runtime's directory: its launch, and the sandbox's first process until it has a root. */
async function workersIn(dir: string): Promise<{ launch?: number; first?: number }> {
  const own = await readlink("/proc/self/ns/pid");
  const found: { launch?: number; first?: number } = {};
  for (const name of (await readdir("/proc")).filter((entry) => /^\d+$/.test(entry))) {
    const at = (link: string) => readlink(`/proc/${name}/${link}`).catch(() => undefined);
    if ((await at("cwd")) !== dir) continue;
    found[(await at("ns/pid")) === own ? "launch" : "first"] = Number(name);
  }
  return found;
}

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "a launch, whose halves work side by side",
  () => {
    let folder: string;
    let launcher: Launcher;
    beforeEach(async () => {
      folder = await mkdtemp(join(tmpdir(), "alcove-halves-"));
      await chmod(folder, 0o755);
      await mkdir(join(folder, ".trash"));
      launcher = new Launcher({ binary: agentBinary("alcove-launch"), logger: silentLogger });
    });
    afterEach(async () => {
      await launcher[Symbol.asyncDispose]();
      await rm(folder, { recursive: true, force: true });
    });

    /** With files for groups, as those of v1. */
    async function withFiles(...groups: [controller: string, ...files: string[]][]): Promise<LaunchSpec> {
      const dirs: { controller: string; path: string }[] = [];
      for (const [controller, ...files] of groups) {
        const path = join(folder, controller);
        await mkdir(join(path, "execs"), { recursive: true });
        for (const file of files) await writeFile(join(path, file), "");
        dirs.push({ controller, path });
      }
      return bareLaunch(folder, { base: 1_879_113_728, dirs, execGroup: true });
    }

    /** All of them are others than the machine's, and belong to the one of its users. */
    async function expectOwn(pid: number): Promise<void> {
      const [own, machines] = [await namespacesOf(pid), await namespacesOf("self")];
      for (const kind of kinds) expect(own[kind], kind).not.toBe(machines[kind]);
      const user = /\d+/.exec(own.user ?? "")?.[0];
      expect(await ownersOf(pid)).toEqual(Object.fromEntries(others.map((kind) => [kind, user])));
    }

    /** Waits for a launch that was stopped on its way. @returns the launch itself and the sandbox's first process. */
    async function stopped(dir: string): Promise<{ launch: number; first: number }> {
      const both = { launch: expect.any(Number), first: expect.any(Number) };
      await expect.poll(() => workersIn(dir), { timeout: 15_000 }).toEqual(both);
      return (await workersIn(dir)) as { launch: number; first: number };
    }

    it("gives all seven namespaces, and the groups are those that the sandbox shows as roots", async () => {
      await using stack = new AsyncDisposableStack();
      const home = await nativeHome();
      stack.defer(() => home.remove());
      const provider = stack.use(home.open());
      const { runtimeId, sandboxId } = { runtimeId: randomIds.runtimeId(), sandboxId: randomIds.sandboxId() };
      const size = { memoryMb: 64, vcpus: 1, expiresInMs: 600_000 };
      const spec = { runtimeId, sandboxId, image: "host", env: {}, metadata: {}, ...size };
      await provider.spawn(spec, soon());
      const record = await readFile(join(home.dataDir, "runtimes/native", runtimeId, "process.json"), "utf8");
      const { pid } = JSON.parse(record);
      await expectOwn(pid);
      const groups = await groupsOf(pid);
      const given = Object.values(groups).filter((group) => group.includes(runtimeId));
      expect(given).toHaveLength(groups[""] === given[0] ? 1 : 4);
      const { stdout } = await run(provider.sandbox(runtimeId), "cat /proc/1/cgroup");
      const shown = stdout.trim().split("\n");
      expect(shown.filter((line) => line.includes(runtimeId))).toEqual([]);
      // With v2 it is born into its group, with the root of who made it.
      if (given.length > 1) expect(shown.filter((line) => !line.endsWith(":/"))).toEqual([]);
    }, 60_000);

    it("is made and served by programs whose tables of functions nobody can write", async () => {
      const spec = { ...(await withFiles()), cgroup: null };
      const { pid } = await launcher.launch(spec);
      const [making] = await childrenWith(agentBinary("alcove-launch"));
      expect(await Promise.all([pid, making ?? 0].map(relocatedPartOf))).toEqual(["r--p", "r--p"]);
      await launcher.destroy({ dir: spec.dir, trash: join(folder, ".trash"), cgroup: null, ids: spec.ids });
    });

    it("has its network made while it furnishes itself, and lets nobody write the kernel's settings", async () => {
      const spec = { ...(await withFiles()), cgroup: null };
      const { pid, stages } = await launcher.launch(spec);
      // Where the first process has to make it no such step is told.
      expect(stages.map(([name]) => name)).toContain("network");
      const mounts = (await readFile(`/proc/${pid}/mountinfo`, "utf8")).split("\n");
      const settings = mounts.map((line) => line.split(" ")).findLast(([, , , , at]) => at === "/proc/sys");
      expect(settings?.[5]?.split(",")).toContain("ro");
      await launcher.destroy({ dir: spec.dir, trash: join(folder, ".trash"), cgroup: null, ids: spec.ids });
    });

    it("is deleted once nothing else is asked of the launcher, and soon all the same", async () => {
      const spec = { ...(await withFiles()), cgroup: null };
      const undo = { trash: join(folder, ".trash"), cgroup: null, ids: spec.ids };
      const left = async () => (await readdir(undo.trash)).filter((name) => name.startsWith("runtime."));
      /** @returns what is left after requests without a pause; undefined where the machine made one. */
      const leftWhileAsked = async () => {
        await launcher.launch(spec);
        await launcher.destroy({ dir: spec.dir, ...undo });
        const began = performance.now();
        for (let askedMs = began; askedMs - began < 100; ) {
          // There is nothing to undo, and it is asked all the same.
          await launcher.destroy({ dir: join(folder, "none"), ...undo });
          const nowMs = performance.now();
          if (nowMs - askedMs > 20) return undefined;
          askedMs = nowMs;
        }
        return left();
      };
      let found: string[] | undefined;
      for (let tries = 0; tries < 20 && found === undefined; tries++) {
        found = await leftWhileAsked();
        await expect.poll(left, { timeout: 5_000 }).toEqual([]);
      }
      expect(found).toHaveLength(1);
    }, 60_000);

    it("gives them to one that is nobody's yet as well", async () => {
      const spec = { ...(await withFiles()), cgroup: null };
      const { pid } = await launcher.prepare(spec);
      await expectOwn(pid);
      await launcher.destroy({ dir: spec.dir, trash: join(folder, ".trash"), cgroup: null, ids: spec.ids });
    });

    it("needs no right to look into others' processes, as a service in a container has none", async () => {
      const rights = ["chown", "dac_override", "fowner", "kill", "setgid", "setuid", "sys_admin"];
      const binary = join(folder, "launcher");
      const bound = `-all,${rights.map((right) => `+${right}`).join(",")}`;
      const real = agentBinary("alcove-launch");
      const script = `#!/bin/sh\nexec setpriv --bounding-set ${bound} --inh-caps=-all --no-new-privs ${real} "$@"\n`;
      await writeFile(binary, script, { mode: 0o755 });
      await using limited = new Launcher({ binary, logger: silentLogger });
      const spec = { ...(await withFiles()), cgroup: null };
      for (const make of ["launch", "prepare"] as const) {
        const { pid } = await limited[make](spec);
        await expectOwn(pid);
        await limited.destroy({ dir: spec.dir, trash: join(folder, ".trash"), cgroup: null, ids: spec.ids });
      }
    });

    it.each([
      ["groups", ["pids"], "pids/tasks"],
      ["root", ["memory", "tasks"], "memory/execs/memory.oom_control"],
    ])("ends with both of its processes while it waits for its %s", async (_, group, slow) => {
      const spec = await withFiles(group as [string]);
      await mkdir(join(folder, dirname(slow)), { recursive: true });
      await mustRun("mkfifo", [join(folder, slow)]);
      const launched = launcher.launch(spec);
      launched.catch(() => undefined);
      const { launch, first } = await stopped(spec.dir);
      // What it takes by itself.
      const taken = async () => (await namespacesOf(first)).ipc;
      await expect.poll(taken, { timeout: 15_000 }).not.toBe((await namespacesOf("self")).ipc);
      process.kill(launch, "SIGKILL");
      await expect.poll(() => workersIn(spec.dir), { timeout: 15_000 }).toEqual({});
      expect(JSON.parse(await readFile(join(spec.dir, "runtime.json"), "utf8")).ids).toEqual(spec.ids);
      await launcher.destroy({ dir: spec.dir, trash: join(folder, ".trash"), cgroup: null, ids: spec.ids });
    });

    it("ends with both of its processes while it waits for its limits", async () => {
      const spec = await withFiles(["pids", "tasks", "execs/pids.max", "execs/tasks"]);
      await mkdir(join(folder, "pids/execs"), { recursive: true });
      await mustRun("mkfifo", [join(folder, "pids/pids.max")]);
      launcher.launch(spec).catch(() => undefined);
      const launch = async () => (await workersIn(spec.dir)).launch;
      await expect.poll(launch, { timeout: 15_000 }).toEqual(expect.any(Number));
      const maker = (await launch()) as number;
      const children = async () =>
        (await readFile(`/proc/${maker}/task/${maker}/children`, "utf8")).trim().split(" ").filter(Boolean);
      // The one that makes the network comes and goes meanwhile.
      const { net } = await namespacesOf("self");
      const inOwn = async () => {
        const [first, ...others] = await children();
        if (first === undefined || others.length > 0) return undefined;
        return (await namespacesOf(Number(first))).net === net ? undefined : Number(first);
      };
      await expect.poll(inOwn, { timeout: 15_000 }).toEqual(expect.any(Number));
      const first = (await inOwn()) as number;
      await expectOwn(first);
      process.kill(maker, "SIGKILL");
      const there = () => readFile(`/proc/${first}/stat`, "utf8").catch(() => "gone");
      await expect.poll(there, { timeout: 15_000 }).toBe("gone");
      await launcher.destroy({ dir: spec.dir, trash: join(folder, ".trash"), cgroup: null, ids: spec.ids });
    });

    it("counts memory in the sandbox's group before its other groups are there", async ({ skip }) => {
      const memory = join("/sys/fs/cgroup/memory", `alcove-test-${randomIds.runtimeId()}`);
      const isV1 = await readFile("/sys/fs/cgroup/memory/tasks").catch(() => undefined);
      skip(isV1 === undefined, "with cgroup v2 a sandbox is born into its groups");
      const spec = await withFiles(["pids"]);
      const cgroup = {
        version: 1 as const,
        dirs: [...(spec.cgroup?.dirs ?? []), { controller: "memory", path: memory }],
      };
      await mustRun("mkfifo", [join(folder, "pids/tasks")]);
      launcher.launch({ ...spec, cgroup }).catch(() => undefined);
      const { launch, first } = await stopped(spec.dir);
      expect((await groupsOf(first)).memory).toBe(memory.replace("/sys/fs/cgroup/memory", ""));
      process.kill(launch, "SIGKILL");
      await expect.poll(() => workersIn(spec.dir), { timeout: 15_000 }).toEqual({});
      const own = { version: 1 as const, dirs: [{ controller: "memory", path: memory }] };
      await launcher.destroy({ dir: spec.dir, trash: join(folder, ".trash"), cgroup: own, ids: spec.ids });
      await expect(readdir(memory)).rejects.toThrow("ENOENT");
    });

    it("tells which group cannot be joined", async () => {
      const spec = await withFiles(["pids", "pids.max", "execs/pids.max", "execs/tasks"]);
      await symlink("/dev/full", join(folder, "pids/tasks"));
      const refused = await launcher.launch(spec).catch((error: unknown) => error);
      expect(refused).toMatchObject({ step: "cgroup", errno: 28 });
      expect(String(refused)).toContain(`${folder}/pids/tasks: No space left on device`);
      await expect.poll(() => workersIn(spec.dir), { timeout: 15_000 }).toEqual({});
      await launcher.destroy({ dir: spec.dir, trash: join(folder, ".trash"), cgroup: null, ids: spec.ids });
    });

    it("tells that a namespace is refused which the sandbox takes for itself", async () => {
      // Not of that machine's: it has no right to give those files other owners.
      const root = { kind: "image", rootfs: (await busyboxRootfs()).dir, shifted: true } as const;
      const spec = { ...(await withFiles()), root, cgroup: null };
      const request = join(folder, "request");
      await writeFile(request, `${JSON.stringify({ op: "launch", id: 1, spec })}\n`);
      // In a user namespace like the machine's, whose own limit nobody else meets.
      // Root there is who was mapped before it was executed.
      const script = `read go; exec sh -c 'echo 0 > /proc/sys/user/max_net_namespaces; exec "$0" one < "$1"' "$0" "$1"`;
      const args = ["--user", "--mount", "sh", "-c", script, agentBinary("alcove-launch"), request];
      const child = spawn("unshare", args, { stdio: ["pipe", "pipe", "inherit"] });
      const told = text(child.stdout);
      const { user } = await namespacesOf("self");
      const taken = async () => (await namespacesOf(child.pid as number)).user;
      await expect.poll(taken, { timeout: 15_000 }).not.toBe(user);
      for (const map of ["uid_map", "gid_map"])
        await writeFile(`/proc/${child.pid}/${map}`, "0 0 4294967295");
      child.stdin.end("\n");
      const stdout = await told;
      expect(JSON.parse(stdout.trim())).toMatchObject({
        ...{ ok: false, step: "clone", errno: 28 },
        message: expect.stringMatching(/^new namespaces: No space left/),
      });
    });
  },
);
