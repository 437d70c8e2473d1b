import { describe, expect, it } from "vitest";
import { chargedToNobody, countedInV1, countedInV2 } from "./counted-memory.ts";
import {
  heldByConnection,
  heldByDatagrams,
  heldIn,
  socketHoldings,
  socketsOf,
  unixSocketsIn,
  unixSocketsOf,
} from "./socket-holdings.ts";
import { machineMemoryOf, pagesKept } from "./uncounted-memory.ts";

const tcp = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:9C41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 17 1 0000000000000000 100 0 0 10 0
   1: 0100007F:9C41 0100007F:E5E6 08 00000000:00000003 00:00000000 00000000     0        0 0 1 0000000000000000 20 4 30 10 -1
  10: 0100007F:E5E6 0100007F:9C41 01 00010000:00000001 01:00000014 00000000     0        0 18 1 0000000000000000 20 4 30 10 -1
`;

describe("what sockets can hold", () => {
  it("finds Unix sockets, those not that nobody has accepted", () => {
    const table =
      "Num       RefCount Protocol Flags    Type St Inode Path\n" +
      "0000000072bcf164: 00000003 00000000 00000000 0001 03 16375842\n" +
      "0000000072bcf165: 00000003 00000000 00000000 0001 02     0\n" +
      "00000000fb6bd61b: 00000002 00000000 00010000 0001 01    89 /tmp/docker.sock\n";
    expect(unixSocketsOf(table)).toEqual([16_375_842, 89]);
  });

  it("has no sockets of the machine's own network wait for anybody", async () => {
    expect(await unixSocketsIn(process.pid)).toEqual([]);
    expect(await unixSocketsIn(0x3f_ffff)).toEqual([]);
  });

  it("counts both kinds of addresses", () => {
    const sockstat =
      "sockets: used 20\nTCP: inuse 3 orphan 1 tw 9 alloc 5 mem 7\nUDP: inuse 2 mem 1\nUDPLITE: inuse 8\n" +
      "RAW: inuse 4\nFRAG: inuse 0 memory 0\nTCP6: inuse 4\nUDP6: inuse 5\nUDPLITE6: inuse 0\n";
    expect(socketsOf(sockstat)).toEqual({ connections: 7, datagrams: 7 });
  });

  it("adds up connections by the bytes that wait, each queue up to what it has room for", () => {
    expect(heldIn(tcp, heldByConnection)).toBe(4 * 32_768 + (34 << 20));
  });

  it("adds up datagrams by what is counted of them", () => {
    expect(heldByDatagrams(0, 212_992)).toBeGreaterThan(62 << 20);
    expect(heldByDatagrams(256, 0)).toBe(17 * 32_768);
  });

  it("takes the machine's own network and processes that are gone for nothing", async () => {
    expect(await socketHoldings(process.pid)).toBe(0);
    expect(await socketHoldings(2 ** 30)).toBe(0);
  });
});

it("memory in use is counted for nobody when no field of meminfo explains it", () => {
  const meminfo =
    "MemTotal:       10240000 kB\nMemFree:         2048000 kB\nMemAvailable:    9000000 kB\nBuffers:            1024 kB\n" +
    "Cached:          1023000 kB\nActive(anon):    3000000 kB\nAnonPages:       3072000 kB\nSlab:            1024000 kB\n" +
    "SReclaimable:    1000000 kB\nHugePages_Total:       0\n";
  const { totalMb, uncountedMb } = machineMemoryOf(meminfo);
  expect(totalMb).toBe(10_000);
  expect(Math.round(uncountedMb)).toBe(
    Math.round((10_240_000 - 2_048_000 - 1_024 - 1_023_000 - 3_072_000 - 1_024_000) / 1_024),
  );
});

it("what control groups count and meminfo does not explain is told apart, with both versions", () => {
  const stat = "anon 100\nfile 200\nkernel 5000\nkernel_stack 10\npagetables 20\nslab 300\nsock 7\n";
  expect(countedInV2(6_637, stat)).toBe(6_000);
  expect(countedInV2(100, stat)).toBe(0);
  const group = { usage: 10_000_000, kernel: 6_000_000, allKernel: 9_000_000, nobodys: 0 };
  const of = (meminfo: string) =>
    countedInV1({ ...group, stat: "cache 1\ntotal_cache 1000\ntotal_rss 2000\n" }, meminfo);
  // Of the machine's 4,096,000 others have 3,000,000.
  expect(of("Slab:  3000 kB\nPageTables: 1000 kB\n")).toBe(10_000_000 - 3_000 - 1_096_000);
  expect(of("Slab: 100 kB\n")).toBe(10_000_000 - 3_000);
});

it("what the kernel has for nobody explains nothing of what control groups of v1 count", () => {
  const before = "Slab: 9000 kB\nPageTables: 1000 kB\n";
  const nobodys = chargedToNobody(3_000_000, before);
  expect(nobodys).toBe(10_240_000 - 3_000_000);
  const group = { usage: 6_500_000, stat: "total_cache 0\ntotal_rss 500000\n", nobodys };
  // Of 6,000,000 that the kernel took for the group since, the machine's fields explain 1,024,000.
  expect(
    countedInV1({ ...group, kernel: 6_000_000, allKernel: 9_000_000 }, `${before}KernelStack: 1000 kB\n`),
  ).toBe(6_000_000 - 1_024_000);
  expect(chargedToNobody(11_000_000, before)).toBe(0);
});

it("pages that processors keep for themselves are free", () => {
  const zoneinfo =
    "Node 0, zone   Normal\n  pages free     2752865\n  pagesets\n    cpu: 0\n              count:    184356\n" +
    "              high:     184773\n    cpu: 1\n              count:    44\n";
  expect(pagesKept(zoneinfo)).toBe(184_400);
});

it("stacks of the kernel that it maps for itself are not taken for explained twice", () => {
  const meminfo = (stacks: number, mapped: number) =>
    `MemTotal: 1024000 kB\nMemFree: 0 kB\nKernelStack: ${stacks} kB\nVmallocUsed: ${mapped} kB\n`;
  expect(machineMemoryOf(meminfo(102_400, 204_800)).uncountedMb).toBe(800);
  expect(machineMemoryOf(meminfo(102_400, 1_024)).uncountedMb).toBe(899);
});
