import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, open, rm, stat, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { RuntimeId } from "../../ports/index.ts";
import { type Seen, sharedOut } from "./holdings-share.ts";
import { heldByFile, hidesDescriptors, kernelHoldings } from "./kernel-holdings.ts";
import { bytesOfNobody, kernelMemoryOf } from "./kernel-memory.ts";
import { deviceName, fileKey, type LockSample, lockBytesOf, locksOf, sampleLocks } from "./lock-table.ts";
import { mappedFilesOf } from "./mapped-files.ts";
import { openFilesOf, pidNamespace, processesByNamespace } from "./open-files.ts";
import type { StandingStill } from "./standing-still.ts";
import { waitingCall, waitingCallsOf } from "./waiting-calls.ts";

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

  const seen = (id: string, change: Partial<Seen> = {}): Seen => ({
    runtimeId: id as RuntimeId,
    pids: [],
    device: undefined,
    files: new Map(),
    others: 0,
    hidden: 0,
    ...change,
  });
  const shares = (all: Seen[], sample: Partial<LockSample>, grownBytes = 1 << 30) =>
    [...sharedOut(all, { locks: locksOf(table), whole: true, bytes: undefined, ...sample }, grownBytes)].map(
      ([, bytes]) => bytes,
    );

  it("counts locks one by one while all were read, and a share of what locks take after that", () => {
    const one = [seen("rt-one", { pids: [77] })];
    expect(shares(one, {})).toEqual([256]);
    expect(shares(one, { whole: false })).toEqual([1 << 28]);
    expect(shares(one, { whole: false, bytes: 1 << 20 })).toEqual([1 << 18]);
    expect(shares(one, { whole: false, locks: [] })).toEqual([0]);
  });

  it("finds locks whose process has ended by the file system of their sandbox, or by what is open in it", () => {
    const all = [
      seen("rt-disk", { device: "0:63" }),
      seen("rt-open", { files: new Map([["254:0 10224119", 1]]) }),
      seen("rt-neighbour", { pids: [12_293, 78] }),
    ];
    expect(shares(all, {})).toEqual([512, 256, 0]);
  });

  it("has a file that was seen by chance stand for others that were not, and for no more locks than there are", () => {
    expect(shares([seen("rt-one", { files: new Map([["0:63 7", 1.5]]) })], {})).toEqual([3 * 256]);
    expect(shares([seen("rt-one", { files: new Map([["0:63 7", 900]]) })], {})).toEqual([4 * 256]);
  });

  it("has nobody answer with open directories for locks of which nobody knows whose they are", () => {
    const all = [seen("rt-one", { others: 3 * 2 ** 30 }), seen("rt-two", { others: 2 ** 30 })];
    expect(shares(all, {})).toEqual([3 << 28, 1 << 28]);
    expect(shares(all, { bytes: (1 << 30) - (1 << 20) })).toEqual([3 << 18, 1 << 18]);
    expect(shares(all, { bytes: 2 ** 31 })).toEqual([0, 0]);
  });

  it("has who may have files out of sight answer for what is left, locks among it", () => {
    const all = [
      seen("rt-one", { hidden: 3 * 2 ** 30 }),
      seen("rt-two", { hidden: 2 ** 30, others: 1 << 29 }),
    ];
    expect(shares(all, { bytes: 1 << 29 })).toEqual([3 << 27, (1 << 29) + (1 << 27)]);
    expect(shares([seen("rt-one", { hidden: 1 << 20 })], {})).toEqual([1 << 20]);
  });

  it("knows which calls have files while they wait", () => {
    expect(waitingCall("46 0x4 0x7fe63dec7110 0x0 0x4000 0x0 0x0 0x7f 0x7e\n", "x64")).toBe("send");
    expect(waitingCall("25 0x4 0x7\n", "arm64")).toBe("lock");
    for (const text of ["running\n", "-1 0x7f 0x7e\n", "460 0x4\n", ""])
      expect(waitingCall(text, "x64")).toBeUndefined();
  });

  it("finds threads of a process that wait for a lock", async () => {
    const folder = await mkdtemp(join(tmpdir(), "alcove-waits-"));
    const held = spawn("flock", [folder, "sh", "-c", "echo held; read -r end"], {
      stdio: ["pipe", "pipe", "ignore"],
    });
    await once(held.stdout, "data");
    const waits = spawn("flock", [folder, "true"], { stdio: "ignore" });
    try {
      await expect
        .poll(async () => [...(await waitingCallsOf([waits.pid ?? 0])).values()], { timeout: 10_000 })
        .toEqual(["lock"]);
      const [before, now] = [await waitingCallsOf([waits.pid ?? 0]), await waitingCallsOf([waits.pid ?? 0])];
      expect(now).toEqual(before);
      expect((await waitingCallsOf([0x3f_ffff])).size).toBe(0);
    } finally {
      held.stdin.end();
      await once(waits, "exit");
      await rm(folder, { recursive: true });
    }
  });

  it("knows what all locks of the machine take where it may", () => {
    const slabs =
      "slabinfo - version: 2.1\nfile_lock_cache      149    378    192   21    1 : tunables    0    0    0\n";
    expect(lockBytesOf(slabs)).toBe(378 * 192);
    expect(lockBytesOf("")).toBeUndefined();
  });

  it("tells what groups are not counted for where the kernel keeps it apart", () => {
    const slabs =
      "file_lock_cache      149    378    192   21    1 : tunables    0    0    0\n" +
      "filp                4045   5439    192   21    1 : tunables    0    0    0\n" +
      "kmalloc-rcl-256    90056 120512    256   16    1 : tunables    0    0    0\n" +
      "kmalloc-1k         93695    100   1024   16    4 : tunables    0    0    0\n" +
      "kmalloc-96         14210     10     96   42    1 : tunables    0    0    0\n";
    expect(bytesOfNobody(slabs)).toBeUndefined();
    const apart = `${slabs}kmalloc-cg-4k         209    224   4096    8    8 : tunables    0    0    0\n`;
    expect(bytesOfNobody(apart)).toBe(378 * 192 + 100 * 1024 + 960);
  });

  it("counts directories of whatever file system", async () => {
    const file = {
      kind: "directory",
      device: 1,
      inode: 1,
      size: 4_096,
      unlinked: false,
      path: "/",
      waiting: 0,
    } as const;
    const holder = { device: 2, lower: "/", hasDisk: true };
    expect(await heldByFile(file, holder)).toBe(4_096 * 26);
    expect(await heldByFile({ ...file, device: 2 }, holder)).toBeGreaterThan(4_096 * 26);
  });

  it("looks at directories of an image, and follows no link of it into the machine", async () => {
    const folder = await mkdtemp(join(tmpdir(), "alcove-lower-"));
    try {
      await mkdir(join(folder, "image", "own", "child"), { recursive: true });
      await mkdir(join(folder, "machine", "own", "child"), { recursive: true });
      await symlink(join(folder, "machine"), join(folder, "image", "link"));
      const held = (path: string) =>
        heldByFile(
          { kind: "directory", device: 1, inode: 1, size: 0, unlinked: false, path, waiting: 0 },
          { device: 1, lower: join(folder, "image"), hasDisk: true },
        );
      expect(await held("/own")).toBeGreaterThan(0);
      expect(await held("/")).toBeGreaterThan(0);
      expect(await held("/link")).toBe(0);
      expect(await held("/link/own")).toBe(0);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it("finds files that are mapped and not open any more", async () => {
    const { dev, ino } = await stat(process.execPath);
    const key = fileKey({ device: deviceName(dev), inode: ino });
    const wanted = new Set([key, "0:1 1"]);
    expect(await mappedFilesOf([process.pid], wanted)).toEqual(new Map([[key, 1]]));
    expect(await mappedFilesOf([0x3f_ffff], wanted)).toEqual(new Map());
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

  it("can be all that has grown where a socket waits in another, unless somebody may not be looked at who may have it open", () => {
    const waiting = {
      kind: "socket",
      device: 0,
      inode: 1,
      size: 0,
      unlinked: false,
      path: undefined,
      waiting: 1,
    } as const;
    const open = { sample: [waiting], each: 1, refused: false };
    expect(hidesDescriptors(open, [1])).toBe(false);
    for (const sockets of [[1, 2], undefined]) {
      expect(hidesDescriptors(open, sockets)).toBe(true);
      expect(hidesDescriptors({ ...open, refused: true }, sockets)).toBe(false);
    }
  });

  it("is nothing for a process that is gone", async () => {
    const gone = { runtimeId: "rt-gone" as RuntimeId, pid: 0x3f_ffff, lower: "/", hasDisk: true };
    expect(await kernelHoldings([gone], 1 << 30)).toEqual(new Map([["rt-gone", 0]]));
  });

  it("has twice as many sandboxes stand still whose processes come and go each time it was in vain", async () => {
    let stood = 0;
    let pid = 0x3f_0000;
    const still = {
      processes: async () => [pid++],
      begin: async () => {
        stood++;
        return { [Symbol.asyncDispose]: async () => undefined };
      },
    } as unknown as StandingStill;
    // A process with few open files.
    const sleeper = spawn("sleep", ["60"]);
    const holder = { pid: sleeper.pid ?? 0, lower: "/", hasDisk: true, still };
    const holders = Array.from({ length: 9 }, (_, i) => ({ ...holder, runtimeId: `rt-${i}` as RuntimeId }));
    const standing = async (inVain: number) => {
      stood = 0;
      await kernelHoldings(holders, 1 << 30, inVain);
      return stood;
    };
    try {
      expect(await standing(0)).toBe(0);
      expect(await standing(1)).toBe(4);
      expect(await standing(2)).toBe(8);
    } finally {
      sleeper.kill("SIGKILL");
    }
  });

  it("is told of those alone who could be looked at in time, and each has its turn", async () => {
    const ids = ["a", "b", "c", "d", "e", "f"];
    const holder = { pid: process.pid, lower: "/", hasDisk: true };
    const holders = ids.map((id) => ({ ...holder, runtimeId: id as RuntimeId }));
    const look = (mostMs: number) => kernelHoldings(holders, 1 << 30, 0, undefined, { mostMs });
    const seen = new Set<string>();
    for (let looks = 0; looks < 50 && seen.size < ids.length; looks += 1) {
      const { size } = await look(1).then((told) => {
        for (const id of told.keys()) seen.add(id);
        return told;
      });
      expect(size).toBeLessThan(ids.length);
    }
    expect([...seen].sort()).toEqual(ids);
    expect(await look(-1)).toEqual(new Map());
  });
});
