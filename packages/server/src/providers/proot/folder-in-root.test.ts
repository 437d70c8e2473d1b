import { chmod, lstat, mkdir, mkdtemp, readdir, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { folderInRoot } from "./folder-in-root.ts";

describe("folderInRoot()", () => {
  let place: string;
  let root: string;
  let outside: string;

  beforeEach(async () => {
    place = await mkdtemp(join(tmpdir(), "alcove-folder-"));
    root = join(place, "root");
    outside = join(place, "outside");
    await mkdir(root);
    await mkdir(outside);
    await chmod(outside, 0o700);
  });
  afterEach(() => rm(place, { recursive: true }));

  it("makes what is missing, with its mode whatever the umask is", async () => {
    await folderInRoot(root, "dev", 0o755);
    await folderInRoot(root, "dev/shm", 0o1777);
    expect((await lstat(join(root, "dev"))).mode & 0o7777).toBe(0o755);
    expect((await lstat(join(root, "dev/shm"))).mode & 0o7777).toBe(0o1777);
  });

  it("leaves a folder as it is", async () => {
    await mkdir(join(root, "tmp/kept"), { recursive: true });
    await chmod(join(root, "tmp"), 0o750);
    await folderInRoot(root, "tmp", 0o1777);
    expect((await lstat(join(root, "tmp"))).mode & 0o7777).toBe(0o750);
    expect(await readdir(join(root, "tmp"))).toEqual(["kept"]);
  });

  it.each([
    ["a link to a folder of the host in place of its parent", "dev", () => outside],
    ["a link out of the root in place of its parent", "dev", () => "../outside"],
    ["a link that leads nowhere in place of its parent", "dev", () => "/nowhere/at/all"],
    ["a link to a folder of the host in its own place", "dev/shm", () => outside],
    ["a link into nowhere of the host in its own place", "dev/shm", () => join(outside, "made")],
  ])("puts a folder in the place of %s", async (_what, name, target) => {
    if (name !== "dev") await mkdir(join(root, "dev"));
    await symlink(target(), join(root, name));
    await folderInRoot(root, "dev/shm", 0o1777);
    expect((await lstat(join(root, "dev"))).isDirectory()).toBe(true);
    expect((await lstat(join(root, "dev/shm"))).mode & 0o7777).toBe(0o1777);
    expect(await readdir(outside)).toEqual([]);
    expect((await stat(outside)).mode & 0o7777).toBe(0o700);
  });

  it("puts a folder in the place of a file", async () => {
    await writeFile(join(root, "run"), "");
    await folderInRoot(root, "run", 0o755);
    expect((await lstat(join(root, "run"))).isDirectory()).toBe(true);
  });

  it("never leads out while names change under it", async () => {
    let swaps = true;
    const swapping = (async () => {
      while (swaps) {
        await rm(join(root, "dev"), { recursive: true, force: true }).catch(() => undefined);
        await symlink(outside, join(root, "dev")).catch(() => undefined);
      }
    })();
    for (let n = 0; n < 500; n += 1) await folderInRoot(root, "dev/shm", 0o1777).catch(() => undefined);
    swaps = false;
    await swapping;
    expect(await readdir(outside)).toEqual([]);
    expect((await stat(outside)).mode & 0o7777).toBe(0o700);
  });
});
