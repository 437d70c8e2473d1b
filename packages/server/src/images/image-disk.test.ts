import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, expect, it, vi } from "vitest";
import { ImageDisk } from "./image-disk.ts";

const digest = `sha256:${"a".repeat(64)}`;
const folders: string[] = [];
afterEach(async () => {
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true, force: true });
});

async function diskWith(name: string) {
  const dataDir = await mkdtemp(path.join(tmpdir(), "alcove-image-disk-"));
  folders.push(dataDir);
  const disk = new ImageDisk({ dataDir });
  await disk.open();
  await using stack = new AsyncDisposableStack();
  const tree = path.join(await disk.temporary(stack), "made", "rootfs");
  await mkdir(tree, { recursive: true });
  const image = await disk.store(tree, { name, digest, sizeBytes: 1, config: { env: {} }, now: new Date() });
  return { disk, dataDir, image };
}

it("collect() puts a tree back for a spawn that wrote its record after the last look", async () => {
  const { disk, dataDir, image } = await diskWith("tiny:latest");
  await disk.forget(image.name);
  const users = disk.users.bind(disk);
  vi.spyOn(disk, "users").mockImplementationOnce(async (wanted) => {
    const found = await users(wanted);
    const runtime = path.join(dataDir, "runtimes", "native", "rt-1");
    await mkdir(runtime, { recursive: true });
    await writeFile(path.join(runtime, "runtime.json"), JSON.stringify({ rootfs: image.rootfs }));
    return found;
  });
  expect(await disk.collect(digest)).toEqual(["native/rt-1"]);
  expect(existsSync(image.rootfs)).toBe(true);
  await rm(path.join(dataDir, "runtimes"), { recursive: true });
  expect(await disk.collect(digest)).toEqual([]);
  expect(existsSync(image.rootfs)).toBe(false);
});

it("collect() puts a tree back that was given a name meanwhile", async () => {
  const { disk, image } = await diskWith("tiny:latest");
  await disk.forget(image.name);
  const users = disk.users.bind(disk);
  vi.spyOn(disk, "users").mockImplementationOnce(async (wanted) => {
    const found = await users(wanted);
    await disk.restore(image);
    return found;
  });
  await disk.collect(digest);
  expect(existsSync(image.rootfs)).toBe(true);
});

it("collect() puts a tree back when it cannot be told who uses it", async () => {
  const { disk, image } = await diskWith("tiny:latest");
  await disk.forget(image.name);
  const users = disk.users.bind(disk);
  let looks = 0;
  vi.spyOn(disk, "users").mockImplementation((wanted) => {
    looks += 1;
    return looks === 1 ? users(wanted) : Promise.reject(new Error("EACCES"));
  });
  await expect(disk.collect(digest)).rejects.toThrow("EACCES");
  expect(existsSync(image.rootfs)).toBe(true);
});
