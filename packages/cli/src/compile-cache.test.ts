import { existsSync } from "node:fs";
import { chmod, chown, mkdir, mkdtemp, readdir, rm, stat, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { compileCacheFolder } from "./compile-cache.cjs";
import { runCli } from "./testing/run-cli.ts";

let home: string;
beforeEach(async () => {
  home = await mkdtemp(path.join(tmpdir(), "alcove-home-"));
});
afterEach(() => rm(home, { recursive: true, force: true }));

describe("compiled code is kept", () => {
  test("in the user's own folder, closed to others, and never in the shared one for temporary files", async () => {
    const shared = path.join(home, "tmp");
    await mkdir(shared);
    const { code } = await runCli(["config", "--help"], {
      env: { TMPDIR: shared, HOME: home, XDG_CACHE_HOME: "", CACHE_DIRECTORY: "", NODE_COMPILE_CACHE: "" },
    });
    expect(code).toBe(0);
    expect(await readdir(shared)).toEqual([]);
    const folder = path.join(home, ".cache/alcove/compiled");
    expect(await readdir(folder)).toHaveLength(1);
    expect((await stat(folder)).mode & 0o777).toBe(0o700);
  });

  test("where systemd says, else where the desktop's rules say, else below the home", async () => {
    await mkdir(`${home}/a`);
    await mkdir(`${home}/x`);
    const env = { CACHE_DIRECTORY: `${home}/a:${home}/b`, XDG_CACHE_HOME: `${home}/x`, HOME: home };
    expect(compileCacheFolder(env)).toBe(`${home}/a/compiled`);
    expect(compileCacheFolder({ ...env, CACHE_DIRECTORY: "" })).toBe(`${home}/x/alcove/compiled`);
    expect(compileCacheFolder({ HOME: home })).toBe(`${home}/.cache/alcove/compiled`);
  });

  test("through a link to a folder of the user's", async () => {
    await mkdir(`${home}/elsewhere`);
    await symlink(`${home}/elsewhere`, `${home}/.cache`);
    expect(compileCacheFolder({ HOME: home })).toBe(`${home}/elsewhere/alcove/compiled`);
  });
});

describe("nothing compiled is read", () => {
  test("where there is no home, and none is made", () => {
    const missing = path.join(home, "nonexistent");
    for (const HOME of [missing, "", undefined, "relative"])
      expect(compileCacheFolder({ HOME })).toBeUndefined();
    expect(existsSync(missing)).toBe(false);
  });

  test.skipIf(process.getuid?.() !== 0)(
    "in the home of another user, where nothing is made (skipped without root)",
    async () => {
      await chown(home, 65_534, 65_534);
      expect(compileCacheFolder({ HOME: home })).toBeUndefined();
      expect(await readdir(home)).toEqual([]);
    },
  );

  test("from a folder that others may write, or that lies in one", async () => {
    const folder = path.join(home, ".cache/alcove/compiled");
    await mkdir(folder, { recursive: true, mode: 0o700 });
    for (const open of [folder, path.dirname(folder)]) {
      await chmod(open, 0o777);
      expect(compileCacheFolder({ HOME: home })).toBeUndefined();
      await chmod(open, 0o700);
    }
    expect(compileCacheFolder({ HOME: home })).toBe(folder);
  });

  test.skipIf(process.getuid?.() !== 0)(
    "from a folder that another user made, lies in, or links to (skipped without root)",
    async () => {
      const nobody = 65_534;
      const folder = path.join(home, ".cache/alcove/compiled");
      await mkdir(folder, { recursive: true, mode: 0o700 });
      for (const theirs of [folder, path.dirname(folder), home]) {
        await chown(theirs, nobody, nobody);
        expect(compileCacheFolder({ HOME: home })).toBeUndefined();
        await chown(theirs, 0, 0);
      }
      await rm(folder, { recursive: true });
      await mkdir(`${home}/theirs`);
      await chown(`${home}/theirs`, nobody, nobody);
      await symlink(`${home}/theirs`, folder);
      expect(compileCacheFolder({ HOME: home })).toBeUndefined();
    },
  );
});
