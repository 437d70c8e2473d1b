import { mkdir, mkdtemp, readdir, readlink, rename, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Unavailable } from "../../ports/index.ts";
import { HeldFolder } from "./held-folder.ts";

let base: string;
beforeEach(async () => {
  base = await mkdtemp(join(tmpdir(), "alcove-held-"));
});
afterEach(() => rm(base, { recursive: true }));

describe("a held folder", () => {
  it("may be missing until it was seen, and from then on has to stay the same one", async () => {
    const path = join(base, "folder");
    await using held = new HeldFolder(path);
    expect(await held.inSight()).toBe(false);
    await mkdir(path);
    expect(await held.inSight()).toBe(true);
    await rename(path, `${path}-away`);
    await expect(held.inSight()).rejects.toThrow(Unavailable);
    await mkdir(path);
    await expect(held.inSight()).rejects.toThrow(/is not the directory it was: .*bring the directory back/);
    await rm(path, { recursive: true });
    await rename(`${path}-away`, path);
    expect(await held.inSight()).toBe(true);
  });

  it("is not mistaken for one that was made anew in its place", async () => {
    const path = join(base, "folder");
    await mkdir(path);
    await using held = new HeldFolder(path);
    expect(await held.inSight()).toBe(true);
    for (let time = 0; time < 20; time++) {
      await rm(path, { recursive: true });
      await mkdir(path);
      await expect(held.inSight()).rejects.toThrow(Unavailable);
    }
  });

  it("takes one descriptor however many look at once, and none once it is let go", async () => {
    const ofBase = async () => {
      const names = await readdir("/proc/self/fd");
      const targets = names.map((name) => readlink(`/proc/self/fd/${name}`).catch(() => ""));
      return (await Promise.all(targets)).filter((target) => target === base).length;
    };
    const held = new HeldFolder(base);
    await Promise.all(Array.from({ length: 20 }, () => held.inSight()));
    expect(await ofBase()).toBe(1);
    await held[Symbol.asyncDispose]();
    await held[Symbol.asyncDispose]();
    expect(await ofBase()).toBe(0);
  });
});
