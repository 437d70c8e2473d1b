import { chmod, mkdir, mkdtemp, readdir, readFile, readlink, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { agentBinary } from "../../../test/support/agent-binary.ts";
import { describeWith, skipWithout } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import { silentLogger } from "../../platform/logger.ts";
import { findProgram, Launcher, type LaunchSpec } from "../launcher/index.ts";
import { openDiskPool } from "./disk-template.ts";

const ids = { kind: "range", base: 4_000_055_296, count: 65_536 } as const;
const inodeOf = async (path: string) => (await stat(path)).ino;

/** Sockets with the name of an agent's that a process has open. */
async function agentSocketsOf(pid: string): Promise<string[]> {
  const sockets = (await readFile("/proc/net/unix", "utf8"))
    .split("\n")
    .filter((line) => line.endsWith("agent.sock"))
    .map((line) => `socket:[${line.trim().split(/\s+/)[6]}]`);
  const names = await readdir(`/proc/${pid}/fd`);
  const open = await Promise.all(names.map((name) => readlink(`/proc/${pid}/fd/${name}`).catch(() => "")));
  return [...new Set(open.filter((target) => sockets.includes(target)))];
}

await describeWith(["root", "agent", "launcher", "native", "busybox"], "a runtime's folder", () => {
  let folder: string;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "alcove-ahead-"));
    await chmod(folder, 0o755);
  });
  afterEach(() => rm(folder, { recursive: true, force: true }));

  it("lies where a release that kept files alone looks for none, and takes away what that left", async (context) => {
    const native = join(folder, "native");
    await mkdir(join(native, "pool", "1-1"), { recursive: true });
    await writeFile(join(native, "pool", "left.img"), "");
    const pool = await openDiskPool({ dataDir: folder, diskMb: 64, mkfs: await findProgram("mkfs.ext4") });
    if ("missing" in pool) return skipWithout(context, pool.missing);
    expect((await readdir(native)).sort()).toEqual(["ahead", "disk-64.img"]);
    expect(pool.dir).toBe(join(native, "ahead"));
  });

  it("is one that was made ahead with its files, and nobody else's stays open with who waits", async (context) => {
    const pool = await openDiskPool({ dataDir: folder, diskMb: 64, mkfs: await findProgram("mkfs.ext4") });
    if ("missing" in pool) return skipWithout(context, pool.missing);
    // What is no folder goes too.
    await writeFile(join(pool.dir, "left.img"), "");
    await using launcher = new Launcher({ binary: agentBinary("alcove-launch"), logger: silentLogger });
    launcher.keepDisks({ ...pool, count: 3 });
    const dir = join(folder, "prepared-1");
    const undo = { dir, trash: join(folder, ".trash"), cgroup: null, ids };
    await mkdir(undo.trash);
    await launcher.destroy(undo);
    const ready = async () => {
      const names = await readdir(pool.dir);
      const files = await Promise.all(
        names.map((name) => readdir(join(pool.dir, name)).catch((): string[] => [])),
      );
      return names.filter((_, index) => files[index]?.includes("process.json.new"));
    };
    await expect.poll(async () => (await ready()).length, { timeout: 20_000 }).toBe(3);
    expect(await readdir(pool.dir)).toHaveLength(3);
    const ahead = await ready();
    const inodesOf = (name: string) => Promise.all(ahead.map((each) => inodeOf(join(pool.dir, each, name))));
    const [sockets, consoles, records] = [
      await inodesOf("agent.sock"),
      await inodesOf("console.log"),
      await inodesOf("runtime.json.new"),
    ];
    const { pid } = await launcher.prepare({
      dir,
      record: { whose: "nobody's" },
      agent: agentBinary("alcove-agent"),
      root: { kind: "image", rootfs: (await busyboxRootfs()).dir },
      ids,
      hostname: "sb-prepared",
      network: "none",
      cgroup: null,
      limits: { memory_mb: 64, vcpus: 1, pids: 64, exec_group: false },
      added_caps: [],
      disk: { template: pool.template },
      proc_outside: false,
    } as unknown as LaunchSpec);
    expect(sockets).toContain(await inodeOf(join(dir, "agent.sock")));
    expect(consoles).toContain(await inodeOf(join(dir, "console.log")));
    expect(records).toContain(await inodeOf(join(dir, "runtime.json")));
    expect(JSON.parse(await readFile(join(dir, "runtime.json"), "utf8"))).toEqual({ whose: "nobody's" });
    expect((await readdir(dir)).sort()).toEqual([
      "agent.sock",
      "console.log",
      "disk.img",
      "process.json",
      "runtime.json",
      "runtime.json.new",
    ]);
    const fields = await readFile(`/proc/${pid}/stat`, "utf8");
    const maker = fields.slice(fields.lastIndexOf(")") + 2).split(" ")[1] ?? "";
    expect(await agentSocketsOf(maker)).toEqual([]);
    expect(await agentSocketsOf(String(pid))).toHaveLength(1);
    await launcher.destroy(undo);
  });
});
