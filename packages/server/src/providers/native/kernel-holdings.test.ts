import { mkdtemp, open, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { RuntimeId } from "../../ports/index.ts";
import { heldByLocks, kernelHoldings, kernelMemoryOf } from "./kernel-holdings.ts";
import { deviceName, locksOf, sampleLocks } from "./lock-table.ts";
import { openFilesOf, pidNamespace, processesByNamespace } from "./open-files.ts";

const table =
  "1: POSIX  ADVISORY  READ 12294 fe:00:10224119 128 128\n" +
  "2: OFDLCK ADVISORY  WRITE -1 00:3f:7 0 EOF\n" +
  "2: -> POSIX  ADVISORY  WRITE 77 00:3f:7 0 EOF\n" +
  "3: FLOCK  ADVISORY  WRITE 900 103:00:12 0 EOF\n";

describe("what the kernel keeps for sandboxes", () => {
  it("is what it has for itself and cannot give back", () => {
    const meminfo =
      "MemTotal:       2048000 kB\nSlab: 9 kB\nSReclaimable: 8 kB\nSUnreclaim:       102400 kB\n";
    expect(kernelMemoryOf(meminfo)).toEqual({ totalMb: 2_000, uncountedMb: 100 });
  });

  it("finds locks with their process or, where they belong to an open file, with the file alone", () => {
    expect(locksOf(table)).toEqual([
      { pid: 12_294, device: "254:0", inode: 10_224_119 },
      { pid: undefined, device: "0:63", inode: 7 },
      { pid: 77, device: "0:63", inode: 7 },
      { pid: 900, device: "259:0", inode: 12 },
    ]);
  });

  it("names a device as the table of locks does", async () => {
    expect(deviceName(0xfe00)).toBe("254:0");
    expect(deviceName(0x10_0000 + 0x3f)).toBe("0:319");
    const folder = await mkdtemp(join(tmpdir(), "alcove-locks-"));
    try {
      const { dev } = await stat(folder);
      expect(deviceName(dev)).toMatch(/^\d+:\d+$/);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it("counts locks one by one while all were read, and a share of what has grown after that", () => {
    const locks = locksOf(table);
    const own = ({ pid }: { pid: number | undefined }) => pid === 77;
    expect(heldByLocks({ locks, whole: true }, 1 << 30, own)).toBe(256);
    expect(heldByLocks({ locks, whole: false }, 1 << 30, own)).toBe(1 << 28);
    expect(heldByLocks({ locks: [], whole: false }, 1 << 30, own)).toBe(0);
  });

  it("reads the table of this machine", async () => {
    expect((await sampleLocks()).locks.every(({ device }) => /^\d+:\d+$/.test(device))).toBe(true);
  });

  it("finds the processes of a namespace and what they have open, removed directories among it", async () => {
    const namespace = await pidNamespace(process.pid);
    expect((await processesByNamespace()).get(namespace ?? "")).toContain(process.pid);
    const folder = await mkdtemp(join(tmpdir(), "alcove-open-"));
    await using _directory = await open(folder);
    const { ino } = await stat(folder);
    const found = async () =>
      (await openFilesOf([process.pid])).sample.find(
        ({ kind, inode }) => kind === "directory" && inode === ino,
      );
    expect(await found()).toMatchObject({ unlinked: false, path: folder });
    await rm(folder, { recursive: true });
    expect(await found()).toMatchObject({ unlinked: true });
  });

  it("is nothing for a process that is gone", async () => {
    const gone = { runtimeId: "rt-gone" as RuntimeId, pid: 0x3f_ffff, lower: "/", hasDisk: true };
    expect(await kernelHoldings([gone], 1 << 30)).toEqual(new Map([["rt-gone", 0]]));
  });
});
