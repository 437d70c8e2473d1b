import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { exists } from "./missing.ts";
import { removeTree } from "./remove-tree.ts";

let place: string;
let outside: string;

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), "alcove-remove-"));
  outside = join(place, "outside");
  await mkdir(outside);
  await writeFile(join(outside, "kept"), "x");
});
afterEach(() => rm(place, { recursive: true }));

it("removes a tree, its links and not what they lead to", async () => {
  const tree = join(place, "-tree");
  await mkdir(join(tree, "a/b"), { recursive: true });
  await symlink(outside, join(tree, "a/b/link"));
  await removeTree(tree);
  expect(await exists(tree)).toBe(false);
  expect(await readdir(outside)).toEqual(["kept"]);
});

it("removes a link itself, and takes what is not there for removed", async () => {
  await symlink(outside, join(place, "link"));
  await removeTree(join(place, "link"));
  await removeTree(join(place, "nothing"));
  expect(await readdir(place)).toEqual(["outside"]);
  expect(await readdir(outside)).toEqual(["kept"]);
});
