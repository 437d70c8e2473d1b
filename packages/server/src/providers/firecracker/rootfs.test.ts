import { existsSync } from "node:fs";
import { link, mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ext4Programs, storedImage } from "../../../test/support/agent-guest.ts";
import { mustRun } from "../../../test/support/programs.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { BadRequest, ProviderError, StorageFull } from "../../ports/index.ts";
import { Layers } from "./layer.ts";
import { RootfsImages } from "./rootfs.ts";

const options = () => ({ signal: AbortSignal.timeout(15_000) });

await describeWith(["linux", "mkfs"], "disks of microVMs", () => {
  const { mkfs, debugfs } = ext4Programs();
  let folder: string;
  let tree: string;
  let rootfs: string;
  const mounts: string[] = [];

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "alcove-rootfs-"));
    [tree, rootfs] = [join(folder, "tree"), join(folder, "rootfs")];
    await mkdir(join(tree, "etc"), { recursive: true });
    await writeFile(join(tree, "etc/motd"), "welcome\n", { mode: 0o640 });
    await writeFile(join(folder, "agent"), Buffer.alloc(300_000, "agent"), { mode: 0o711 });
  });
  afterEach(async () => {
    for (const mount of mounts.splice(0)) await mustRun("umount", [mount]);
    await rm(folder, { recursive: true, force: true });
  });

  const imagesWith = async (change: Partial<ConstructorParameters<typeof RootfsImages>[0]> = {}) => {
    const agent = { path: join(folder, "agent"), digest: "a".repeat(64) };
    const images = new RootfsImages({ folder: rootfs, agent, programs: { mkfs, debugfs }, ...change });
    await images.open();
    return images;
  };
  /** A program in place of mkfs.ext4. */
  const script = async (text: string) => {
    const path = join(folder, "mkfs");
    await writeFile(path, `#!/bin/sh\n${text}\n`, { mode: 0o755 });
    return { mkfs: path, debugfs };
  };
  const smallDisk = async (path: string, size: string) => {
    await mkdir(path);
    await mustRun("mount", ["-t", "tmpfs", "-o", `size=${size}`, "tmpfs", path]);
    mounts.push(path);
  };
  const ask = async (image: string, command: string) =>
    (await mustRun(debugfs, ["-R", command, image])).stdout;

  describe("RootfsImages", () => {
    it("makes an image of a tree with the agent in it, under a name of its content, agent and format", async () => {
      await symlink("motd", join(tree, "etc/link"));
      await link(join(tree, "etc/motd"), join(tree, "etc/other"));
      await writeFile(join(tree, "big"), Buffer.alloc(5_000_000, "x"));
      for (let index = 0; index < 300; index++) await writeFile(join(tree, "etc", `file-${index}`), "");
      const images = await imagesWith();
      const path = await images.get(storedImage(tree), options());
      expect(path).toBe(join(rootfs, `${"1".repeat(64)}-${"a".repeat(16)}-v1.ext4`));
      expect(await ask(path, "cat /etc/motd")).toBe("welcome\n");
      expect(await ask(path, "stat /etc/motd")).toMatch(/Mode: +0640 [\s\S]*Links: 2/);
      expect(await ask(path, "stat /etc/link")).toContain('Fast link dest: "motd"');
      expect(await ask(path, "stat /.alcove/alcove-agent")).toMatch(
        /Mode: +0711 [\s\S]*User: +0 +Group: +0 [\s\S]*Size: 300000/,
      );
      expect(await ask(path, "cat /.alcove/alcove-agent")).toBe(
        await readFile(join(folder, "agent"), "utf8"),
      );
      expect((await ask(path, "ls -p /etc")).match(/file-/g)).toHaveLength(300);
      expect(await ask(path, "ls /")).not.toContain("lost+found");
      await mustRun("e2fsck", ["-fn", path]);
      const { size, blocks, mode } = await stat(path);
      expect(mode & 0o777).toBe(0o444);
      expect(size).toBeLessThan(30 * 1024 ** 2);
      expect(blocks * 512).toBeLessThan(8 * 1024 ** 2);
      expect(await readdir(rootfs)).toHaveLength(1);

      const other = await imagesWith({ agent: { path: join(folder, "agent"), digest: "b".repeat(64) } });
      expect(other.nameOf(storedImage(tree))).not.toBe(images.nameOf(storedImage(tree)));
      expect(images.nameOf(storedImage(tree, "2"))).not.toBe(images.nameOf(storedImage(tree)));
      expect(await images.prune({ keep: new Set([images.nameOf(storedImage(tree))]) })).toEqual([]);
      expect(await images.prune({ keep: new Set() })).toEqual([images.nameOf(storedImage(tree))]);
      expect(existsSync(path)).toBe(false);
    });

    it("makes an image once for all who ask at once, and not again", async () => {
      const programs = await script(`echo run >> ${folder}/runs; exec ${mkfs} "$@"`);
      const images = await imagesWith({ programs });
      const paths = await Promise.all([1, 2, 3].map(() => images.get(storedImage(tree), options())));
      paths.push(await images.get(storedImage(tree), options()));
      expect(new Set(paths).size).toBe(1);
      expect(await readFile(join(folder, "runs"), "utf8")).toBe("run\n");
    });

    it("goes on for who still waits, and ends its program when the last leaves", async () => {
      const images = await imagesWith({ programs: await script(`echo $$ > ${folder}/pid; exec sleep 1000`) });
      const [one, other] = [new AbortController(), new AbortController()];
      const waiting = [one, other].map(({ signal }) =>
        images.get(storedImage(tree), { signal }).catch(String),
      );
      const pid = () => readFile(join(folder, "pid"), "utf8").catch(() => "");
      await expect.poll(pid).not.toBe("");
      const program = `/proc/${(await pid()).trim()}`;
      one.abort(new Error("one left"));
      expect(await waiting[0]).toBe("Error: one left");
      expect(existsSync(program)).toBe(true);
      other.abort(new Error("the other left"));
      expect(await waiting[1]).toBe("Error: the other left");
      await expect.poll(() => existsSync(program)).toBe(false);
      await expect.poll(() => readdir(rootfs)).toEqual([]);
    });

    it("gives up after its time", async () => {
      const images = await imagesWith({ programs: await script("exec sleep 1000"), buildMs: 200 });
      const built = images.get(storedImage(tree), options());
      await expect(built).rejects.toThrow(/image "tiny:latest" cannot be made: it took more than 0.2 s/);
      expect(await readdir(rootfs)).toEqual([]);
    });

    it("says what failed, and leaves nothing", async () => {
      const images = await imagesWith({ programs: await script("echo broken beyond repair >&2; exit 3") });
      const built = images.get(storedImage(tree), options());
      await expect(built).rejects.toThrow(ProviderError);
      await expect(built).rejects.toThrow(/image "tiny:latest" cannot be made: .*broken beyond repair/);
      expect(await readdir(rootfs)).toEqual([]);
      const { mkfs: without } = await script("true");
      const halved = await imagesWith({ programs: { mkfs: without, debugfs } });
      await expect(halved.get(storedImage(tree), options())).rejects.toThrow(/debugfs failed/);
      expect(await readdir(rootfs)).toEqual([]);
    });

    it("refuses an image that has the agent's folder itself, and the machine's own root", async () => {
      const images = await imagesWith();
      await symlink("/tmp", join(tree, ".alcove"));
      await expect(images.get(storedImage(tree), options())).rejects.toThrow(/has \/\.alcove itself/);
      const host = { ...storedImage(tree), name: "host", digest: "" };
      await expect(images.get(host, options())).rejects.toThrow(BadRequest);
    });

    it("removes what a process before it left unfinished", async () => {
      await mkdir(rootfs);
      await writeFile(join(rootfs, "whole.ext4"), "");
      for (const name of ["half.ext4.1-2.part", "half.ext4.1-2.part.commands"])
        await writeFile(join(rootfs, name), "");
      await imagesWith();
      expect(await readdir(rootfs)).toEqual(["whole.ext4"]);
    });
  });

  describe("Layers", () => {
    it("makes sparse disks that are apart, from one template for each size", async () => {
      const programs = await script(`echo run >> ${folder}/runs; exec ${mkfs} "$@"`);
      const layers = new Layers({ folder: join(folder, "layers"), mkfs: programs.mkfs });
      const paths = ["a.img", "b.img"].map((name) => join(folder, name));
      await Promise.all(paths.map((path) => layers.make(path, { sizeMb: 256, ...options() })));
      await layers.make(join(folder, "c.img"), { sizeMb: 64, ...options() });
      expect(await readFile(join(folder, "runs"), "utf8")).toBe("run\nrun\n");
      for (const path of paths) {
        const { size, blocks } = await stat(path);
        expect(size).toBe(256 * 1024 ** 2);
        expect(blocks * 512).toBeLessThan(2 * 1024 ** 2);
        await mustRun("e2fsck", ["-fn", path]);
      }
      expect((await stat(join(folder, "c.img"))).size).toBe(64 * 1024 ** 2);
      const [one = "", other = ""] = paths;
      await mustRun(debugfs, ["-w", "-R", "mkdir /mine", one]);
      expect(await ask(one, "ls /")).toContain("mine");
      expect(await ask(other, "ls /")).not.toContain("mine");
    });
  });

  describe.skipIf(process.getuid?.() !== 0)("on a full disk", () => {
    it("RootfsImages says so, and leaves nothing", async () => {
      await smallDisk(rootfs, "3m");
      await writeFile(join(tree, "big"), Buffer.alloc(5_000_000, "x"));
      const images = await imagesWith();
      const built = images.get(storedImage(tree), options());
      await expect(built).rejects.toThrow(StorageFull);
      await expect(built).rejects.toThrow(
        /image "tiny:latest" cannot be made: the disk of the data directory is full/,
      );
      expect(await readdir(rootfs)).toEqual([]);
      // What does not fit any more may be the agent alone.
      await rm(join(tree, "big"));
      await writeFile(join(folder, "agent"), Buffer.alloc(5_000_000, "agent"));
      await expect(images.get(storedImage(tree), options())).rejects.toThrow(StorageFull);
      expect(await readdir(rootfs)).toEqual([]);
    });

    it("Layers says so, and leaves nothing", async () => {
      const layers = new Layers({ folder: join(folder, "layers"), mkfs });
      await layers.make(join(folder, "a.img"), { sizeMb: 64, ...options() });
      const disk = join(folder, "disk");
      await smallDisk(disk, "8k");
      const made = layers.make(join(disk, "b.img"), { sizeMb: 64, ...options() });
      await expect(made).rejects.toThrow(StorageFull);
      expect(await readdir(disk)).toEqual([]);
      const nowhere = new Layers({ folder: join(disk, "layers"), mkfs });
      await expect(nowhere.make(join(folder, "c.img"), { sizeMb: 64, ...options() })).rejects.toThrow(
        StorageFull,
      );
      expect(await readdir(join(disk, "layers"))).toEqual([]);
    });
  });
});
