import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, it, vi } from "vitest";
import { FakeClock, settle } from "../core/testing/fake-clock.ts";
import { DiskFigures } from "./disk-figures.ts";

it("tells the room of each disk, and nothing of one that is gone", async () => {
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-disks-"));
  const clock = new FakeClock();
  using disks = new DiskFigures({ folders: { data: folder, database: "/proc/none" }, clock });
  await vi.waitUntil(() => disks.all.length > 0);
  const [data, ...others] = disks.all;
  expect([data?.name, others]).toEqual(["data", []]);
  expect(data?.freeBytes).toBeGreaterThan(0);
  expect(data?.sizeBytes).toBeGreaterThanOrEqual(data?.freeBytes ?? 0);
  await rm(folder, { recursive: true });
  await clock.advance(15_000);
  await vi.waitUntil(() => disks.all.length === 0);
});

it("a file system that hangs is told as it was, asked once, and holds up no other", async () => {
  const clock = new FakeClock();
  const room = { bavail: 1, blocks: 2, bsize: 512, ffree: 7, files: 0 };
  let hangs = false;
  const asked: string[] = [];
  const statfs = (folder: string) => {
    asked.push(folder);
    if (hangs && folder === "/far") return new Promise<never>(() => undefined);
    return Promise.resolve({ ...room, ...(hangs ? { bavail: 2, files: 9 } : {}) });
  };
  using disks = new DiskFigures({ folders: { data: "/far", database: "/near" }, clock, statfs });
  await settle();
  hangs = true;
  await clock.advance(45_000);
  await settle();
  expect(disks.all).toEqual([
    { name: "data", freeBytes: 512, sizeBytes: 1_024, freeInodes: undefined },
    { name: "database", freeBytes: 1_024, sizeBytes: 1_024, freeInodes: 7 },
  ]);
  expect(asked.filter((folder) => folder === "/far")).toHaveLength(2);
});
