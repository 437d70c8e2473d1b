import { mkdir, mkdtemp, readdir, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { MachineSnapshots, type SnapshotSubject } from "./machine-snapshots.ts";

let folder: string;
let snapshots: MachineSnapshots;
let subject: SnapshotSubject;
const options = () => ({ signal: AbortSignal.timeout(10_000), owner: undefined });

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-snapshots-"));
  snapshots = new MachineSnapshots({ folder: join(folder, "kept") });
  const kernel = join(folder, "vmlinux");
  await writeFile(kernel, "a kernel");
  subject = {
    rootfs: "image-agent-v1.ext4",
    memoryMb: 256,
    vcpus: 1,
    bootArguments: "quiet",
    files: [kernel],
    bounds: [1024, 0],
  };
});
afterEach(() => rm(folder, { recursive: true }));

/** A snapshot of what a machine left in its folder. */
async function keep(key: string, rootfs = subject.rootfs): Promise<void> {
  const machine = join(folder, `machine-${key}`);
  await mkdir(machine);
  for (const name of ["state", "memory", "layer.img", "root.img"]) await writeFile(join(machine, name), name);
  await snapshots.keep(key, machine, { image: "tiny:1", kernel: "/boot/vmlinux", rootfs });
}

it("has another key for anything that makes another machine", async () => {
  const key = await snapshots.keyOf(subject);
  expect(await snapshots.keyOf({ ...subject })).toBe(key);
  const changes: Partial<SnapshotSubject>[] = [
    { rootfs: "image-another-agent-v1.ext4" },
    { memoryMb: 512 },
    { vcpus: 2 },
    { bootArguments: "quiet pids=2" },
    { bounds: [2048, 0] },
  ];
  const others = await Promise.all(changes.map((change) => snapshots.keyOf({ ...subject, ...change })));
  await writeFile(subject.files[0] ?? "", "another kernel");
  others.push(await snapshots.keyOf(subject));
  expect(new Set([key, ...others]).size).toBe(changes.length + 2);
});

it("gives a machine what it is restored from, a layer of its own, and the very root that the memory knows", async () => {
  await keep("one");
  const machine = join(folder, "restored");
  await mkdir(machine);
  for (const name of ["layer.img", "root.img"]) await writeFile(join(machine, name), "made again");
  await snapshots.lend("one", machine, options());
  const inode = async (path: string) => (await stat(join(folder, path))).ino;
  for (const name of ["state", "memory", "root.img"])
    expect(await inode(`restored/${name}`), name).toBe(await inode(`kept/one/${name}`));
  expect(await inode("restored/layer.img")).not.toBe(await inode("kept/one/layer.img"));
  expect((await stat(join(machine, "layer.img"))).mode & 0o777).toBe(0o600);
});

it("keeps those that were used of late, however many others are made", async () => {
  await keep("used");
  for (let index = 10; index < 30; index++) {
    await keep(`of-${index}`);
    const machine = join(folder, `restored-${index}`);
    await mkdir(machine);
    await snapshots.lend("used", machine, options());
  }
  expect(await snapshots.has("used")).toBe(true);
  expect(await snapshots.has("of-10")).toBe(false);
});

it("removes those of images and agents that are gone, what was left unfinished, and the oldest beyond sixteen", async () => {
  await keep("of-older-agent", "image-older-v1.ext4");
  for (let index = 10; index < 27; index++) await keep(`of-${index}`);
  expect(await snapshots.has("of-older-agent")).toBe(false);
  expect(await snapshots.has("of-10")).toBe(false);
  expect(await snapshots.has("of-11")).toBe(true);
  expect((await snapshots.list()).map(({ image, kernel }) => `${image} ${kernel}`)).toEqual(
    Array.from({ length: 16 }, () => "tiny:1 vmlinux"),
  );
  await snapshots.discard("of-11");
  await keep("of-older-agent-2", "image-older-v1.ext4");
  await snapshots.prune({ keep: new Set([subject.rootfs]) });
  expect(await snapshots.has("of-older-agent-2")).toBe(false);
  await mkdir(join(folder, "kept/of-x.draft-1"));
  await snapshots.open();
  expect((await readdir(join(folder, "kept"))).filter((name) => name.includes("draft"))).toEqual([]);
  expect(await snapshots.has("of-26")).toBe(true);
});

it("has none where none was made, and takes a damaged one for none", async () => {
  expect(await snapshots.list()).toEqual([]);
  await keep("one");
  await writeFile(join(folder, "kept/one/info.json"), '{"version":2}');
  expect(await snapshots.has("one")).toBe(false);
  await writeFile(join(folder, "kept/one/info.json"), "{");
  expect(await snapshots.has("one")).toBe(false);
});
