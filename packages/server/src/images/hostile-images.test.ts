import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { crc32, gzipSync } from "node:zlib";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { describeWith } from "../../test/support/requirements.ts";
import { openImageStore } from "../images.ts";
import { silentLogger } from "../platform/logger.ts";
import { readTar } from "../platform/tar/tar-reader.ts";
import { writeLayer } from "./layer-writer.ts";
import { savedImageOf, sha256 } from "./testing/saved-image.ts";
import { type TestMember, tarOf } from "./testing/tar.ts";
import type { UnpackLimits } from "./unpack-budget.ts";
import { unpackApart } from "./unpacker.ts";

const options = {
  /** One for each call. */
  get signal() {
    return AbortSignal.timeout(120_000);
  },
};
let dataDir: string;
beforeEach(() => {
  dataDir = fs.mkdtempSync(path.join(os.tmpdir(), "alcove-hostile-"));
});
afterEach(() => {
  const left = fs.existsSync(path.join(dataDir, "images"))
    ? ["tmp", "rootfs", "names"].flatMap((name) => fs.readdirSync(path.join(dataDir, "images", name)))
    : [];
  fs.rmSync(dataDir, { recursive: true, force: true });
  expect(left).toEqual([]);
});

async function importOf(tar: Buffer, limits: Partial<UnpackLimits>): Promise<unknown> {
  const source = path.join(dataDir, "image.tar");
  fs.writeFileSync(source, tar);
  const store = await openImageStore({
    dataDir,
    aliases: {},
    pullPolicy: "never",
    limits,
    logger: silentLogger,
  });
  return store.importFrom(source, "hostile", options).catch((error: unknown) => error);
}

describe("a hostile image", () => {
  it("is refused when it unpacks to more bytes than allowed, however small it is packed", async () => {
    const bomb = gzipSync(tarOf([{ name: "zeros", content: Buffer.alloc(4 << 20) }]));
    expect(bomb.length).toBeLessThan(20_000);
    expect(await importOf(bomb, { maxUnpackedBytes: 1 << 20 })).toMatchObject({
      code: "too_large",
      message: expect.stringContaining("images.max_unpacked"),
    });
    const layered = savedImageOf([tarOf([{ name: "a", content: Buffer.alloc(1 << 20) }]), bomb]);
    expect(await importOf(layered, { maxUnpackedBytes: 2 << 20 })).toMatchObject({ code: "too_large" });
  });

  it("is refused when it holds more entries than allowed, made parents included", async () => {
    const flat = Array.from({ length: 30 }, (_, index): TestMember => ({ name: `f${index}` }));
    const refused = { code: "too_large", message: expect.stringContaining("images.max_entries") };
    expect(await importOf(tarOf(flat), { maxEntries: 20 })).toMatchObject(refused);
    const deep = tarOf([{ name: `${"d/".repeat(30)}f` }]);
    expect(await importOf(deep, { maxEntries: 20 })).toMatchObject(refused);
  });

  it("is refused while the disk has to keep what is free", async () => {
    const tar = tarOf([{ name: "file", content: "x" }]);
    expect(await importOf(tar, { keepFreeBytes: 2 ** 60 })).toMatchObject({
      code: "storage_full",
      message: expect.stringContaining("are free below data_dir"),
    });
  });

  it("is refused when its headers go on without end", async () => {
    const noise = "k".repeat(30_000);
    const pax = Array.from({ length: 10 }, () => `${noise}=v`);
    const tar = gzipSync(tarOf(Array.from({ length: 20 }, (_, n): TestMember => ({ name: `f${n}`, pax }))));
    expect(await importOf(tar, { maxUnpackedBytes: 1 << 20, maxEntries: 100 })).toMatchObject({
      code: "bad_request",
      message: expect.stringContaining("longer than what images may unpack to"),
    });
  });

  it("has one bound on the length of its layers together, and one on their number", async () => {
    const pax = Array.from({ length: 10 }, (_, n) => `k${n}=${"v".repeat(30_000)}`);
    const layer = tarOf([{ name: "f", pax }]);
    const limits = { maxUnpackedBytes: 1 << 20, maxEntries: 100 };
    const diffIds = Array<string>(12).fill(`sha256:${sha256(layer)}`);
    expect(await importOf(savedImageOf(Array(12).fill(gzipSync(layer)), { diffIds }), limits)).toMatchObject({
      code: "bad_request",
      message: expect.stringContaining("longer than what images may unpack to"),
    });
    expect(await importOf(savedImageOf(Array(257).fill(tarOf([]))), {})).toMatchObject({
      code: "bad_request",
      message: "the image has 257 layers; 256 are allowed",
    });
  });

  it.each([
    ["more variables than a sandbox may have", { env: Array<string>(4_097).fill("A=1") }, "4097 variables"],
    ["variables that no launch has room for", { env: [`A=${"x".repeat(300_000)}`] }, "300006 bytes as JSON"],
    [
      "a configuration of a million values",
      { history: Array(1_000_000).fill([]) },
      "config.json in the archive",
    ],
  ])("is refused with %s", async (_what, change, why) => {
    expect(await importOf(savedImageOf([tarOf([])], change), {})).toMatchObject({
      code: "bad_request",
      message: expect.stringContaining(why),
    });
  });

  it("is refused when it was packed so that unpacking takes more memory than there is for it", async () => {
    // Of xz: a block whose dictionary has 1.5 GiB, in the header that says so.
    const tar = path.join(dataDir, "a.tar");
    fs.writeFileSync(tar, tarOf([{ name: "file", content: "x" }]));
    const packed = execFileSync("xz", ["-c", "--lzma2=dict=4KiB", tar]);
    // The block's header follows the stream's 12 bytes: its size, flags, the filter's id and the size of its properties; then the dictionary's.
    const head = packed.subarray(12, 24);
    head[4] = 37;
    head.writeUInt32LE(crc32(head.subarray(0, 8)), 8);
    expect(await importOf(packed, {})).toMatchObject({
      code: "bad_request",
      message: expect.stringMatching(/Memory usage limit/i),
    });
  });

  it.each([
    ["a name", { name: "f", pax: [`path=bin/${"x".repeat(300)}`] }],
    ["a path", { name: "f", pax: [`path=${"d/".repeat(2_040)}f`] }],
    ["an owner", { name: "f", pax: [`uid=${2 ** 40}`] }],
  ])("is refused with %s that no file can have, without a word of this machine", async (_what, member) => {
    const failure = await importOf(tarOf([member]), {});
    expect(failure).toMatchObject({ code: "bad_request" });
    expect(String(failure)).not.toContain(dataDir);
  });

  it("is unpacked by a process of its own, which an abort ends", async () => {
    const root = path.join(dataDir, "root");
    fs.mkdirSync(root);
    const caller = new AbortController();
    const reason = new Error("left");
    const limits = { maxUnpackedBytes: 1 << 20, maxEntries: 10, keepFreeBytes: 0 };
    const work = unpackApart(
      { kind: "tar", root, limits },
      { source: endless(caller.signal), signal: caller.signal, onBytes: () => undefined },
    );
    const unpackers = () => childrenOfMine().filter((line) => line.includes("unpack-process.ts"));
    await expect.poll(unpackers, { timeout: 20_000 }).toHaveLength(1);
    caller.abort(reason);
    await expect(work).rejects.toBe(reason);
    expect(unpackers()).toEqual([]);
  });
});

describe("reading a tar", () => {
  it("keeps of pax headers only what is known", async () => {
    const noise = Array.from(
      { length: 200 },
      (_, index) => `LIBARCHIVE.xattr.k${index}=${"v".repeat(1_000)}`,
    );
    const tar = tarOf([{ name: "short", content: "x", pax: [...noise, "path=a/long/name", "mtime=12.5"] }]);
    const found = [];
    for await (const { header } of readTar(chunksOf(tar))) found.push(header);
    expect(found).toMatchObject([{ name: "a/long/name", mtime: 12.5, size: 1 }]);
  });

  it("refuses a sparse member whatever else its header says", async () => {
    const tar = tarOf([{ name: "sparse", pax: ["GNU.sparse.major=1", "path=x"] }]);
    await expect(readTar(chunksOf(tar)).next()).rejects.toThrow("of a kind that cannot be read");
  });
});

describe("whiteouts", () => {
  it("cost as much as there are, not that squared", async () => {
    const root = path.join(dataDir, "root");
    const count = 6_000;
    const members: TestMember[] = [];
    // Every whiteout hides a directory that this layer fills again: the search for what is new was over all of it.
    for (let index = 0; index < count; index += 1) members.push({ name: `d/f${index}` });
    for (let index = 0; index < count; index += 1) members.push({ name: "d/.wh..wh..opq" });
    for (let index = 0; index < count; index += 1) members.push({ name: ".wh.d" });
    fs.mkdirSync(root);
    const before = process.cpuUsage();
    await writeLayer(chunksOf(tarOf(members)), { ...options, root, whiteouts: true });
    const { user, system } = process.cpuUsage(before);
    expect(fs.readdirSync(path.join(root, "d"))).toHaveLength(count);
    // Squared it took most of a minute; a second is what it takes.
    expect((user + system) / 1_000).toBeLessThan(12_000);
  });

  it("hide what lies below and keep what the layer brings, in any order", async () => {
    const root = path.join(dataDir, "root");
    fs.mkdirSync(path.join(root, "a/b"), { recursive: true });
    for (const name of ["a/old", "a/b/old", "gone"]) fs.writeFileSync(path.join(root, name), "");
    const tar = tarOf([
      { name: "a/b/new" },
      { name: ".wh.a" },
      { name: ".wh.a" },
      { name: ".wh.gone" },
      { name: "a/later" },
    ]);
    await writeLayer(chunksOf(tar), { ...options, root, whiteouts: true });
    expect(fs.readdirSync(root)).toEqual(["a"]);
    expect(fs.readdirSync(path.join(root, "a")).sort()).toEqual(["b", "later"]);
    expect(fs.readdirSync(path.join(root, "a/b"))).toEqual(["new"]);
  });
});

await describeWith(["root"], "images of a rooted service", () => {
  it("are out of reach of the machine's other users", async () => {
    await openImageStore({ dataDir, aliases: {}, pullPolicy: "never", logger: silentLogger });
    expect(fs.statSync(path.join(dataDir, "images")).mode & 0o777).toBe(0o700);
  });
});

async function* chunksOf(data: Buffer): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < data.length; at += 65_536) yield data.subarray(at, at + 65_536);
}

/** A tar that begins and does not go on. */
async function* endless(signal: AbortSignal): AsyncGenerator<Uint8Array> {
  yield tarOf([{ name: "file", content: "x" }]).subarray(0, 1_024);
  await new Promise((_resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}

/** Command lines of this process's children. */
function childrenOfMine(): string[] {
  const lines: string[] = [];
  for (const task of fs.readdirSync("/proc/self/task")) {
    const pids = fs.readFileSync(`/proc/self/task/${task}/children`, "utf8").split(" ");
    for (const pid of pids) {
      if (pid !== "" && fs.existsSync(`/proc/${pid}`)) lines.push(commandLine(pid));
    }
  }
  return lines;
}

function commandLine(pid: string): string {
  try {
    return fs.readFileSync(`/proc/${pid}/cmdline`, "utf8");
  } catch {
    return "";
  }
}
