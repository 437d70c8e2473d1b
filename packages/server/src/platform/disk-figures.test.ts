import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, it, vi } from "vitest";
import { FakeClock } from "../core/testing/fake-clock.ts";
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
